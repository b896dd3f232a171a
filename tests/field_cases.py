"""Public incidents of other engines and watchdogs as recordings for the wedge policy, each with its right answer and
the settings it holds under. `A…` were wedges (or were taken for one), `B…` were healthy and taken for wedges.

A case is played as: a minute of decode (or `before`), the shape from second 70 on, ordinary work after a healthy one.
Where no source of ours shows a shape by default, the case says so (`blind`) and another one shows what does see it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from inferops.core.evidence import Patience
from inferops.core.poll import Health, HostSeen, JournalSeen, RequestsSeen, Stats, UnitSeen
from tests.polls import CLIENT, HANG, PATIENCE, READY, SILENT, START_T

CPU = PATIENCE  # llama-server on CPU: threads are evidence, stats wait for the engine
GPU = replace(PATIENCE, cpu_is_evidence=False, stats_wait_for_engine=False, canary_moves_at_most=64.0)
NINFER = replace(GPU, counters_move_in_prefill=False, stats_wait_for_engine=True, slowest_cadence_s=5.0)
WITH_CANARY = replace(GPU, idle_canary_s=300.0)
ALERT = replace(GPU, action="alert")
GPU_HOST = HostSeen(hot=0, gpu=True)
REFUSED = Health(answer="refused")
NOTHING = Stats(answer="refused")
MANY = tuple(f"10.0.0.{n}:41000" for n in range(2, 12))
Part = Any  # of a poll: a value, or what makes it from the second


@dataclass(frozen=True, kw_only=True)
class Case:
    """`shape`, `before`: parts of the polls; `until_s`: when the shape ends. The answer: `wclass` (None: nothing arms)
    `armed_s` after the process's start, `restarts` under the case's settings, and the kinds told besides READY, STALL,
    PROGRESS and the way. `canary`: how one would end. `blind`: no source shows it under these settings."""

    id: str
    what: str
    shape: Mapping[str, Part]
    patience: Patience = GPU
    before: Mapping[str, Part] = field(default_factory=dict)
    until_s: float = 600.0
    wclass: str | None = None
    armed_s: float | None = None
    restarts: int = 0
    told: tuple[str, ...] = ()
    canary: str = "none"
    blind: bool = False
    resumed: bool = False


def gauges(active: int, queued: int = 0, n: float = 3600.0, **more: Any) -> Stats:
    return Stats(answer="ok", active=active, queued=queued, free_slots=1, counters={"tokens": n}, **more)


def moving(per_s: float = 40.0, active: int = 1, queued: int = 0, **more: Any) -> Callable[[float], Stats]:
    return lambda t: gauges(active, queued, 3600.0 + t * per_s, **more)


def written(every: float, name: str, since: float = 60.0, until: float = 1e9) -> Callable[[float], JournalSeen]:
    """A line of that kind each `every` seconds; other lines come all the time."""

    def seen(t: float) -> JournalSeen:
        at = min(t, until)
        line = START_T + since + (at - since) // every * every if at >= since else None
        return JournalSeen(**({"ready_t": START_T + 1, "any_t": START_T + t} | {name: line}))

    return seen


def process(pid: int, start_s: float, restarts: int = 0) -> UnitSeen:
    return UnitSeen(active="active", sub="running", main_pid=pid, start_t=START_T + start_s, restarts=restarts)


def at_times(*spans: tuple[float, float], then: Part, otherwise: Part) -> Callable[[float], Part]:
    """`then` in each span (from, to), seconds; else `otherwise`. Callables are called."""

    def part(t: float) -> Part:
        value = then if any(a <= t < b for a, b in spans) else otherwise
        return value(t) if callable(value) else value

    return part


NOISE = written(5.0, "any_t")  # status lines with rates of zero, arrivals, access logs: lines, and no progress
WEDGED = 60 + 150.0  # the last progress is at 60 s

WEDGES = [
    Case(id="A02", what="35 running, 115 pending, the status line goes on with rates of zero",
         shape={"stats": gauges(35, 115), "clients": MANY, "journal": NOISE}, wclass="C", armed_s=WEDGED, restarts=1),
    Case(id="A04", what="a request larger than the KV cache blocks the queue for ever",
         shape={"stats": gauges(0, 1), "clients": CLIENT}, wclass="A", armed_s=WEDGED, restarts=1),
    Case(id="A05", what="6 wait for capacity on a cache that is 0 % used",
         shape={"stats": gauges(0, 6), "clients": MANY}, wclass="A", armed_s=WEDGED, restarts=1),
    Case(id="A06", what="parked requests stand in no gauge, accepted minus ended says 5",
         shape={"stats": gauges(0, 0, open=5), "clients": MANY}, wclass="A", armed_s=WEDGED, restarts=1),
    Case(id="A08", what="running, throughput 0, not one line of any kind",
         shape={"stats": gauges(4), "clients": CLIENT}, wclass="C", armed_s=WEDGED, restarts=1),
    Case(id="A09", what="two stalled in mid-decode, the GPU 96 % busy, all threads asleep",
         shape={"stats": gauges(2), "clients": CLIENT, "host": HostSeen(hot=0, cpu_s=0.0, gpu=True)},
         wclass="C", armed_s=WEDGED, restarts=1),
    Case(id="A10", what="a lost wakeup: one request in flight, every process idle",
         shape={"stats": gauges(1), "clients": CLIENT, "host": GPU_HOST}, wclass="C", armed_s=WEDGED, restarts=1),
    Case(id="A12", what="a collective is stuck: running 1 and 0.0 tok/s lines for half an hour",
         shape={"stats": gauges(1), "clients": CLIENT, "journal": NOISE}, wclass="C", armed_s=WEDGED, restarts=1),
    Case(id="A20", what="a fatal line, and the process lives on and hangs",
         shape={"stats": HANG, "clients": CLIENT, "journal": JournalSeen(fatal_t=START_T + 65, any_t=START_T + 65)},
         patience=NINFER, wclass="C", armed_s=WEDGED, restarts=1, told=("FATAL",)),
    Case(id="A23", what="spin barrier with too many threads: CPU 100 %, no token (CPU is no evidence here)",
         shape={"stats": gauges(1), "clients": CLIENT, "host": HostSeen(hot=4, gpu=True)},
         wclass="C", armed_s=WEDGED, restarts=1),
    Case(id="A23", what="the same on a CPU engine: two hot threads may be a prefill for cpu_only_max_s, and no longer",
         shape={"stats": HANG, "clients": CLIENT, "host": HostSeen(hot=4, gpu=False)}, patience=CPU, until_s=4200.0,
         wclass="C", armed_s=60 + 3600 + 150.0, restarts=1),
    Case(id="A24", what="accepted and never scheduled, by the request log",
         before={"stats": gauges(0, 0, 0.0), "clients": ()},
         shape={"stats": gauges(0, 0, 0.0), "clients": CLIENT, "requests": RequestsSeen(open=1, oldest_t=START_T + 65)},
         wclass="A", armed_s=70 + 150.0, restarts=1),
    Case(id="A26", what="all-to-all deadlock: 503 by the front end, gauges standing",
         shape={"stats": gauges(8, 3), "clients": MANY, "health": Health(answer="unavailable", code=503)},
         wclass="C", armed_s=WEDGED, restarts=1),
    Case(id="A33", what="a child of the unit is stuck in stopping: gauges of the parent say 1 active",
         shape={"stats": gauges(1), "clients": CLIENT}, wclass="C", armed_s=WEDGED, restarts=1),
    Case(id="A38", what="the whole server freezes, its last statistics line says 16 active",
         shape={"stats": gauges(16), "clients": MANY, "journal": JournalSeen(any_t=START_T + 60)},
         wclass="C", armed_s=WEDGED, restarts=1),
    Case(id="A39", what="GPU 100 % busy at the power of an idle one", shape={"stats": gauges(9, 2), "clients": MANY,
         "host": HostSeen(hot=6, gpu=True)}, wclass="C", armed_s=WEDGED, restarts=1),
    Case(id="A40", what="requests stay pending and executing", shape={"stats": gauges(1, 7), "clients": MANY},
         wclass="C", armed_s=WEDGED, restarts=1),
    Case(id="A42", what="frozen in mid-prefill: the gauge says prefilling 1, the journal is silent, stats hang",
         before={"stats": moving()}, patience=NINFER,
         shape={"stats": HANG, "clients": CLIENT, "health": SILENT, "journal": JournalSeen(any_t=START_T + 60)},
         wclass="E", armed_s=WEDGED, restarts=1),
    Case(id="A43", what="503 from health and requests, the scheduler empty, stats answering",
         before={"stats": gauges(0)},
         shape={"stats": gauges(0), "health": Health(answer="unavailable", code=503)},
         wclass="D", armed_s=70 + 150.0, restarts=1),
    Case(id="A46", what="stuck in materialization: running 0, waiting 1", patience=NINFER,
         shape={"stats": gauges(0, 1, stuck=1), "clients": CLIENT}, wclass="B", armed_s=WEDGED, restarts=1),
    Case(id="A47", what="the worker stands in a GPU call, for 12 hours if nobody looks",
         shape={"stats": gauges(1), "clients": CLIENT}, wclass="C", armed_s=WEDGED, restarts=1),
    Case(id="A50", what="14 hours without a completion, arrivals logged; a restart strands its memory: alert only",
         shape={"stats": gauges(0, 12), "clients": MANY, "journal": NOISE}, patience=ALERT, wclass="A", armed_s=WEDGED),
    Case(id="A51", what="heartbeats fresh, both ranks burn a core, no batch step; one scrape in three is unreadable",
         shape={"stats": at_times(*[(t, t + 10) for t in range(100, 200, 30)], then=Stats(answer="bad", why="half"),
                otherwise=gauges(2)), "clients": CLIENT, "host": HostSeen(hot=2, gpu=True)},
         wclass="C", armed_s=WEDGED, restarts=1),
    Case(id="A52", what="prefill wedged after evictions: 1,800 s of silence, the ping thread answers in 1 ms",
         shape={"stats": gauges(1), "clients": CLIENT, "health": Health(answer="ready", code=200, latency_s=0.001)},
         wclass="C", armed_s=WEDGED, restarts=1),
    Case(id="A53", what="silent at 93 % KV occupancy with work in flight",
         shape={"stats": gauges(3, 1), "clients": MANY}, wclass="C", armed_s=WEDGED, restarts=1),
    Case(id="A35", what="after repeated segfaults it hangs without a line; a request of 42 s before was healthy",
         before={"stats": moving()}, shape={"stats": HANG, "clients": MANY, "health": SILENT,
         "journal": JournalSeen(any_t=START_T + 60)}, patience=NINFER, wclass="E", armed_s=WEDGED, restarts=1),
    Case(id="A13", what="workers gone, gauges zero, health 200: two canaries get no token", patience=WITH_CANARY,
         before={"stats": gauges(0)}, shape={"stats": gauges(0)}, until_s=900.0, wclass="F", armed_s=390.0, restarts=1,
         told=("CANARY", "CANARY")),
    Case(id="A24", what="accepted and never scheduled, no request log: two canaries", patience=WITH_CANARY,
         before={"stats": gauges(0)}, shape={"stats": gauges(0), "clients": CLIENT}, until_s=900.0, wclass="F",
         armed_s=390.0, restarts=1, told=("CANARY", "CANARY")),
    Case(id="A27", what="a generate probe that says 200 without a token: the canary wants one", patience=WITH_CANARY,
         before={"stats": gauges(0)}, shape={"stats": gauges(0)}, until_s=900.0, wclass="F", armed_s=390.0, restarts=1,
         told=("CANARY", "CANARY")),
    Case(id="A49", what="health full of plausible numbers, completions hang: two canaries", patience=WITH_CANARY,
         before={"stats": gauges(0)}, shape={"stats": gauges(0)}, until_s=900.0, wclass="F", armed_s=390.0, restarts=1,
         told=("CANARY", "CANARY")),
]  # fmt: skip

ALERTS = [
    Case(id="A11", what="a worker died, the server shut down cleanly with exit 0",
         shape={"unit": UnitSeen(active="inactive", sub="dead", main_pid=0, restarts=0), "health": REFUSED,
                "owner": "nobody", "stats": NOTHING, "clients": ()}, told=("DEAD",)),
    Case(id="A15", what="one runaway generation at 5 tok/s, 14 wait for over an hour",
         shape={"stats": moving(5.4, 1, 14, ended=71), "clients": MANY}, until_s=4000.0, told=("STARVED",)),
    Case(id="A22", what="endless context shifts: tokens move, the request never ends",
         shape={"stats": moving(20.0, 1, tasks=("62462",)), "clients": CLIENT}, until_s=2000.0, told=("STARVED",)),
    Case(id="A35", what="the runner segfaults again and again", shape={
         "unit": lambda t: process(100 + int(t // 100), t // 100 * 100, int(t // 100)), "stats": gauges(0),
         "journal": lambda t: JournalSeen(ready_t=START_T + t)}, told=("STARTED", "CRASHLOOP")),
    Case(id="A45", what="a client gone, its slot still runs and writes tokens; the others wait until they get 408",
         shape={"stats": lambda t: gauges(1, 3, 3600.0 + t * 30, generated=t * 30), "clients": MANY,
                "requests": lambda t: RequestsSeen(failed=int(t), failing=int(t), failing_t=START_T + 70,
                                                   failed_t=START_T + t, open=3, oldest_t=START_T + t - 20)}),
    Case(id="A45", what="the same after the slot stood still: each 408 is a failure, and no token comes out",
         shape={"stats": gauges(0), "requests": lambda t: RequestsSeen(
             failed=int(t // 60), failing=int(t // 60), failing_t=START_T + 60, failed_t=START_T + t // 60 * 60)},
         told=("FAILING",)),
    Case(id="A31", what="a canary that is not answered stays the only one", patience=WITH_CANARY, canary="inconclusive",
         before={"stats": gauges(0)}, shape={"stats": gauges(0)}, until_s=1200.0, told=("CANARY",)),
    Case(id="A25", what="a burst of 200s and a 503, 15 minutes old: answers of long ago are none",
         before={"stats": gauges(0)},
         shape={"stats": gauges(0), "health": Health(answer="unavailable", code=503, latency_s=934.0)},
         told=("BLIND",)),
    Case(id="B27", what="health says 200 after 15.5 s of retries, the engine behind it is another's: no answer of now",
         before={"stats": gauges(0)},
         shape={"stats": gauges(0), "health": Health(answer="ready", code=200, latency_s=15.5)}, told=("BLIND",)),
    Case(id="A44", what="progress 0.6 s before the capture: it is of a healthy engine, nothing is restarted",
         shape={"stats": at_times((70, 220), then=gauges(1), otherwise=moving()), "clients": CLIENT},
         wclass="C", armed_s=WEDGED, resumed=True),
    Case(id="B18", what="a load from a slow disk for half an hour: told at load_max_s, never restarted",
         before={"stats": Stats(answer="loading"), "health": Health(answer="loading"), "journal": JournalSeen()},
         shape={"stats": Stats(answer="loading"), "health": Health(answer="loading"), "journal": JournalSeen(),
                "host": HostSeen(read_mb=412.0)}, until_s=1800.0, told=("LOADING",)),
    Case(id="B20", what="all running requests aborted at once: gauges say 106 and 15 for ever, nobody is connected",
         shape={"stats": gauges(106, 15)}, until_s=3000.0, told=("PHANTOM",)),
    Case(id="B20", what="the same with clients kept alive: the canary gets its token", canary="token",
         shape={"stats": gauges(106, 0), "clients": CLIENT}, until_s=400.0, wclass="C", armed_s=WEDGED,
         told=("PHANTOM",)),
    Case(id="B23", what="a thread in D state twice while memory is compacted: SIGKILL would not reach it",
         shape={"stats": gauges(1), "clients": CLIENT, "host": HostSeen(gpu=True, d_tids=(4711,), compacted=825_669)},
         wclass="C", armed_s=WEDGED),
    Case(id="B26", what="the checker's own tool is missing: cannot tell", shape={"checker": "FileNotFoundError: ss"},
         told=("BLIND",)),
    Case(id="B15", what="nothing answers, no line, threads unread: without a source no restart", patience=CPU,
         shape={"stats": HANG, "health": SILENT, "clients": CLIENT, "host": None, "journal": None}, until_s=4000.0,
         told=("BLIND",)),
]  # fmt: skip

CALM = [
    Case(id="B01", what="many long prompts: health says 503, prefill lines go on", patience=NINFER,
         shape={"stats": gauges(6, 4), "clients": MANY, "health": Health(answer="unavailable", code=503),
                "journal": written(5.0, "progress_t")}, until_s=1500.0),
    Case(id="B02", what="idle for hours", before={"stats": gauges(0)}, shape={"stats": gauges(0), "clients": CLIENT},
         until_s=7200.0),
    Case(id="B03", what="kernels compiled in mid-traffic: silent for 70 s, twice",
         shape={"stats": at_times((70, 140), (300, 370), then=gauges(1), otherwise=moving()), "clients": CLIENT}),
    Case(id="B04", what="a large model loads for 600 s",
         before={"stats": Stats(answer="loading"), "health": Health(answer="loading"), "journal": JournalSeen()},
         shape={"stats": Stats(answer="loading"), "health": Health(answer="loading"), "journal": JournalSeen()},
         until_s=600.0),
    Case(id="B05", what="4 in flight, one at 0.28 tok/s, health times out",
         shape={"stats": moving(0.28, 4), "clients": MANY, "health": SILENT}, until_s=1500.0),
    Case(id="B06", what="both token totals flat in a long decode, calls of decode move",
         shape={"stats": lambda t: Stats(answer="ok", active=1, counters={"tokens": 3600.0, "calls": t // 1}),
                "clients": CLIENT}, until_s=1500.0),
    Case(id="B08", what="1,280 requests at once: the event loop answers no health check",
         shape={"stats": moving(800.0, 256, 1024), "clients": MANY, "health": SILENT}),
    Case(id="B10", what="250k cold prefill: counters flat though stats answer, rate lines come", patience=NINFER,
         shape={"stats": gauges(1), "clients": CLIENT, "journal": written(5.0, "progress_t")}, until_s=400.0),
    Case(id="B11", what="a queued request while pages are freed, admitted after 112 s", patience=NINFER,
         shape={"stats": at_times((70, 182), then=gauges(0, 1), otherwise=moving()), "clients": CLIENT,
                "journal": written(15.0, "working_t", until=182)}),
    Case(id="B15", what="neither health nor stats for an hour of prompt, its threads hot", patience=CPU,
         shape={"stats": HANG, "health": SILENT, "clients": CLIENT, "host": HostSeen(hot=16, gpu=False)},
         until_s=3600.0),
    Case(id="B15", what="the same told by progress lines alone", patience=replace(CPU, cpu_is_evidence=False),
         shape={"stats": HANG, "health": SILENT, "clients": CLIENT, "journal": written(60.0, "progress_t")},
         until_s=5400.0),
    Case(id="B16", what="503 because every slot is taken", shape={"stats": moving(30.0, 4), "clients": MANY,
         "health": Health(answer="busy", code=503)}, until_s=1500.0),
    Case(id="B17", what="health waits in the task queue while the engine is busy", patience=CPU,
         shape={"stats": HANG, "health": SILENT, "clients": CLIENT, "host": HostSeen(hot=2, gpu=False)},
         until_s=1200.0),
    Case(id="B18", what="the same slow disk with load_max_s for it", patience=replace(GPU, load_max_s=2400.0),
         before={"stats": Stats(answer="loading"), "health": Health(answer="loading"), "journal": JournalSeen()},
         shape={"stats": Stats(answer="loading"), "health": Health(answer="loading"), "journal": JournalSeen()},
         until_s=1800.0),
    Case(id="B21", what="a scrape that takes seconds on the engine's loop: every second one times out",
         shape={"stats": at_times(*[(t, t + 10) for t in range(70, 900, 20)], then=HANG, otherwise=moving()),
                "clients": CLIENT, "health": SILENT}, until_s=900.0),
    Case(id="B23", what="memory compacted: 96 s for one token, a thread in D state once",
         shape={"stats": at_times((70, 166), then=gauges(1), otherwise=moving()), "clients": CLIENT,
                "host": at_times((70, 80), then=HostSeen(gpu=True, d_tids=(4711,), compacted=400_000),
                                 otherwise=GPU_HOST)}),
    Case(id="B24", what="restored from a snapshot: the port refuses for minutes, the pid is young",
         before={"stats": NOTHING, "health": REFUSED, "owner": "nobody", "journal": JournalSeen()},
         shape={"stats": NOTHING, "health": REFUSED, "owner": "nobody", "journal": JournalSeen()}, until_s=600.0),
    Case(id="B28", what="503 while it loads, then 200: never terminal", before={"stats": Stats(answer="loading"),
         "health": Health(answer="loading", code=503), "journal": JournalSeen()},
         shape={"stats": at_times((0, 200), then=Stats(answer="loading"), otherwise=gauges(0)),
                "health": at_times((0, 200), then=Health(answer="loading", code=503), otherwise=READY),
                "journal": JournalSeen()}),
    Case(id="B31", what="nothing answers for 10, 33 and 28 s, and recovers", shape={
         "stats": at_times((100, 110), (200, 233), (300, 328), then=HANG, otherwise=moving()), "clients": CLIENT,
         "health": at_times((100, 110), (200, 233), (300, 328), then=SILENT, otherwise=READY)}),
    Case(id="A13", what="workers gone, gauges zero, health 200: no source of the default settings shows it",
         before={"stats": gauges(0)}, shape={"stats": gauges(0)}, until_s=3600.0, blind=True),
    Case(id="A24", what="accepted and never scheduled: no request log, no canary", before={"stats": gauges(0)},
         shape={"stats": gauges(0), "clients": CLIENT}, until_s=3600.0, blind=True),
    Case(id="A27", what="scheduler crashed, health 200", before={"stats": gauges(0)}, shape={"stats": gauges(0)},
         until_s=3600.0, blind=True),
    Case(id="A49", what="completions hang, health 200 with plausible numbers", before={"stats": gauges(0)},
         shape={"stats": gauges(0)}, until_s=3600.0, blind=True),
]  # fmt: skip

# What is not the policy's: which test of this project holds the right answer instead, and why.
ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "A29": ("tests/system/test_capture_box.py::test_without_gdb_it_says_what_to_install", "the stack tool is missing"),
    "A34": ("tests/test_unit_parse.py::test_a_systemctl_that_hangs_meets_the_deadline", "each command has a deadline"),
    "A55": ("tests/test_wedge_properties.py::test_no_history_makes_a_restart_that_should_not_be", "evidence first"),
    "A57": ("tests/test_wedge_classes.py::test_class_f_is_off_unless_asked_for", "wrong answers: out of scope"),
    "A58": ("tests/test_capture.py::test_a_failed_attach_is_told_by_its_frames", "a failed gdb exits 0"),
    "B29": ("tests/test_field_cases.py::test_a_test_server_in_the_same_place_arms_nothing", "another process answers"),
    "B30": ("tests/test_field_cases.py::test_an_all_zero_residual_says_nothing", "amounts are the watcher's rules"),
}
