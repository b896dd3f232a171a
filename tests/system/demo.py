"""`make demo`: a simulated NInfer under a real systemd; scary work that the sentinel leaves alone, then a wedge that it
undoes.

Everything happens in a box of its own (tests/system/box). Each line of the timeline is printed only after it was
verified by pid, port, cgroup or journal; the first that is not ends the demo with exit 1. Exit 3: no box to be had.
"""

from __future__ import annotations

import json
import sys
import time

from tests.system.box import Box
from tests.system.sentinel_unit import SentinelUnit
from tests.system.sim_unit import INFEROPS, Sim, watched
from tests.system.timeline import Timeline, check, run, undone

STALL_S = 6.0
SCARY_S = 9.0  # each healthy scare lasts longer than the bound
PREFILL_TOKENS = 22_500  # 2,500 tokens/s: 9 s without a token, every counter of /stats flat
LOAD_REQUESTS = 8


def load(sim: Sim, line: Timeline) -> None:
    argv = [*INFEROPS, "load", "--url", "http://127.0.0.1:8080", "--output", "json", "--concurrency", "4"]
    argv += ["--requests", str(LOAD_REQUESTS), "--prompt-tokens", "400", "--max-tokens", "24"]
    done = sim.box.run(argv, timeout=100, check=False)
    report = json.loads(done.stdout or "{}")
    check(done.returncode == 0, f"the load went wrong: {report.get('findings') or done.stderr}")
    ended = len(sim.records("request_done"))
    check(ended >= LOAD_REQUESTS, f"the request log has {ended} ends")
    line.say(f"{LOAD_REQUESTS} requests, 4 at a time, all answered", f"exit 0; request log: {ended} done")


def scares(sim: Sim, sentinel: SentinelUnit, line: Timeline) -> None:
    """Three healthy states that watchdogs have restarted servers for; each longer than the bound, none armed."""
    before, pid = len(sentinel.events()), sim.pid()

    def left_alone(what: str, proof: str) -> None:
        news = [k for k in sentinel.kinds()[before:] if k not in ("STALL", "PROGRESS")]
        check(not news, f"the sentinel told of healthy work: {news}")
        check(sim.pid() == pid, f"main pid {pid} -> {sim.pid()}")
        line.say(what, proof)

    line.now(f"a cold prompt of {PREFILL_TOKENS:,} tokens: no token for {SCARY_S:.0f} s, every counter flat")
    was = sim.stats()["counters"]
    slow = sim.stream("w " * PREFILL_TOKENS, 8)
    time.sleep(SCARY_S * 0.8)
    now = sim.stats()
    check(now["scheduler"]["prefilling"] == 1, f"the scheduler says {now['scheduler']}")
    check(now["counters"] == was, "a counter moved in mid-prefill")
    ttft = slow.first(60)
    check(not slow.end(60).error, slow.error)
    left_alone(f"cold prefill left alone, TTFT {ttft:.1f} s", "/stats: counters flat")

    line.now(f"the engine holds /stats for {SCARY_S:.0f} s while it works")
    sim.fault("stats-held", f"seconds={SCARY_S:g}")
    busy = sim.stream("count", 400)
    time.sleep(SCARY_S)
    check(not busy.end(60).error, busy.error)
    left_alone("/stats unanswered in mid-answer, left alone", f"held for {SCARY_S:.0f} s")

    line.now(f"a request waits {SCARY_S:.0f} s while the engine frees pages for it")
    sim.fault("page-relief", f"seconds={SCARY_S:g}", "every=1.5")
    waited = sim.stream("page", 8).first(60)
    check(waited >= SCARY_S * 0.8, f"it waited {waited:.1f} s only")
    left_alone(f"queue worked by page relief, TTFT {waited:.1f} s", "journal: [relief-kv] lines")


def wedge(sim: Sim, sentinel: SentinelUnit, line: Timeline) -> None:
    """A queue that an idle engine never takes up, from the fault to the verified restart."""
    old, seen = sim.pid(), len(sentinel.events())
    sim.fault("queue-wedge")
    at = time.clock_gettime(time.CLOCK_BOOTTIME)
    for _ in range(3):
        sim.stream("anybody there?", 16)
    time.sleep(1.0)
    scheduler = sim.stats()["scheduler"]
    check((scheduler["running"], scheduler["waiting"]) == (0, 3), f"the scheduler says {scheduler}")
    line.say("3 requests wait, the engine takes none", "/stats: running 0, waiting 3")
    code, _ = sim.get("/health", 5.0)
    check(code == 200, f"/health says {code}")
    line.say("/health still says 200", "as it does in every wedge")
    armed = line.told(sentinel, "ARMED", "class {class}", seen, at)
    check(armed.fields["INFEROPS_CLASS"] == "A", armed.text)
    check(armed.t - at >= STALL_S, f"armed {armed.t - at:.1f} s after the fault, the bound is {STALL_S:g}")
    line.told(sentinel, "CAPTURED", "threads twice, stats, journal", seen, at)
    line.told(sentinel, "CANARY", "not sent: a queue would be jumped", seen, at)
    line.told(sentinel, "STACKS", "gdb, bounded, target running after", seen, at)
    undone(line, sim, sentinel, old, seen, at)


def play(line: Timeline, box: Box) -> str:
    line.now("a systemd of its own has booted; a simulated NInfer starts in it")
    sim = Sim(box, "--load", "1", "--throughput", "1").start()
    line.say("ninfer.service serves, its stats on another port", f"pid {sim.pid()} in a box of its own")
    sentinel = watched(box, stall_s=STALL_S)
    line.say(f"the sentinel watches: poll 1 s, stall {STALL_S:g} s", "systemd: READY=1, journal: READY")
    began = sentinel.pid()
    load(sim, line)
    scares(sim, sentinel, line)
    wedge(sim, sentinel, line)
    check(sentinel.pid() == began != 0, "the sentinel was restarted on the way")
    line.say("one sentinel all the way", f"systemctl: still pid {began}")
    return "3 scares left alone, one wedge found and undone"


if __name__ == "__main__":
    sys.exit(run(play))
