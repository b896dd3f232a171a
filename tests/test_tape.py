"""Tapes on disk: written, read back, bounded, cut off in mid-line, and not a tape at all."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from inferops.core.evidence import Patience
from inferops.core.replay import patience_from
from inferops.core.tape import SCHEMA, Header, Writer, read
from inferops.core.verdict import BlindError, InferopsError, UsageError
from tests.polls import poll

HEADER = Header(subject="x.service", engine="llama-cpp", patience={"stall_s": 150.0})


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    writer = Writer(tmp_path, HEADER)
    polls = [poll(t) for t in (1, 2, 3)]
    for one in polls:
        writer.write(one)
    writer.close()
    header, back = read(writer.path)
    assert header == HEADER
    assert back == polls
    assert writer.path.stat().st_mode & 0o777 == 0o600
    first = msgspec.json.decode(writer.path.read_bytes().split(b"\n")[0])
    assert first["schema"] == SCHEMA == "inferops.tape/1"


@pytest.mark.parametrize(
    "patience", [Patience(), Patience(look_polls=7, poll_s=0.25, action="restart", canary=False, cpu_is_evidence=True)]
)
def test_the_settings_that_the_sentinel_writes_are_read_back_as_they_were(tmp_path: Path, patience: Patience) -> None:
    settings = {name: getattr(patience, name) for name in Patience.__dataclass_fields__}
    writer = Writer(tmp_path, Header(subject="x.service", engine="llama-cpp", patience=settings))
    writer.write(poll(1))
    writer.close()
    back = patience_from(read(writer.path)[0], [])
    assert back == patience
    assert isinstance(back.look_polls, int)


def test_the_ring_is_bounded_and_each_file_is_a_tape_of_its_own(tmp_path: Path) -> None:
    writer = Writer(tmp_path, HEADER, file_bytes=3000, files=3)
    for t in range(200):
        writer.write(poll(t))
    writer.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    assert sum(f.stat().st_size for f in files) < 3 * 4000
    last = read(writer.path)[1][-1]
    assert last == poll(199)
    for file in files:
        assert read(file)[1]


def test_a_restarted_sentinel_goes_on_in_the_same_file_and_other_settings_begin_a_new_one(tmp_path: Path) -> None:
    for t in (1, 2):
        writer = Writer(tmp_path, HEADER)
        writer.write(poll(t))
        writer.close()
    assert [p.t for p in read(writer.path)[1]] == [poll(1).t, poll(2).t]
    other = Writer(tmp_path, Header(subject="y.service"))
    other.write(poll(3))
    other.close()
    assert read(other.path)[0].subject == "y.service"
    assert len(read(tmp_path / "tape.1.jsonl")[1]) == 2


def test_a_last_line_cut_off_ends_the_tape_and_is_taken_off_by_the_next_writer(tmp_path: Path) -> None:
    writer = Writer(tmp_path, HEADER)
    writer.write(poll(1))
    writer.write(poll(2))
    writer.close()
    writer.path.write_bytes(writer.path.read_bytes()[:-20])
    assert read(writer.path)[1] == [poll(1)]
    again = Writer(tmp_path, HEADER)
    again.write(poll(3))
    again.close()
    assert read(again.path)[1] == [poll(1), poll(3)]
    assert [f.name for f in tmp_path.iterdir()] == ["tape.jsonl"]


# --- a full disk


@contextmanager
def no_file_over(size: int) -> Iterator[None]:
    """Writes past `size` bytes of any file fail, the first of them in its middle, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize("into_the_line", [0, 1, 100])
def test_a_full_disk_costs_the_polls_of_its_time_and_no_older_one(tmp_path: Path, into_the_line: int) -> None:
    writer = Writer(tmp_path, HEADER, file_bytes=3000, files=4)
    t = 0
    while not (tmp_path / "tape.2.jsonl").exists():
        writer.write(poll(t := t + 1))
    for _ in range(2):
        writer.write(poll(t := t + 1))
    older = {f: f.read_bytes() for f in tmp_path.glob("tape.?.jsonl")}
    kept = read(writer.path)[1]
    with no_file_over(writer.path.stat().st_size + into_the_line):
        for n in range(20):
            with pytest.raises(OSError, match="File too large"):
                writer.write(poll(1000 + n))
    writer.write(poll(2000))
    writer.close()
    assert read(writer.path)[1] == [*kept, poll(2000)]
    assert {f: f.read_bytes() for f in tmp_path.glob("tape.?.jsonl")} == older
    assert len(older) == 2


@pytest.mark.parametrize("room", [0, 10, 300])
def test_a_disk_that_is_full_from_the_first_write_on_rotates_no_empty_file(tmp_path: Path, room: int) -> None:
    old = Writer(tmp_path, Header(subject="old"))
    old.write(poll(1))
    old.close()
    writer = Writer(tmp_path, HEADER, files=3)
    with no_file_over(room):
        for t in range(5):
            with pytest.raises(OSError, match="File too large"):
                writer.write(poll(t))
    writer.write(poll(9))
    writer.close()
    assert read(writer.path) == (HEADER, [poll(9)])
    assert read(tmp_path / "tape.1.jsonl")[0].subject == "old"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("content", [b"", b'{"schema":"infer', b'{"schema":"inferops.tape/1"}\n'])
def test_a_file_without_a_poll_takes_no_older_tapes_place(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tape.jsonl").write_bytes(content)
    writer = Writer(tmp_path, HEADER)
    writer.write(poll(1))
    writer.close()
    assert read(writer.path) == (HEADER, [poll(1)])
    assert [f.name for f in tmp_path.iterdir()] == ["tape.jsonl"]


# --- no tape


HEAD = b'{"schema":"inferops.tape/1"}\n'


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        (b"", UsageError, ":1: expected the header"),
        (b"<html>\n", UsageError, ":1: expected the header"),
        (b'{"schema":"inferops.tape/9"}\n{"t":1}\n', UsageError, "schema inferops.tape/9, expected inferops.tape/1"),
        (b'{"subject":"x"}\n{"t":1}\n', UsageError, ":1: expected the header"),
        (b'{"schema":"inferops.tape/2","new":1}\n', UsageError, "schema inferops.tape/2, expected inferops.tape/1"),
        (HEAD[:-1], BlindError, "holds no whole poll"),
        (HEAD, BlindError, "holds no whole poll"),
        (HEAD + b'{"t":1', BlindError, "holds no whole poll"),
        (HEAD + b'{"t":NaN}\n', UsageError, ":2: expected a poll"),
        (HEAD + b'{"t":1,"healthy":true}\n', UsageError, "healthy"),
        (HEAD + b'{"t":1}\n{"t":"x"}\n{"t":2}\n', UsageError, ":3: expected a poll"),
        (HEAD + b'{"t":1,"x":"' + b"a" * 1_000_001 + b'"}\n', UsageError, "a line of"),
        (HEAD + b'{"t":1}\n{"t":1,"x":"' + b"a" * 1_000_001, UsageError, ":3: a line of"),
        (HEAD + b"[" * 100_000 + b"\n", UsageError, ":2: expected a poll"),
    ],
)
def test_no_tape_is_one_clear_line(tmp_path: Path, content: bytes, kind: type[InferopsError], said: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(kind) as caught:
        read(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tape_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="Is a directory"):
        read(tmp_path)


def test_what_is_no_regular_file_or_too_big_is_refused_at_once(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    big = tmp_path / "model.gguf"
    with big.open("wb") as file:
        file.truncate(1_000_000_001)
    for path, said in ((fifo, "not a regular file"), (Path("/dev/zero"), "not a regular file"),
                       (big, "1000000001 bytes, at most 1000000000")):  # fmt: skip
        code = "import sys\nfrom pathlib import Path\nfrom inferops.core.tape import read\nread(Path(sys.argv[1]))"
        done = subprocess.run(
            [sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60, check=False
        )
        assert f"UsageError: tape {path}: {said}" in done.stderr
