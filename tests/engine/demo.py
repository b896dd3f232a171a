"""`make demo ENGINE=llama-cpp`: a real llama-server under a real systemd wedges inside llama_decode, and the sentinel
undoes it.

Everything happens in a box of its own (tests/system/box). Each line of the timeline is printed only after it was
verified by pid, port, cgroup or journal; the first that is not ends the demo with exit 1. Exit 3: no box to be had.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from inferops.load.drive import prompt
from tests.engine.running import Engine
from tests.system.box import CHECKOUT, Box
from tests.system.sentinel_unit import SentinelUnit, Told
from tests.system.timeline import Timeline, check, run, undone

PREFILL_TOKENS = 9000
WARM_REQUESTS = 6


def healthy(engine: Engine, sentinel: SentinelUnit, line: Timeline) -> None:
    """Load that ends well, then a long prefill that looks like a wedge, and no event for either."""
    argv = [sys.executable, str(CHECKOUT / "tools"), "load", "--url", "http://127.0.0.1:8080", "--output", "json"]
    argv += ["--requests", str(WARM_REQUESTS), "--concurrency", "2", "--prompt-tokens", "40", "--max-tokens", "16"]
    done = sentinel.box.run(argv, timeout=200, check=False)
    report = json.loads(done.stdout or "{}")
    check(done.returncode == 0, f"the load went wrong: {report.get('findings') or done.stderr}")
    line.say(f"{WARM_REQUESTS} requests, 2 at a time, all answered", "inferops load: exit 0")
    before = sentinel.kinds()
    line.now(f"a {PREFILL_TOKENS}-token prompt: /metrics and /slots stop answering, no token comes")
    slow = engine.stream(prompt(PREFILL_TOKENS, 99), 8)
    ttft = slow.first(300)
    slow.end(120)
    read = int(slow.usage.get("prompt_tokens", 0))
    check(read >= PREFILL_TOKENS * 0.9, f"the prompt had {read} tokens")
    check(not slow.error, slow.error)
    news = [k for k in sentinel.kinds()[len(before) :] if k not in ("STALL", "PROGRESS")]
    check(not news, f"the sentinel told of a healthy prefill: {news}")
    line.say(f"prefill of {read:,} tokens left alone, TTFT {ttft:.1f} s", "journal: no ARMED, same pid")


def wedge(engine: Engine, sentinel: SentinelUnit, line: Timeline) -> None:
    """From the fault to the verified restart, each step read back from the journal and checked on the system."""
    old, seen = engine.pid(), len(sentinel.events())
    victim = engine.stream(prompt(40, 7), 4000)
    victim.first(120)
    engine.fault("futex 600")
    engine.faulted()
    at = time.clock_gettime(time.CLOCK_BOOTTIME)
    line.say("llama_decode blocks in a futex, in mid-answer", f"fault taken by pid {old}")
    code, _ = engine.get("/health", 5.0)
    check(code == 200, f"/health says {code}")
    line.say("/health still says 200", "as it does in every wedge")

    def then(kind: str, what: str) -> Told:
        return line.told(sentinel, kind, what, seen, at)

    armed = then("ARMED", "class {class}")
    check(armed.fields["INFEROPS_CLASS"] == "C", armed.text)
    captured = then("CAPTURED", "threads twice, stats, journal")
    where = captured.fields["INFEROPS_CAPTURE"]
    reading = manifest(sentinel, where)["reading"]
    check("blocked wedge" in reading, f"the capture reads: {reading}")
    line.say("it says how to read it: a blocked wedge", "manifest.json, two looks at /proc")
    canary = then("CANARY", "one token asked for, none came")
    check("none" in canary.text, canary.text)
    then("STACKS", "gdb, bounded, target running after")
    stacks = sentinel.box.read(f"{where}/stacks.txt")
    check("inferops_fault_futex" in stacks, "the fault is not in the stacks")
    line.say("the stacks name the blocked function", "stacks.txt: inferops_fault_futex")
    undone(line, engine, sentinel, old, seen, at)


def manifest(sentinel: SentinelUnit, where: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sentinel.box.read(f"{where}/manifest.json"))
    return found


def play(line: Timeline, box: Box) -> str:
    line.now("a systemd of its own has booted; a 270M model is loaded")
    engine = Engine(box).start()
    line.say("llama-server is ready as a systemd unit", f"pid {engine.pid()} in a box of its own")
    sentinel = SentinelUnit(box).start()
    sentinel.wait("READY", 60)
    line.say("the sentinel watches: poll 1 s, stall 6 s", "systemd: READY=1, journal: READY")
    began = sentinel.pid()
    healthy(engine, sentinel, line)
    wedge(engine, sentinel, line)
    check(sentinel.pid() == began != 0, "the sentinel was restarted on the way")
    line.say("one sentinel all the way", f"systemctl: still pid {began}")
    return "healthy work left alone, one wedge found and undone"


if __name__ == "__main__":
    sys.exit(run(play))
