"""The request log: real files that grow, rotate, shrink and lie; each figure is of one instance."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferops.core import profile as profiles
from inferops.core import requestlog
from inferops.core.poll import RequestsSeen
from inferops.core.requestlog import Lines, RequestLog, boottime_of
from inferops.core.verdict import BlindError

NINFER = profiles.load("ninfer")
WALL = 1_790_000_000.0  # at BOOTTIME 0 of these tests
A, B = "a1b2", "c3d4"


def record(event: str, t: float, request: int | None = None, instance: str = A, **more: Any) -> str:
    """One line of the log; `t` is BOOTTIME, as long as no clock jumps."""
    whole = {"event": event, "timestamp_unix_ms": (WALL + t) * 1000, "server_instance_id": instance, **more}
    return json.dumps(whole | ({} if request is None else {"request": {"request_id": request}})) + "\n"


def start(request: int, t: float, instance: str = A) -> str:
    return record("request_start", t, request, instance)


def done(request: int, t: float, tokens: int = 5, instance: str = A) -> str:
    return record("request_done", t, request, instance, result={"completion_tokens": tokens})


def failed(request: int, t: float, status: int = 500) -> str:
    return record("request_error", t, request, http_status=status)


class Log:
    """A log on disk and its follower."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.follower = RequestLog(str(path), NINFER)

    def add(self, *lines: str) -> None:
        with self.path.open("a") as file:
            file.writelines(lines)

    def look(self, now: float, jumped: float = 0.0) -> RequestsSeen | None:
        """A read at `now`, the wall clock `jumped` seconds off; no trouble is expected."""
        assert self.follower.read(now, WALL + now + jumped) == []
        return self.follower.tally(A)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path / "requests.jsonl")
    yield log
    log.follower.close()


def test_ends_are_counted_by_how_they_ended_and_open_ones_are_known(log: Log) -> None:
    log.add(record("server_start", 1.0))
    assert log.look(10.0) == RequestsSeen()
    log.add(start(1, 11.0), start(2, 12.0), start(3, 13.0), start(4, 14.0), start(5, 15.0))
    assert log.look(16.0) == RequestsSeen(open=5, oldest_t=11.0)
    log.add(done(1, 17.0), failed(2, 18.0), failed(3, 19.0, 400), done(4, 19.5, tokens=0))
    assert log.look(20.0) == RequestsSeen(done=1, done_t=17.0, failed=1, failed_t=18.0, other=2, open=1, oldest_t=15.0,
                                          failing=1, failing_t=18.0)  # fmt: skip
    assert log.look(30.0) == log.look(40.0), "nothing was written"


def test_what_ended_before_the_first_look_is_not_counted_and_what_is_open_is(log: Log) -> None:
    log.add(start(1, 1.0), start(2, 2.0), done(1, 3.0), failed(9, 4.0))
    assert log.look(10.0) == RequestsSeen(open=1, oldest_t=2.0)


def test_a_rejected_request_ends_only_the_one_that_it_names(log: Log) -> None:
    log.add(start(1, 1.0), start(2, 2.0))
    log.look(3.0)
    log.add(record("request_rejected", 4.0, status=429))
    assert log.look(5.0) == RequestsSeen(other=1, open=2, oldest_t=1.0)
    log.add(record("request_rejected", 6.0, 1, status=400))
    assert log.look(7.0) == RequestsSeen(other=2, open=1, oldest_t=2.0)


def test_a_log_without_starts_tells_ends_only(log: Log) -> None:
    log.add(record("server_start", 0.0))
    log.look(1.0)
    log.add(done(1, 2.0))
    assert log.look(3.0) == RequestsSeen(done=1, done_t=2.0)


def test_instances_never_mix(log: Log) -> None:
    log.add(record("server_start", 0.0), start(1, 1.0), start(1, 2.0, B), start(7, 2.5, B))
    log.look(3.0)
    log.add(done(1, 4.0, instance=B), failed(1, 5.0))
    assert log.look(6.0) == RequestsSeen(failed=1, failed_t=5.0, open=0, failing=1, failing_t=5.0)
    assert log.follower.tally(B) == RequestsSeen(done=1, done_t=4.0, open=1, oldest_t=2.5)
    assert log.follower.tally("of-nobody") is None
    assert log.follower.tally(None) is None


def test_only_so_many_instances_and_open_requests_are_kept(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requestlog, "INSTANCES_MAX", 3)
    monkeypatch.setattr(requestlog, "OPEN_MAX", 2)
    log.add(*(record("server_start", 0.0, instance=name) for name in (A, "x", "y")))
    log.add(start(1, 1.0), start(2, 2.0), start(3, 3.0), record("server_start", 4.0, instance="z"))
    assert log.look(5.0) == RequestsSeen(open=2, oldest_t=2.0)
    assert [log.follower.tally(name) is None for name in ("x", "y", "z")] == [True, False, False]


def test_a_half_written_line_waits_for_its_end(log: Log) -> None:
    log.add(record("server_start", 0.0))
    log.look(1.0)
    line = done(1, 2.0)
    log.add(line[:40])
    assert log.look(3.0) == RequestsSeen()
    log.add(line[40:-1])
    assert log.look(4.0) == RequestsSeen()
    log.add("\n")
    assert log.look(5.0) == RequestsSeen(done=1, done_t=4.0), "written after the look before, whatever it says"


@pytest.mark.parametrize("copied", [False, True])
def test_rotation_by_rename_and_by_truncation_lose_nothing(log: Log, copied: bool) -> None:
    log.add(start(1, 1.0), start(2, 2.0))
    log.look(3.0)
    log.add(done(1, 4.0))
    if copied:
        log.add(done(2, 4.0))
        assert log.look(4.5) == RequestsSeen(done=2, done_t=4.0, open=0)
        os.truncate(log.path, 0)
        log.add(start(3, 5.0), done(3, 5.0))
        assert log.look(6.0) == RequestsSeen(done=3, done_t=5.0, open=0)
        return
    log.path.rename(log.path.with_suffix(".1"))
    log.add(done(2, 5.0))
    assert log.look(6.0) == RequestsSeen(done=2, done_t=5.0, open=0)


def test_what_is_open_when_the_file_is_cut_short_may_have_ended_unread(log: Log) -> None:
    log.add(start(1, 1.0), start(2, 2.0))
    log.look(3.0)
    log.add(done(1, 4.0))
    os.truncate(log.path, 0)
    log.add(start(3, 5.0))
    assert log.look(6.0) == RequestsSeen(open=1, oldest_t=5.0)


def test_an_id_that_comes_again_is_another_request(log: Log) -> None:
    log.add(start(1, 1.0), start(2, 2.0))
    log.look(3.0)
    log.add(start(1, 4.0))
    assert log.look(5.0) == RequestsSeen(open=2, oldest_t=2.0)
    log.add(done(2, 6.0))
    assert log.look(7.0) == RequestsSeen(done=1, done_t=6.0, open=1, oldest_t=4.0)


def test_while_the_new_file_is_empty_the_old_one_is_followed(log: Log) -> None:
    log.add(start(1, 1.0))
    log.look(2.0)
    old = log.path.with_suffix(".1")
    log.path.rename(old)
    [trouble] = log.follower.read(3.0, WALL + 3.0)
    assert trouble.endswith("is gone from its place; the one that was there is still read")
    log.path.touch()  # as logrotate's `create` does, while the engine keeps the old one open
    assert log.look(4.0) == RequestsSeen(open=1, oldest_t=1.0)
    with old.open("a") as file:
        file.write(done(1, 4.5))
    assert log.look(5.0) == RequestsSeen(done=1, done_t=4.5, open=0)
    log.add(start(2, 6.0))
    assert log.look(7.0) == RequestsSeen(done=1, done_t=4.5, open=1, oldest_t=6.0)


@pytest.mark.parametrize("jumped", [-86_400.0, -30.0, 30.0, 86_400.0])
def test_no_jump_of_the_wall_clock_moves_a_time_out_of_its_interval(log: Log, jumped: float) -> None:
    log.add(record("server_start", 0.0))
    log.look(10.0)
    log.add(start(1, 12.0), done(2, 14.0))
    seen = log.look(20.0, jumped)
    assert seen is not None
    assert seen.oldest_t is not None
    assert seen.done_t is not None
    assert 10.0 <= seen.oldest_t <= seen.done_t <= 20.0


def test_a_record_is_placed_between_two_reads() -> None:
    assert boottime_of((WALL + 15.0) * 1000, now=20.0, wall=WALL + 20.0, since=10.0) == 15.0
    assert boottime_of((WALL + 5.0) * 1000, now=20.0, wall=WALL + 20.0, since=10.0) == 10.0
    assert boottime_of((WALL + 25.0) * 1000, now=20.0, wall=WALL + 20.0, since=10.0) == 20.0
    assert boottime_of(None, now=20.0, wall=WALL + 20.0, since=10.0) == 20.0


def test_a_stamp_from_before_this_machines_boot_is_of_another_clock() -> None:
    assert boottime_of((WALL - 1.0) * 1000, now=20.0, wall=WALL + 20.0, since=0.0) == 20.0
    assert boottime_of(WALL * 1000, now=20.0, wall=WALL + 20.0, since=0.0) == 0.0
    assert boottime_of((WALL - 1.0) * 1000, now=20.0, wall=WALL + 20.0, since=10.0) == 20.0


def test_a_read_is_bounded_and_tells_nothing_until_it_reached_the_end(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requestlog, "READ_LINES", 3)
    log.add(*(start(n, 1.0) for n in range(4)), *(done(n, 2.0) for n in range(3)))
    assert [log.look(3.0), log.look(4.0)] == [None, None], "the ends of what looks open are not read yet"
    assert log.look(5.0) == RequestsSeen(open=1, oldest_t=1.0)
    monkeypatch.setattr(requestlog, "READ_LINES", 10_000)
    monkeypatch.setattr(requestlog, "READ_BYTES", 200)
    log.add(done(3, 6.0), *(record("server_start", 6.0) for _ in range(9)))
    seen = [log.look(t) for t in range(7, 20)]
    assert seen[0] is None
    assert seen[-1] == RequestsSeen(done=1, done_t=6.0, open=0)


def test_a_long_log_is_read_from_its_end(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requestlog, "TAIL_BYTES", 1000)
    log.add(start(1, 1.0), *(record("server_start", 2.0, note="x" * 100) for _ in range(20)), start(2, 3.0))
    assert log.look(4.0) == RequestsSeen(open=1, oldest_t=3.0)


ODD = {
    "no JSON": "hello\n",
    "half a JSON": '{"event":"request_done"\n',
    "a number": "3\n",
    "NaN": '{"event":"request_start","server_instance_id":"a1b2","timestamp_unix_ms":NaN}\n',
    "not UTF-8": "\udcff\udcfe\n",
    "a tokens text": record("request_done", 3.0, 1, result={"completion_tokens": "5"}),
    "an instance of 10 kB": record("request_done", 3.0, 1, instance="x" * 10_000, result={"completion_tokens": 5}),
    "deep": "[" * 5000 + "]" * 5000 + "\n",
    "a line of 3 MB": json.dumps({"event": "x", "pad": "y" * 3_000_000}) + "\n",
}


@pytest.mark.parametrize("name", ODD)
def test_a_line_that_is_no_record_is_left_out_and_told(log: Log, name: str) -> None:
    log.add(record("server_start", 0.0))
    log.look(1.0)
    with log.path.open("a", errors="surrogateescape") as file:
        file.write(ODD[name] + done(2, 2.0))
    [trouble] = log.follower.read(3.0, WALL + 3.0)
    assert (
        trouble
        == f"request log {log.path}: a line was left out: no record that the profile can read, or an endless one"
    )
    assert log.follower.tally(A) == RequestsSeen(done=1, done_t=2.0)


def test_what_the_profile_passes_over_is_no_trouble(log: Log) -> None:
    log.add(record("server_start", 0.0), "\n", "{}\n", '{"event":"a later kind","x":1}\n', record("throughput", 1.0))
    assert log.look(2.0) == RequestsSeen()


def test_an_endless_line_takes_no_memory() -> None:
    lines = Lines(inside=False)
    for _ in range(40):
        lines.feed(b"x" * 100_000)
        assert len(lines.take(10)) <= 1
    assert len(lines.__dict__["_rest"]) < 2_000_000
    lines.feed(b"\n{}\n")
    assert lines.take(10) == [b"{}"]


def unusable(kind: str, path: Path) -> None:
    if kind == "a symlink":
        target = path.with_suffix(".real")
        target.write_text(record("server_start", 0.0))
        path.symlink_to(target)
    elif kind == "a directory":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("nothing", "No such file or directory"),
        ("a symlink", "is a symlink, expected a regular file"),
        ("a directory", "is a directory, expected a regular file"),
        ("a pipe", "is a pipe or a device, expected a regular file"),
    ],
)
def test_a_log_that_is_none_is_one_line_and_is_tried_again(log: Log, kind: str, said: str) -> None:
    unusable(kind, log.path)
    for t in (1.0, 2.0):
        assert log.follower.read(t, WALL + t) == [f"request log {log.path}: {said}"]
        assert log.follower.tally(A) is None, "missing is not zero"
    if kind == "a directory":
        log.path.rmdir()
    else:
        log.path.unlink(missing_ok=True)
    log.add(start(1, 2.5))
    assert log.look(3.0) == RequestsSeen(open=1, oldest_t=2.5)


def test_a_log_that_becomes_a_symlink_is_forgotten(log: Log) -> None:
    log.add(start(1, 1.0))
    log.look(2.0)
    log.path.unlink()
    unusable("a symlink", log.path)
    assert log.follower.read(3.0, WALL + 3.0) == [f"request log {log.path}: is a symlink, expected a regular file"]
    assert log.follower.tally(A) is None


def test_a_name_with_terminal_codes_is_escaped(tmp_path: Path) -> None:
    [trouble] = RequestLog(f"{tmp_path}/\x1b[2J\n", NINFER).read(1.0, WALL)
    assert trouble.isprintable()


def test_a_profile_that_reads_no_log_refuses_one(tmp_path: Path) -> None:
    with pytest.raises(BlindError, match="profile llama-cpp does not say how to read a request log"):
        RequestLog(str(tmp_path / "x"), profiles.load("llama-cpp"))
