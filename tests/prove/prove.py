"""`make prove`: the long proofs, whole. SEED=… and ROUNDS=… repeat or shorten a run; docs/proofs.md keeps the figures.

1. The wedge policy's properties on many more random histories than CI draws.
2. Each wedge injected many times into a running server, in virtual time: found at its bound, never earlier (hours.py).
3. Hours of healthy but scary load, in virtual time: nothing restarted (hours.py; HOURS=… and INJECTIONS=…).
4. Faults at random moments on a real llama-server: each one captured and restarted, never before its bound.
5. Healthy work at random on it (decode, long prefill, contention): nothing restarted.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable

from inferops.load.drive import prompt
from tests.engine.engine import EngineError
from tests.engine.running import Engine
from tests.prove import hours
from tests.system.box import CHECKOUT, Box, BoxError
from tests.system.sentinel_unit import SentinelUnit

SEED = int(os.environ.get("SEED") or "20261130")
ROUNDS = int(os.environ.get("ROUNDS") or "4")
EXAMPLES = os.environ.get("EXAMPLES") or "4000"
PROPERTIES = 5
STALL_S, POLL_S = 20.0, 2.0
# The policy may take the last evidence up to a poll and a probe late, and the journal and the box add to what we read.
LATE_S = POLL_S + 2.0
EXPECTED = {"futex 900": "C", "spin 900": "C", "STOP": "E"}
QUIET = {"CONFIG", "READY", "STALL", "PROGRESS"}


def progress(text: str) -> None:
    print(f"prove: {text}", file=sys.stderr, flush=True)


def policy() -> str:
    """The properties, EXAMPLES examples each; raises BoxError if one falls."""
    progress(f"policy properties, {EXAMPLES} examples each")
    argv = [sys.executable, "-m", "pytest", "tests/test_wedge_properties.py", "-q", "-p", "no:cacheprovider"]
    argv += ["--timeout=3000", f"--hypothesis-seed={SEED}"]
    env = {**os.environ, "INFEROPS_EXAMPLES": EXAMPLES}
    done = subprocess.run(argv, cwd=CHECKOUT, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BoxError(f"a property of the policy does not hold:\n{done.stdout[-3000:]}")
    return f"policy: {PROPERTIES} properties x {EXAMPLES} random histories held"


def fault(engine: Engine, watcher: SentinelUnit, which: str, rng: random.Random) -> float:
    """One fault at a random moment; seconds from it to ARMED. Raises BoxError unless the whole way was right."""
    seen, old = len(watcher.events()), engine.pid()
    engine.stream(prompt(rng.randint(20, 400), rng.randrange(10**6)), 4000).first(120)
    time.sleep(rng.uniform(0, 2))
    if which == "STOP":
        engine.signal("STOP")
    else:
        engine.fault(which)
        engine.faulted()
    at = time.clock_gettime(time.CLOCK_BOOTTIME)
    watcher.wait("RESTARTED", 200, seen)
    told = {e.kind: e for e in watcher.events()[seen:]}
    delay = told["ARMED"].t - at
    if told["WEDGE"].fields["INFEROPS_CLASS"] != EXPECTED[which] or engine.pid() in (0, old):
        raise BoxError(f"{which}: {told['WEDGE'].text}, pid {old} -> {engine.pid()}")
    if not STALL_S - POLL_S <= delay <= STALL_S + LATE_S:
        raise BoxError(f"{which}: armed {delay:.2f} s after the fault, bound {STALL_S:g} s + {LATE_S:g} s")
    return delay


def healthy(engine: Engine, watcher: SentinelUnit, rng: random.Random) -> float:
    """Work that looks scary and is not; seconds it took. Raises BoxError if the sentinel made anything of it."""
    seen, old, began = len(watcher.events()), engine.pid(), time.monotonic()
    hogs = [watcher.box.popen(["sh", "-c", "while :; do :; done"]) for _ in range(rng.choice([0, 0, 3]))]
    try:
        work = [engine.stream(prompt(rng.choice([20, 800, 6000]), rng.randrange(10**6)), rng.randint(1, 40))
                for _ in range(rng.randint(1, 2))]  # fmt: skip
        bad = [one.error for one in work if one.end(600).error]
    finally:
        for hog in hogs:
            hog.kill()
            hog.communicate()
    told = [e.text for e in watcher.events()[seen:] if e.kind not in QUIET]
    if bad or told or engine.pid() != old:
        raise BoxError(f"healthy work: requests {bad}, told {told}, pid {old} -> {engine.pid()}")
    return time.monotonic() - began


def rounds() -> list[str]:
    rng = random.Random(SEED)  # noqa: S311 - a seed is to be repeated, not to be secret
    delays: dict[str, list[float]] = {which: [] for which in EXPECTED}
    calm: list[float] = []
    with Box() as box:
        engine = Engine(box).start()
        watcher = SentinelUnit(box, stall_s=STALL_S, poll_s=POLL_S, probe_deadline_s=1.9).start()
        watcher.wait("READY", 60)
        for number in range(ROUNDS):
            order: list[str | None] = [*EXPECTED, None, None]
            rng.shuffle(order)
            for which in order:
                progress(f"round {number + 1} of {ROUNDS}: {which or 'healthy work'}")
                box.run(["rm", "-f", "/var/lib/inferops/sentinel/llama.service/budget.json"])
                if which is None:
                    calm.append(healthy(engine, watcher, rng))
                else:
                    delays[which].append(fault(engine, watcher, which, rng))
    lines = [
        f"{which}: {len(d)} of {len(d)} restarted and verified, armed {min(d):.2f} to {max(d):.2f} s after it "
        f"(bound {STALL_S:g} s, poll {POLL_S:g} s)"
        for which, d in delays.items()
    ]
    return [*lines, f"healthy work: {len(calm)} spells, {sum(calm):.0f} s, 0 captures, 0 restarts"]


def main() -> int:
    if (why := Box.missing()) is not None:
        print(f"prove: no box can be had here: {why}", file=sys.stderr)
        return 3
    began = time.monotonic()
    parts: tuple[Callable[[], list[str]], ...] = (
        lambda: [policy()],
        lambda: hours.run_wedges(hours.INJECTIONS, SEED, progress),
        lambda: hours.run_hours(hours.HOURS, SEED, progress),
        rounds,
    )
    try:
        for part in parts:
            for line in part():
                print(line, flush=True)
    except (BoxError, EngineError, OSError, hours.Broken) as e:
        print(f"prove: seed {SEED}: {e}", file=sys.stderr)
        return 1
    print(f"prove: all held, seed {SEED}, {ROUNDS} rounds, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
