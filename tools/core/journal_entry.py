"""One journal entry as the eyes see it, and whether journald's own numbering shows that entries are missing.

The reader is systemd-python's low-level one: eight times as fast as its dicts, and it never loses bytes.
"""
# ruff: noqa: SLF001 - systemd-python's low-level names begin with _

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgspec

from inferops.core.unit import boottime_of

# sd-messages.h. "Stopping …": only a stop or restart job writes it, so a planned stop. journald's "Suppressed N …".
STOPPING_ID = "de5b426a63be47a7b6ac3eaac82e2f6f"
DROPPED_ID = "a596d6fe7bfa4994828e72309e95d61e"

MESSAGE_MAX_BYTES = 65536  # a stdout line is at most 48 KiB (LineMax=), a server's own some hundred bytes
DELAY_MAX_S = 60.0  # a starved journald lags by seconds; more is a clock that was set meanwhile
CUT = f" [cut at {MESSAGE_MAX_BYTES >> 10} KiB]"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry. `t` is when journald took it, for systemd's own when systemd sent it (BOOTTIME s), None if that was in
    another boot; `wall` is when journald took it, in seconds since 1970. `message` is not escaped. `invocation` tells
    of which run of the unit it is, "" where that is unknown."""

    cursor: str
    t: float | None
    wall: float
    message: str
    pid: int
    priority: int
    unit: str
    by_systemd: bool
    message_id: str
    invocation: str


class Mark(msgspec.Struct, frozen=True):
    """An entry of the whole journal: journald's number of it, counted over all its files, and when (MONOTONIC s)."""

    number: int
    at_s: float
    cursor: str = ""


def text_of(raw: bytes) -> str:
    """A MESSAGE as text: what is no UTF-8 as \\xNN, at most MESSAGE_MAX_BYTES of it, then CUT."""
    cut = len(raw) > MESSAGE_MAX_BYTES
    return raw[:MESSAGE_MAX_BYTES].decode("utf-8", "backslashreplace") + (CUT if cut else "")


def delay_s(taken_us: int, sent_us: int) -> float:
    """How long an entry was under way to journald, from two readings of the wall clock; 0 where the clock was set."""
    late = (taken_us - sent_us) / 1e6
    return late if 0 <= late <= DELAY_MAX_S else 0.0


def number_of(raw: bytes, default: int) -> int:
    """A decimal field, or `default` where it is none: the sender may write anything."""
    return int(raw) if raw.isdigit() and len(raw) < 20 else default


def mark_of(cursor: str, at_s: float) -> Mark:
    """The Mark of a cursor (`s=…;i=1a2b;b=…`; i is the number). ValueError: not such a cursor."""
    numbers = [part[2:] for part in cursor.split(";") if part.startswith("i=")]
    if len(numbers) != 1:
        raise ValueError(f"cursor {cursor[:80]!r}: no number in it")
    return Mark(int(numbers[0], 16), at_s, cursor)


def hole(base: Mark, seen: Iterable[Mark]) -> tuple[int, Mark, Mark] | None:
    """(how many numbers after `base` are missing, the entry before the first hole, that after the last), or None."""
    after = sorted((mark for mark in seen if mark.number > base.number), key=lambda mark: mark.number)
    holes = [(a, b) for a, b in pairwise([base, *after]) if b.number > a.number + 1]
    if not holes:
        return None
    return sum(b.number - a.number - 1 for a, b in holes), holes[0][0], holes[-1][1]


# --- edge


def take(reader: Any, units: frozenset[str], boot: bytes) -> tuple[Entry | None, int]:
    """(the entry that the reader is at, None where it is not of `units`; the messages that it says were suppressed).

    The reader's filter has let through only entries whose sender journald vouches for: see journal._filter."""
    unit = field(reader, "_SYSTEMD_UNIT").decode("utf-8", "backslashreplace")
    message_id = field(reader, "MESSAGE_ID").decode("ascii", "backslashreplace")
    by_systemd = unit not in units
    if by_systemd and message_id == DROPPED_ID:
        return None, number_of(field(reader, "N_DROPPED"), 1)
    if by_systemd:
        unit = field(reader, "UNIT").decode("utf-8", "backslashreplace")
        if unit not in units:
            return None, 0
    invocation = "INVOCATION_ID" if by_systemd else "_SYSTEMD_INVOCATION_ID"
    usec, entry_boot = reader._get_monotonic()
    taken_us = reader._get_realtime()
    # a unit's own lines come by its stdout, which carries no time
    late = delay_s(taken_us, number_of(field(reader, "_SOURCE_REALTIME_TIMESTAMP"), 0)) if by_systemd else 0.0
    return Entry(
        cursor=reader._get_cursor(), t=boottime_of(usec / 1e6) - late if entry_boot == boot else None,
        wall=taken_us / 1e6, message=text_of(field(reader, "MESSAGE")),
        pid=number_of(field(reader, "_PID"), 0), priority=number_of(field(reader, "PRIORITY"), 6), unit=unit,
        by_systemd=by_systemd, message_id=message_id,
        invocation=field(reader, invocation).decode("ascii", "backslashreplace"),
    ), 0  # fmt: skip


def field(reader: Any, name: str) -> bytes:
    """A field of the entry that the reader is at, b"" where it has none."""
    try:
        value: bytes = reader._get(name)
    except KeyError:
        return b""
    return value


def mark(reader: Any) -> Mark:
    """The Mark of the entry that the reader is at."""
    return mark_of(reader._get_cursor(), reader._get_monotonic()[0] / 1e6)
