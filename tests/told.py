"""What the operator reads, whole: histories of the wedge policy and every word and action they lead to.

tests/data/told/*.txt hold the answers, one section a history: second after the process's start, level, class, text, or
"-> action". `python -m tests.told` writes them anew; read the difference before you keep it (test_told.py compares).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from inferops.core.poll import Done, Gate, Health, HostSeen, JournalSeen, RequestsSeen, Stats, UnitSeen
from tests.field_cases import ALERTS, CALM, GPU, NINFER, REFUSED, WEDGES, at_times, gauges, process, written
from tests.polls import CLIENT, ERROR, HANG, PATIENCE, READY, SILENT, START_T, Run, poll
from tests.test_field_cases import name, played
from tests.test_wedge import decoding

DATA = Path(__file__).parent / "data" / "told"
NO_CANARY = replace(PATIENCE, canary=False)
IDLE = replace(GPU, idle_canary_s=300.0)
BAD = Stats(answer="bad", why="no JSON")
LOCKED = Gate(held="the machine lock is held by pid 9 (swap)")
D_STATE = HostSeen(hot=0, gpu=False, d_tids=(11,))
STOPPED = UnitSeen(active="inactive", sub="dead", main_pid=0, restarts=0)


def lines(run: Run) -> list[str]:
    """A history in words: what was told and asked for, in the order of the polls."""
    told = [(e.t - START_T, 0, f"{e.level:<5} {e.wclass or '-'} {e.kind}: {e.text}") for e in run.events]
    asked = [(t, 1, f"-> {action}") for t, action in run.actions]
    return [f"{t:7.1f} {text}" for t, _, text in sorted(told + asked, key=lambda row: row[:2])]


def wedged(run: Run, until: float = 400.0, **more: Any) -> Run:
    """A minute of decode, then a stats endpoint that hangs beside a client."""
    run.until(60, stats=decoding, clients=CLIENT)
    return stands(run, 70, until, **more)


def stands(run: Run, start: float, until: float, **more: Any) -> Run:
    parts: dict[str, Any] = {"stats": HANG, "clients": CLIENT} | more
    return run.until(until, start=start, **parts)


def healed(run: Run, **more: Any) -> Run:
    parts: dict[str, Any] = {"stats": lambda t: decoding(t * 2), "clients": CLIENT} | more
    return wedged(run, 230).until(260, start=240, **parts)


def blind(patience: Any = PATIENCE, **parts: Any) -> Run:
    run = Run(patience).until(60, stats=decoding, clients=CLIENT)
    return run.until(500, start=70, **({"clients": CLIENT} | parts)).until(520, start=510)


def restarted(*, after: Callable[[Run], Run], result: str = "ok", why: str = "") -> Run:
    """A wedge, our restart, its end; then what comes up."""
    run = wedged(Run())
    run.feed(poll(410, done=(Done(kind="restart", result=result, t=START_T + 410, why=why),), unit=process(78, 408),
                  stats=Stats(answer="refused"), health=REFUSED, owner="nobody", journal=JournalSeen()))  # fmt: skip
    return after(run)


def errors(run: Run, until: float = 400.0) -> Run:
    return run.until(60).until(until, start=70, health=ERROR)


def asked(*ends: str) -> Run:
    """Canaries to an idle server, ended one after the other."""
    run, t = Run(IDLE), 0.0
    for end in ends:
        run.ends["canary"] = end
        sent = len(run.actions)
        while len(run.actions) == sent:
            run.until(t, start=t, stats=gauges(0))
            t += 10
    return run.until(t + 20, start=t, stats=gauges(0))


def failing(until: float, **more: Any) -> Callable[[float], RequestsSeen]:
    return lambda t: RequestsSeen(
        **(
            {
                "failed": int(t // 10),
                "failing": int(t // 10),
                "failing_t": START_T + 10,
                "failed_t": START_T + t // 10 * 10,
            }
            | more
        )
    )


HISTORIES: dict[str, Callable[[], Run]] = {
    "class C, the whole way": lambda: wedged(Run()),
    "class C, the canary gets a token": lambda: wedged(Run(canary="token"), 900),
    "class C, progress while it is looked at": lambda: healed(Run()),
    "class C, an idle answer while it is looked at": lambda: healed(Run(), stats=gauges(0), clients=()),
    "class C, no canary wanted, no stacks wanted": lambda: wedged(Run(replace(NO_CANARY, stacks=False))),
    "class C, the canary proves nothing, the stacks fail": lambda: wedged(
        Run(canary="inconclusive", stacks="failed", why="")),
    "class C, the canary was not sent, the stacks fail and say why": lambda: wedged(
        Run(canary="not-sent", stacks="failed", why="gdb is missing")),
    "class C, nothing says why": lambda: wedged(Run(why="")),
    "class C, capture fails twice in eleven minutes": lambda: wedged(Run(capture="failed", why="disk full"), 1500),
    "class C, capture fails, it heals, and stands again ten minutes later": lambda: stands(
        healed(Run(capture="failed", why="disk full")), 270, 900),
    "class C, the same an hour later": lambda: stands(
        healed(Run(capture="failed", why="disk full")).until(3700, start=270), 3710, 4000),
    "class C, alert only": lambda: wedged(Run(replace(PATIENCE, action="alert")), 1500),
    "class C, nobody read the gate": lambda: wedged(Run(), gate=None),
    "class C, held by a lock that goes": lambda: wedged(
        Run(), gate=at_times((0, 330), then=Gate(held="the machine lock is held by pid 9 (swap)"), otherwise=Gate())),
    "class C, two threads twice in D state": lambda: wedged(
        Run(), 1100, host=HostSeen(hot=0, gpu=False, d_tids=(11, 12, 13, 14, 15))),
    "class C, D state that passes": lambda: wedged(
        Run(), 1100, host=at_times((70, 260), then=HostSeen(hot=0, gpu=False, d_tids=(11,)),
                                   otherwise=HostSeen(hot=0, gpu=False))),
    "class C, held, then two threads twice in D state when nothing holds it any more": lambda: stands(stands(wedged(
        Run(), 300, gate=LOCKED), 310, 330, gate=LOCKED, host=D_STATE), 340, 400, host=D_STATE),
    "class C, D state twice an hour apart": lambda: stands(
        wedged(Run(), 300, host=D_STATE).until(3700, start=310), 3710, 4000, host=D_STATE),
    "class C, then not to be judged": lambda: stands(wedged(Run(), 210), 220, 1500, owner=None),
    "class C, not to be judged twice, an hour apart": lambda: stands(stands(stands(stands(
        wedged(Run(replace(PATIENCE, action="alert")), 400), 410, 600, owner=None), 610, 3000), 3010, 3300, owner=None),
        3310, 3400),
    "class C, somebody else restarts it": lambda: stands(wedged(Run(), 210), 220, 240, unit=process(78, 216)),
    "class C, somebody stops it": lambda: wedged(Run(), 215).until(260, start=220, unit=STOPPED, health=REFUSED),
    "class C, memory compacted meanwhile": lambda: wedged(Run(GPU), host=HostSeen(gpu=True, compacted=10_000)),
    "class C, one page less is not worth a word": lambda: wedged(Run(GPU), host=HostSeen(gpu=True, compacted=9_999)),
    "class A, and one that is stuck between": lambda: wedged(Run(GPU), stats=gauges(0, 2, stuck=1)),
    "class D, the whole way": lambda: errors(Run()),
    "class D, over while it is looked at": lambda: errors(Run(), 230).until(260, start=240),
    "class C, free slots unknown": lambda: wedged(
        Run(GPU), stats=Stats(answer="ok", active=1, queued=0, counters={"rounds": 9.0})),
    "class C, two clients": lambda: wedged(Run(GPU), stats=gauges(1), clients=("10.0.0.2:4000", "10.0.0.3:4000")),
    "class E, refused": lambda: wedged(
        Run(), health=REFUSED, stats=Stats(answer="refused"), owner="nobody", journal=JournalSeen(any_t=START_T + 60)),
    "class E, the whole way": lambda: wedged(Run(), health=SILENT, journal=JournalSeen(any_t=START_T + 60)),
    "class F, two canaries without a token": lambda: asked("none", "none"),
    "class F, a miss and a token": lambda: asked("none", "token", "none", "token"),
    "class F, canaries that prove nothing": lambda: asked("inconclusive", "not-sent", "token", "inconclusive"),
    "class G": lambda: Run().until(600, stats=gauges(0), requests=failing(600)),
    "STARVED by the oldest request of the log": lambda: Run().until(
        1200, stats=decoding, clients=CLIENT, requests=RequestsSeen(open=1, oldest_t=START_T + 20)),
    "STARVED by a task": lambda: Run(GPU).until(
        1200, stats=lambda t: gauges(1, 0, t, tasks=("17",)), clients=CLIENT),
    "STARVED by a counter of ends": lambda: Run(GPU).until(
        1200, stats=lambda t: gauges(1, 2, t, ended=4), clients=CLIENT),
    "CRASHLOOP": lambda: Run().until(
        900, unit=lambda t: process(80 + int(t // 100), t // 100 * 100, int(t // 100)),
        journal=lambda t: JournalSeen(ready_t=START_T + t)),
    "LOADING for long": lambda: Run().until(
        1000, health=Health(answer="loading", code=503), stats=Stats(answer="loading"), journal=JournalSeen()),
    "LOADING, nobody asked": lambda: Run().until(1000, health=None, stats=None, journal=JournalSeen()),
    "LOADING, reading from disk": lambda: Run().until(
        1000, health=REFUSED, owner="nobody", stats=Stats(answer="refused"), journal=JournalSeen(),
        host=HostSeen(read_mb=511.6)),
    "DEAD": lambda: Run().until(60).until(100, start=70, unit=STOPPED, health=REFUSED),
    "STOPPED": lambda: Run().until(60).until(
        100, start=70, unit=STOPPED, journal=JournalSeen(ready_t=START_T + 1, stopping_t=START_T + 65)),
    "STOPPED twice": lambda: Run().until(60).until(
        100, start=70, unit=STOPPED, journal=JournalSeen(stopping_t=START_T + 65)).until(
        200, start=110, unit=process(78, 105)).until(
        230, start=210, unit=STOPPED, journal=JournalSeen(stopping_t=START_T + 205)),
    "neither up nor down, twice": lambda: Run(replace(PATIENCE, load_max_s=100.0)).until(60).until(
        300, start=70, unit=UnitSeen(active="activating", sub="auto-restart", main_pid=0, restarts=0)).until(
        400, start=310, unit=process(78, 305)).until(
        600, start=410, unit=UnitSeen(active="activating", sub="auto-restart", main_pid=0, restarts=0)),
    "blind: counters too large for their digits": lambda: blind(
        replace(GPU, counter_digits=6), stats=gauges(1, n=1e7), journal=None, host=None),
    "blind: a request log that contradicts the gauges": lambda: blind(
        NINFER, stats=gauges(1), requests=RequestsSeen(open=0, done=1), host=None),
    "blind: a request log that does not": lambda: blind(
        NINFER, stats=BAD, clients=None, requests=RequestsSeen(open=3, oldest_t=START_T + 5, done=1), host=None),
    "neither up nor down": lambda: Run().until(60).until(
        1100, start=70, unit=UnitSeen(active="activating", sub="auto-restart", main_pid=0, restarts=0)),
    "another process": lambda: Run().until(60).until(90, start=70, unit=process(78, 65)),
    "another instance under the same pid": lambda: Run().until(60, instance="a").until(90, start=70, instance="b"),
    "our restart, verified": lambda: restarted(after=lambda run: run.until(
        440, start=420, unit=process(78, 408), journal=JournalSeen(ready_t=START_T + 409))),
    "our restart never gets ready": lambda: restarted(after=lambda run: run.until(
        1400, start=420, unit=process(78, 408), health=REFUSED, owner="nobody", stats=Stats(answer="refused"),
        journal=JournalSeen())),
    "our restart brings up nothing": lambda: restarted(after=lambda run: run.until(1400, start=420, unit=STOPPED)),
    "our restart, then systemd says nothing": lambda: restarted(after=lambda run: run.until(
        1400, start=420, unit=None)),
    "our restart fails": lambda: restarted(result="failed", why="systemctl ended 1: job failed",
                                           after=lambda run: stands(run, 420, 1400)),
    "the checker fails": lambda: Run().until(60).until(90, start=70, checker="OSError: too many files").until(
        900, start=100).until(930, start=910, checker="OSError: too many files"),
    "polls come late": lambda: Run().until(60).until(300, start=120, every=60),
    "systemd says nothing": lambda: Run().until(60).until(90, start=70, unit=None),
    "a fatal line": lambda: Run().until(60).until(
        120, start=70, journal=at_times((70, 100), then=JournalSeen(fatal_t=START_T + 70, any_t=START_T + 70),
                                        otherwise=JournalSeen(fatal_t=START_T + 99, any_t=START_T + 99))),
    "a stall that ends": lambda: wedged(Run(GPU), 180, stats=gauges(1)).until(
        200, start=190, stats=gauges(1, n=4000), clients=CLIENT),
    "a stall that ends with a line": lambda: wedged(Run(NINFER), 180, stats=gauges(0, 1)).until(
        200, start=190, stats=gauges(0, 1), clients=CLIENT, journal=JournalSeen(progress_t=START_T + 185)),
    "a stall that ends with a line of a worked queue": lambda: wedged(Run(NINFER), 180, stats=gauges(0, 1)).until(
        200, start=190, stats=gauges(0, 1), clients=CLIENT, journal=JournalSeen(working_t=START_T + 185)),
    "a stall that ends with reads from disk": lambda: wedged(Run(NINFER), 180, stats=gauges(0, 1)).until(
        200, start=190, stats=gauges(0, 1), clients=CLIENT, host=HostSeen(gpu=True, read_mb=1234.5)),
    "a stall of work that was seen last": lambda: wedged(Run(GPU), 180, stats=Stats(answer="refused")),
    "a phantom": lambda: Run(GPU).until(60, stats=decoding, clients=CLIENT).until(300, start=70, stats=gauges(3, 1)),
    "blind: a stranger has the port": lambda: blind(owner="other"),
    "blind: stats answer nonsense": lambda: blind(stats=BAD),
    "blind: stats answer nonsense and say nothing of it": lambda: blind(stats=Stats(answer="bad")),
    "blind: stats refused, health answers": lambda: blind(stats=Stats(answer="refused", why="connection refused")),
    "blind: no gauges": lambda: blind(stats=Stats(answer="ok")),
    "blind: no gauges, nothing else read": lambda: blind(
        stats=Stats(answer="ok"), clients=None, journal=None, host=None),
    "blind: stats not read": lambda: blind(stats=None),
    "blind: NInfer without its journal": lambda: blind(NINFER, stats=gauges(1), journal=None, host=None),
    "blind: gauges alone, connections unread": lambda: blind(GPU, stats=gauges(2), clients=None),
    "blind: gauges, and health that hangs only now": lambda: Run(GPU).until(60, stats=decoding, clients=CLIENT).until(
        300, start=70, stats=gauges(2), clients=None, health=at_times((0, 150), then=READY, otherwise=SILENT)),
    "blind: nothing answers an idle server": lambda: Run().until(60).until(500, start=70, health=SILENT, stats=HANG),
    "a queue that is worked, and then is not": lambda: Run(NINFER).until(60, stats=decoding, clients=CLIENT).until(
        1000, start=70, stats=gauges(0, 1), clients=CLIENT, journal=written(15.0, "working_t", until=200)),
    "a request that ended with tokens": lambda: Run(GPU).until(60, stats=decoding, clients=CLIENT).until(
        400, start=70, stats=gauges(1), clients=CLIENT,
        requests=at_times((70, 150), then=RequestsSeen(), otherwise=RequestsSeen(done=1, done_t=START_T + 149))),
    "a request without an end in the log, free slots unknown": lambda: Run(GPU).until(60).until(
        300, start=70, clients=CLIENT, stats=Stats(answer="ok", active=0, queued=0, counters={"rounds": 9.0}),
        requests=RequestsSeen(open=1, oldest_t=START_T + 65)),
    "two requests without an end in the log": lambda: Run(GPU).until(60).until(
        300, start=70, clients=CLIENT, requests=RequestsSeen(open=2, oldest_t=START_T + 65)),
}  # fmt: skip


FIELD: dict[str, Callable[[], Run]] = {name(case): partial(played, case) for case in [*WEDGES, *ALERTS, *CALM]}
FILES = {"policy.txt": HISTORIES, "field_cases.txt": FIELD}

if __name__ == "__main__":
    for file, histories in FILES.items():
        parts = ["\n".join([f"== {title}", *lines(play())]) for title, play in histories.items()]
        (DATA / file).write_text("\n\n".join(parts) + "\n")
