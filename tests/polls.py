"""Builds polls for policy tests: a healthy idle llama-server unless said otherwise."""

from __future__ import annotations

from typing import Any

import msgspec

from inferops.core.evidence import Patience
from inferops.core.poll import Done, Gate, Health, HostSeen, JournalSeen, Poll, Stats, UnitSeen
from inferops.core.turn import Action, Event, State
from inferops.core.wedge import step

START_T = 1000.0
PATIENCE = Patience(
    poll_s=10.0,
    stall_s=150.0,
    action="restart",
    canary_moves_at_most=4.0,
    cpu_is_evidence=True,
    stats_wait_for_engine=True,
)
CLIENT = ("127.0.0.1:40112",)


def ok(active: int = 0, queued: int = 0, n: float = 0.0, free: int = 1) -> Stats:
    return Stats(answer="ok", active=active, queued=queued, free_slots=free, counters={"n_decode_total": n})


HANG = Stats(answer="timeout", why="no answer within 5 s")
READY = Health(answer="ready", code=200)
SILENT = Health(answer="timeout")
ERROR = Health(answer="unavailable", code=500)


def poll(t: float, **parts: Any) -> Poll:
    """A poll `t` seconds after the process started: ready, idle, one client-free port, cold threads."""
    whole: dict[str, Any] = {
        "unit": UnitSeen(active="active", sub="running", main_pid=77, start_t=START_T, restarts=0),
        "health": READY,
        "owner": "unit",
        "stats": ok(),
        "journal": JournalSeen(ready_t=START_T + 1.0, any_t=START_T + 1.0),
        "clients": (),
        "host": HostSeen(hot=0, cpu_s=1.0, gpu=False),
        "gate": Gate(),
    } | parts
    return Poll(t=START_T + t, **whole)


class Run:
    """Feeds polls to the policy and answers its actions as a world in which everything works."""

    def __init__(
        self, patience: Patience = PATIENCE, canary: str = "none", capture: str = "ok", *, stacks: str = "ok",
        why: str = "by the test",
    ) -> None:  # fmt: skip
        self.patience, self.state = patience, State()
        self.ends = {"capture": capture, "canary": canary, "stacks": stacks}
        self.why = why
        self.events: list[Event] = []
        self.actions: list[tuple[float, Action]] = []
        self._done: tuple[Done, ...] = ()

    def feed(self, one: Poll) -> list[str]:
        """The kinds of this poll's events."""
        one = msgspec.structs.replace(one, done=(*one.done, *self._done))
        self._done = ()
        result = step(self.state, one, self.patience)
        self.state = result.state
        self.events.extend(result.events)
        if result.action is not None:
            self.actions.append((one.t - START_T, result.action))
            if result.action != "restart":
                self._done = (Done(kind=result.action, result=self.ends[result.action], t=one.t, why=self.why),)
        return [e.kind for e in result.events]

    def until(self, end: float, start: float = 0.0, every: float = 10.0, **parts: Any) -> Run:
        """Polls from `start` to `end` (inclusive) with the same parts; a callable part is called with t."""
        t = start
        while t <= end + 1e-9:
            self.feed(poll(t, **{k: v(t) if callable(v) else v for k, v in parts.items()}))
            t += every
        return self

    def kinds(self) -> list[str]:
        return [e.kind for e in self.events]

    def at(self, kind: str) -> float:
        """Seconds after the process start of the first event of that kind."""
        return next(e.t for e in self.events if e.kind == kind) - START_T

    def restarts(self) -> list[float]:
        return [t for t, action in self.actions if action == "restart"]
