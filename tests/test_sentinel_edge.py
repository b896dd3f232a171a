"""The sentinel's edge: real child processes, sockets and pipes; only systemctl and the capture are small scripts."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from inferops.core import capturing, unit
from inferops.core.armed import OF_A_HEALTHY_ENGINE
from inferops.core.journal import Batch, Follower
from inferops.core.lock import Lock
from inferops.core.lookout import TROUBLE_REPEAT_S, TROUBLES_MAX, Lookout, Still, Troubles
from inferops.core.poll import Poll
from inferops.core.state import run_dir, state_dir
from inferops.core.turn import Event, State
from inferops.core.unit import UnitState
from inferops.core.verdict import InferopsError
from inferops.ops.sentinel import Sentinel
from tests.answering import closed_port
from tests.test_sentinel import DECODE, entry, resolved, seen

ROOT = Path(__file__).resolve().parents[1]
ENDS_S = 30.0
OK = """\
import json, os, sys
report = {"findings": [{"id": "passive", "level": "ok", "message": "m", "evidence": {"dir": "/captures/" + NAME}}]}
print(json.dumps(report))
"""
# asked to end it says so in a file, then ends; PID is written once it listens
SLOW = """\
import os, signal, sys, time
def asked(number, frame):
    open(BASE + "/asked", "w").close()
    sys.exit(143)
signal.signal(signal.SIGTERM, asked)
open(BASE + "/pid.new", "w").write(str(os.getpid()))
os.rename(BASE + "/pid.new", BASE + "/pid")
time.sleep(300)
"""


def restarting(**flags: object) -> Sentinel:
    return Sentinel(resolved(sentinel__action="restart", **flags), "text")


def judged(pid: int = 77) -> State:
    return State(key=(pid, 10.0, None), wclass="C")


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """Makes Python texts the capture processes, one a call, the last one for the rest; returns the calls' arguments."""

    def make(*bodies: str) -> list[list[str]]:
        calls: list[list[str]] = []

        def argv(of: object, args: list[str]) -> list[str]:
            body = bodies[min(len(calls), len(bodies) - 1)]
            calls.append(args)
            path = tmp_path / f"child{len(calls)}.py"
            path.write_text(f"BASE, NAME = {str(tmp_path)!r}, '{len(calls)}'\n{body}")
            return [sys.executable, str(path), *args]

        monkeypatch.setattr(capturing, "argv", argv)
        return calls

    return make


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(int(ENDS_S / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come")


async def there(path: Path) -> str:
    await until(path.exists)
    return await asyncio.to_thread(path.read_text)


def gone(pid: str) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_a_held_machine_lock_holds_and_is_named() -> None:
    sentinel = restarting()
    assert sentinel.acting.held() is None
    with Lock(run_dir() / "machine.lock", "a swap of the test"):
        assert "a swap of the test" in (sentinel.acting.held() or "")
        with pytest.raises(InferopsError, match="a swap of the test"):
            asyncio.run(sentinel.acting.restart(judged()))
    assert sentinel.acting.held() is None


def test_a_used_budget_holds_the_restart_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    sentinel = restarting()
    restarted: list[str] = []
    monkeypatch.setattr(unit, "show", lambda name: seen(77, 10.0))
    monkeypatch.setattr(unit, "restart", lambda name, deadline_s: restarted.append(name))
    for pid in (1, 2):
        sentinel.budget.spend(pid, 0.0)
    done = asyncio.run(sentinel.acting.restart(judged()))
    assert (done.result, restarted) == ("failed", [])
    assert "latched (2 restarts in 30 minutes)" in done.why


def test_systemd_hears_watchdog_every_poll_and_ready_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(unit, "show", lambda name: unit_at(0))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "n"))
        listening.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "n"))
        url = f"http://127.0.0.1:{closed_port()}"
        sentinel = Sentinel(resolved(live__url=url, sentinel__poll_s=0.3, sentinel__probe_deadline_s=0.2), "text")
        asyncio.run(sentinel.run(3))
        heard = []
        while True:
            try:
                heard.append(listening.recv(4096).decode().split("\n"))
            except BlockingIOError:
                break
    assert ["WATCHDOG=1" in message for message in heard] == [True, True, True, False]
    assert ["READY=1" in message for message in heard] == [True, False, False, False]
    assert heard[-1] == ["STOPPING=1"]


def unit_at(pid: int) -> UnitState:
    return UnitState(
        name="llama.service", load="loaded", active="inactive", sub="dead", result="success", main_pid=pid,
        start_t=None, restarts=0, control_group="", invocation_id="", need_daemon_reload=False,
        timeout_stop_s=5.0, timeout_start_s=90.0, restart="no", unit_type="simple",
    )  # fmt: skip


def test_resumed_is_written_into_the_capture_that_is_still_being_made(child: Callable[..., list[list[str]]]) -> None:
    calls = child("import time; time.sleep(0.5)\n" + OK)
    sentinel = restarting()

    async def go() -> None:
        sentinel.acting.begin("capture", judged())
        sentinel.tell(Event("RESUMED", "warn", 1.0, f"class C is over: n +2; {OF_A_HEALTHY_ENGINE}", "C"))
        await until(lambda: len(calls) == 2)
        await sentinel.acting.stop()

    asyncio.run(go())
    assert calls[1:] == [["--into", "/captures/1", "--resumed", f"class C is over: n +2; {OF_A_HEALTHY_ENGINE}"]]


def test_a_new_action_ends_the_older_one_and_hears_only_of_its_own(
    child: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    child(OK, SLOW, OK)
    sentinel = restarting()

    async def go() -> None:
        sentinel.acting.begin("capture", judged(76))
        await until(lambda: sentinel.acting.capture is not None)
        sentinel.acting.begin("capture", judged(77))
        assert sentinel.acting.capture is None  # an earlier incident's capture is not this one's
        pid = await there(tmp_path / "pid")
        sentinel.acting.begin("capture", judged(78))
        await until(lambda: sentinel.acting.capture is not None)
        await asyncio.sleep(0.2)
        assert gone(pid)

    asyncio.run(go())
    assert (tmp_path / "asked").exists()
    assert sentinel.acting.capture == Path("/captures/3")
    assert [(d.kind, d.result, d.pid) for d in sentinel.acting.ended()] == [("capture", "ok", 78)]
    assert sentinel.acting.ended() == ()


@pytest.mark.parametrize(
    ("body", "made"),
    [(OK, True), (OK + "sys.exit(3)", True), (OK + "sys.exit(1)", False), (OK.replace('"ok"', '"blind"'), False),
     ("print('no report')", False)],
)  # fmt: skip
def test_what_counts_as_a_capture(body: str, made: bool, child: Callable[..., list[list[str]]], tmp_path: Path) -> None:
    child(body)
    assert asyncio.run(capturing.passive(resolved(), "r", tmp_path / "tape", 0.1))[0] is made


def test_a_setting_in_our_environment_does_not_reach_the_capture(
    child: Callable[..., list[list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFEROPS_LIVE_STATS_URL", "http://127.0.0.1:1")  # a flag may have unset it: None in settings
    child("import json, os\nopen(BASE + '/env', 'w').write(json.dumps(dict(os.environ)))\n" + OK)
    asyncio.run(capturing.passive(resolved(), "r", tmp_path / "tape", 0.1))
    env = json.loads((tmp_path / "env").read_text())
    assert "INFEROPS_LIVE_STATS_URL" not in env
    assert env["INFEROPS_LIVE_UNIT"] == "llama.service"
    assert env["INFEROPS_STATE_DIR"] == os.environ["INFEROPS_STATE_DIR"]


@pytest.mark.parametrize("deaf", [False, True])
def test_a_capture_that_overruns_is_asked_before_it_is_killed(
    deaf: bool, child: Callable[..., list[list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capturing, "PASSIVE_SLACK_S", 2.0)
    monkeypatch.setattr(capturing, "END_GRACE_S", 1.0 if deaf else ENDS_S)
    child(SLOW.replace("    sys.exit(143)\n", "") if deaf else SLOW)  # the sleep goes on after a handler
    made, why, where = asyncio.run(capturing.passive(resolved(), "r", tmp_path / "tape", 0.1))
    assert (made, where) == (False, None)
    assert "did not end within 2 s" in why
    assert (tmp_path / "asked").exists()
    assert gone((tmp_path / "pid").read_text())


def test_a_look_drains_more_than_one_batch() -> None:
    lookout = Lookout(resolved())
    batches = [Batch(entries=(entry(t, DECODE),), gap=None, suppressed=0, truncated=t < 3) for t in (1.0, 2.0, 3.0)]

    class Three(Follower):
        def __init__(self) -> None: ...

        def drain(self, limit: int = 0) -> Batch:
            return batches.pop(0)

    lookout._follower = Three()
    assert lookout._read_journal(Still()).progress_t == 3.0
    assert batches == []


def test_a_trouble_is_told_when_it_comes_and_once_in_ten_minutes() -> None:
    troubles = Troubles()
    assert troubles.news(["a", "a", "b"], 0.0) == ["a", "b"]
    assert troubles.news(["a"], 10.0) == []
    assert troubles.news([], 20.0) == []
    assert troubles.news(["b", "c"], 30.0) == ["c"]
    assert troubles.news(["c"], TROUBLE_REPEAT_S + 31.0) == []  # it never went away
    assert troubles.news(["b"], TROUBLE_REPEAT_S + 32.0) == ["b"]
    for i in range(3 * TROUBLES_MAX):
        assert troubles.news([f"gap {i}"], 2000.0) == [f"gap {i}"]
    assert len(troubles._told) <= TROUBLES_MAX


def test_a_stop_in_mid_capture_judges_nothing_and_leaves_nothing(
    child: Callable[..., list[list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child(SLOW)
    monkeypatch.setattr(unit, "show", lambda name: unit_at(0))
    sentinel = restarting(live__url=f"http://127.0.0.1:{closed_port()}")
    polls: list[Poll] = []
    monkeypatch.setattr(sentinel, "judge", polls.append)

    async def go() -> None:
        run = asyncio.create_task(sentinel.run(None))
        sentinel.acting.begin("capture", judged())
        pid = await there(tmp_path / "pid")
        before = len(polls)
        sentinel.stop.set()
        await asyncio.wait_for(run, ENDS_S)
        assert len(polls) == before
        assert gone(pid)

    asyncio.run(go())
    assert (tmp_path / "asked").exists()
    assert sentinel.acting.ended() == ()


SYSTEMCTL = """\
#!{python}
import os, sys, time
if "restart" in sys.argv:
    with open({base!r} + "/pid.new", "w") as f:
        f.write(str(os.getpid()))
    os.rename({base!r} + "/pid.new", {base!r} + "/pid")
    time.sleep(300)
print("Id=real.service\\nLoadState=loaded\\nActiveState=inactive\\nSubState=dead\\nResult=success\\nMainPID=0")
print("ExecMainStartTimestampMonotonic=0\\nNRestarts=0\\nControlGroup=\\nInvocationID=\\nNeedDaemonReload=no")
print("TimeoutStartUSec=1min\\nTimeoutStopUSec=1min\\nRestart=no\\nType=simple")
"""


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A systemctl whose every unit is really real.service, at rest, and whose restarts take for ever."""
    path = tmp_path / "bin" / "systemctl"
    path.parent.mkdir()
    path.write_text(SYSTEMCTL.format(python=sys.executable, base=str(tmp_path)))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")


@pytest.mark.usefixtures("systemctl")
def test_a_stop_in_mid_restart_ends_systemctl_and_settles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit, "show", lambda name: seen(77, 10.0))
    sentinel = restarting()

    async def go() -> str:
        sentinel.acting.begin("restart", judged())
        pid = await there(tmp_path / "pid")
        sentinel.stop.set()
        await asyncio.wait_for(sentinel.acting.stop(), ENDS_S)
        return pid

    assert gone(asyncio.run(go()))
    assert [e.result for e in sentinel.budget.read().restarts] == ["spent"]
    assert sentinel.acting.ended() == ()


def test_a_systemctl_that_was_stopped_before_us_settles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """KillMode=control-group: systemctl gets its SIGTERM as we get ours."""
    sentinel = restarting()
    monkeypatch.setattr(unit, "show", lambda name: seen(77, 10.0))

    def restart(name: str, deadline_s: float) -> None:
        sentinel.stop.set()
        raise InferopsError("restart of llama.service: no reason given")

    monkeypatch.setattr(unit, "restart", restart)
    asyncio.run(sentinel.acting.restart(judged()))
    assert [e.result for e in sentinel.budget.read().restarts] == ["spent"]


def sentinel_run(*args: str, polls: int = 3) -> list[str]:
    url = f"http://127.0.0.1:{closed_port()}"
    short = ["--poll", "0.5", "--probe-deadline", "0.4"]
    argv = [sys.executable, "tools", "sentinel", "run", "--unit", "alias", "--url", url, *short, *args]
    return [*argv, "--polls", str(polls)]


def run_to_end(argv: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=ENDS_S, check=False)


@pytest.mark.usefixtures("systemctl")
def test_an_alias_is_watched_under_the_units_own_name() -> None:
    done = run_to_end(sentinel_run("--output", "json"))
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {event["unit"] for event in told} == {"real.service"}, done.stderr
    assert [path.name for path in run_dir().glob("sentinel-*.lock")] == ["sentinel-real.service.lock"]
    assert [path.name for path in state_dir("sentinel").iterdir()] == ["real.service"]
    tape = (state_dir("sentinel") / "real.service" / "tape.jsonl").read_text()
    assert json.loads(tape.splitlines()[0])["subject"] == "real.service"
    with Lock(run_dir() / "sentinel-real.service.lock", "the first"):
        done = run_to_end(sentinel_run())
    assert done.returncode == 4
    assert "the first" in done.stderr


@pytest.mark.usefixtures("systemctl")
@pytest.mark.parametrize("stderr", ["kept", "gone too"])
@pytest.mark.parametrize("out", ["a reader that left", "a full disk"])
def test_the_watch_goes_on_without_its_stdout(out: str, stderr: str) -> None:
    if out == "a full disk":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    with subprocess.Popen(
        sentinel_run(), cwd=ROOT, stdout=descriptor, stderr=subprocess.PIPE if stderr == "kept" else descriptor,
        text=True, env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    ) as process:  # fmt: skip
        os.close(descriptor)
        _, err = process.communicate(timeout=ENDS_S)
    polls = (state_dir("sentinel") / "real.service" / "tape.jsonl").read_text().splitlines()[1:]
    assert len(polls) == 3, err
    assert process.returncode == 1  # the unit is not up: an alert, and no 141 or 120 of a failed flush
    if stderr == "kept":
        assert err.count("stdout takes no more") == 1
        assert len(err.splitlines()) == 1
