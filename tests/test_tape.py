"""Tapes on disk: written, read back, bounded, cut off in mid-line, and not a tape at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferops.core.tape import Header, Writer, read
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
    assert list(back) == polls
    assert writer.path.stat().st_mode & 0o777 == 0o600


def test_the_ring_is_bounded_and_each_file_is_a_tape_of_its_own(tmp_path: Path) -> None:
    writer = Writer(tmp_path, HEADER, file_bytes=3000, files=3)
    for t in range(200):
        writer.write(poll(t))
    writer.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    assert sum(f.stat().st_size for f in files) < 3 * 4000
    last = list(read(writer.path)[1])[-1]
    assert last == poll(199)
    for file in files:
        assert list(read(file)[1])


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
    assert len(list(read(tmp_path / "tape.1.jsonl")[1])) == 2


def test_a_last_line_cut_off_ends_the_tape_and_is_not_written_onto(tmp_path: Path) -> None:
    writer = Writer(tmp_path, HEADER)
    writer.write(poll(1))
    writer.write(poll(2))
    writer.close()
    data = writer.path.read_bytes()
    writer.path.write_bytes(data[:-20])
    assert [p.t for p in read(writer.path)[1]] == [poll(1).t]
    again = Writer(tmp_path, HEADER)
    again.write(poll(3))
    again.close()
    assert [p.t for p in read(again.path)[1]] == [poll(3).t]
    assert [p.t for p in read(tmp_path / "tape.1.jsonl")[1]] == [poll(1).t]


HEAD = b'{"schema":"inferops.tape/1"}\n'


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        (b"", UsageError, ":1: expected the header"),
        (b"<html>\n", UsageError, ":1: expected the header"),
        (b'{"schema":"inferops.tape/9"}\n{"t":1}\n', UsageError, "schema inferops.tape/9, expected inferops.tape/1"),
        (HEAD, BlindError, "holds no poll"),
        (HEAD + b'{"t":NaN}\n', UsageError, ":2: expected a poll"),
        (HEAD + b'{"t":1,"healthy":true}\n', UsageError, "healthy"),
        (HEAD + b'{"t":1}\n{"t":"x"}\n{"t":2}\n', UsageError, ":3: expected a poll"),
        (HEAD + b'{"t":1,"x":"' + b"a" * 1_000_001 + b'"}\n', UsageError, "a line of"),
        (HEAD + b"[" * 100_000 + b"\n", UsageError, ":2: expected a poll"),
    ],
)
def test_no_tape_is_one_clear_line(tmp_path: Path, content: bytes, kind: type[InferopsError], said: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(kind) as caught:
        list(read(path)[1])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tape_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="Is a directory"):
        read(tmp_path)
