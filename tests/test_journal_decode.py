"""Bytes of the journal become text, numbers and gaps; nothing in them may break the reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferops.core import journal
from inferops.core.journal_entry import CUT, MESSAGE_MAX_BYTES, Mark, delay_s, hole, mark_of, number_of, text_of
from inferops.core.verdict import BlindError, UsageError

CURSOR = "s=aef0869c571c4159ae350b9cf9718da5;i=16c;b=929410ba28334a0ab75bc31a09289cf4;m=2b61dcbf;t=661835bc2bb20;x=8981"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"listening on http://127.0.0.1:8080", "listening on http://127.0.0.1:8080"),
        ("größer – 日本".encode(), "größer – 日本"),
        (b"a\x00b", "a\x00b"),
        (b"\xff\xfe half \xe2\x82", "\\xff\\xfe half \\xe2\\x82"),
        (b"two\nlines \x1b[31m", "two\nlines \x1b[31m"),  # not escaped: that is the printer's
        (b"", ""),
    ],
)
def test_messages_as_text(raw: bytes, text: str) -> None:
    assert text_of(raw) == text


@given(st.binary(max_size=200))
def test_any_message_is_text_that_can_be_written(raw: bytes) -> None:
    assert len(text_of(raw).encode("utf-8")) >= len(raw)


@pytest.mark.parametrize(("size", "cut"), [(MESSAGE_MAX_BYTES, False), (MESSAGE_MAX_BYTES + 1, True), (1 << 20, True)])
def test_an_oversized_message_is_cut_and_says_so(size: int, cut: bool) -> None:
    text = text_of(b"x" * size)
    assert text == "x" * min(size, MESSAGE_MAX_BYTES) + (CUT if cut else "")


def test_a_character_across_the_cut_is_no_error() -> None:
    assert text_of(b"x" * (MESSAGE_MAX_BYTES - 1) + "€".encode()) == "x" * (MESSAGE_MAX_BYTES - 1) + "\\xe2" + CUT


@pytest.mark.parametrize(
    ("raw", "number"), [(b"3", 3), (b"", 6), (b"-1", 6), (b"3x", 6), (b"\xb2", 6), (b"9" * 5000, 6), (b" 3", 6)]
)
def test_a_priority_is_what_the_sender_wrote(raw: bytes, number: int) -> None:
    assert number_of(raw, 6) == number


@pytest.mark.parametrize(
    ("taken_us", "sent_us", "late"),
    [
        (1_796_066_668_362_415, 1_796_066_668_361_068, 0.001347),
        (60_000_000, 0, 60.0),
        (1_796_066_668_362_415, 0, 0.0),  # it carries no time
        (5, 6, 0.0),  # the clock was set back
    ],
)
def test_how_long_systemds_word_was_under_way(taken_us: int, sent_us: int, late: float) -> None:
    assert delay_s(taken_us, sent_us) == pytest.approx(late)


def test_the_number_in_a_real_cursor() -> None:
    assert mark_of(CURSOR, 1.5) == Mark(0x16C, 1.5, CURSOR)


@pytest.mark.parametrize("cursor", ["", "s=1;b=2", "i=zz", "i=1;i=2"])
def test_what_is_no_cursor(cursor: str) -> None:
    with pytest.raises(ValueError, match=r"no number|invalid literal"):
        mark_of(cursor, 0.0)


def marks(*numbers: int) -> list[Mark]:
    return [Mark(number, number / 10) for number in numbers]


@pytest.mark.parametrize(
    ("base", "seen", "missing"),
    [
        (5, [5, 6, 7], None),
        (5, [6, 7], None),  # the entry itself was removed, nothing after it
        (5, [], None),
        (5, [8, 9], (2, 5, 8)),
        (5, [7, 6, 9, 8], None),  # files of two users, merged by time
        (5, [6, 8, 9, 12], (3, 6, 12)),
        (5, [1, 2, 3], None),
    ],
)
def test_holes_in_the_numbering(base: int, seen: list[int], missing: tuple[int, int, int] | None) -> None:
    found = hole(Mark(base, base / 10), marks(*seen))
    assert (found and (found[0], found[1].number, found[2].number)) == missing


@given(st.integers(0, 50), st.lists(st.integers(0, 60), unique=True))
def test_a_hole_counts_just_what_is_missing(base: int, numbers: list[int]) -> None:
    after = {number for number in numbers if number > base}
    missing = set(range(base + 1, max(after, default=base) + 1)) - after
    found = hole(Mark(base, 0.0), marks(*numbers))
    assert (found[0] if found else 0) == len(missing)
    if found:
        assert found[1].number < min(missing)
        assert found[2].number > max(missing)


def test_without_a_journal_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(journal, "FOLDERS", (tmp_path / "run", tmp_path / "var"))
    for look in (lambda: journal.Follower(["x"]), lambda: journal.tail(["x"], 1)):
        with pytest.raises(BlindError, match="no journal files") as caught:
            look()
        assert "Storage=" in caught.value.hint


@pytest.mark.parametrize("name", ["", "-x", "x.timer", "a/b"])
def test_names_are_checked_before_anything_is_opened(name: str) -> None:
    with pytest.raises(UsageError):
        journal.Follower([name])
