"""Units of a real systemd: what is shown of them, whose their processes are, and how jobs on them end."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.system.agent import PACKAGE, Agent, Raised, eventually, service
from tests.system.box import Box

pytestmark = pytest.mark.box

FOREVER = "ExecStart=/bin/sleep 1000"


@pytest.fixture(scope="module")
def machine() -> Iterator[Box]:
    with Box(keep=[PACKAGE]) as box:
        yield box


@pytest.fixture(scope="module")
def eyes(machine: Box) -> Iterator[Agent]:
    with Agent(machine) as agent:
        agent.do("import os, time; from inferops.core import process, unit")
        yield agent


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def test_a_running_unit(machine: Box, eyes: Agent) -> None:
    before = boottime()
    service(machine, "one.service", FOREVER, "Restart=on-failure", "TimeoutStopSec=70", "TimeoutStartSec=infinity")
    seen = eyes.ask("unit.show('one')")
    shown = machine.run(["systemctl", "show", "one", "--property=MainPID,InvocationID"]).stdout
    assert f"MainPID={seen['main_pid']}\n" in shown
    assert f"InvocationID={seen['invocation_id']}\n" in shown
    assert before - 0.02 <= seen["start_t"] <= boottime()
    assert 0 <= seen["start_t"] - eyes.ask(f"process.start_t({seen['main_pid']})") < 0.5
    expected = {
        "name": "one.service", "load": "loaded", "active": "active", "sub": "running", "result": "success",
        "restarts": 0, "control_group": "/system.slice/one.service", "need_daemon_reload": False,
        "timeout_start_s": None, "timeout_stop_s": 70.0, "restart": "on-failure", "unit_type": "simple",
    }  # fmt: skip
    assert {name: seen[name] for name in expected} == expected
    assert eyes.ask("unit.pids(unit.show('one').control_group)") == [seen["main_pid"]]
    # a pid is only itself together with its start, so the start may not move by a microsecond
    assert eyes.ask("len({unit.show('one').start_t for _ in range(20)})") == 1


def test_the_stop_of_the_run_before_lies_before_the_start(machine: Box, eyes: Agent) -> None:
    service(machine, "quick.service", FOREVER, "[Unit]", "StartLimitIntervalSec=0")
    eyes.do("from inferops.core.journal import STOPPING_ID, tail")
    for n in range(5):
        if n == 2:  # a journald that lags, as on a machine that swaps: only the sender's time tells
            machine.run(["systemctl", "kill", "--signal=STOP", "systemd-journald"])
        eyes.do("unit.restart('quick', 20)")
        if n == 2:
            time.sleep(0.5)
            machine.run(["systemctl", "kill", "--signal=CONT", "systemd-journald"])
        machine.run(["journalctl", "--sync"])
        *_, stopping, _, stopped, started = eyes.ask("tail(['quick'], 20)")
        assert stopping["message_id"] == eyes.ask("STOPPING_ID")
        assert stopping["t"] < stopped["t"] < eyes.ask("unit.show('quick').start_t") <= started["t"]


def test_an_alias_is_its_unit(machine: Box, eyes: Agent) -> None:
    service(machine, "real.service", FOREVER, "[Install]", "Alias=other-name.service")
    machine.run(["systemctl", "enable", "real.service"])
    assert eyes.ask("unit.show('other-name').name") == "real.service"


def test_an_instance_of_a_template(machine: Box, eyes: Agent) -> None:
    machine.write("/etc/systemd/system/many@.service", f"[Service]\n{FOREVER}\n")
    machine.run(["systemctl", "daemon-reload"])
    machine.run(["systemctl", "start", "many@gpu0"])
    seen = eyes.ask("unit.show('many@gpu0')")
    assert (seen["name"], seen["active"]) == ("many@gpu0.service", "active")
    assert eyes.ask(f"unit.pids({seen['control_group']!r})") == [seen["main_pid"]]


def test_every_process_of_the_unit_also_in_cgroups_below(machine: Box, eyes: Agent) -> None:
    service(machine, "tree.service", "ExecStart=/bin/sh -c 'sleep 1001 & sleep 1002 & wait'", "Delegate=yes")
    group = eyes.ask("unit.show('tree').control_group")
    pids = eventually(lambda: (found := eyes.ask(f"unit.pids({group!r})")) and len(found) == 3 and found)
    assert pids == sorted(pids)
    machine.run(["mkdir", "-p", f"/sys/fs/cgroup{group}/workers/w 0"])
    machine.run(["tee", f"/sys/fs/cgroup{group}/workers/w 0/cgroup.procs"], input=str(pids[2]))
    assert machine.read(f"/sys/fs/cgroup{group}/workers/w 0/cgroup.procs").split() == [str(pids[2])]
    assert eyes.ask(f"unit.pids({group!r})") == pids
    machine.run(["systemctl", "stop", "tree"])
    assert eyes.ask(f"unit.pids({group!r})") == []


def test_cgroups_beside_version_1(machine: Box) -> None:
    service(machine, "hybrid.service", FOREVER)
    at = "/sys/fs/cgroup"
    mount = f'mount -t tmpfs tmpfs {at}; mkdir {at}/unified; mount -t cgroup2 none {at}/unified; exec "$@"'
    with Agent(machine, "unshare", "--mount", "sh", "-c", mount, "sh") as eyes:
        eyes.do("from inferops.core import unit")
        assert eyes.ask("unit.pids('/system.slice/hybrid.service') == (unit.show('hybrid').main_pid,)")


def test_without_any_cgroup_it_is_blind(machine: Box) -> None:
    with Agent(machine, "unshare", "--mount", "sh", "-c", 'umount -R /sys/fs/cgroup; exec "$@"', "sh") as eyes:
        eyes.do("from inferops.core import unit")
        with pytest.raises(Raised, match=r"BlindError: .*no cgroup hierarchy"):
            eyes.ask("unit.pids('/system.slice/one.service')")


def test_a_unit_that_does_not_exist_with_its_near_names(machine: Box, eyes: Agent) -> None:
    service(machine, "llama-server.service", FOREVER, start=False)
    with pytest.raises(Raised) as caught:
        eyes.ask("unit.show('llama-sever')")
    assert (caught.value.kind, caught.value.message) == ("UsageError", "unit llama-sever.service: no such unit")
    assert "did you mean llama-server" in caught.value.hint
    with pytest.raises(Raised, match=r"UsageError: restart of llama-sever.service: no such unit"):
        eyes.do("unit.restart('llama-sever', 10)")


def test_states_that_are_not_running(machine: Box, eyes: Agent) -> None:
    service(machine, "never.service", FOREVER, start=False)
    seen = eyes.ask("unit.show('never')")
    assert (seen["active"], seen["main_pid"], seen["start_t"], seen["control_group"]) == ("inactive", 0, None, "")
    service(machine, "failed.service", "ExecStart=/bin/false", start=False)
    machine.run(["systemctl", "start", "failed"], check=False)
    seen = eventually(lambda: (now := eyes.ask("unit.show('failed')")) and now["active"] == "failed" and now)
    assert (seen["sub"], seen["result"], seen["main_pid"]) == ("failed", "exit-code", 0)
    service(machine, "edited.service", FOREVER)
    machine.write("/etc/systemd/system/edited.service", f"[Service]\n{FOREVER}\nNice=1\n")
    assert eyes.ask("unit.show('edited').need_daemon_reload") is True
    machine.run(["systemctl", "mask", "--runtime", "never"], check=False)
    machine.run(["rm", "/etc/systemd/system/edited.service"])
    machine.run(["systemctl", "daemon-reload"])
    seen = eyes.ask("unit.show('edited')")
    assert (seen["load"], seen["active"]) == ("not-found", "active")  # its file is gone, it serves people all the same


def test_a_crash_loop_counts_its_restarts(machine: Box, eyes: Agent) -> None:
    service(machine, "loop.service", "ExecStart=/bin/false", "Restart=always", "RestartSec=50ms", start=False)
    machine.run(["systemctl", "start", "loop"])
    eventually(lambda: eyes.ask("unit.show('loop').restarts") >= 2)
    machine.run(["systemctl", "stop", "loop"])


def test_start_restart_and_stop(machine: Box, eyes: Agent) -> None:
    service(machine, "jobs.service", FOREVER, start=False)
    eyes.do("unit.start('jobs', 20)")
    first = eyes.ask("unit.show('jobs')")
    time.sleep(0.02)
    eyes.do("unit.restart('jobs', 20)")
    second = eyes.ask("unit.show('jobs')")
    assert second["main_pid"] != first["main_pid"]
    assert second["start_t"] > first["start_t"]
    assert second["invocation_id"] != first["invocation_id"]
    assert not eyes.ask(f"process.alive({first['main_pid']}, process.start_ticks({first['main_pid']}) or 0)")
    eyes.do("unit.stop('jobs', 20)")
    assert eyes.ask("unit.show('jobs').active") == "inactive"


def test_a_stop_that_takes_longer_than_the_deadline_stays_queued(machine: Box, eyes: Agent) -> None:
    service(machine, "slow.service", "ExecStart=/bin/sh -c 'trap \"\" TERM; while :; do sleep 1; done'",
            "TimeoutStopSec=60")  # fmt: skip
    time.sleep(0.2)  # the shell's trap
    with pytest.raises(Raised) as caught:
        eyes.do("unit.stop('slow', 1.0)")
    assert caught.value.kind == "InferopsError"
    assert caught.value.message.startswith("stop of slow.service: not over after 1 s; systemd's job ")
    assert caught.value.message.endswith(" is still queued")
    job = caught.value.message.split()[-4]
    assert job in machine.run(["systemctl", "list-jobs"]).stdout
    machine.run(["systemctl", "kill", "--signal=KILL", "slow"])
    eventually(lambda: eyes.ask("unit.show('slow').active") in ("inactive", "failed"))


def test_a_start_that_fails_is_told_in_systemctls_words(machine: Box, eyes: Agent) -> None:
    service(machine, "broken.service", FOREVER, "ExecStartPre=/bin/false", start=False)
    with pytest.raises(Raised) as caught:
        eyes.do("unit.restart('broken', 20)")
    assert caught.value.kind == "InferopsError"
    assert "restart of broken.service: Job for broken.service failed" in caught.value.message
    assert caught.value.message.isprintable()
    assert "journalctl -u broken.service" in caught.value.hint


def test_the_start_limit_is_told_with_its_remedy(machine: Box, eyes: Agent) -> None:
    service(machine, "limited.service", FOREVER, "[Unit]", "StartLimitIntervalSec=1h", "StartLimitBurst=2")
    eyes.do("unit.restart('limited', 20)")
    with pytest.raises(Raised, match=r"InferopsError: restart of limited.service: .* attempted too often") as caught:
        eyes.do("unit.restart('limited', 20)")
    assert "systemctl reset-failed limited.service" in caught.value.hint


def test_another_user_looks_but_may_not_restart(machine: Box) -> None:
    service(machine, "mine.service", FOREVER)
    pid = machine.run(["systemctl", "show", "--value", "--property=MainPID", "mine"]).stdout
    with Agent(machine) as eyes:
        eyes.do("from inferops.core import unit")
        eyes.become(65534, "nogroup")
        assert eyes.ask("unit.show('mine').main_pid") == int(pid)
        assert eyes.ask("unit.pids(unit.show('mine').control_group)") == [int(pid)]
        with pytest.raises(Raised, match=r"BlindError: restart of mine.service: not allowed for uid 65534") as caught:
            eyes.do("unit.restart('mine', 20)")
        assert "sudo -n" in caught.value.hint
    assert machine.run(["systemctl", "show", "--value", "--property=MainPID", "mine"]).stdout == pid


@pytest.mark.parametrize(
    ("hide", "words", "hint"),
    [
        ("mount -t tmpfs tmpfs /run/systemd", "has not been booted with systemd", "PID 1 is not systemd"),
        ("mount --bind /dev/null /run/systemd/private; mount --bind /dev/null /run/dbus/system_bus_socket",
         "Failed to connect to bus", "is the system bus up"),
    ],
)  # fmt: skip
def test_no_systemd_to_talk_to_is_blind(machine: Box, hide: str, words: str, hint: str) -> None:
    with Agent(machine, "unshare", "--mount", "sh", "-c", f'{hide}; exec "$@"', "sh") as eyes:
        eyes.do("from inferops.core import unit")
        for look in ("unit.show('one')", "unit.restart('one', 5)"):
            with pytest.raises(Raised) as caught:
                eyes.ask(look)
            assert caught.value.kind == "BlindError"
            assert words in caught.value.message
            assert caught.value.message.isprintable()
            assert hint in caught.value.hint
