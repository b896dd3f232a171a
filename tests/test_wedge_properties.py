"""What the wedge policy never does, on random histories: restart without a capture, before readiness, on missing data
alone, beyond the budget in any window, within the bound of the last progress (gaps do not count), in state of another
process or instance, on an idle server without two canaries that got no token. No wall clock moves it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferops.core import budget
from inferops.core.evidence import Patience
from inferops.core.poll import Done, Gate, Health, HostSeen, JournalSeen, Poll, RequestsSeen, Stats, UnitSeen
from inferops.core.turn import State
from inferops.core.wedge import step
from tests.polls import PATIENCE

BOOT = "b"
# INFEROPS_EXAMPLES is `make prove`; CI draws a sample.
QUICK = settings(
    max_examples=int(os.environ.get("INFEROPS_EXAMPLES") or 300),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

# A shape is what the server does for a while; a history is shapes with lengths. Numbers are polls of 10 s.
SHAPES = (
    "idle decode wedge spin prefill silent error blind loading queue missing gap other odd nounit checker "
    "stuck relief failing lost newpid newinstance down"
).split()
UNJUDGED = ("missing", "blind", "other", "loading", "nounit", "checker", "down")
IDLE_CANARY = replace(PATIENCE, idle_canary_s=60.0)
ENDS = st.sampled_from(["ok", "failed", "none", "token", "inconclusive", "never"])
WELL = {"capture": "ok", "canary": "none", "stacks": "ok"}
HISTORY = st.lists(st.tuples(st.sampled_from(SHAPES), st.integers(1, 40)), min_size=1, max_size=12)


def parts(shape: str, n: int, t: float) -> dict[str, Any]:
    """What a poll sees in a shape; `n` is the count of decode calls so far."""
    seen: dict[str, Any] = {
        "unit": None,
        "health": Health(answer="ready", code=200),
        "owner": "unit",
        "stats": Stats(answer="ok", active=1, queued=0, free_slots=1, counters={"n": float(n)}),
        "journal": JournalSeen(),
        "clients": ("127.0.0.1:40000",),
        "host": HostSeen(hot=0, gpu=False),
    }
    hang = Stats(answer="timeout")
    change: dict[str, dict[str, Any]] = {
        "idle": {"clients": (), "stats": Stats(answer="ok", active=0, queued=0, counters={"n": float(n)})},
        "wedge": {"stats": hang},
        "spin": {"stats": hang, "host": HostSeen(hot=1, gpu=False)},
        "prefill": {"stats": hang, "host": HostSeen(hot=2, gpu=False)},
        "silent": {"stats": hang, "health": Health(answer="timeout")},
        "error": {"health": Health(answer="unavailable", code=500), "clients": (),
                  "stats": Stats(answer="ok", active=0, queued=0, counters={"n": float(n)})},
        "blind": {"stats": Stats(answer="bad", why="html")},
        "loading": {"health": Health(answer="loading"), "stats": Stats(answer="loading")},
        "queue": {"stats": Stats(answer="ok", active=0, queued=2, free_slots=0, counters={"n": float(n)})},
        "missing": dict.fromkeys(("health", "owner", "stats", "journal", "clients", "host")),
        "other": {"owner": "other"},
        "odd": {"health": Health(answer="odd", code=404)},
        "stuck": {"stats": Stats(answer="ok", active=0, queued=1, stuck=1, counters={"n": float(n)})},
        "relief": {"stats": Stats(answer="ok", active=0, queued=1, counters={"n": float(n)}),
                   "journal": JournalSeen(working_t=t, any_t=t)},
        "failing": {"requests": RequestsSeen(failed=int(t), failed_t=t, open=0), "clients": ()},
        "lost": {"stats": Stats(answer="ok", active=0, queued=0, counters={"n": float(n)}),
                 "requests": RequestsSeen(open=1, oldest_t=t - 5)},
        "down": {"health": Health(answer="refused"), "owner": "nobody", "stats": Stats(answer="refused")},
    }  # fmt: skip
    return seen | change.get(shape, {})


class Always:
    """Draws for a world in which everything works, and no canary gets a token."""

    def draw(self, strategy: Any) -> Any:
        return True if strategy is not ENDS else "none"


class World:
    """Plays a history to the policy with a real ledger behind it, and writes down what an outsider could check."""

    def __init__(self, data: st.DataObject, patience: Patience = PATIENCE) -> None:
        self.data, self.patience, self.state, self.t, self.n, self.pid = data, patience, State(), 10_000.0, 0, 100
        self.instance = 1
        self.ledger = budget.Ledger()
        self.restarts: list[float] = []
        self.ends: dict[str, str] = {}
        self.alerts: list[float] = []
        self.events: list[tuple[float, str, str]] = []
        self.wall: Callable[[float], float | None] = lambda t: None
        self.pending: list[Done] = []
        self.another()

    def another(self) -> None:
        """Another process: nothing seen of the one before counts."""
        self.started = self.last_progress = self.t
        self.unseen = 0.0
        self.ready = self.captured = False
        self.misses = 0
        self.pending = [done for done in self.pending if done.kind == "restart"]  # systemd ends it, whoever runs

    def progress(self) -> None:
        self.last_progress, self.unseen, self.misses = self.t, 0.0, 0

    def play(self, history: list[tuple[str, int]]) -> None:
        for shape, polls in history:
            if shape == "gap":
                self.t += polls * 100
                self.unseen += polls * 100
                continue
            if shape in ("newpid", "newinstance"):
                self.pid += shape == "newpid"
                self.instance += 1
                self.another()
                continue
            for _ in range(polls):
                self.one(shape)

    def one(self, shape: str) -> None:
        self.t += 10
        if shape == "decode":
            self.n += 5
        if shape in ("decode", "prefill"):
            self.progress()
        if shape == "idle" and not self.patience.idle_canary_s:
            self.progress()
        seen = parts(shape, self.n, self.t)
        if shape == "checker":
            self.step(Poll(t=self.t, checker=f"OSError: {self.t}"), shape)
            return
        if shape == "down":
            seen["unit"] = UnitSeen(active="failed", main_pid=0)
        elif shape not in ("missing", "nounit"):
            seen["unit"] = UnitSeen(active="active", main_pid=self.pid, start_t=self.started)
            seen["instance"] = f"i{self.instance}" if seen["stats"].answer == "ok" else None
        if seen["health"] is not None and seen["health"].answer == "ready" and seen["owner"] == "unit":
            self.ready = True
        gate = Gate(held=budget.held(self.ledger))
        self.step(Poll(t=self.t, wall=self.wall(self.t), gate=gate, **seen), shape)

    def step(self, poll: Poll, shape: str) -> None:
        poll = msgspec.structs.replace(poll, done=tuple(self.pending))
        for done in self.pending:
            self.captured = self.captured or (done.kind == "capture" and done.result == "ok")
            if done.kind == "canary":
                self.misses = self.misses + 1 if done.result == "none" else 0 if done.result == "token" else self.misses
        self.pending = []
        result = step(self.state, poll, self.patience)
        self.state = result.state
        self.events += [(event.t, event.kind, event.text) for event in result.events]
        self.alerts += [event.t for event in result.events if event.level == "alert"]
        if result.action == "restart":
            self.check_restart(shape)
        elif result.action is not None:
            if result.action == "capture":
                self.captured = False
            self.end(result.action)

    def end(self, action: Any) -> None:
        how = self.ends.get(action) or self.data.draw(ENDS)
        if how != "never":
            self.pending.append(Done(kind=action, result=how, t=self.t, why="drawn", pid=self.pid))

    def check_restart(self, shape: str) -> None:
        assert self.captured, "restart without a capture of this incident"
        assert self.ready, "restart before this pid was ready"
        assert shape not in UNJUDGED, f"restart on a poll that shows {shape}"
        if self.state.wclass == "F":
            assert self.misses >= 2, "restart of an idle server without two canaries that got no token"
        else:
            seen_s = self.t - self.last_progress - self.unseen
            assert seen_s >= self.patience.stall_s, "restart within the bound of the last progress"
        entry = budget.Entry(boot=BOOT, t=self.t, wall=0.0, pid=self.pid)
        self.ledger = budget.counted(self.ledger, entry)
        self.restarts.append(self.t)
        for first in self.restarts:
            window = [t for t in self.restarts if first <= t < first + budget.WINDOW_S]
            assert len(window) <= budget.RESTARTS_MAX, "more restarts in a window than the budget has"
        if bool(self.ends) or self.data.draw(st.booleans()):
            self.pid, self.instance, self.n = self.pid + 1, self.instance + 1, 0
            self.another()
            self.pending.append(Done(kind="restart", result="ok", t=self.t))
        else:
            self.pending.append(Done(kind="restart", result="failed", t=self.t, why="drawn"))


@QUICK
@given(history=HISTORY, data=st.data())
def test_no_history_makes_a_restart_that_should_not_be(history: list[tuple[str, int]], data: st.DataObject) -> None:
    World(data).play(history)


@QUICK
@given(history=HISTORY, data=st.data())
def test_nor_does_one_with_canaries_to_an_idle_server(history: list[tuple[str, int]], data: st.DataObject) -> None:
    World(data, IDLE_CANARY).play(history)


@QUICK
@given(history=HISTORY, seed=st.integers(0, 2**32))
def test_no_jump_of_the_wall_clock_changes_anything(history: list[tuple[str, int]], seed: int) -> None:
    told = []
    for wall in (None, random.Random(seed)):  # noqa: S311 - any walls will do
        world = World(Always())  # type: ignore[arg-type]
        world.ends = WELL
        if wall is not None:
            world.wall = lambda t, wall=wall: t + wall.uniform(-1e9, 1e9)  # type: ignore[misc]
        world.play(history)
        told.append((world.events, world.restarts))
    assert told[0] == told[1]


@QUICK
@given(before=HISTORY, polls=st.integers(1, 200), keep=st.sets(st.sampled_from(["health", "owner", "clients", "unit"])))
def test_missing_data_alone_never_leads_to_a_restart(before: list[tuple[str, int]], polls: int, keep: set[str]) -> None:
    """From any state short of the decision, polls with parts missing (a few kept) bring no restart."""
    state, t, n = State(), 10_000.0, 0
    unit = UnitSeen(active="active", main_pid=100, start_t=9_990.0)
    for shape, length in before:
        for _ in range(min(length, 10)):  # under the bound: nothing is armed by what was seen
            t += 10
            n += shape == "decode"
            seen = parts("decode" if shape in ("gap", "missing") else shape, n, t)
            state = step(state, Poll(t=t, **(seen | {"unit": unit})), PATIENCE).state
        t += 10
        n += 1
        state = step(state, Poll(t=t, **(parts("decode", n, t) | {"unit": unit})), PATIENCE).state
    for _ in range(polls):
        t += 10
        kept = {k: v for k, v in (parts("wedge", n, t) | {"unit": unit}).items() if k in keep}
        result = step(state, Poll(t=t, gate=Gate(), **kept), PATIENCE)
        state = result.state
        assert result.action != "restart"


@QUICK
@given(before=HISTORY, data=st.data())
def test_whatever_came_before_a_wedge_with_work_is_told(before: list[tuple[str, int]], data: st.DataObject) -> None:
    """After any history: a decode, then a wedge for 50 minutes brings a restart or an alert, never silence."""
    world = World(data)
    world.play(before)
    world.ends = WELL
    world.play([("decode", 6), ("wedge", 300)])
    since = world.t - 3000
    assert any(t > since for t in world.restarts) or any(t > since for t in world.alerts)


@pytest.mark.parametrize(
    ("patience", "history", "restarts"),
    [
        (PATIENCE, [("decode", 5), ("wedge", 40), ("decode", 5), ("spin", 40), ("decode", 3), ("silent", 60)], 2),
        (PATIENCE, [("decode", 5), ("stuck", 40), ("decode", 5), ("error", 40)], 2),
        (PATIENCE, [("idle", 5), ("lost", 40)], 1),
        (PATIENCE, [("decode", 5), ("relief", 90)], 1),
        (IDLE_CANARY, [("idle", 60)], 2),
    ],
)
def test_the_generator_does_reach_restarts(patience: Patience, history: list[tuple[str, int]], restarts: int) -> None:
    """The properties above would hold on a policy that never restarts: this one would not."""
    world = World(Always(), patience)  # type: ignore[arg-type]
    world.ends = WELL
    world.play(history)
    assert len(world.restarts) == restarts
