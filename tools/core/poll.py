"""A Poll: everything seen of one server at one moment. Every part may be missing, and missing is not zero.

All times are seconds on CLOCK_BOOTTIME (it goes on in a suspend, no clock change moves it) unless a name says wall.
"""

from __future__ import annotations

from typing import Literal

import msgspec

HealthAnswer = Literal["ready", "loading", "busy", "unavailable", "odd", "timeout", "refused"]
StatsAnswer = Literal["ok", "loading", "timeout", "refused", "bad"]
PortOwner = Literal["unit", "other", "nobody"]
DoneKind = Literal["capture", "canary", "stacks", "restart"]


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of what a tape line is made of: immutable, unknown keys refused."""


class Health(Part, frozen=True, kw_only=True):
    """How the health probe ended. `unavailable` is an explicit 5xx, `busy` a 5xx that only says all slots are taken,
    `odd` an answer the profile does not know (never taken as good or bad)."""

    answer: HealthAnswer
    code: int | None = None
    latency_s: float | None = None


class Stats(Part, frozen=True, kw_only=True):
    """What the stats endpoints said, merged; `counters` move only when the engine works. `stuck`: requests between
    queue and engine (being materialized, a slot being loaded). Where the engine counts them, `open`: requests accepted
    and not ended, `ended`: all that ended, `generated`: tokens that came out so far. `tasks`: ids of what runs now;
    `instance`: the engine's own id of its process. `why` is for people."""

    answer: StatsAnswer
    active: int | None = None
    queued: int | None = None
    stuck: int | None = None
    free_slots: int | None = None
    counters: dict[str, float] = {}
    open: int | None = None
    ended: int | None = None
    generated: float | None = None
    tasks: tuple[str, ...] = ()
    instance: str | None = None
    why: str = ""


class JournalSeen(Part, frozen=True, kw_only=True):
    """The entries' own times (BOOTTIME) of the last line of each kind since the sentinel's cursor; None: none seen.
    `working`: a line of a queue that is being worked while no token can move. Lines that our own probing causes count
    as none of them."""

    progress_t: float | None = None
    working_t: float | None = None
    ready_t: float | None = None
    fatal_t: float | None = None
    any_t: float | None = None
    stopping_t: float | None = None


class UnitSeen(Part, frozen=True, kw_only=True):
    """systemd's view. `start_t` is the main process's start; a pid is only itself together with its start."""

    active: str
    sub: str = ""
    main_pid: int = 0
    start_t: float | None = None
    restarts: int | None = None


class HostSeen(Part, frozen=True, kw_only=True):
    """Threads of the unit's cgroup since the poll before. `hot`: threads with (run + wait)/wall at or over the bound;
    None where no earlier sample exists. `gpu`: a GPU device is open (then hot says nothing). `read_mb`: what the
    unit's processes read from disk, `compacted`: pages that the kernel moved to compact memory, both since then."""

    hot: int | None = None
    cpu_s: float | None = None
    d_tids: tuple[int, ...] = ()
    gpu: bool | None = None
    read_mb: float | None = None
    compacted: int | None = None


class RequestsSeen(Part, frozen=True, kw_only=True):
    """Requests of this process, by its request log or its journal: how many ended since the sentinel's start, with
    tokens (`done`), in a server's error (`failed`, a 5xx), or otherwise (`other`: a client's error or abort); BOOTTIME
    of the newest such end. `failing`, `failing_t`: how many failed since the last that was done, and the first of them.
    `open`, `oldest_t`: those started and not ended, and the oldest one's start; None where
    only ends are known."""

    done: int = 0
    failed: int = 0
    other: int = 0
    done_t: float | None = None
    failed_t: float | None = None
    failing: int = 0
    failing_t: float | None = None
    open: int | None = None
    oldest_t: float | None = None


class Gate(Part, frozen=True, kw_only=True):
    """What may forbid a restart, read at this poll; a reason in `held` forbids it."""

    held: str | None = None


class Done(Part, frozen=True, kw_only=True):
    """How an action that the policy asked for ended. `result` for a canary: token | none | inconclusive | not-sent; for
    the others: ok | failed. `t` is when it ended, `pid` the main pid it was about (0: unknown)."""

    kind: DoneKind
    result: str
    t: float
    why: str = ""
    pid: int = 0


class Poll(Part, frozen=True, kw_only=True):
    """One look at the server. `t`: when the first probe was sent; `clients`: peers "ip:port" of ESTABLISHED connections
    to the port, our own left out; `done`: actions that ended since the poll before; `checker`: the checker's own
    failure in words (then nothing else counts)."""

    t: float
    wall: float | None = None
    unit: UnitSeen | None = None
    health: Health | None = None
    owner: PortOwner | None = None
    instance: str | None = None
    stats: Stats | None = None
    journal: JournalSeen | None = None
    clients: tuple[str, ...] | None = None
    requests: RequestsSeen | None = None
    host: HostSeen | None = None
    gate: Gate | None = None
    done: tuple[Done, ...] = ()
    checker: str | None = None
