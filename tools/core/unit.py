"""A systemd unit through systemctl: its state, every pid of its cgroup, and start, stop, restart of it.

System units only. Blind to: a unit in a container or of a user's own manager, and whether what was started works.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from inferops.core import process
from inferops.core.unit_parse import (
    PROPERTIES,
    UnitState,
    full_name,
    hierarchies,
    number,
    parse,
    started_t,
    state,
    words,
)
from inferops.core.verdict import BlindError, InferopsError, UsageError, escape

__all__ = ["UnitState", "boottime_of", "full_name", "pids", "restart", "show", "start", "stop"]

OFFSET_SLACK_S = 0.01  # two clock reads differ by microseconds; a suspend moves BOOTTIME by far more


# --- edge

_offset_s: list[float] = []
_starts: dict[str, tuple[int, int, float]] = {}  # unit -> its main pid, systemd's time of its start (us), start_t


def boottime_of(monotonic_s: float) -> float:
    """A CLOCK_MONOTONIC time of this boot on CLOCK_BOOTTIME, both in seconds. It takes no suspend to lie between then
    and now. The same time gives the same answer until a suspend."""
    return monotonic_s + boot_offset_s()


def boot_offset_s() -> float:
    """BOOTTIME - MONOTONIC: the seconds suspended since boot. Kept until it moves, so that times stay comparable."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    if not _offset_s or abs(now - _offset_s[0]) > OFFSET_SLACK_S:
        _offset_s[:] = [now]
    return _offset_s[0]


def show(name: str, deadline_s: float = 5.0) -> UnitState:
    """The state of unit `name` (`.service` is added, an alias followed).

    Raises UsageError: not a service's name, or no such unit (near names in the hint); BlindError: no systemctl, no
    systemd to talk to, no answer in `deadline_s` seconds.
    """
    name = full_name(name)
    done = _systemctl("show", "--property", ",".join(PROPERTIES), "--", name, deadline_s=deadline_s)
    if done.returncode != 0:
        raise BlindError(f"unit {name}: systemctl show: {words(done.stderr)}", _hint(done.stderr))
    values = parse(done.stdout, PROPERTIES)
    if values["LoadState"] == "not-found" and values["ActiveState"] == "inactive":
        raise UsageError(f"unit {name}: no such unit", _near(name, deadline_s))
    pid, started_us = number(values, "MainPID"), number(values, "ExecMainStartTimestampMonotonic")
    if not started_us:
        return state(values, None)
    if _starts.get(name, ())[:2] != (pid, started_us):  # kept: a suspend must not make it another process
        born_t = process.start_t(pid) if pid else None
        _starts[name] = (pid, started_us, started_t(started_us / 1e6, boot_offset_s(), born_t))
    return state(values, _starts[name][2])


def pids(control_group: str) -> tuple[int, ...]:
    """Every process in the cgroup and those below it, ascending; () if it is gone or `control_group` is "".

    Raises BlindError: this machine shows no cgroup hierarchy of systemd's.
    """
    if control_group in ("", "/"):  # a unit that does not run has none; every process is never a unit's
        return ()
    mounts = hierarchies(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    if not mounts:
        raise BlindError("/proc/self/mountinfo: no cgroup hierarchy of systemd's is mounted", "run where systemd runs")
    for mount, root in mounts:
        inner = control_group.removeprefix(root.rstrip("/"))
        base = Path(f"{mount}/{inner}")
        if base.is_dir():
            return tuple(sorted(set(_walk(base))))
    return ()


def restart(name: str, deadline_s: float) -> None:
    """Restarts the unit and waits for systemd's job to end, at most `deadline_s` (s): more than its TimeoutStopSec and
    TimeoutStartSec together, or a slow stop is taken for a failure. Done says only what systemd saw.

    Raises UsageError: no such unit; BlindError: no systemd to talk to, or not allowed; InferopsError: the job failed,
    or is not over yet.
    """
    _job("restart", name, deadline_s)


def start(name: str, deadline_s: float) -> None:
    """Starts the unit; waits and raises as `restart` does."""
    _job("start", name, deadline_s)


def stop(name: str, deadline_s: float) -> None:
    """Stops the unit; waits and raises as `restart` does."""
    _job("stop", name, deadline_s)


def kill(name: str, deadline_s: float) -> None:
    """Sends SIGKILL to every process of the unit, by systemd, which knows them. Raises as `restart`."""
    name = full_name(name)
    done = _systemctl("--no-ask-password", "kill", "--signal=KILL", "--", name, deadline_s=deadline_s)
    if done.returncode != 0:
        raise InferopsError(f"kill of {name}: {words(done.stderr)}", f"journalctl -u {name} -n 20")


def _job(verb: str, name: str, deadline_s: float) -> None:
    name = full_name(name)
    try:
        done = _systemctl("--no-ask-password", verb, "--", name, deadline_s=deadline_s)
    except BlindError as e:
        if not isinstance(e.__cause__, subprocess.TimeoutExpired):
            raise
        hint = f"systemctl list-jobs; systemctl status {name}"
        raise InferopsError(f"{verb} of {name}: not over after {deadline_s:g} s; {_queued(name)}", hint) from e
    if done.returncode == 0:
        return
    said = words(done.stderr)
    if "not found" in said and done.returncode == 5:
        raise UsageError(f"{verb} of {name}: no such unit", _near(name, 5.0))
    if re.search(r"authenti|Access denied|not permitted|Permission denied", said):
        raise BlindError(
            f"{verb} of {name}: not allowed for uid {os.geteuid()}: {said}",
            "run it as root (sudo -n), or allow this user by polkit: org.freedesktop.systemd1.manage-units",
        )
    if _hint(said):
        raise BlindError(f"{verb} of {name}: {said}", _hint(said))
    again = f"systemctl reset-failed {name}, once its cause is known" if "too often" in said else ""
    raise InferopsError(f"{verb} of {name}: {said}", again or f"journalctl -u {name} -n 20")


def _queued(name: str) -> str:
    try:
        done = _systemctl("show", "--property", "Job", "--", name, deadline_s=2.0)
    except BlindError:
        return "whether its job is still queued is not known: systemd does not answer"
    job = done.stdout.strip().removeprefix("Job=")
    return f"systemd's job {escape(job)} is still queued" if job else "no job of it is queued any more"


def _systemctl(*argv: str, deadline_s: float) -> subprocess.CompletedProcess[str]:
    systemctl = shutil.which("systemctl")
    if systemctl is None:
        raise BlindError("systemctl: not found in PATH", "install systemd, or run where systemd runs the server")
    plain = {"LC_ALL": "C", "SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0", "SYSTEMD_URLIFY": "0"}
    try:
        return subprocess.run(
            [systemctl, "--system", "--no-pager", *argv], env={**os.environ, **plain}, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=deadline_s, text=True, errors="backslashreplace", check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as e:
        raise BlindError(f"systemctl {argv[0]}: no answer in {deadline_s:g} s", "does `systemctl` answer?") from e


def _hint(stderr: str) -> str:
    if "not been booted with systemd" in stderr:
        return "this machine's PID 1 is not systemd: run where systemd runs the server"
    return "is the system bus up? does `systemctl status` answer?" if "bus" in stderr else ""


def _near(name: str, deadline_s: float) -> str:
    listed: set[str] = set()
    for verb in (("list-unit-files",), ("list-units", "--all")):
        done = _systemctl(*verb, "--type=service", "--no-legend", "--plain", deadline_s=deadline_s)
        names = (line.split()[0] for line in done.stdout.splitlines() if line.strip())
        listed |= {name.removesuffix(".service") for name in names if "@." not in name}
    near = difflib.get_close_matches(name.removesuffix(".service"), sorted(listed), 3, 0.6)
    return f"did you mean {' or '.join(map(escape, near))}?" if near else "systemctl list-units --type=service"


def _walk(base: Path) -> Iterable[int]:
    for folder, _, _ in os.walk(base):
        try:
            text = Path(folder, "cgroup.procs").read_text()
        except OSError:  # gone meanwhile, or a threaded cgroup: its processes are listed above it
            continue
        yield from (pid for line in text.split() if (pid := int(line)))  # 0: outside our pid namespace
