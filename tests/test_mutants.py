"""The list of mutants that are no fault: every entry names lines that are there, and says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prove.mutants import ACCEPTED, Mutant, Unshown, accepted, difference, function_name, policy

CORE = Path(__file__).resolve().parents[1] / "tools" / "core"
LISTED = accepted(ACCEPTED.read_text())


@pytest.mark.parametrize("mutant", LISTED, ids=lambda mutant: f"{mutant.file}: {mutant.now[:60]}")
def test_what_is_listed_is_about_lines_that_are_there(mutant: Mutant) -> None:
    text = " ".join((CORE / mutant.file).read_text().split())
    for line in filter(None, [" ".join(mutant.was.split())]):
        assert line in text, "the policy has changed: run `make mutants` and list anew"
    assert mutant.was != mutant.now
    assert len(LISTED[mutant]) > 20, "why it is no fault"


@pytest.mark.parametrize(
    "text",
    [
        '[[equivalent]]\nmutants = [["a.py", "f", "x", "y"]]',
        '[[equivalent]]\nwhy = "w"\nmutants = [["a.py", "f", "x"]]',
    ],
)
def test_an_entry_without_a_reason_or_a_part_is_refused(text: str) -> None:
    with pytest.raises(Unshown, match="expected why"):
        accepted(text)


def test_the_policy_is_what_its_roots_import() -> None:
    known = ["armed", "binding", "budget", "evidence", "idle", "lasting", "poll", "turn", "wedge"]
    assert policy(CORE) == known


def test_a_mutant_is_told_by_its_lines() -> None:
    assert difference(["a = 1", "b = 2"], ["a = 1", "b = 3"]) == ("b = 2", "b = 3")
    assert function_name("xǁStateǁpid__mutmut_3") == "State.pid"
    assert function_name("x_moved__mutmut_1") == "moved"
