"""The proof of the wedge policy: hours of healthy but scary load, in which nothing may be restarted, and each wedge
injected many times, to be found at its class's bound and never earlier. Virtual time; SEED, HOURS and INJECTIONS repeat
or shorten it: `python -m tests.prove.hours`, part of `make prove`.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from inferops.core.evidence import Patience
from tests.prove.shapes import OF, Shape
from tests.prove.worlds import Llama, NInfer, Watch

SEED = int(os.environ.get("SEED") or "20261130")
HOURS = float(os.environ.get("HOURS") or "1000")
INJECTIONS = int(os.environ.get("INJECTIONS") or "1000")
WORLDS: tuple[type[NInfer] | type[Llama], ...] = (NInfer, Llama)
AT_ONCE = 3  # shapes beside each other
POLL_S, STALL_S = Patience().poll_s, Patience().stall_s


class Broken(Exception):
    """The policy did what it must not, or not what it must."""


@dataclass
class Healthy:
    """What hours of healthy load led to; `kinds`: events told, `spells`: how often each shape came."""

    hours: float = 0.0
    polls: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    spells: Counter[str] = field(default_factory=Counter)


def healthy(
    world_of: type[NInfer] | type[Llama], hours: float, seed: int, into: Healthy, patience: Patience | None = None,
    only: tuple[str, ...] = (),
) -> None:  # fmt: skip
    """Plays `hours` of a world with shapes drawn by `seed` (of `only`, where given). Raises Broken at the first restart
    or wedge."""
    rng = random.Random(seed)  # noqa: S311 - a seed is to be repeated
    world = world_of(rng)
    watch = Watch(world, patience, grid=rng.uniform(0, POLL_S))
    watch.token = lambda: not isinstance(world, Llama) or world.t >= world.stalls_until
    shapes = [(name, shape) for name, shape in OF[world_of].items() if name in (only or OF[world_of])]
    end, on = world.t + hours * 3600, dict[str, tuple[float, Shape]]()
    while world.t < end:
        for name, (until, shape) in list(on.items()):
            if world.t >= until:
                shape.end(world)
                del on[name]
        if len(on) < AT_ONCE and not any(shape.alone for _, shape in on.values()):
            name, shape = rng.choice(shapes)
            if name not in on and not (shape.alone and on):
                seconds = rng.uniform(*shape.lasts)
                into.spells[name] += 1
                shape.begin(world, seconds)
                on[name] = (world.t + seconds, shape)
        if (asleep := world.eyes.until.pop("gap", 0.0)) > world.t:
            shift(world, asleep - world.t)
            on = {n: (until, shape) for n, (until, shape) in on.items()}
        chunk = min(end, world.t + rng.uniform(5, 120), *(until for until, _ in on.values()))
        watch.run(chunk)
        world.advance(chunk)
        if watch.restarts or watch.told("WEDGE"):
            told = "\n".join(f"{e.t:.1f} {e.kind} {e.text}" for e in watch.events[-8:])
            raise Broken(
                f"{world_of.__name__}, seed {seed}: a healthy server at {world.t:.0f} s, shapes {list(on)}:\n{told}"
            )
    into.hours += hours
    into.polls += watch.polls
    into.kinds.update(event.kind for event in watch.events)


def shift(world: NInfer | Llama, seconds: float) -> None:
    """A suspend: nobody lived through these seconds."""
    world.t += seconds
    world.next_t += seconds
    if isinstance(world, Llama):
        world.stalls_until += seconds
        return
    m = world.model
    m.t += seconds
    m.tick_t += seconds
    for name in ("relief_t", "relief_until", "stats_until", "health_until", "dies_t"):
        setattr(m.broken, name, getattr(m.broken, name) + seconds)
    for job in [*m.queue, *m.running, *([m.between] if m.between else [])]:
        job.t_submit += seconds
        job.t_admit = job.t_admit + seconds if job.t_admit is not None else None


@dataclass(frozen=True)
class Wedge:
    """One shape of wedge. `inject` breaks the running world; `since` gives, at the detection, the moment (s) from which
    the bound counts, by what is true of the world, and `bound_s` how long that is; `early_s`, `late_s`: how much before
    the bound and after bound + one poll it may be found, where its evidence comes only so often. `kind`: the event that
    detects it; `calm_s`: so long before it nobody comes; `make`: arguments of the world."""

    world: type[NInfer] | type[Llama]
    classes: tuple[str, ...]
    inject: Callable[..., None]
    bound_s: float = STALL_S
    kind: str = "ARMED"
    since: Callable[..., float] = lambda world, at: max(world.evidence_t, world.work_t)
    early_s: float = 0.0
    late_s: float = 0.0
    restart: bool = True
    patience: dict[str, Any] = field(default_factory=dict)
    arrivals_s: float = 6.0
    calm_s: float = 0.0
    make: dict[str, Any] = field(default_factory=dict)


def _breaks(name: str, ask: int = 1, **args: float) -> Callable[[NInfer], None]:
    def inject(world: NInfer) -> None:
        world.model.fault(name, world.t, **args)
        for _ in range(ask):
            world.ask(400, 2000)

    return inject


def _freezes(name: str) -> Callable[[NInfer], None]:
    """In mid-answer."""

    def inject(world: NInfer) -> None:
        world.ask(100, 4000)
        while not world.model.gauges()["decode_ready"]:
            world.advance(world.t + 0.1)
        world.model.fault(name, world.t)

    return inject


def _stands(how: str, threads: int = 0) -> Callable[[Llama], None]:
    def inject(world: Llama) -> None:
        if not world.slots:
            world.ask(0.2, 4000)
            world.advance(world.t + 1.5)
        world.broken, world.stands = how, threads

    return inject


def _d_state(world: Llama) -> None:
    _stands("futex")(world)
    world.d_tids = (1234,)


def _dies(world: NInfer) -> None:
    world.up = False


def _loads(world: NInfer) -> None:
    world.load_s = math.inf
    world.new_process(world.t)


def _loops(world: NInfer) -> None:
    """The unit's counter rises to three at once or by and by: the third rise counts."""
    world.restarts += 3
    world.new_process(world.t)


def _starves(world: NInfer) -> None:
    world.model.fault("runaway", world.t)
    world.leave(1.0)
    world.ask(100, 10)
    world.advance(world.t + 1.0)


def _oldest(world: NInfer, at: float) -> float:
    return min(world.jobs.values())


def _long_enough(world: NInfer, at: float) -> float:
    """The first failure with which they have gone on for the bound, less the bound."""
    first = max(world.failed_t, world.token_t)
    return next((t for t in world.failures if t - first >= STALL_S), math.inf) - STALL_S


def _fails(world: NInfer) -> None:
    world.model.fault("failing", world.t)
    world.advance(world.t + 0.5)
    before = world.tally.counts.get("failed", 0)
    while world.tally.counts.get("failed", 0) == before:
        world.ask(100, 10)
        world.advance(world.t + 0.5)
    world.failed_t = world.tally.failing_t or world.t


def _idles(world: NInfer) -> None:
    world.leave(1.0)
    world.model.fault("idle-wedge", world.t)


NOW: dict[str, Any] = {"since": lambda world, at: world.injected_t, "bound_s": 0.0}
WEDGES: dict[str, Wedge] = {
    "A queue, idle engine": Wedge(NInfer, ("A",), _breaks("queue-wedge", 3)),
    "B stuck in materialization": Wedge(NInfer, ("B",), _breaks("materializing-wedge", 3)),
    "C frozen in decode, stats stale": Wedge(NInfer, ("C",), _freezes("decode-wedge")),
    "C frozen in the stats mutex": Wedge(NInfer, ("C",), _freezes("mutex-wedge")),
    "C frozen in prefill": Wedge(NInfer, ("C",), _breaks("prefill-wedge", 1)),
    "C futex, CPU, stats hang": Wedge(Llama, ("C",), _stands("futex")),
    "C one thread spins": Wedge(Llama, ("C",), _stands("spin", 1)),
    "C later build, stats stale": Wedge(Llama, ("C",), _stands("futex"), make={"stale": True}),
    "D health 503": Wedge(
        NInfer, ("D",), _breaks("unavailable", 0), since=lambda w, at: max(w.injected_t, w.evidence_t)),
    "E silent": Wedge(NInfer, ("E", "C"), _freezes("silent")),
    "E stopped process": Wedge(Llama, ("E", "C"), _stands("stopped")),
    "F idle-looking": Wedge(
        NInfer, ("F",), _idles, bound_s=300 + 20 + 60 + 20, late_s=3 * POLL_S, patience={"idle_canary_s": 300.0},
        calm_s=60.0, since=lambda w, at: max(w.evidence_t, w.started + 2.0)),
    "G every request fails": Wedge(
        NInfer, ("",), _fails, kind="FAILING", since=_long_enough, restart=False, arrivals_s=8.0),
    "A relief livelock": Wedge(
        NInfer, ("A",), _breaks("relief-livelock", 1, every=15.0), bound_s=600 + STALL_S, early_s=15.0, late_s=POLL_S),
    "C two threads stay hot": Wedge(
        Llama, ("C",), _stands("hot", 2), bound_s=3600 + STALL_S, early_s=POLL_S, late_s=POLL_S,
        since=lambda w, at: max(w.strong_t, w.work_t)),
    "C in D state": Wedge(Llama, ("C",), _d_state, restart=False),
    "STARVED": Wedge(
        NInfer, ("",), _starves, kind="STARVED", bound_s=900.0, since=_oldest, restart=False),
    "LOADING": Wedge(
        NInfer, ("",), _loads, kind="LOADING", bound_s=900.0, since=lambda w, at: w.started, restart=False),
    "CRASHLOOP": Wedge(NInfer, ("",), _loops, kind="CRASHLOOP", restart=False, **NOW),
    "DEAD": Wedge(NInfer, ("",), _dies, kind="DEAD", restart=False, **NOW),
}  # fmt: skip


@dataclass
class Found:
    """How one shape was found: how late after its bound, and how long after it began (s); under which classes."""

    after_s: list[float] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    classes: Counter[str] = field(default_factory=Counter)

    def line(self, name: str) -> str:
        low, mid, high = min(self.after_s), statistics.median(self.after_s), max(self.after_s)
        classes = ", ".join(f"{c} {n:,}" for c, n in self.classes.most_common() if c) or "alert"
        took = f"{min(self.took_s):7.1f} {statistics.median(self.took_s):7.1f} {max(self.took_s):7.1f}"
        return f"{name:<32} {len(self.after_s):>6,}  {low:6.2f} {mid:6.2f} {high:6.2f}  {took}  {classes}"


def inject(name: str, seed: int, found: Found) -> None:
    """One injection into a running world. Raises Broken unless it is found between its bound and one poll more, under
    its class, and the way goes on to the restart, or to the alert alone."""
    wedge, rng = WEDGES[name], random.Random(f"{name}:{seed}")  # noqa: S311 - a seed is to be repeated
    world = wedge.world(rng, **wedge.make)
    watch = Watch(world, replace(world.patience, **wedge.patience), grid=rng.uniform(0, POLL_S))
    world.arrivals_s = wedge.arrivals_s
    watch.run(world.t + rng.uniform(40, 400))
    watch.run(world.t + 900, lambda: watch.state.last_stats is not None)  # one whose stats never answered is BLIND
    if wedge.calm_s:
        world.arrivals_s = math.inf
        watch.run(world.t + wedge.calm_s)
    world.advance(world.t + rng.uniform(0, POLL_S))
    before = len(watch.events)
    world.injected_t = world.t
    wedge.inject(world)
    patient = world.t + 2 * wedge.bound_s + 600

    def over() -> bool:
        return any(event.kind == wedge.kind for event in watch.events[before:])

    watch.run(patient, over)
    told = [event for event in watch.events[before:] if event.kind == wedge.kind]
    log = "\n".join(f"{e.t:.1f} {e.kind} {e.text}" for e in watch.events[before:][-12:])
    if not told:
        raise Broken(f"{name}, seed {seed}: not found {world.t - world.injected_t:.0f} s after it\n{log}")
    at, wclass = told[0].t, told[0].wclass
    after = at - (wedge.since(world, at) + wedge.bound_s)
    if not -wedge.early_s - 1e-6 <= after <= POLL_S + wedge.late_s + 0.02:
        raise Broken(f"{name}, seed {seed}: found {after:+.2f} s from its bound of {wedge.bound_s:g} s\n{log}")
    if wclass not in wedge.classes:
        raise Broken(f"{name}, seed {seed}: class {wclass}, expected {wedge.classes}\n{log}")
    found.after_s.append(after)
    found.took_s.append(at - world.injected_t)
    found.classes[wclass] += 1
    watch.run(world.t + 300, lambda: bool(watch.restarts) or (not wedge.restart and world.t > at + 120))
    if bool(watch.restarts) != wedge.restart:
        raise Broken(f"{name}, seed {seed}: {len(watch.restarts)} restarts, expected {int(wedge.restart)}\n{log}")


def run_hours(hours: float, seed: int, tell: Callable[[str], None]) -> list[str]:
    """Healthy hours in both worlds, ten hours a history."""
    total, began = Healthy(), time.monotonic()
    histories = max(2, math.ceil(hours / 10))
    for n in range(histories):
        healthy(WORLDS[n % 2], hours / histories, seed + n, total)
        tell(f"healthy {total.hours:.0f} of {hours:g} h, {time.monotonic() - began:.0f} s")
    shapes = sum(total.spells.values())
    kinds = ", ".join(f"{kind} {n}" for kind, n in total.kinds.most_common())
    return [
        f"healthy: {total.hours:,.0f} h in {histories} histories, {shapes:,} spells of {len(total.spells)} shapes, "
        f"{total.polls:,} polls: 0 restarts, 0 WEDGE",
        f"  told: {kinds}",
    ]


def run_wedges(injections: int, seed: int, tell: Callable[[str], None]) -> list[str]:
    """Each wedge `injections` times; one line a wedge: seconds from its bound and from its beginning."""
    lines = [
        f"{'':<32} {'':>6}  {'seconds from its bound':<20}  {'from its beginning':<23}",
        f"{'wedge':<32} {'times':>6}  {'min':>6} {'median':>6} {'max':>6}  {'min':>7} {'median':>7} {'max':>7}  as",
    ]
    for name in WEDGES:
        found = Found()
        for n in range(injections):
            inject(name, seed + n, found)
        tell(f"injected {name}: {injections} of {injections}")
        lines.append(found.line(name))
    return lines


def main() -> int:
    def tell(text: str) -> None:
        print(f"prove: {text}", file=sys.stderr, flush=True)

    try:
        for line in [*run_wedges(INJECTIONS, SEED, tell), *run_hours(HOURS, SEED, tell)]:
            print(line, flush=True)
    except Broken as e:
        print(f"prove: {e}", file=sys.stderr)
        return 1
    print(f"hours: all held, seed {SEED}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
