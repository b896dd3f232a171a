"""Runs `inferops capture` as a process of its own for the sentinel: reads of /proc can hang, gdb can die, memory can
grow; none of it may take the watch down. Each call is bounded; one that overruns is asked to end, then killed by pid.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import orjson

import inferops
from inferops.core.schema import KEYS
from inferops.core.settings import Resolved
from inferops.core.verdict import escape

PASSIVE_SLACK_S = 60.0  # over the gap between its two looks: a machine that swaps reads /proc slowly
STACKS_SLACK_S = 30.0  # over gdb's own deadline: verifying that the target runs, and retention
END_GRACE_S = 10.0  # from SIGTERM to SIGKILL: time to let go of the target


async def passive(resolved: Resolved, reason: str, tape: Path, gap_s: float) -> tuple[bool, str, Path | None]:
    """A new passive capture: (made, one line for people, its directory)."""
    args = ["--passive", "--reason", reason, "--tape", str(tape)]
    code, report, err = await _capture(resolved, args, gap_s + PASSIVE_SLACK_S)
    where = _directory(report)
    made = where is not None and code in (0, 3) and _level(report, "passive") == "ok"
    return made, _line(report, "reading" if made else "", err, code, where), where


async def stacks(resolved: Resolved, directory: Path | None, deadline_s: float) -> tuple[bool, str]:
    """Stacks into an existing capture: (taken, one line for people)."""
    if directory is None:
        return False, "no capture to put stacks into"
    args = ["--into", str(directory), "--stacks"]
    code, report, err = await _capture(resolved, args, deadline_s + STACKS_SLACK_S)
    return code == 0, _line(report, "stacks" if code == 0 else "", err, code, None)


async def resumed(resolved: Resolved, directory: Path, text: str) -> None:
    """Writes into a capture that its engine was healthy after all; what cannot be written is lost quietly: the
    journal has the same sentence."""
    await _capture(resolved, ["--into", str(directory), "--resumed", text], PASSIVE_SLACK_S)


def environ(resolved: Resolved) -> dict[str, str]:
    """The environment in which another inferops process resolves exactly these settings (no secret, only its path)."""
    env = {name: value for name, value in os.environ.items() if name not in {key.env for key in KEYS.values()}}
    for key in KEYS.values():
        table, name = key.dotted.split(".")
        value = getattr(getattr(resolved.settings, table), name)
        if value is not None:
            env[key.env] = str(value).lower() if isinstance(value, bool) else str(value)
    return env


def argv(resolved: Resolved, args: list[str]) -> list[str]:
    """The command line of one capture process."""
    package = str(Path(inferops.__file__).parent)
    config = ["--config", str(resolved.path)] if resolved.path is not None else []
    return [sys.executable, package, "capture", *config, *args, "--output", "json"]


# --- edge


async def _capture(resolved: Resolved, args: list[str], deadline_s: float) -> tuple[int | None, dict[str, Any], str]:
    """(exit code or None for a deadline, the JSON report or {}, the last line of stderr)."""
    process = await asyncio.create_subprocess_exec(
        *argv(resolved, args), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env=environ(resolved),
        start_new_session=True,  # a Ctrl-C is ours to pass on: it may hold the server under gdb
    )  # fmt: skip
    try:
        out, err = await asyncio.wait_for(process.communicate(), deadline_s)
    except TimeoutError:
        return None, {}, f"did not end within {deadline_s:.0f} s"
    finally:
        await asyncio.shield(_end(process))
    lines = err.decode(errors="replace").strip().splitlines()
    try:
        report = orjson.loads(out)
    except orjson.JSONDecodeError:
        report = {}
    return process.returncode, report if isinstance(report, dict) else {}, lines[-1] if lines else ""


async def _end(process: asyncio.subprocess.Process) -> None:
    """Leaves no capture running: it is asked first, since it may hold the server under gdb."""
    if process.returncode is not None:
        return
    for stop in (process.terminate, process.kill):
        with contextlib.suppress(ProcessLookupError):
            stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_GRACE_S)
            return  # else it hangs in the kernel: it has its SIGKILL, and the watch goes on


def _directory(report: dict[str, Any]) -> Path | None:
    for finding in report.get("findings", ()):
        where = finding.get("evidence", {}).get("dir")
        if isinstance(where, str):
            return Path(where)
    return None


def _level(report: dict[str, Any], which: str) -> str | None:
    return next((f.get("level") for f in report.get("findings", ()) if f.get("id") == which), None)


def _line(report: dict[str, Any], which: str, err: str, code: int | None, where: Path | None) -> str:
    """One line: what finding `which` says, else everything that went wrong."""
    findings = report.get("findings", ())
    said = next((str(f.get("message")) for f in findings if f.get("id") == which), "")
    bad = [str(f.get("message")) for f in findings if f.get("level") in ("fail", "blind")]
    said = said or "; ".join(bad) or err or f"exit {code}"
    return escape(f"{where}: {said}" if where is not None else said)[:600]
