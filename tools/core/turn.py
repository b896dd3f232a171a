"""What the wedge policy remembers and says: State, Event, Step, and the Turn that makes one from the other. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from inferops.core.evidence import Patience
from inferops.core.poll import Done, Poll, Stats

Stage = Literal["watch", "capture", "look", "canary", "stacks", "last", "restart", "standing"]
Action = Literal["capture", "canary", "stacks", "restart"]
EventLevel = Literal["alert", "warn", "note"]
# What was said is not said again for so long, however often its reason comes and goes: a flapping source is one event.
# What then goes on is said: the last word that an operator reads must become true again.
REPEAT_S = 600.0

Key = tuple[int, float | None, str | None]  # main pid, its start (BOOTTIME s), the engine's own instance id


@dataclass(frozen=True, slots=True)
class Event:
    """One thing to say. `kind` is the first word of the journal text; `wclass` the wedge class, if one is on."""

    kind: str
    level: EventLevel
    t: float
    text: str
    wclass: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that the policy remembers; it belongs to one process (`key`) and dies with it. Times are BOOTTIME s.

    ready_t: +inf before readiness; progress_t: last evidence of progress (real_progress_t: without the weak kind);
    dated_t, working_t: the newest line or end, and line of a worked queue, counted; proof_t: when a canary last got a
    token; proofs: how many did since the last real progress; seen_t: last poll with gauges or progress; error_since:
    health says 5xx since; two_since: since when two sources of work agree, less the time in which they did not;
    alone_s: for how long they do not (apart: the last poll saw that); silent_since: health gives no answer since,
    deaf_since: none that is known; gaps: the end (BOOTTIME s) and length (s) of each time that nobody saw; late: two
    more for a poll that came after a gap, one less for one that did not; canaried: a canary of this incident got no
    token; stands_t: last poll on which the armed class stood; retry_t: when a capture is tried again; hold_t: nothing
    arms before, since a restart failed; tasks: since when each running request is seen; ended_t: when the number of
    `ended` requests last changed or nothing was there; generated: tokens so far, generated_t: when they last rose;
    rises: when the unit's NRestarts rose, `restarts` its last value; idle_t: when the last canary to an idle server
    ended, `missed`: how many in a row got no token; ours: the process whose restart was ours; restart_t: since when
    our restart waits to be verified; done: ends of actions that no poll could take yet; told: what holds and is not
    said twice; said: when each word was last said.
    """

    key: Key | None = None
    last_t: float | None = None
    first_t: float = 0.0
    ready_t: float = math.inf
    progress_t: float = -math.inf
    real_progress_t: float = -math.inf
    dated_t: float = -math.inf
    working_t: float = -math.inf
    proof_t: float = -math.inf
    fatal_t: float = -math.inf
    counters: Mapping[str, float] = field(default_factory=dict)
    last_stats: Stats | None = None
    idle_clients: frozenset[str] | None = None
    work_since: float | None = None
    error_since: float | None = None
    two_since: float = math.inf
    alone_s: float = 0.0
    apart: bool = False
    silent_since: float = math.inf
    deaf_since: float = math.inf
    gaps: tuple[tuple[float, float], ...] = ()
    seen_t: float = 0.0
    down_since: float | None = None
    late: int = 0
    stage: Stage = "watch"
    wclass: str = ""
    look_left: int = 0
    captured: bool = False
    stands_t: float = 0.0
    retry_t: float = math.inf
    canary_out: bool = False
    canaried: bool = False
    proofs: int = 0
    d_tids: frozenset[int] = frozenset()
    hold_t: float = -math.inf
    tasks: Mapping[str, float] = field(default_factory=dict)
    ended: int | None = None
    ended_t: float = -math.inf
    generated: float | None = None
    generated_t: float = -math.inf
    rises: tuple[float, ...] = ()
    restarts: int | None = None
    idle_t: float = -math.inf
    missed: int = 0
    ours: Key | None = None
    restart_t: float | None = None
    done: tuple[Done, ...] = ()
    told: frozenset[str] = frozenset()
    said: Mapping[str, float] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.key[0] if self.key is not None else 0

    @property
    def ready(self) -> bool:
        """True once this process was proven ready."""
        return self.ready_t < math.inf

    def quiet_since(self) -> float:
        """Since when work is outstanding without progress; +inf where no work is."""
        if self.work_since is None:
            return math.inf
        return max(self.progress_t, self.work_since)

    def seen_s(self, since: float, until: float) -> float:
        """Seconds from `since` to `until` (as a poll dates them), without those that nobody saw."""
        unseen = sum(min(by, end - since) for end, by in self.gaps if since < end <= until)
        return until - since - unseen

    def shifted(self, by: float) -> State:
        """The same state `by` seconds later, as if that time had not been: no clock of a class in it advances."""

        def later(t: float | None) -> float | None:
            return None if t is None else t + by

        return replace(self, progress_t=self.progress_t + by, real_progress_t=self.real_progress_t + by,
                       work_since=later(self.work_since), error_since=later(self.error_since),
                       two_since=self.two_since + by, first_t=self.first_t + by,
                       stands_t=self.stands_t + by, idle_t=self.idle_t + by,
                       silent_since=self.silent_since + by, deaf_since=self.deaf_since + by,
                       seen_t=self.seen_t + by, ended_t=self.ended_t + by, generated_t=self.generated_t + by,
                       tasks={task: t + by for task, t in self.tasks.items()}, down_since=later(self.down_since),
                       restart_t=later(self.restart_t))  # fmt: skip

    def of_process(self, key: Key | None, t: float, told: frozenset[str]) -> State:
        """A new state for another process, or none, at `t`: only what is the unit's or the watch's own goes on."""
        return State(key=key, last_t=t, first_t=t, late=self.late, restart_t=self.restart_t, told=told,
                     said=self.said, rises=self.rises, restarts=self.restarts, idle_t=t, gaps=self.gaps,
                     stage="restart" if self.stage == "restart" else "watch")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    state: State
    events: tuple[Event, ...] = ()
    action: Action | None = None


class Turn:
    """One step under way: the poll, the state being made, the events so far; `dt`: the observed seconds since the poll
    before, 0 after a gap."""

    def __init__(self, state: State, poll: Poll, patience: Patience, dt: float) -> None:
        self.s, self.poll, self.p, self.dt = state, poll, patience, dt
        self.events: list[Event] = []

    def tell(self, kind: str, level: EventLevel, text: str, *, once: str = "") -> bool:
        """Adds an event; with `once`, not while that word holds, and not yet within REPEAT_S of the last time: what
        goes on is then told when that has passed. True where it is told by now."""
        if once:
            if once in self.s.told:
                return True
            if self.poll.t - self.s.said.get(once, -math.inf) < REPEAT_S:
                return False
            self.s = replace(self.s, told=self.s.told | {once}, said={**self.s.said, once: self.poll.t})
        self.events.append(Event(kind, level, self.poll.t, text, self.s.wclass))
        return True

    def forget(self, *prefixes: str) -> None:
        """What was told holds no longer."""
        self.s = replace(self.s, told=frozenset(w for w in self.s.told if not w.startswith(prefixes)))

    def end(self, action: Action | None = None) -> Step:
        return Step(self.s, tuple(self.events), action)
