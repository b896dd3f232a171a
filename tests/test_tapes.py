"""The tapes in tests/data/tapes, recorded on real servers: each with its answers and the settings they hold under."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferops.core.replay import Replay, patience_from, run
from inferops.core.tape import read

TAPES = Path(__file__).parent / "data" / "tapes"
CPU = ["action=restart", "cpu_is_evidence=true", "stats_wait_for_engine=true", "canary_moves_at_most=4"]
DESIGN = [*CPU, "stall_s=150", "poll_s=10"]
SHORT = [*CPU, "stall_s=20", "poll_s=2"]
SHORTER = [*CPU, "stall_s=5", "poll_s=2"]


def replayed(name: str, *settings: str) -> Replay:
    header, polls = read(TAPES / name)
    return run(polls, patience_from(header, settings))


# (tape, settings, kinds of events, class and second of the restart or None). Why: as the tape's own notes say.
ANSWERS: list[tuple[str, list[str], list[str], tuple[str, float] | None]] = [
    ("b10068-decode.jsonl", SHORTER, ["READY"], None),
    ("b10068-queue.jsonl", SHORTER, ["READY"], None),
    ("b10068-prefill.jsonl", DESIGN, ["READY"], None),
    ("b10068-futex.jsonl", DESIGN, ["READY"], None),
    ("b10068-futex.jsonl", SHORT, ["READY", "STALL", "BLIND", "SEEING", "PROGRESS"], None),
    ("b10068-futex-client.jsonl", SHORT,
     ["READY", "STALL", "ARMED", "CAPTURED", "CANARY", "STACKS", "WEDGE"], ("C", 36.8)),
    ("b10068-futex-client.jsonl", [*SHORT, "stall_s=35"], ["READY", "STALL", "ARMED", "CAPTURED", "RESUMED"], None),
    ("b10068-sigstop.jsonl", DESIGN, ["READY"], None),
    ("b10068-sigstop.jsonl", SHORT,
     ["READY", "STALL", "ARMED", "CAPTURED", "CANARY", "STACKS", "WEDGE"], ("C", 36.1)),
    # continued while the canary is out: four decode calls may be the canary's own, the fifth is not
    ("b10068-sigstop.jsonl", [*SHORT, "stall_s=50"],
     ["READY", "STALL", "ARMED", "CAPTURED", "CANARY", "RESUMED"], None),
    ("b11434-futex.jsonl", SHORTER, ["READY", "STALL", "BLIND", "PROGRESS"], None),
    ("b11434-futex-client.jsonl", DESIGN, ["READY"], None),
    ("b11434-futex-client.jsonl", SHORTER,
     ["READY", "STALL", "ARMED", "CAPTURED", "CANARY", "STACKS", "WEDGE"], ("C", 14.0)),
    ("b11434-futex-client.jsonl", [*SHORT, "stall_s=12"], ["READY", "STALL", "ARMED", "CAPTURED", "RESUMED"], None),
    ("vllm-0.32-prefill.jsonl", ["action=restart", "stall_s=5", "poll_s=2"], ["READY"], None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "kinds", "restart"), ANSWERS)
def test_answer(name: str, settings: list[str], kinds: list[str], restart: Any) -> None:
    replay = replayed(name, *settings)
    assert [e.kind for e in replay.events] == kinds
    if restart is None:
        assert replay.restarts == ()
    else:
        _, polls = read(TAPES / name)
        start = polls[0].t
        assert [e.wclass for e in replay.events if e.kind == "WEDGE"] == [restart[0]]
        assert [round(t - start, 1) for t in replay.restarts] == [restart[1]]


def test_every_tape_has_an_answer() -> None:
    assert {path.name for path in TAPES.glob("*.jsonl")} == {name for name, *_ in ANSWERS}
