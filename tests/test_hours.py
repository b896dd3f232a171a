"""A seeded sample of the long proof (tests/prove/hours.py), and that the proof can fail: on a policy that is less patient,
or blind in one eye, the same hours end in a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.prove.hours import SEED, WEDGES, Broken, Found, Healthy, healthy, inject
from tests.prove.shapes import OF
from tests.prove.worlds import Llama, NInfer

pytestmark = pytest.mark.timeout(300)
HOURS = 12.0  # of each world: some 250 spells
TIMES = 4


@pytest.mark.parametrize("world", [NInfer, Llama])
def test_hours_of_scary_load_restart_nothing(world: type[NInfer] | type[Llama]) -> None:
    seen = Healthy()
    healthy(world, HOURS, SEED, seen)
    assert seen.polls > HOURS * 300
    assert len(seen.spells) >= len(OF[world]) * 0.8, "the sample hardly meets a shape"
    assert not {"WEDGE", "RESTARTED"} & set(seen.kinds)


@pytest.mark.parametrize("name", WEDGES)
def test_each_wedge_is_found_at_its_bound_and_never_earlier(name: str) -> None:
    found = Found()
    for n in range(TIMES):
        inject(name, SEED + n, found)
    assert len(found.after_s) == TIMES


@pytest.mark.parametrize(
    ("world", "less"),
    [
        (NInfer, {"relief_max_s": 1.0, "stall_s": 100.0}),
        (NInfer, {"counters_move_in_prefill": True}),
        (Llama, {"cpu_is_evidence": False}),
        (Llama, {"stall_s": 25.0}),
        (Llama, {"cpu_only_max_s": 60.0}),
    ],
)
def test_the_same_hours_break_a_policy_with_less_patience(
    world: type[NInfer] | type[Llama], less: dict[str, Any]
) -> None:
    with pytest.raises(Broken, match="a healthy server"):
        healthy(world, 300.0, SEED, Healthy(), replace(world.patience, **less))
