"""The sentinel on a real llama-server under a real systemd: each fault and its right answer, nothing else restarted."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from inferops.load.drive import prompt
from tests.engine.running import Engine
from tests.system.box import CHECKOUT, Box
from tests.system.sentinel_unit import CONFIG, UNIT, SentinelUnit, settings, until

pytestmark = [pytest.mark.box, pytest.mark.engine, pytest.mark.timeout(400)]

QUIET = {"CONFIG", "READY", "STALL", "PROGRESS"}  # what a healthy, slow server may be told of
INFEROPS = [sys.executable, str(CHECKOUT / "tools")]
LEDGER = "/var/lib/inferops/sentinel/llama.service/budget.json"
TAPE = "/var/lib/inferops/sentinel/llama.service/tape.jsonl"


@pytest.fixture
def box() -> Iterator[Box]:
    with Box() as made:
        yield made


def ready(box: Box, **sentinel: Any) -> tuple[Engine, SentinelUnit]:
    """A ready llama-server and a sentinel that has seen it so."""
    engine = Engine(box).start()
    watcher = SentinelUnit(box, **sentinel).start()
    watcher.wait("READY", 60)
    return engine, watcher


def wedged(engine: Engine, fault: str) -> int:
    """A request in mid-answer, then the fault; the main pid before it."""
    pid = engine.pid()
    engine.stream(prompt(30, 5), 4000).first(120)
    engine.fault(fault)
    engine.faulted()
    return pid


def restarted(engine: Engine, watcher: SentinelUnit, old: int, wclass: str) -> None:
    """The whole way in its order, the capture there, a new pid that answers."""
    event = watcher.wait("RESTARTED", 200)
    way = [k for k in watcher.kinds() if k not in QUIET]
    assert way == ["ARMED", "CAPTURED", "CANARY", "STACKS", "WEDGE", "RESTARTED"]
    told = {e.kind: e for e in watcher.events()}
    assert told["WEDGE"].fields["INFEROPS_CLASS"] == wclass
    new = engine.pid()
    assert new not in (0, old)
    assert f"pid {new} is new" in event.text
    manifest = json.loads(engine.box.read(f"{told['WEDGE'].fields['INFEROPS_CAPTURE']}/manifest.json"))
    assert manifest["pid"] == old
    answer = engine.stream(prompt(20, 6), 5).end(120)
    assert (answer.error, bool(answer.times)) == ("", True)
    assert json.loads(engine.box.read(LEDGER))["restarts"][0]["result"] == "ok"


def noting_its_end(box: Box) -> None:
    """A stopped unit is soon forgotten by systemd, its exit status too."""
    box.write(f"/etc/systemd/system/{UNIT}.d/end.conf",
              "[Service]\nExecStopPost=sh -c 'echo $SERVICE_RESULT $EXIT_STATUS >/run/ended'\n")  # fmt: skip


def calm(watcher: SentinelUnit) -> list[str]:
    return [k for k in watcher.kinds() if k not in QUIET]


def test_futex_wedge_is_captured_and_restarted(box: Box) -> None:
    engine, watcher = ready(box)
    old = wedged(engine, "futex 900")
    assert engine.get("/health", 5)[0] == 200
    restarted(engine, watcher, old, "C")
    where = next(e for e in watcher.events() if e.kind == "WEDGE").fields["INFEROPS_CAPTURE"]
    assert "inferops_fault_futex" in box.read(f"{where}/stacks.txt")
    assert box.run(["stat", "-c", "%a", where]).stdout.strip() == "700"


def test_spin_wedge_is_captured_and_restarted(box: Box) -> None:
    engine, watcher = ready(box)
    restarted(engine, watcher, wedged(engine, "spin 900"), "C")
    where = next(e for e in watcher.events() if e.kind == "WEDGE").fields["INFEROPS_CAPTURE"]
    assert "inferops_fault_spin" in box.read(f"{where}/stacks.txt")


def test_a_stopped_process_is_class_e_and_restarted(box: Box) -> None:
    engine, watcher = ready(box)
    old = engine.pid()
    engine.stream(prompt(30, 5), 4000).first(120)
    engine.signal("STOP")
    restarted(engine, watcher, old, "E")


def test_kill_9_is_systemds_to_restart_and_only_told(box: Box) -> None:
    engine, watcher = ready(box)
    old = engine.pid()
    engine.signal("KILL")
    until(lambda: engine.pid() not in (0, old), 60, "systemd's own restart")
    engine.wait_ready()
    watcher.wait("STARTED", 60)
    watcher.wait("READY", 60, after=len(watcher.events()) - 1 if watcher.kinds()[-1] == "READY" else 3)
    assert calm(watcher) == ["STARTED"]
    assert engine.show("NRestarts") == "1"


def test_a_long_prefill_is_left_alone(box: Box) -> None:
    engine, watcher = ready(box, stall_s=3.0)
    old = engine.pid()
    answer = engine.stream(prompt(9000, 4), 4).end(380)
    assert answer.error == ""
    assert int(answer.usage["prompt_tokens"]) >= 8500
    assert calm(watcher) == []
    assert engine.pid() == old


def test_cpu_contention_is_slow_and_no_wedge(box: Box) -> None:
    """Four hogs on two cores: stats answer late or not at all, decode falls to a few tokens a second or under one.
    The bounds are a quarter of the defaults, so that a machine that others load too does not decide the test."""
    engine, watcher = ready(box, stall_s=40.0, poll_s=4.0, probe_deadline_s=3.8)
    old = engine.pid()
    hogs = [box.popen(["sh", "-c", "while :; do :; done"]) for _ in range(4)]
    try:
        answer = engine.stream(prompt(100, 4), 24).end(380)
    finally:
        for hog in hogs:
            hog.kill()
            hog.communicate()
    assert answer.error == ""
    assert calm(watcher) == []
    assert engine.pid() == old


def test_a_slow_load_is_an_alert_and_never_a_restart(box: Box) -> None:
    engine = Engine(box, extra_env={"INFEROPS_LOAD_DELAY_S": "14"}).start(wait=False)
    watcher = SentinelUnit(box, load_max_s=5.0).start()
    until(lambda: engine.pid() != 0, 30, "a main pid")
    old = engine.pid()
    watcher.wait("LOADING", 60)
    watcher.wait("READY", 120)
    assert calm(watcher) == ["LOADING"]
    assert engine.pid() == old


def test_action_alert_goes_the_whole_way_and_leaves_the_server_as_it_is(box: Box) -> None:
    engine, watcher = ready(box, action="alert")
    old = wedged(engine, "futex 900")
    event = watcher.wait("WEDGE", 200)
    assert "not restarted: action is alert" in event.text
    time.sleep(3)
    assert calm(watcher) == ["ARMED", "CAPTURED", "CANARY", "STACKS", "WEDGE"]
    assert engine.pid() == old
    assert box.run(["test", "-e", LEDGER], check=False).returncode == 1
    watcher.stop()
    done = box.run([*INFEROPS, "sentinel", "replay", TAPE, "--output", "json"], check=False)
    again = [finding["id"] for finding in json.loads(done.stdout)["findings"]]
    own = ("CONFIG", "GAP")  # said by the loop, not by the policy that a replay runs
    assert again[: len(watcher.kinds()) - 1] == [k for k in watcher.kinds() if k not in own]
    assert (done.returncode, again.count("assumed")) == (1, 0)


def test_a_wedge_that_ends_by_itself_is_resumed_and_not_restarted(box: Box) -> None:
    engine, watcher = ready(box, capture_gap_s=12.0)
    old = wedged(engine, "futex 12")
    watcher.wait("RESUMED", 200)
    until(
        lambda: "of a healthy engine" in box.read(f"{watcher.captures()[0]}/manifest.json"), 60, "the capture says so"
    )
    assert calm(watcher) == ["ARMED", "RESUMED"]
    assert engine.pid() == old


def test_a_used_budget_holds_and_rearm_lets_go(box: Box) -> None:
    engine, watcher = ready(box)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    boot = box.read("/proc/sys/kernel/random/boot_id").strip()
    spent = [{"boot": boot, "t": now - 60, "wall": 0.0, "pid": 1, "result": "failed"}] * 2
    box.write(LEDGER, json.dumps({"restarts": spent, "latched": "2 restarts in 30 minutes"}))
    old = wedged(engine, "futex 900")
    event = watcher.wait("WEDGE", 200)
    assert "not restarted: the budget is latched (2 restarts in 30 minutes)" in event.text
    assert engine.pid() == old
    done = box.run([*INFEROPS, "sentinel", "rearm", "--config", CONFIG])
    assert "2 counted restarts forgotten" in done.stdout
    watcher.wait("RESTARTED", 120)
    assert engine.pid() not in (0, old)


def test_the_machine_lock_holds_a_restart_and_names_its_holder(box: Box) -> None:
    engine, watcher = ready(box)
    hold = (
        "import time\n"
        "from inferops.core.lock import Lock\n"
        "from inferops.core.state import run_dir\n"
        "with Lock(run_dir() / 'machine.lock', 'a swap of the test'):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(600)\n"
    )
    path = {"PYTHONPATH": str(CHECKOUT / "build" / "types")}
    with box.popen([sys.executable, "-c", hold], env=path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "held"
        old = wedged(engine, "futex 900")
        event = watcher.wait("WEDGE", 200)
        assert "a swap of the test" in event.text
        assert engine.pid() == old
        holder.kill()
    watcher.wait("RESTARTED", 120)
    assert engine.pid() not in (0, old)


def test_no_ptrace_is_one_line_and_the_passive_capture_suffices(box: Box) -> None:
    box.write("/etc/systemd/system/inferops-sentinel.service.d/noptrace.conf",
              "[Service]\nSystemCallFilter=~ptrace\nSystemCallErrorNumber=EPERM\n")  # fmt: skip
    engine, watcher = ready(box)
    restarted(engine, watcher, wedged(engine, "futex 900"), "C")
    stacks = next(e for e in watcher.events() if e.kind == "STACKS")
    assert stacks.fields["PRIORITY"] == "4"
    assert "ptrace" in stacks.text.lower() or "permitted" in stacks.text.lower()


def test_a_full_disk_in_the_capture_is_one_line_and_nothing_is_restarted(box: Box) -> None:
    engine = Engine(box).start()
    box.run(["sh", "-c", "mkdir -p /run/small && mount -t tmpfs -o size=8k,mode=700 tmpfs /run/small"])
    watcher = SentinelUnit(box)
    box.write(CONFIG, settings() + '[captures]\ndir = "/run/small"\n')
    watcher.start().wait("READY", 60)
    old = wedged(engine, "futex 900")
    event = watcher.wait("WEDGE", 200)
    assert "not restarted without one" in event.text
    assert "No space left" in event.text or "space" in event.text
    time.sleep(3)
    assert calm(watcher) == ["ARMED", "WEDGE"]
    assert engine.pid() == old


def test_stats_that_are_html_are_blind_by_name_and_nothing_is_restarted(box: Box) -> None:
    engine = Engine(box).start()
    old = engine.pid()
    page = "import http.server as h\nclass P(h.BaseHTTPRequestHandler):\n def do_GET(s):\n  s.send_response(200)\n"
    page += "  s.send_header('Content-Type','text/html')\n  s.end_headers()\n  s.wfile.write(b'<html>hello')\n"
    page += " def log_message(s,*a): pass\nh.ThreadingHTTPServer(('127.0.0.1',8081),P).serve_forever()\n"
    with box.popen([sys.executable, "-c", page]) as server:
        try:
            watcher = SentinelUnit(box)
            box.write(CONFIG, settings().replace("[sentinel]", 'stats_url = "http://127.0.0.1:8081"\n[sentinel]'))
            watcher.start()
            event = watcher.wait("BLIND", 60)
            assert "text/html" in event.text
            wedged(engine, "futex 900")
            time.sleep(15)
            assert set(calm(watcher)) <= {"BLIND", "SEEING"}  # busy threads of the decode before the wedge are seen
            assert engine.pid() == old
        finally:
            server.kill()


def test_stopping_the_sentinel_in_mid_capture_leaves_nothing_running(box: Box) -> None:
    noting_its_end(box)
    engine, watcher = ready(box, capture_gap_s=60.0)
    old = wedged(engine, "futex 900")
    watcher.wait("ARMED", 200)
    time.sleep(2)
    watcher.stop()
    left = box.run(["systemctl", "show", "inferops-sentinel.service", "--property=Result,SubState,TasksCurrent"]).stdout
    assert "Result=success" in left
    assert box.read("/run/ended").split() == ["success", "143"]
    assert calm(watcher) == ["ARMED"]  # a capture that we ended ourselves is no failed one
    ps = box.run(["ps", "-eo", "args"]).stdout
    assert "tools capture" not in ps
    assert "gdb" not in ps
    assert engine.pid() == old


def test_stopping_the_sentinel_in_mid_restart_is_no_failed_restart(box: Box) -> None:
    """The server takes its time to stop; systemd goes on with the job that we asked for, and nobody is alarmed."""
    noting_its_end(box)
    engine = Engine(box, timeout_stop=15).start()
    watcher = SentinelUnit(box).start()
    watcher.wait("READY", 60)
    old = wedged(engine, "futex 900")
    watcher.wait("WEDGE", 200)
    until(lambda: box.run(["test", "-e", LEDGER], check=False).returncode == 0, 30, "the restart is counted")
    watcher.stop()
    assert box.read("/run/ended").split() == ["success", "143"]
    assert calm(watcher) == ["ARMED", "CAPTURED", "CANARY", "STACKS", "WEDGE"]
    assert [e["result"] for e in json.loads(box.read(LEDGER))["restarts"]] == ["spent"]
    until(lambda: engine.pid() not in (0, old), 60, "systemd's restart of the server")


def test_an_alias_and_a_reader_that_leaves(box: Box) -> None:
    box.write("/etc/systemd/system/real.service",
              "[Service]\nExecStart=sleep 600\n[Install]\nAlias=other.service\n")  # fmt: skip
    box.run(["systemctl", "enable", "--now", "real.service"])
    run = " ".join([*INFEROPS, "sentinel", "run", "--unit", "other.service", "--poll", "1", "--probe-deadline", "0.9"])
    done = box.run(["bash", "-c", f"{run} --polls 3 | head -1; echo ${{PIPESTATUS[0]}}"])
    assert done.stdout.splitlines()[-1] in ("0", "1", "3")
    assert done.stderr.count("stdout takes no more") <= 1
    tape = box.read("/var/lib/inferops/sentinel/real.service/tape.jsonl").splitlines()
    assert len(tape) == 1 + 3
    told = box.journal(None, "-t", "inferops-sentinel", "-o", "cat").splitlines()
    assert told[0].startswith("CONFIG real.service: ")


def test_a_unit_that_does_not_exist_is_one_line_and_exit_2(box: Box) -> None:
    done = box.run([*INFEROPS, "sentinel", "run", "--unit", "llama-servr.service"], check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) <= 2
    assert "llama-servr.service" in done.stderr


def test_a_second_sentinel_is_refused_and_names_the_first(box: Box) -> None:
    _engine, _watcher = ready(box)
    done = box.run([*INFEROPS, "sentinel", "run", "--config", CONFIG], check=False)
    assert done.returncode == 4
    main = box.run(["systemctl", "show", "inferops-sentinel.service", "--property=MainPID", "--value"]).stdout.strip()
    assert f"pid {main} " in done.stderr
