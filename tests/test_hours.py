"""A seeded sample of the long proof (tests/prove/hours.py), and that the proof can fail: on a policy that is less
patient, or blind in one eye, the same shapes end in a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.prove.hours import SEED, WEDGES, Broken, Found, Healthy, healthy, inject
from tests.prove.shapes import OF
from tests.prove.worlds import Llama, NInfer

pytestmark = pytest.mark.timeout(300)
HOURS = 20.0  # of each world: some 400 spells
TIMES = 4
HASTY = {"stall_s": 5.0, "slowest_cadence_s": 0.0, "look_polls": 1, "canary": False, "stacks": False}


@pytest.mark.parametrize("world", [NInfer, Llama])
def test_hours_of_scary_load_restart_nothing(world: type[NInfer] | type[Llama]) -> None:
    seen = Healthy()
    healthy(world, HOURS, SEED, seen)
    assert seen.polls > HOURS * 300
    assert len(seen.spells) >= len(OF[world]) * 0.7, "the sample hardly meets a shape"
    assert not {"WEDGE", "RESTARTED"} & set(seen.kinds)


@pytest.mark.parametrize("name", WEDGES)
def test_each_wedge_is_found_at_its_bound_and_never_earlier(name: str) -> None:
    found = Found()
    for n in range(TIMES):
        inject(name, SEED + n, found)
    assert len(found.after_s) == TIMES


@pytest.mark.parametrize(
    ("world", "less", "shapes"),
    [
        (NInfer, {"relief_max_s": 1.0, "stall_s": 60.0}, ("queue worked by page relief", "busy")),
        (
            NInfer,
            {"counters_move_in_prefill": True, "stall_s": 60.0},
            ("long prefill, counters flat", "journal unread", "idle"),
        ),
        (Llama, {"cpu_is_evidence": False}, ("long prefill, stats hang", "busy")),
        (Llama, HASTY, ("kernels compiled, silent", "busy")),
        (Llama, {"cpu_only_max_s": 60.0}, ("long prefill, stats hang", "busy")),
    ],
)
def test_the_same_shapes_break_a_policy_with_less_patience(
    world: type[NInfer] | type[Llama], less: dict[str, Any], shapes: tuple[str, ...]
) -> None:
    with pytest.raises(Broken, match="a healthy server"):
        healthy(world, 100.0, SEED, Healthy(), replace(world.patience, **less), shapes)
    healthy(world, 4.0, SEED, Healthy(), only=shapes)
