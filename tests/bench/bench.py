"""`make bench`: what the sentinel costs and how soon it captures, as ratios within one run (the machine may be shared).

Prints one table; docs/performance.md keeps figures with their conditions. Exit 3: no box or engine here.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from inferops.load.drive import prompt
from tests.engine.engine import EngineError
from tests.engine.running import Engine
from tests.system.box import CHECKOUT, Box, BoxError
from tests.system.sentinel_unit import CONFIG, SentinelUnit, settings

STARTS = 25
POLLS = 200
WEDGES = 5
STALL_S, POLL_S, PROBE_S = 15.0, 1.0, 0.5  # the defaults, each by a tenth
PACKAGE = str(CHECKOUT / "tools")

# Runs a command and prints the resources of it and all that it waited for: user s, system s, the largest resident set.
USAGE = (
    "import json, resource, subprocess, sys\n"
    "code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode\n"
    "u = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
    "print(json.dumps({'code': code, 'cpu_s': u.ru_utime + u.ru_stime, 'rss_mb': u.ru_maxrss / 1024}))\n"
)


def row(what: str, value: str, against: str, ratio: float) -> None:
    print(f"{what:<44} {value:>13}  {against:<28} {ratio:6.3g}x", flush=True)


def progress(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def start_up() -> None:
    """--help against a bare interpreter, interleaved, median."""
    progress(f"start-up, {STARTS} of each")
    commands = {"bare": ["-c", "pass"], "click": ["-c", "import click"], "help": [PACKAGE, "--help"]}
    took: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(STARTS):
        for name, args in commands.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, *args], stdout=subprocess.DEVNULL, check=True)
            took[name].append(time.perf_counter() - began)
    ms = {name: statistics.median(values) * 1000 for name, values in took.items()}
    row("inferops --help", f"{ms['help']:.0f} ms", f"bare Python {ms['bare']:.0f} ms", ms["help"] / ms["bare"])
    row("inferops --help", f"{ms['help']:.0f} ms", f"import click {ms['click']:.0f} ms", ms["help"] / ms["click"])


def usage(box: Box, argv: list[str]) -> dict[str, float]:
    done = box.run([sys.executable, "-c", USAGE, *argv], timeout=600)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def cost(box: Box) -> None:
    """CPU and memory of POLLS polls of an idle, ready server, against Python itself and one systemctl call."""
    progress(f"{POLLS} polls of an idle server")
    box.write(CONFIG, settings(poll_s=0.25, probe_deadline_s=0.2))
    run = [sys.executable, PACKAGE, "sentinel", "run", "--config", CONFIG]
    short, long = usage(box, [*run, "--polls", "1"]), usage(box, [*run, "--polls", str(POLLS + 1)])
    bare = usage(box, [sys.executable, "-c", "pass"])
    show = usage(box, ["sh", "-c", "for i in $(seq 50); do systemctl show llama.service -p MainPID; done"])
    per_poll = (long["cpu_s"] - short["cpu_s"]) / POLLS * 1000
    systemctl = show["cpu_s"] / 50 * 1000
    each, one = f"{per_poll:.1f} ms", f"systemctl show {systemctl:.1f} ms"
    row("CPU a poll, with all that it runs", each, one, per_poll / systemctl)
    row("CPU at the default poll of 10 s", f"{per_poll / 100:.3f} %", "of one core", per_poll / 1e4)
    first, last, none = short["rss_mb"], long["rss_mb"], bare["rss_mb"]
    row(f"resident after {POLLS} polls", f"{last:.1f} MB", f"bare Python {none:.1f} MB", last / none)
    row(f"resident after {POLLS} polls", f"{last:.1f} MB", f"after 1 poll {first:.1f} MB", last / first)


def detection(box: Box, engine: Engine) -> None:
    """From the fault to the first thing that the capture reads, against the class's bound plus one poll."""
    delays, armed = [], []
    for number in range(WEDGES):
        progress(f"wedge {number + 1} of {WEDGES}")
        box.run(["rm", "-f", "/var/lib/inferops/sentinel/llama.service/budget.json"])
        watcher = SentinelUnit(
            box, stall_s=STALL_S, poll_s=POLL_S, probe_deadline_s=PROBE_S, stacks=False, canary=False
        ).start()
        seen = len(watcher.events())
        stream = engine.stream(prompt(30, number), 4000)
        stream.first(120)
        time.sleep(0.37 * number)  # different places between two polls
        engine.fault("futex 900")
        engine.faulted()
        at = time.clock_gettime(time.CLOCK_BOOTTIME)
        armed.append(watcher.wait("ARMED", 120, seen).t - at)
        where = watcher.wait("CAPTURED", 120, seen).fields["INFEROPS_CAPTURE"]
        watcher.wait("RESTARTED", 120, seen)
        delays.append(json.loads(box.read(f"{where}/manifest.json"))["times"]["passive_begin"] - at)
        watcher.stop()
    bound = STALL_S + POLL_S
    for name, values in (("wedge to ARMED", armed), ("wedge to capture start", delays)):
        middle = statistics.median(values)
        row(f"{name}, median of {WEDGES}", f"{middle:.2f} s", f"stall {STALL_S:g} + poll {POLL_S:g} s", middle / bound)
        row(f"{name}, longest", f"{max(values):.2f} s", f"stall {STALL_S:g} + poll {POLL_S:g} s", max(values) / bound)


def main() -> int:
    if (why := Box.missing()) is not None:
        print(f"bench: no box can be had here: {why}", file=sys.stderr)
        return 3
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    try:
        start_up()
        with Box() as box:
            engine = Engine(box).start()
            SentinelUnit(box)
            parts: tuple[Callable[[], None], ...] = (lambda: cost(box), lambda: detection(box, engine))
            for part in parts:
                part()
    except (BoxError, EngineError, OSError) as e:
        print(f"bench: {e}", file=sys.stderr)
        return 1
    print("bench: done; figures belong into docs/performance.md with the line above")
    return 0


if __name__ == "__main__":
    sys.exit(main())
