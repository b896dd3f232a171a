"""One at a time, among real processes, with the holder named."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inferops.core.lock import Holder, Lock, holder
from inferops.core.verdict import BlindError, Refused

HOLD = """
import os, sys, time
from pathlib import Path
from inferops.core.lock import Lock
sys.argv[0] = "/usr/bin/swap"
with Lock(Path(sys.argv[1]), "a swap"):
    if sys.argv[2:] == ["fork"] and os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    print(os.getpid(), flush=True)
    if sys.argv[2:] == ["fork"]:
        os._exit(0)
    sys.stdin.read()
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process that holds tmp_path/lock until its stdin closes."""
    started: list[subprocess.Popen[str]] = []

    def one(*more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLD, str(tmp_path / "lock"), *more]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().strip() == str(process.pid)
        return process

    yield one
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def private(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)


def test_the_second_is_refused_at_once_with_the_holder_named(tmp_path: Path, start: Start) -> None:
    process = start()
    before = time.time()
    with pytest.raises(Refused) as caught, Lock(tmp_path / "lock", "a restart"):
        pytest.fail("two hold the lock")
    text = str(caught.value)
    assert text.startswith(
        f"a restart: the lock {tmp_path / 'lock'} is held by pid {process.pid} (swap: a swap) since 2"
    )
    found = holder(tmp_path / "lock")
    assert found is not None
    assert (found.pid, found.what, found.cmd) == (process.pid, "a swap", "swap")
    assert before - 60 < found.since <= time.time()


def test_it_is_free_again_after_the_block(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for _ in range(2):
        with Lock(path, "x"):
            assert holder(path) == Holder(os.getpid(), *_rest(path))
        assert holder(path) is None
        assert path.exists()
    assert path.stat().st_mode & 0o777 == 0o600


def _rest(path: Path) -> tuple[int, str, str, float]:
    found = holder(path)
    assert found is not None
    assert found.what == "x"
    return found.start_ticks, found.what, found.cmd, found.since


def test_it_is_free_after_an_error_in_the_block(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Lock(tmp_path / "lock", "x"):
        _ = 1 / 0
    with Lock(tmp_path / "lock", "y"):
        pass


def test_a_killed_holder_holds_nothing(tmp_path: Path, start: Start) -> None:
    process = start()
    process.kill()
    process.wait()
    assert (tmp_path / "lock").read_text() != ""
    assert holder(tmp_path / "lock") is None
    with Lock(tmp_path / "lock", "x"):
        pass


def test_a_child_that_outlives_the_holder_still_holds_and_is_told_from_it(tmp_path: Path, start: Start) -> None:
    process = start("fork")
    process.wait()
    with pytest.raises(Refused, match="a process that left no name"), Lock(tmp_path / "lock", "x"):
        pytest.fail("two hold the lock")


def test_one_process_cannot_take_it_twice(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock", "x")
    with lock:
        with pytest.raises(Refused, match=f"pid {os.getpid()}"), Lock(tmp_path / "lock", "y"):
            pytest.fail("two hold the lock")
        with pytest.raises(RuntimeError), lock:
            pytest.fail("taken twice")
        assert holder(tmp_path / "lock") is not None


def test_a_program_started_under_the_lock_does_not_keep_it(tmp_path: Path) -> None:
    with Lock(tmp_path / "lock", "x"):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    try:
        with Lock(tmp_path / "lock", "y"):
            pass
    finally:
        child.communicate(b"\n")


def test_a_recycled_pid_is_no_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for ticks, found in ((1, False), (_ticks(os.getpid()), True)):
        path.write_text(f'{{"pid":{os.getpid()},"start_ticks":{ticks},"what":"x","cmd":"y","since":0}}')
        assert (holder(path) is not None) is found


def _ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', "\x00" * 9000])
def test_a_damaged_file_names_nobody_and_can_be_locked(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock").write_text(text)
    assert holder(tmp_path / "lock") is None
    with Lock(tmp_path / "lock", "x"):
        assert holder(tmp_path / "lock") is not None


def test_what_is_no_plain_file_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (tmp_path / "soft").symlink_to("target")
    (tmp_path / "hard").hardlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "fifo")
    for name, why in (("soft", "symbolic link"), ("hard", "plain file"), ("fifo", "plain file")):
        with pytest.raises(Refused, match=why), Lock(tmp_path / name, "x"):
            pytest.fail(f"{name} was locked")
    (tmp_path / "directory").mkdir()
    with pytest.raises(BlindError, match="Is a directory"), Lock(tmp_path / "directory", "x"):
        pytest.fail("a directory was locked")


def test_the_directory_is_made_private(tmp_path: Path) -> None:
    with Lock(tmp_path / "run" / "lock", "x"):
        assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


def test_a_lock_file_removed_between_open_and_lock_is_not_taken_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    flock = fcntl.flock
    removed: list[int] = []

    def remove_first(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append(descriptor)
            path.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with Lock(path, "x"):
        assert removed
        with pytest.raises(Refused), Lock(path, "y"):
            pytest.fail("two hold the lock")


def test_many_at_once_are_one_at_a_time(tmp_path: Path) -> None:
    """Eight processes add one to a number 25 times each, some of them removing the lock file as they go."""
    code = """
import os, sys, time
from pathlib import Path
from inferops.core.lock import Lock
from inferops.core.verdict import InferopsError
lock, number = Path(sys.argv[1]), Path(sys.argv[2])
done = 0
while done < 25:
    try:
        with Lock(lock, "count"):
            value = int(number.read_text())
            time.sleep(0.001)
            number.write_text(str(value + 1))
            done += 1
            if sys.argv[3] == "0" and done % 5 == 0:
                lock.unlink()
    except InferopsError:
        time.sleep(0.002)
"""
    number = tmp_path / "number"
    number.write_text("0")
    command = [sys.executable, "-c", code, str(tmp_path / "lock"), str(number)]
    processes = [subprocess.Popen([*command, str(n)]) for n in range(8)]
    assert [process.wait(timeout=100) for process in processes] == [0] * 8
    assert number.read_text() == "200"
