"""The system calls of a box: its keeper, which dies with its owner and takes everything with it, and the way in.

Run as a script, never imported by what runs inside: `ns.py keep JSON`, `ns.py enter JSON`, `ns.py try JSON`. Standard
library only; Python 3.11 has no os.unshare and no os.setns.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWPID, NEWNET = 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
KILL = signal.SIGALRM  # tells `enter` to SIGKILL its command
_PR_SET_PDEATHSIG = 1
_CONSOLE_MAX_BYTES = 1 << 20
_EMPTY_S = 5.0  # a killed namespace's cgroups empty within milliseconds; this only bounds a kernel that hangs
_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """unshare(2). Raises OSError."""
    _checked(_libc.unshare(flags), "unshare")


def setns(fd: int, flags: int) -> None:
    """setns(2) on a namespace file or a pidfd (Linux 5.8). Raises OSError."""
    _checked(_libc.setns(fd, flags), "setns")


def _checked(result: int, call: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")


def _die_with_parent() -> None:
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


# --- cgroups: a box's directory is locked by its keeper, so an unlocked one is nobody's


def claim(cgroup: Path) -> int:
    """Makes the cgroup and locks it; returns the fd that holds the lock. Raises FileExistsError: the name is taken."""
    end, collided = time.monotonic() + _EMPTY_S, False
    while True:
        try:
            cgroup.mkdir()
        except FileExistsError:
            if not collided or time.monotonic() > end:
                raise
            time.sleep(0.005)  # it is ours of the round before, and whoever took it for a dead one is removing it
            continue
        fd = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(cgroup, fd):
                return fd
        except BlockingIOError:
            pass  # somebody's reclaim() came between mkdir and flock
        os.close(fd)
        collided = True


def reclaim(cgroup: Path) -> bool:
    """Removes a box's cgroup if no keeper holds it, ending what is left inside. True: it is gone."""
    try:
        fd = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return empty(cgroup, fd)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def empty(cgroup: Path, fd: int) -> bool:
    """Kills everything in the cgroup that `fd` has open and removes it with all below; False if that took more than
    5 s. Another one that was made under its name meanwhile is left alone."""
    end = time.monotonic() + _EMPTY_S
    while _is(cgroup, fd) and time.monotonic() < end:
        with contextlib.suppress(OSError):  # gone meanwhile; by fd, so that a new one of that name is not meant
            kill = os.open("cgroup.kill", os.O_WRONLY, dir_fd=fd)
            try:
                os.write(kill, b"1")
            finally:
                os.close(kill)
        for path, _, _ in os.walk(cgroup, topdown=False):
            if _is(cgroup, fd):
                with contextlib.suppress(OSError):  # EBUSY until the last zombie is reaped
                    os.rmdir(path)
        time.sleep(0.005)
    return not _is(cgroup, fd)


def _is(cgroup: Path, fd: int) -> bool:
    """Whether that path still is the directory that `fd` has open."""
    try:
        return os.path.samestat(os.stat(cgroup), os.fstat(fd))
    except FileNotFoundError:
        return False


# --- keep: the parent of a box's PID 1


def keep(cgroup: Path, boot: Path, env: dict[str, str], stay: bool) -> int:
    """Boots a box and waits until it ends, SIGTERM comes or, unless `stay`, fd 0 reaches its end: the owner is gone.

    fd 1 gets the line `init PID`; fd 2 the console. Whatever ends it: PID 1 is killed (by the kernel, should this
    process be killed first) and the cgroup removed.
    """
    lock = claim(cgroup)
    pid = 0
    try:
        master, slave = os.openpty()
        gate_r, gate_w = os.pipe()
        unshare(NEWPID)  # for the next child only; this process stays outside, where it can clean up
        pid = os.fork()
        if pid == 0:
            _become_init(gate_r, gate_w, cgroup, boot, env | {"BOX_CONSOLE": os.ttyname(slave)})
        os.close(gate_r)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        os.write(1, f"init {pid}\n".encode())
        os.write(gate_w, b"go")
        ends = [os.pidfd_open(pid)] + ([] if stay else [0])
        written = 0
        while True:
            ready, _, _ = select.select([master, *ends], [], [])
            if master in ready:
                text = os.read(master, 65536)
                if written < _CONSOLE_MAX_BYTES:
                    written += os.write(2, text)
            if set(ready) - {master}:
                return 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        empty(cgroup, lock)
        os.close(lock)


def _become_init(gate_r: int, gate_w: int, cgroup: Path, boot: Path, env: dict[str, str]) -> NoReturn:
    try:
        os.close(gate_w)
        _die_with_parent()
        if not os.read(gate_r, 2):  # the keeper died before the line above
            os._exit(1)
        (cgroup / "cgroup.procs").write_text("0")
        unshare(NEWNS | NEWIPC | NEWUTS | NEWNET | NEWCGROUP)  # the cgroup namespace is rooted where we now are
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(2, 1)
        os.setsid()
        os.execve("/bin/bash", ["bash", str(boot)], env)
    except OSError as e:
        os.write(2, f"init: {e}\n".encode())
    finally:
        os._exit(1)


# --- enter: run one command inside


def enter(pid: int, cgroup: Path, cwd: str, argv: list[str]) -> int:
    """Runs argv inside the box of PID 1 `pid` and ends as it ended; signals are passed on. 127: no such command."""
    pidfd = os.pidfd_open(pid)
    if f"/{cgroup.name}" not in Path(f"/proc/{pid}/cgroup").read_text():
        raise ProcessLookupError(f"pid {pid} is not in {cgroup}")
    leaf = cgroup / "exec"
    leaf.mkdir(exist_ok=True)
    procs = os.open(leaf / "cgroup.procs", os.O_WRONLY)
    gate_r, gate_w = os.pipe()
    setns(pidfd, NEWPID)
    child = os.fork()
    if child == 0:
        try:
            os.close(gate_w)
            _die_with_parent()
            if not os.read(gate_r, 2):
                os._exit(1)
            os.write(procs, b"0")
            setns(pidfd, NEWNS | NEWIPC | NEWUTS | NEWNET | NEWCGROUP)
            os.chdir(cwd if os.path.isdir(cwd) else "/")
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores these two, and a command inherits that
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            os.execvp(argv[0], argv)
        except OSError as e:
            os.write(2, f"box: {argv[0]}: {e}\n".encode())
        finally:
            os._exit(127)
    os.close(gate_r)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda n, _: os.kill(child, n))
    # Killed itself, this process would leave a corpse to the machine's init, and the box's end would wait for that.
    signal.signal(KILL, lambda *_: os.kill(child, signal.SIGKILL))
    os.write(gate_w, b"go")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:  # end by the same signal, so that the caller's returncode says it
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def attempt(root: Path) -> int:
    """Whether this process may make what a box is made of; raises OSError with the call that was refused."""
    trial = root / f"inferops-box-try-{os.getpid()}"
    lock = claim(trial)
    empty(trial, lock)
    os.close(lock)
    unshare(NEWPID | NEWNS | NEWIPC | NEWUTS | NEWNET | NEWCGROUP)
    return 0


def main(verb: str, text: str) -> int:
    given: dict[str, Any] = json.loads(text)
    try:
        if verb == "keep":
            return keep(Path(given["cgroup"]), Path(given["boot"]), given["env"], given["stay"])
        if verb == "enter":
            return enter(given["pid"], Path(given["cgroup"]), given["cwd"], given["argv"])
        return attempt(Path(given["root"]))
    except OSError as e:
        print(f"{verb}: {e}", file=sys.stderr)
        return 125


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
