"""What can be broken in the simulated server: each fault by name, what it imitates, what it does to the model. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from inferops.sim import said

if TYPE_CHECKING:
    from inferops.sim.model import Model

Kind = Literal["A", "B", "C", "D", "E", "F", "G", "STARVED", "CRASHLOOP", "DEAD", "LOADING", "healthy", "-"]
RELIEF_EVERY_S = 15.0  # between two rounds of freed pages: the request that was admitted after 112 s saw eight
CRASH_AFTER_S = 1.0  # of its readiness: time enough for that to be seen


@dataclass(slots=True)
class Broken:
    """What is broken now. frozen: the engine's thread stands (with `mutex`: in the lock that /stats needs); silent:
    nothing is answered or written; no_admission: the queue is not looked at; sticks, stuck: the next request stays
    between queue and lane; freezes_prefill: the engine freezes at the next prefill; loses: requests are taken and
    forgotten; failing: so many requests fail; relief_*: the queue is worked until then, next line; stale: gauges that
    /stats shows; mixes: answers carry another session's words; dies_*: when and how the process ends; crashes: it does
    a second after it is ready; stats_until, health_until: the handler waits for the engine until then."""

    frozen: bool = False
    mutex: bool = False
    silent: bool = False
    no_admission: bool = False
    sticks: bool = False
    stuck: bool = False
    freezes_prefill: bool = False
    unavailable: bool = False
    loses: bool = False
    failing: float = 0.0
    relief_t: float = math.inf
    relief_until: float = -math.inf
    relief_every_s: float = RELIEF_EVERY_S
    slow_prefill_s: float = 0.0
    stale: dict[str, int] | None = None
    runaway: bool = False
    mixes: bool = False
    stop_s: float | None = None
    dies_t: float = math.inf
    dies_as: tuple[Literal["abort", "exit"], int] = ("abort", 6)
    crashes: bool = False
    stats_until: float = -math.inf
    health_until: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`kind`: the class it is of, healthy (scary, to be left alone), or - (no wedge: a line or an answer says it);
    `args`: name -> what it is if not given; `next_start`: it shows when the server starts the next time."""

    kind: Kind
    imitates: str
    apply: Callable[..., None]
    args: Mapping[str, float] = field(default_factory=dict)
    next_start: bool = False


def _sets(**values: bool | float) -> Callable[[Model], None]:
    def apply(m: Model) -> None:
        for name, value in values.items():
            setattr(m.broken, name, value)

    return apply


def _silent(m: Model) -> None:
    m.broken.frozen = m.broken.mutex = m.broken.silent = True
    m.broken.stats_until = m.broken.health_until = math.inf


def _unavailable(m: Model) -> None:
    m.broken.unavailable = True
    m.fail_all("engine unavailable", 503)


def _page_relief(m: Model, seconds: float, every: float) -> None:
    m.broken.relief_t, m.broken.relief_until, m.broken.relief_every_s = m.t, m.t + seconds, every


def _livelock(m: Model, every: float) -> None:
    _page_relief(m, math.inf, every)


def _held(name: str) -> Callable[..., None]:
    def apply(m: Model, seconds: float) -> None:
        setattr(m.broken, name, m.t + seconds)

    return apply


def _recovery(line: str, pages: int, slots: int, kv_bytes: int) -> Callable[[Model], None]:
    def apply(m: Model) -> None:
        m.say(line)
        m.fail_all("internal error")
        m.say(said.cleanup())
        m.say(said.residual("recover", pages, slots, kv_bytes))

    return apply


def _phantom(m: Model, running: float, waiting: float) -> None:
    for job in m.under_way():
        m.end(job, "cancelled", status=499, error="client disconnected")
    m.broken.stale = m.gauges() | {"running": int(running), "decode_ready": int(running), "waiting": int(waiting)}


def _dies(how: Literal["abort", "exit"], code: int, last: str = "") -> Callable[[Model], None]:
    def apply(m: Model) -> None:
        if last:
            m.say(last)
        m.broken.dies_t, m.broken.dies_as = m.t, (how, code)

    return apply


def _runaway(m: Model) -> None:
    m.broken.runaway = True
    for job in m.running[:1]:
        job.endless = True


def _slow_prefill(m: Model, seconds: float) -> None:
    m.broken.slow_prefill_s = seconds


def _failing(m: Model, count: float) -> None:
    m.broken.failing = count


def _slow_stop(m: Model, seconds: float) -> None:
    m.broken.stop_s = seconds


def _slow_load(m: Model, seconds: float) -> None:
    m.load_s = seconds


def _crash_loop(m: Model, times: float) -> None:
    m.broken.crashes = times > 0


OOM = "[engine] WORKER OOM: std::bad_alloc - recovering"
UNDERFLOW = "[engine] WORKER RECOVER: resource subtraction underflow [device.main_kv_pages: have 811, removing 813]"
ABORT = "terminate called after throwing an instance of 'std::runtime_error'"

FAULTS: dict[str, Fault] = {
    "queue-wedge": Fault(
        kind="A", imitates="requests wait and an idle engine takes none of them", apply=_sets(no_admission=True)),
    "relief-livelock": Fault(
        kind="A", imitates="pages are freed for a request that is never admitted", apply=_livelock,
        args={"every": RELIEF_EVERY_S}),
    "materializing-wedge": Fault(
        kind="B", imitates="a request sticks between queue and engine, nothing runs", apply=_sets(sticks=True)),
    "decode-wedge": Fault(
        kind="C", imitates="the engine stands in mid-answer, /stats answers as before", apply=_sets(frozen=True)),
    "mutex-wedge": Fault(
        kind="C", imitates="the engine stands in the lock that /stats needs", apply=_sets(frozen=True, mutex=True)),
    "prefill-wedge": Fault(
        kind="C", imitates="it freezes in the next prefill: the gauge says prefilling 1, the journal is silent",
        apply=_sets(freezes_prefill=True)),
    "unavailable": Fault(
        kind="D", imitates="/health and requests say 503, the scheduler is empty, /stats answers", apply=_unavailable),
    "silent": Fault(kind="E", imitates="nothing answers any more, and nothing is written", apply=_silent),
    "idle-wedge": Fault(
        kind="F", imitates="it looks idle, takes requests and forgets them", apply=_sets(loses=True)),
    "failing": Fault(kind="G", imitates="every request ends in HTTP 500", apply=_sets(failing=math.inf)),
    "runaway": Fault(
        kind="STARVED", imitates="one answer never ends and the others wait behind it", apply=_runaway),
    "long-prefill": Fault(
        kind="healthy", imitates="the next prompt takes minutes, every counter stands still, rate lines come",
        apply=_slow_prefill, args={"seconds": 150.0}),
    "stats-held": Fault(
        kind="healthy", imitates="/stats waits for the engine while that works", apply=_held("stats_until"),
        args={"seconds": 60.0}),
    "health-held": Fault(
        kind="healthy", imitates="/health waits behind a long engine step", apply=_held("health_until"),
        args={"seconds": 30.0}),
    "page-relief": Fault(
        kind="healthy", imitates="the queue waits while pages are freed, then it is admitted", apply=_page_relief,
        args={"seconds": 112.0, "every": RELIEF_EVERY_S}),
    "phantom": Fault(
        kind="healthy", imitates="all clients left at once: gauges stay until the next token", apply=_phantom,
        args={"running": 106.0, "waiting": 15.0}),
    "http-500-burst": Fault(
        kind="healthy", imitates="some requests fail, the next ones don't", apply=_failing, args={"count": 3.0}),
    "oom": Fault(
        kind="healthy", imitates="out of memory, recovered, nothing left behind", apply=_recovery(OOM, 0, 0, 0)),
    "oom-residual": Fault(
        kind="-", imitates="out of memory, recovered, pages left behind",
        apply=_recovery(OOM, 1060, 1, 1_244_528_640)),
    "underflow": Fault(
        kind="-", imitates="its books do not balance: WORKER RECOVER, pages left behind",
        apply=_recovery(UNDERFLOW, 1059, 0, 0)),
    "contamination": Fault(
        kind="-", imitates="answers carry words of another session", apply=_sets(mixes=True)),
    "abort": Fault(kind="DEAD", imitates="SIGABRT in mid-work", apply=_dies("abort", 6, ABORT)),
    "exit-0": Fault(kind="DEAD", imitates="it ends with exit 0, its work lost", apply=_dies("exit", 0)),
    "slow-stop": Fault(
        kind="-", imitates="a stop that unpins memory for minutes", apply=_slow_stop, args={"seconds": 60.0}),
    "slow-load": Fault(
        kind="LOADING", imitates="minutes until it is ready", apply=_slow_load,
        args={"seconds": 180.0}, next_start=True),
    "crash-loop": Fault(
        kind="CRASHLOOP", imitates="it dies a second after each time that it is ready", apply=_crash_loop,
        args={"times": 5.0}, next_start=True),
}  # fmt: skip
