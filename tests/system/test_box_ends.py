"""A box dies with its owner, whatever ends that; and where there can be no box, one line says why."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.system.box import CHECKOUT, Box, BoxError

pytestmark = pytest.mark.box

# Run as an owner of its own: one box, then what argv[1] says.
OWNER = f"""
import os, sys, time
sys.path.insert(0, {str(CHECKOUT)!r})
from tests.system.box import Box
with Box() as box:
    print(box.pid, box._keeper.pid, box.cgroup, flush=True)
    box.run(["systemd-run", "sleep", "1000"])
    print("loaded", flush=True)
    if sys.argv[1] == "raise":
        raise RuntimeError("planted")
    if sys.argv[1] == "exit":
        os._exit(0)
    time.sleep(1000)
"""


def gone(pid: int, cgroup: Path, timeout: float = 20.0) -> bool:
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if not cgroup.exists() and ended(pid):
            return True
        time.sleep(0.02)
    return False


def ended(pid: int) -> bool:
    """It is gone, or dead and not yet reaped by whoever inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def owner(how: str) -> tuple[subprocess.Popen[str], int, int, Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, how], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    pid, keeper, cgroup = process.stdout.readline().split()
    assert process.stdout.readline() == "loaded\n"
    return process, int(pid), int(keeper), Path(cgroup)


@pytest.mark.parametrize("how", ["kill", "term", "int", "raise", "exit"])
def test_it_dies_with_its_owner(how: str) -> None:
    process, pid, keeper, cgroup = owner(how)
    with process:
        if how in ("kill", "term", "int"):
            assert (cgroup / "system.slice").is_dir()
            process.send_signal({"kill": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT}[how])
        process.wait(30)
        assert gone(pid, cgroup)
        assert gone(keeper, cgroup)


def test_a_killed_keeper_ends_the_box_and_down_cleans_up() -> None:
    box = Box().up()
    pid, keeper = box.pid, box._keeper
    assert keeper is not None
    keeper.kill()
    until = time.monotonic() + 20
    while not ended(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert ended(pid)  # the kernel's doing: nobody has asked for it yet
    box.down()
    assert not box.cgroup.exists()


LEFT = """
import os, signal, time
from tests.system.box import Box
from tests.system.test_box_ends import gone, owner
process, pid, keeper, cgroup = owner("sleep")
os.kill(keeper, signal.SIGKILL)
process.kill()
process.wait()
time.sleep(0.5)
assert cgroup.is_dir(), "nobody is left to remove it"
with Box():
    print(gone(pid, cgroup, 5.0))
"""


def test_what_a_keeper_killed_with_its_owner_left_is_removed_by_the_next_box() -> None:
    with Box() as outer:  # in here, no other test's box is the next one
        assert outer.run([sys.executable, "-c", LEFT], env={"PYTHONPATH": str(CHECKOUT)}).stdout == "True\n"


def test_without_the_right_there_is_one_clear_line() -> None:
    """As root without CAP_SYS_ADMIN, as in a container; setpriv is in util-linux."""
    code = "from tests.system.box import Box; print(Box.missing()); Box().up()"
    line = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all", sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60, cwd=CHECKOUT)
    said = done.stdout.strip()
    assert said == (
        "no right to make namespaces and a cgroup (try: [Errno 1] unshare: Operation not permitted); "
        "this container lacks CAP_SYS_ADMIN or a writable cgroup2: start it with --privileged"
    )
    assert done.stderr.splitlines()[-1].endswith(said)
    assert Box.missing() is None


def test_a_boot_that_fails_says_where() -> None:
    with pytest.raises(BoxError, match=r"boot\.sh: line \d+: failed") as failed:
        Box(keep=[Path("/tmp/inferops-never-made")]).up()
    assert "/tmp/inferops-never-made: No such file or directory" in str(failed.value)
