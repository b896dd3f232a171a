"""Every word and action of the wedge policy on the histories of told.py is the one that is written down."""

from __future__ import annotations

import pytest

from tests.told import DATA, FILES, lines

KEPT = {
    (path.name, section.partition("\n")[0]): section.rstrip("\n").split("\n")[1:]
    for path in DATA.glob("*.txt")
    for section in path.read_text().removeprefix("== ").split("\n== ")
}
PLAYED = {(file, title): play for file, histories in FILES.items() for title, play in histories.items()}


@pytest.mark.parametrize("which", PLAYED, ids=": ".join)
def test_every_word_is_the_one_that_is_written_down(which: tuple[str, str]) -> None:
    assert lines(PLAYED[which]()) == KEPT[which]


def test_nothing_is_written_down_that_is_not_played() -> None:
    assert KEPT.keys() == PLAYED.keys()
