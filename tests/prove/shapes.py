"""Healthy but scary: what made watchdogs restart servers that were well. Each shape bends a world for a while, none of
it is a wedge. They come in any order, for any length within their bounds, several at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.prove.worlds import Llama, NInfer, World


@dataclass(frozen=True)
class Shape:
    """`begin` bends the world for so many seconds (drawn from `lasts`), `end` takes it back; `alone`: no other shape
    may run beside it, since together they would be no healthy server any more."""

    lasts: tuple[float, float]
    begin: Callable[..., None]
    end: Callable[..., None] = lambda world: None
    alone: bool = False


def covers(*names: str) -> Callable[..., None]:
    def begin(world: World, seconds: float) -> None:
        for name in names:
            world.eyes.until[name] = world.t + seconds

    return begin


def _arrivals(mean_s: float) -> Callable[..., None]:
    def begin(world: NInfer | Llama, seconds: float) -> None:
        world.arrivals_s, world.next_t = mean_s, world.t

    return begin


def _quiet(world: NInfer | Llama) -> None:
    world.arrivals_s = math.inf


def _fault(name: str, **args: float) -> Callable[[NInfer, float], None]:
    def begin(world: NInfer, seconds: float) -> None:
        if world.listening and world.up:
            world.model.fault(name, world.t, **({"seconds": seconds} if args.get("seconds") else {}),
                              **{k: v for k, v in args.items() if k != "seconds"})  # fmt: skip

    return begin


def _mend(world: NInfer) -> None:
    if world.listening:
        world.model.clear(world.t)


def _long_prefill(world: NInfer, seconds: float) -> None:
    _fault("long-prefill", seconds=1)(world, seconds)
    world.ask(world.rng.randint(100_000, 250_000), 40)


def _relief(world: NInfer, seconds: float) -> None:
    _fault("page-relief", seconds=1)(world, seconds)
    world.ask(200_000, 40)


def _phantom(world: NInfer, seconds: float) -> None:
    world.arrivals_s = math.inf
    _fault("phantom")(world, seconds)
    world.jobs.clear()
    if world.rng.random() < 0.5:
        world.kept = ()


def _burst(world: NInfer | Llama, seconds: float) -> None:
    for _ in range(32):
        world.ask(300, 40) if isinstance(world, NInfer) else world.ask(0.3, 40)


def _runaway(world: NInfer, seconds: float) -> None:
    _fault("runaway")(world, seconds)
    world.ask(100, 10)


def _leave(world: NInfer, seconds: float) -> None:
    world.leave(1.0)


def _planned_stop(world: World, seconds: float) -> None:
    world.stopping_t, world.up = world.t, False


def _back(world: World) -> None:
    world.new_process(world.t)


def _other_restart(world: World, seconds: float) -> None:
    world.stopping_t = world.t
    world.new_process(world.t)


def _slow_load(world: NInfer | Llama, seconds: float) -> None:
    world.load_s = seconds
    _other_restart(world, seconds)
    world.load_s = 2.0
    if isinstance(world, Llama):
        world.load_s = seconds


def _gap(world: World, seconds: float) -> None:
    """A suspended laptop: the server stood still too."""
    world.eyes.until["gap"] = world.t + seconds


def _stall(world: Llama, seconds: float) -> None:
    world.stalls_until = world.t + seconds


def _compaction(world: Llama, seconds: float) -> None:
    world.stalls_until, world.d_tids = world.t + seconds, (world.rng.randrange(1000, 2000),)


def _out_of_d(world: World) -> None:
    world.d_tids = ()


def _slow(world: Llama, seconds: float) -> None:
    world.tok_s = world.rng.choice((0.28, 1.0, 5.0))
    world.ask(0.2, 200)


def _fast(world: Llama) -> None:
    world.tok_s = 40.0


def _prefill(world: Llama, seconds: float) -> None:
    world.ask(min(seconds, 3400.0), 20)


BOTH: Mapping[str, Shape] = {
    "busy": Shape((60, 3600), _arrivals(4.0), _quiet),
    "crowded": Shape((60, 900), _arrivals(0.4), _quiet),
    "idle": Shape((60, 7200), lambda world, seconds: None),
    "arrival burst": Shape((10, 60), _burst),
    "checker fails": Shape((10, 600), covers("checker")),
    "journal unread": Shape((10, 140), covers("journal")),
    "connections unread": Shape((10, 600), covers("clients")),
    "stats nonsense or unread": Shape((10, 600), covers("stats")),
    "health unread": Shape((10, 600), covers("health")),
    "systemd does not answer": Shape((10, 300), covers("unit")),
    "a stranger on the port": Shape((10, 600), covers("stranger")),
    "suspended": Shape((100, 7200), _gap, alone=True),
    "planned stop": Shape((20, 600), _planned_stop, _back, alone=True),
    "restarted by somebody": Shape((10, 20), _other_restart, alone=True),
    "slow load": Shape((60, 890), _slow_load, alone=True),
}
ON_NINFER: Mapping[str, Shape] = {
    "long prefill, counters flat": Shape((60, 900), _long_prefill),
    "stats held by the engine": Shape((10, 400), _fault("stats-held", seconds=1)),
    "health held by the engine": Shape((5, 140), _fault("health-held", seconds=1)),
    "queue worked by page relief": Shape((20, 119), _relief, alone=True),
    "phantom gauges": Shape((300, 14_400), _phantom, _mend, alone=True),
    "503 for less than the bound": Shape((10, 135), _fault("unavailable"), _mend, alone=True),
    "500 burst": Shape((10, 60), _fault("http-500-burst", count=3)),
    "out of memory, recovered": Shape((5, 10), _fault("oom")),
    "runaway generation": Shape((60, 3600), _runaway, _mend, alone=True),
    "clients leave": Shape((5, 10), _leave),
    "request log unread": Shape((10, 600), covers("requests")),
}
ON_LLAMA: Mapping[str, Shape] = {
    "long prefill, stats hang": Shape((60, 3400), _prefill),
    "very slow decode": Shape((60, 3000), _slow, _fast),
    "kernels compiled, silent": Shape((30, 70), _stall),
    "stands for seconds": Shape((10, 33), _stall),
    "memory compacted, D state": Shape((38, 96), _compaction, _out_of_d, alone=True),
}
# What covers the eyes may overlap with anything: where nothing is left to tell work from a wedge, BLIND is the answer.
OF: dict[type[NInfer] | type[Llama], dict[str, Shape]] = {NInfer: {**BOTH, **ON_NINFER}, Llama: {**BOTH, **ON_LLAMA}}
