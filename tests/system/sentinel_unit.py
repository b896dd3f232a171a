"""A sentinel as a systemd unit in a box, with short timings, for the system tests, the demo and the bench."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.system.box import CHECKOUT, Box, BoxError

UNIT = "inferops-sentinel.service"
CONFIG = "/etc/inferops.toml"
PROFILE = "/etc/inferops/short.toml"


def short(engine: str, cadence_s: float = 2.0) -> str:
    """A built-in profile with bounds that a person can wait for: its floor of 150 s is for real servers."""
    return f"""\
extends = "{engine}"
name = "{engine}-short"
stall_min_s = 3.0
stall_why = "short timings for a demonstration; never for a server that people use"
slowest_cadence_s = {cadence_s}
"""


LLAMA = {"unit": "llama.service"}

UNIT_TEXT = """\
[Unit]
Description=inferops sentinel
[Service]
Type=notify
ExecStart={python} {package} sentinel run --config {config}
Environment=PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WatchdogSec=60
KillMode=mixed
TimeoutStopSec=30
SuccessExitStatus=143
"""


def settings(live: Mapping[str, str] = LLAMA, **sentinel: Any) -> str:
    """An inferops.toml for the box: keys of [live] besides engine and url, and of [sentinel]."""
    timings = {"action": "restart", "poll_s": 1.0, "probe_deadline_s": 0.9, "stall_s": 6.0, "canary_deadline_s": 4.0,
               "capture_gap_s": 2.0} | sentinel  # fmt: skip
    lines = [f"{key} = {json.dumps(value)}" for key, value in timings.items()]
    table = {"engine": PROFILE, "url": "http://127.0.0.1:8080", **live}
    named = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    return "\n".join(["[live]", *named, "[sentinel]", *lines, ""])


@dataclass(frozen=True)
class Told:
    """One event as it stands in the journal; `t` is BOOTTIME seconds of the entry."""

    kind: str
    text: str
    t: float
    fields: dict[str, str]


class SentinelUnit:
    """Installs and starts the unit; reads its events back from the journal by MESSAGE_ID and identifier."""

    def __init__(self, box: Box, profile: str | None = None, live: Mapping[str, str] = LLAMA, **sentinel: Any) -> None:
        self.box = box
        box.write(PROFILE, profile or short("llama-cpp"))
        box.write(CONFIG, settings(live, **sentinel))
        package = CHECKOUT / "tools"
        text = UNIT_TEXT.format(python=sys.executable, package=package, config=CONFIG)
        box.write(f"/etc/systemd/system/{UNIT}", text)
        box.run(["systemctl", "daemon-reload"])

    def start(self) -> SentinelUnit:
        self.box.run(["systemctl", "start", UNIT], timeout=90)
        return self

    def stop(self) -> None:
        self.box.run(["systemctl", "stop", UNIT], timeout=90)

    def pid(self) -> int:
        """Its main pid; 0 when it does not run."""
        return int(self.box.run(["systemctl", "show", UNIT, "--property=MainPID", "--value"]).stdout)

    def events(self) -> list[Told]:
        """Every event so far, oldest first."""
        raw = self.box.journal(None, "-t", "inferops-sentinel", "-o", "json")
        told = []
        for line in raw.splitlines():
            entry = json.loads(line)
            if "INFEROPS_EVENT" in entry:
                t = int(entry["__MONOTONIC_TIMESTAMP"]) / 1e6 + offset()
                told.append(Told(entry["INFEROPS_EVENT"], entry["MESSAGE"], t, entry))
        return told

    def kinds(self) -> list[str]:
        return [e.kind for e in self.events()]

    def wait(self, kind: str, timeout: float = 120.0, after: int = 0) -> Told:
        """The first event of that kind past the first `after` events. Raises BoxError with what was told instead."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            for event in self.events()[after:]:
                if event.kind == kind:
                    return event
            time.sleep(0.3)
        told = "\n".join(e.text for e in self.events())
        raise BoxError(f"no {kind} within {timeout} s; told:\n{told}\n{self.box.journal(UNIT, '-n40')}")

    def captures(self) -> list[Path]:
        """The capture directories inside the box, oldest first."""
        found = self.box.run(["sh", "-c", "ls -1d /var/lib/inferops/captures/*/ 2>/dev/null || true"]).stdout
        return [Path(line) for line in sorted(found.split())]


def offset() -> float:
    """What BOOTTIME is ahead of MONOTONIC (time spent suspended), seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


def until(condition: Callable[[], bool], timeout: float, what: str) -> None:
    """Waits for `condition`; raises BoxError naming `what` when it does not come."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise BoxError(f"not within {timeout} s: {what}")
        time.sleep(0.1)
