"""What the machine offers for a box: its cgroup2, its rights, the boxes that are up."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from . import ns

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SYSTEMD = ("/usr/lib/systemd/systemd", "/lib/systemd/systemd")
_TOOLS = {"bash": "bash", "mount": "mount", "systemctl": "systemd", "journalctl": "systemd", "dbus-daemon": "dbus"}
_PRIVATE = ("/tmp", "/var/tmp", "/run", "/dev", "/etc", "/var/lib", "/var/log")  # what boot.sh makes so
_PREFIX = "inferops-box-"
_TRY_S = 15.0


class BoxError(Exception):
    """No box can be had, or it did not do what it should; the message says what is missing and what to run."""


def script(verb: str, **given: Any) -> list[str]:
    """The command line of ns.py; -S and -E keep it at 12 ms and out of the caller's environment."""
    return [sys.executable, "-E", "-s", "-S", "-B", str(Path(ns.__file__).resolve()), verb, json.dumps(given)]


def missing() -> str | None:
    """Why no box can be had on this machine by this process, and what to run; None if it can."""
    if not any(os.path.exists(path) for path in SYSTEMD):
        return "systemd is not installed: run apt-get install systemd dbus"
    for tool, package in _TOOLS.items():
        if tool == "dbus-daemon" and os.path.exists("/usr/lib/systemd/system/dbus-broker.service"):
            continue
        if shutil.which(tool, path=PATH) is None:
            return f"{tool} is not installed: run apt-get install {package}"
    try:
        done = subprocess.run(
            script("try", root=str(cgroup_root())), capture_output=True, text=True, timeout=_TRY_S, check=False
        )
    except BoxError as e:
        return str(e)
    if done.returncode == 0:
        return None
    what = (
        "this container lacks CAP_SYS_ADMIN or a writable cgroup2: start it with --privileged"
        if os.geteuid() == 0
        else "it takes root (CAP_SYS_ADMIN): run the same command as root, e.g. through sudo -E"
    )
    return f"no right to make namespaces and a cgroup ({done.stderr.strip()}); {what}"


def names() -> list[str]:
    """The boxes that are up on this machine, whoever made them."""
    return sorted(path.name.removeprefix(_PREFIX) for path in cgroups() if init_of(path))


def cgroups() -> list[Path]:
    """The cgroups of all boxes, also of those that are coming up, going down or were left behind."""
    return list(cgroup_root().glob(_PREFIX + "*"))


def cgroup_of(name: str) -> Path:
    """The cgroup of the box of that name; it need not exist."""
    return cgroup_root() / (_PREFIX + name)


def cgroup_root() -> Path:
    """Where cgroup2 is mounted: /sys/fs/cgroup, or /sys/fs/cgroup/unified beside version 1."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines()[::-1]:
        fields, _, kind = line.partition(" - ")
        path = Path(fields.split()[4])
        if kind.startswith("cgroup2 ") and (path / "cgroup.procs").exists():
            return path
    raise BoxError("no cgroup2 is mounted: run mount -t cgroup2 none /sys/fs/cgroup/unified, or boot with it")


def init_of(cgroup: Path) -> int:
    """The host's pid of the PID 1 that runs in the cgroup, 0 if none does."""
    try:
        pids = (cgroup / "init.scope" / "cgroup.procs").read_text().split()
        return next((int(pid) for pid in pids if re.search(r"^NSpid:.*\t1$", _status(pid), re.M)), 0)
    except OSError:
        return 0


def _status(pid: str) -> str:
    return Path(f"/proc/{pid}/status").read_text()


def hidden(paths: Sequence[Path]) -> Iterator[str]:
    """Of the paths, those that a private directory would hide, parents only."""
    under = sorted({text for path in paths if _under(text := str(path.resolve()), _PRIVATE)})
    for i, path in enumerate(under):
        if not _under(path, under[:i]):
            yield path


def _under(path: str, above: Sequence[str]) -> bool:
    return any(path.startswith(directory + "/") for directory in above)
