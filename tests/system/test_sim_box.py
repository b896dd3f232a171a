"""The sentinel on the simulator under a real systemd: each class found on a server that is really asked, read and
restarted, the healthy scares left alone. The clocks of the policy itself are tests/test_wedge*.py's."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.box import Box
from tests.system.sentinel_unit import SentinelUnit, until
from tests.system.sim_unit import LIVE, Sim, manifest, watched

pytestmark = [pytest.mark.box, pytest.mark.timeout(400)]

QUIET = {"CONFIG", "READY", "STALL", "PROGRESS"}
FAST = ("--load", "0.5", "--throughput", "1")
BUDGET = "/var/lib/inferops/sentinel/ninfer.service/budget.json"


@pytest.fixture
def box() -> Iterator[Box]:
    with Box() as made:
        yield made


def calm(watcher: SentinelUnit, after: int = 0) -> list[str]:
    return [kind for kind in watcher.kinds()[after:] if kind not in QUIET]


def work(sim: Sim, requests: int = 2, tokens: int = 4000) -> None:
    """Requests in mid-answer, or waiting for what the fault does to them."""
    for n in range(requests):
        sim.stream(f"conversation {n}", tokens)


WEDGES: list[tuple[str, str, bool]] = [  # fault, class, whether the work is under way before it
    ("materializing-wedge", "B", False),
    ("decode-wedge", "C", True),
    ("mutex-wedge", "C", True),
    ("prefill-wedge", "C", False),
    ("unavailable", "D", True),
    ("silent", "E", True),
]


def test_every_wedge_is_found_captured_and_restarted(box: Box) -> None:
    sim = Sim(box, *FAST).start()
    watcher = watched(box)
    for fault, wclass, before in WEDGES:
        seen, old = len(watcher.events()), sim.pid()
        if before:
            work(sim)
            until(lambda: sim.stats()["scheduler"]["decode_ready"] == 2, 20, "two requests in decode")
        sim.fault(fault)
        if not before:
            work(sim)
        watcher.wait("RESTARTED", 120, seen)
        told = {event.kind: event for event in watcher.events()[seen:]}
        way = [kind for kind in watcher.kinds()[seen:] if kind not in QUIET]
        assert way == ["ARMED", "CAPTURED", "CANARY", "STACKS", "WEDGE", "RESTARTED"], (fault, way)
        assert told["WEDGE"].fields["INFEROPS_CLASS"] == wclass, (fault, told["WEDGE"].text)
        assert "not sent" in told["CANARY"].text or "none: no token in" in told["CANARY"].text, fault
        capture = manifest(box, told["WEDGE"].fields["INFEROPS_CAPTURE"])
        assert (capture["state"], capture["pid"]) == ("whole", old), fault
        assert sim.pid() not in (0, old), fault
        assert sim.stream("are you back", 5).end(60).error == "", fault
        box.run(["rm", BUDGET])  # six restarts are more than an hour's budget


def test_an_idle_looking_wedge_is_found_by_two_canaries(box: Box) -> None:
    sim = Sim(box, *FAST).start()
    watcher = watched(box, idle_canary_s=60.0)
    old = sim.pid()
    sim.fault("idle-wedge")
    event = watcher.wait("RESTARTED", 250)
    assert calm(watcher) == ["CANARY", "CANARY", "ARMED", "CAPTURED", "CANARY", "STACKS", "WEDGE", "RESTARTED"]
    told = {event.kind: event for event in watcher.events()}
    assert told["WEDGE"].fields["INFEROPS_CLASS"] == "F"
    assert told["ARMED"].t - next(e for e in watcher.events() if e.kind == "CANARY").t >= 60.0
    assert f"pid {sim.pid()} is new" in event.text
    assert sim.pid() != old


def test_what_only_alerts_restarts_nothing(box: Box) -> None:
    sim = Sim(box, *FAST, restart="no").start()
    watcher = watched(box, request_max_s=8.0, load_max_s=6.0)
    pid = sim.pid()
    sim.fault("failing")
    errors = []
    for n in range(5):  # each 2 s: the fifth is the first with which they go on for longer than the bound of 6 s
        errors.append(sim.stream(f"question {n}", 8).end(30).error)
        time.sleep(2)
    assert all("internal error" in error for error in errors)
    failing = watcher.wait("FAILING", 60)
    assert failing.fields["INFEROPS_LEVEL"] == "alert"
    assert re.search(r"each of the last [45] requests ended in a server error, for [6-9]", failing.text)
    sim.fault("clear")
    seen = len(watcher.events())
    sim.fault("runaway")
    work(sim, 3, 10)
    starved = watcher.wait("STARVED", 60, seen)
    assert "no end for" in starved.text
    assert sim.pid() == pid
    seen = len(watcher.events())
    sim.fault("exit-0")
    dead = watcher.wait("DEAD", 60, seen)
    assert "no planned stop seen; not started by us" in dead.text
    assert sim.show("Result") == "success"  # nothing in systemd's own words says that it died
    sim.start()
    watcher.wait("READY", 60, seen)
    seen = len(watcher.events())
    sim.fault("slow-load", "seconds=15")
    box.run(["systemctl", "restart", sim.unit])
    loading = watcher.wait("LOADING", 60, seen)
    assert "never restarted while loading" in loading.text
    watcher.wait("READY", 60, seen)
    assert not {"WEDGE", "RESTARTED"} & set(watcher.kinds())
    assert box.run(["test", "-e", BUDGET], check=False).returncode == 1


def test_a_crash_loop_is_told_once_and_its_processes_are_not(box: Box) -> None:
    sim = Sim(box, *FAST, restart="always").start()
    watcher = watched(box)
    sim.fault("crash-loop", "times=6")
    sim.fault("abort")
    watcher.wait("CRASHLOOP", 90)
    until(lambda: sim.show("NRestarts") == "7", 90, "the end of the loop")
    until(lambda: sim.show("SubState") == "running", 30, "a process that stays")
    kinds = calm(watcher)
    assert kinds.count("CRASHLOOP") == 1
    after = kinds[kinds.index("CRASHLOOP") :]
    assert after.count("STARTED") <= 1
    assert not {"ARMED", "RESTARTED"} & set(kinds)


def test_healthy_scares_are_left_alone(box: Box) -> None:
    """Each longer than the bound of 6 s; the demo has cold prefill, held stats and page relief."""
    sim = Sim(box, *FAST, "--generation", "1").start()
    watcher = watched(box)
    pid = sim.pid()
    sim.fault("health-held", "seconds=9")
    assert sim.stream("health does not answer meanwhile", 540).end(60).error == ""
    sim.fault("long-prefill", "seconds=9")
    assert sim.stream("a long prompt by the old rate lines", 8).end(60).error == ""
    sim.fault("http-500-burst", "count=3")
    assert ["internal error" in sim.stream(f"burst {n}", 8).end(30).error for n in range(4)] == [True] * 3 + [False]
    busy = sim.stream("lost in the recovery", 4000)
    busy.first(30)
    sim.fault("oom")
    assert "internal error" in busy.end(30).error
    assert sim.stream("after the recovery", 8).end(30).error == ""
    assert calm(watcher) == []
    sim.fault("phantom")
    phantom = watcher.wait("PHANTOM", 60)
    assert "no client is connected" in phantom.text
    assert sim.stream("the gauges are made anew", 8).end(30).error == ""
    assert calm(watcher) == ["PHANTOM"]
    assert sim.pid() == pid


def test_a_stop_that_takes_its_time_is_planned_and_no_alarm(box: Box) -> None:
    sim = Sim(box, *FAST).start()
    watcher = watched(box)
    sim.fault("slow-stop", "seconds=4")
    box.run(["systemctl", "stop", sim.unit])
    watcher.wait("STOPPED", 60)
    assert "DEAD" not in watcher.kinds()
    assert "post-recovery residual (fail-all): main_kv_pages=0" in sim.journal()


def test_a_wedged_unit_that_does_not_stop_is_killed_only_where_asked_for(box: Box) -> None:
    sim = Sim(box, *FAST).start()
    watcher = watched(box, kill_after_s=2.0)
    work(sim)
    until(lambda: sim.stats()["scheduler"]["decode_ready"] == 2, 20, "two requests in decode")
    sim.fault("mutex-wedge")  # its stop needs the lock that the wedge holds
    watcher.wait("RESTARTED", 120)
    journal = sim.journal()
    assert "status=9/KILL" in journal
    assert "State 'stop-sigterm' timed out" not in journal  # systemd's own patience, TimeoutStopSec=10, was not used up
    ledger: dict[str, Any] = json.loads(box.read(BUDGET))
    assert [entry["result"] for entry in ledger["restarts"]] == ["ok"]


def test_stats_that_are_nowhere_are_told(box: Box) -> None:
    """Nothing listens on 8081, and 8080 knows no /stats: told with what to do, nothing is guessed."""
    sim = Sim(box, *FAST)
    text = box.read(f"/etc/systemd/system/{sim.unit}").replace("--stats-port 8081", "--stats-port 8099")
    box.write(f"/etc/systemd/system/{sim.unit}", text)
    box.run(["systemctl", "daemon-reload"])
    sim.start()
    watcher = SentinelUnit(box, live=LIVE | {"engine": "ninfer"}, stall_s=150.0, poll_s=1.0).start()
    blind = watcher.wait("BLIND", 60)
    assert "/stats" in blind.text
    assert "stats-port" in blind.text
