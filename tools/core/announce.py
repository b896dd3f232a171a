"""An event as people and programs get it: one text line, one JSON object, one structured journal entry."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping

import click
import orjson

from inferops.core.turn import Event
from inferops.core.verdict import escape

# One id an event kind, made once with uuid4 and never changed: `journalctl MESSAGE_ID=…` finds every one of them.
MESSAGE_IDS = {
    "STARTED": "17b0b9c92e5b4483988702e0c2a2393c",
    "READY": "094837386a2f42d8923a029de4b4b7be",
    "STALL": "19223b4dfa454e438fe981e490271d30",
    "PROGRESS": "bde2e9d8a6bb45a4a9c4a7ac281d44f2",
    "ARMED": "45215cbf8a844e979aa419626dd02ab1",
    "CAPTURED": "28d6f477c09546e0ba22f9167adb87bb",
    "CANARY": "3e9d4e3fffa54caf965f42b3bf6a53c2",
    "STACKS": "8acf5174b6dc43ae9b1af84f447ce515",
    "PHANTOM": "44bf8a7807c84171bd93a75c98a06b1e",
    "RESUMED": "a5b35572543c4b589f618a476f42058c",
    "WEDGE": "9a1b140c35f6483b879749b94b725248",
    "RESTARTED": "1f7bbf2502fd48ba9d74eaa510338ae2",
    "LATCHED": "4f630dcee61b45809f7d5bcebd10edf9",
    "FAILED": "663deefa323c4155b26a4435e1a8ea8e",
    "DISARMED": "08c48ec5228a479c9c0c073b2c66ea58",
    "STOPPED": "767e7ee9e36541d9bdc697e24136dbfa",
    "DEAD": "9951271e93174b59b77ae83cee7ad5eb",
    "LOADING": "f0e51001727d4dc687931fc9f03a85be",
    "CRASHLOOP": "c18bdb1363be4935b87d40703a813460",
    "FAILING": "94b6c85d059e4e6dbbd8d2af50d4e90f",
    "STARVED": "397f72c6212448cbb12550dfafc8e96f",
    "BLIND": "5237b510b2bc4676828bf1a287c2fd86",
    "SEEING": "fc313671bad14edc9c7bde8fbb8e1924",
    "FATAL": "8f1c01792904464989ebbe58547cbe41",
    "GAP": "c9ca124da0d74c6da505a1c961273b50",
    "CONFIG": "ae4d5fbb18824ad5beec14f7d7d17695",
}
PRIORITIES = {"alert": 2, "warn": 4, "note": 5}  # syslog: critical, warning, notice


def line(event: Event, unit: str) -> str:
    """The event in one line that begins with its kind, hostile text escaped."""
    return escape(f"{event.kind} {unit}: {event.text}")


def record(event: Event, unit: str, wall: float) -> bytes:
    """The event as one JSON object; `time` is unix seconds."""
    seen = {
        "time": round(wall, 3),
        "boottime": round(event.t, 3),
        "level": event.level,
        "rule": event.kind,
        "unit": unit,
        "class": event.wclass or None,
        "message": escape(event.text),
    }
    return orjson.dumps(seen)


def fields(event: Event, unit: str, extra: Mapping[str, str]) -> dict[str, str | int]:
    """The journal fields besides MESSAGE."""
    own: dict[str, str | int] = {
        "MESSAGE_ID": MESSAGE_IDS[event.kind],
        "PRIORITY": PRIORITIES[event.level],
        "SYSLOG_IDENTIFIER": "inferops-sentinel",
        "INFEROPS_EVENT": event.kind,
        "INFEROPS_UNIT": unit,
        "INFEROPS_LEVEL": event.level,
    }
    if event.wclass:
        own["INFEROPS_CLASS"] = event.wclass
    return own | {f"INFEROPS_{name.upper()}": escape(value) for name, value in extra.items()}


# --- edge


def to_journal(event: Event, unit: str, extra: Mapping[str, str]) -> None:
    """Sends the event to journald. Raises OSError where there is none."""
    from systemd import journal

    journal.send(line(event, unit), **fields(event, unit, extra))


def stdout_is_journal() -> bool:
    """True where systemd connected our stdout to the journal (JOURNAL_STREAM names its device and inode)."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # AttributeError: started with stdout closed
        device, inode = os.environ.get("JOURNAL_STREAM", "").split(":")
        stat = os.fstat(sys.stdout.fileno())
        return (stat.st_dev, stat.st_ino) == (int(device), int(inode))
    return False


def to_stdout(text: str | bytes) -> str | None:
    """Writes one line; why it can't be written, or None. After a failure the line and the later ones go nowhere, so
    that what is left in the buffer is no error at exit either."""
    try:
        click.echo(text)
    except (OSError, ValueError) as e:
        _to_null(1)
        return str(e)
    return None


def to_stderr(text: str) -> None:
    """Writes one line where anybody reads it; a stderr that is gone takes nothing with it."""
    try:
        click.echo(text, err=True)
    except (OSError, ValueError):
        _to_null(2)


def _to_null(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)
