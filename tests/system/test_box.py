"""The box is a real systemd with everything a unit needs, and the machine is as it was."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.system.box import CHECKOUT, Box, BoxError, names

pytestmark = pytest.mark.box
COMMAND = [sys.executable, str(CHECKOUT / "tests" / "system" / "box")]

# Run inside a box, where nobody else changes anything: what a box on that machine leaves behind, and what it shares.
LEAK = f"""
import json, os, sys
sys.path.insert(0, {str(CHECKOUT)!r})
from pathlib import Path
from tests.system.box import Box

def look():
    seen = {{"mounts": sorted(line.split(" ", 2)[2] for line in open("/proc/self/mountinfo"))}}
    for top in ("/sys/fs/cgroup", "/tmp", "/var/tmp", "/run/systemd", "/dev", "/var/lib", "/var/log", "/etc"):
        for path, folders, files in os.walk(top):
            if path.startswith({str(CHECKOUT)!r}) or path.startswith("/dev/pts"):
                folders.clear()
            elif "/box" not in path and "/proc" not in path:
                seen[path] = sorted(f for f in folders + files if not f.startswith((".#", "invocation:")))
    for path in ("/etc/machine-id", "/etc/fstab", "/etc/hostname", "/proc/sys/fs/file-max", "/proc/sys/fs/nr_open",
                 "/proc/sys/kernel/hostname"):
        seen[path] = Path(path).read_text()
    commands = [path.read_text() for path in Path("/proc").glob("[1-9]*/cmdline")]
    return seen | {{"keepers": [command for command in commands if "ns.py" in command and "keep" in command]}}

Path("/var/lib/inferops").mkdir()
Path("/var/lib/inferops/budget").write_text("the machine's")
before = look()
with Box() as box:
    hidden = box.run(["ls", "/var/lib/inferops"], check=False).returncode
    box.run(["mkdir", "/var/lib/inferops"])
    for place in ("/var/lib/inferops/budget", "/etc/systemd/x", "/etc/x", "/tmp/x", "/var/tmp/x", "/var/log/x",
                  "/run/x", "/dev/x", "/var/lib/x", "/etc/machine-id"):
        box.write(place, "the box's")
    during = look()
after = look()
keys = before.keys() | after.keys()
changed = {{key: [before.get(key), after.get(key)] for key in keys if before.get(key) != after.get(key)}}
print(json.dumps({{"hidden": hidden, "changed": changed, "mounts_during": before["mounts"] == during["mounts"],
                   "cgroups_during": before["/sys/fs/cgroup"] == during["/sys/fs/cgroup"],
                   "budget": Path("/var/lib/inferops/budget").read_text()}}))
"""


def test_a_real_systemd_runs_with_nothing_but_journald_and_dbus(box: Box) -> None:
    assert box.run(["systemctl", "is-system-running"]).stdout == "running\n"
    assert box.run(["cat", "/proc/1/comm"]).stdout == "systemd\n"
    assert box.run(["cat", "/proc/1/cgroup"]).stdout.splitlines()[-1] == "0::/init.scope"
    listing = ["systemctl", "list-units", "--type=service", "--state=running", "--plain", "--no-legend"]
    running = [line.split()[0] for line in box.run(listing).stdout.splitlines()]
    assert [unit for unit in running if "dbus" not in unit] == ["systemd-journald.service"]
    assert "org.freedesktop.systemd1" in box.run(["busctl", "list"]).stdout
    assert "Reached target" in box.console()
    for shared in ("/proc/sys/fs/nr_open", "/sys/kernel"):
        assert box.run(["test", "-w", shared], check=False).returncode == 1


def test_a_unit_runs_restarts_and_is_in_the_journal(box: Box) -> None:
    box.write(
        "/etc/systemd/system/one.service",
        "[Service]\nExecStart=sh -c 'echo here-I-am; sleep 1000'\nRestart=on-failure\nRestartSec=0\n",
    )
    box.run(["systemctl", "daemon-reload"])
    box.run(["systemctl", "start", "one"])
    first = box.run(["systemctl", "show", "one", "--property=MainPID", "--value"]).stdout.strip()
    assert box.run(["cat", f"/proc/{first}/cgroup"]).stdout.splitlines()[-1] == "0::/system.slice/one.service"
    box.run(["kill", "-9", first])
    end = time.monotonic() + 20
    while box.journal("one.service").count("here-I-am") < 2 and time.monotonic() < end:
        time.sleep(0.05)
    text = box.journal("one.service")
    assert text.count("here-I-am") == 2
    assert "Main process exited, code=killed, status=9/KILL" in text
    assert box.run(["systemctl", "show", "one", "--property=NRestarts", "--value"]).stdout == "1\n"


def test_the_machine_is_as_it_was(box: Box) -> None:
    """In a box, so that it is also the proof on a machine with one cgroup hierarchy and a systemd of its own."""
    report = json.loads(box.run([sys.executable, "-c", LEAK]).stdout)
    assert report["changed"] == {}
    assert report["mounts_during"]
    assert not report["cgroups_during"]  # the one thing that is to be seen, so the look does see
    assert report["budget"] == "the machine's"
    assert report["hidden"] == 2  # ls: no such directory


def test_mounts_and_cgroups_of_this_machine_are_as_they_were() -> None:
    before = Path("/proc/self/mountinfo").read_text()
    with Box() as box:
        cgroup = box.cgroup
        assert box.name in names()
        assert Path("/proc/self/mountinfo").read_text() == before
    assert Path("/proc/self/mountinfo").read_text() == before
    assert not cgroup.exists()
    assert box.name not in names()


def test_the_checkout_and_a_kept_directory_are_visible_under_their_own_path(tmp_path: Path) -> None:
    (tmp_path / "given").write_text("from outside")
    with Box(keep=[tmp_path]) as box:
        assert box.read(tmp_path / "given") == "from outside"
        box.write(tmp_path / "made", "from inside")
        assert box.read(Path(__file__)) == Path(__file__).read_text()
        assert box.run([sys.executable, "-c", "import pytest; print(1)"]).stdout == "1\n"
        assert box.run(["ls", "/var/tmp"]).stdout == ""
    assert (tmp_path / "made").read_text() == "from inside"


def test_a_checkout_under_tmp_is_visible(tmp_path: Path) -> None:
    """The whole directory of the box copied under a private one and run from there."""
    copy = tmp_path / "checkout" / "tests" / "system" / "box"
    copy.mkdir(parents=True)
    for file in (CHECKOUT / "tests" / "system" / "box").iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    with Box(keep=[tmp_path]) as outer:  # whatever tmp_path is: inside, it is under /tmp of a machine
        outer.run(["mkdir", "-p", "/tmp/of-mine/x"])
        outer.run(["cp", "-r", copy.parents[2], "/tmp/of-mine/checkout"])
        command = [sys.executable, "/tmp/of-mine/checkout/tests/system/box"]
        outer.run([*command, "up", "inner"])
        seen = outer.run([*command, "exec", "inner", "--", "find", "/tmp/of-mine", "-name", "boot.sh"]).stdout
        assert seen == "/tmp/of-mine/checkout/tests/system/box/boot.sh\n"
        outer.run([*command, "down", "inner"])


def test_several_at_once_are_strangers() -> None:
    boxes: list[Box] = []
    threads = [threading.Thread(target=lambda: boxes.append(Box().up())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert len({box.name for box in boxes}) == 3
        serve = (
            "import socket,sys; s=socket.create_server(('127.0.0.1',8080)); s.accept()[0].sendall(sys.argv[1].encode())"
        )
        for box in boxes:
            box.run(["systemd-run", "--service-type=exec", sys.executable, "-c", serve, box.name])
        for box in boxes:
            assert heard(box) == box.name
            assert box.run(["ip", "-brief", "link"]).stdout.split()[:2] == ["lo", "UNKNOWN"]
            assert box.run(["hostname"]).stdout == f"box-{box.name}\n"
        boxes[0].down()
        assert boxes[1].run(["systemctl", "is-system-running"]).stdout == "running\n"
    finally:
        for box in boxes:
            box.down()


def heard(box: Box) -> str:
    end = time.monotonic() + 20
    while True:
        try:
            with box.connect(8080) as connection:
                return connection.makefile().read()
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def test_run_says_how_a_command_ended(box: Box) -> None:
    assert box.run(["cat"], input="text\n").stdout == "text\n"
    assert box.run(["sh", "-c", "exit 7"], check=False).returncode == 7
    assert box.run(["sh", "-c", "kill -KILL $$"], check=False).returncode == -9
    assert box.run(["no-such-command"], check=False).returncode == 127
    with pytest.raises(BoxError, match="ended with 3: why not"):
        box.run(["sh", "-c", "echo why not >&2; exit 3"])
    assert box.run(["sh", "-c", "yes | head -1; echo $A $HOME"], env={"A": "given"}).stdout == "y\ngiven /root\n"


def test_nothing_of_the_callers_environment_comes_in_but_the_path(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFEROPS_SENTINEL_STALL_S", "1")
    names_inside = {line.partition("=")[0] for line in box.run(["env"]).stdout.splitlines()}
    assert names_inside <= {"PATH", "HOME", "LANG", "_", "LC_CTYPE"}


def test_a_command_over_its_time_is_killed_and_signals_reach_it(box: Box) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        box.run(["sleep", "777"], timeout=0.5)
    trap = "trap 'echo caught; exit 5' TERM; echo set; while :; do sleep 0.05; done"
    with box.popen(["bash", "-c", trap]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "set\n"
        process.terminate()
        assert process.stdout.readline() == "caught\n"
        assert process.wait(20) == 5
    assert "sleep 777" not in box.run(["ps", "-eo", "args"]).stdout


def test_journald_can_be_configured(box: Box) -> None:
    speak = ["systemd-run", "--wait", "--unit=speak", "echo", "-e", r"<3>bad\n<6>good"]
    box.run(speak)
    assert "good" in box.journal("speak.service", "-o", "cat").splitlines()
    with Box(journald_conf={"MaxLevelStore": "warning"}) as other:
        other.run(speak)
        assert other.journal("speak.service", "-o", "cat").splitlines() == ["bad"]


def test_by_hand() -> None:
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False, timeout=60)

    up = call("up")
    name = up.stdout.split()[0]
    try:
        assert name in call("list").stdout.split()
        assert call("up", name).stderr == f"box: a box named {name!r} is up already\n"
        assert call("exec", name, "--", "hostname").stdout == f"box-{name}\n"
        assert call("exec", name, "sh", "-c", "exit 9").returncode == 9
    finally:
        assert call("down", name).returncode == 0
    assert not Box(name).cgroup.exists()
    assert call("down", name).returncode == 3
    assert call("sideways").returncode == 2
