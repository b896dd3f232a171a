"""`sentinel rearm`: which units have a budget, and that nothing is made for one that has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferops.core.budget import Budget
from inferops.core.verdict import BlindError
from inferops.ops.sentinel_rearm import main


def rearm(unit: str) -> int:
    code = main.main(["--unit", unit], standalone_mode=False)
    assert isinstance(code, int)
    return code


def spent(private_state: Path, unit: str) -> Budget:
    home = private_state / "state" / "sentinel" / unit
    home.mkdir(mode=0o700, parents=True)
    budget = Budget(home / "budget.json", "b", lambda: 100.0)
    for pid in (1, 2):
        budget.spend(pid, 0.0)
    return budget


def test_the_latch_of_that_unit_opens(private_state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    budget, other = spent(private_state, "llama.service"), spent(private_state, "other.service")
    assert rearm("llama") == 0
    assert "2 counted restarts forgotten" in " ".join(capsys.readouterr().out.split())
    assert budget.held() is None
    assert other.held() is not None


def test_a_unit_without_a_budget_is_blind_and_nothing_is_made_for_it(private_state: Path) -> None:
    spent(private_state, "llama.service")
    homes = private_state / "state" / "sentinel"
    (homes / "no-restarts.service").mkdir(mode=0o700)
    before = sorted(homes.rglob("*"))
    for unit in ("llamma.service", "no-restarts.service"):
        with pytest.raises(BlindError) as caught:
            rearm(unit)
        assert str(caught.value) == f"no restart budget of {unit} at {homes / unit / 'budget.json'}"
        assert caught.value.hint == "units that have one: llama.service; see --unit"
    assert sorted(homes.rglob("*")) == before


def test_no_unit_has_one(private_state: Path) -> None:
    with pytest.raises(BlindError) as caught:
        rearm("llama.service")
    assert "units that have one: none" in caught.value.hint
    assert not list((private_state / "state").glob("sentinel/*"))


def test_a_budget_that_cannot_be_read_is_blind_and_stays(private_state: Path) -> None:
    path = spent(private_state, "llama.service").path
    path.write_text("{")
    with pytest.raises(BlindError, match="cannot be read"):
        rearm("llama.service")
    assert path.read_text() == "{"
