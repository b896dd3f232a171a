"""Follows the journal of some system units: their own lines, and what systemd says about them.

What is whose comes from fields that journald itself sets (they begin with `_`): a unit's own line by `_SYSTEMD_UNIT`,
systemd's by `_PID=1` with `UNIT`. Any process can write `UNIT=` into its own entries; those are not read.
Blind to: a unit with a journal namespace (LogNamespace=) and lines that the unit sends elsewhere (StandardOutput=file).
"""
# ruff: noqa: SLF001 - systemd-python's low-level names begin with _

from __future__ import annotations

import grp
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from systemd import _reader  # type: ignore[import-untyped, unused-ignore]

from inferops.core.journal_entry import MESSAGE_MAX_BYTES, STOPPING_ID, Entry, Mark, hole, mark, mark_of, take
from inferops.core.unit import boottime_of, full_name
from inferops.core.verdict import BlindError

__all__ = ["STOPPING_ID", "Batch", "Entry", "Follower", "tail"]

BATCH_MAX_ENTRIES = 20_000  # 0.2 s of reading (93,000 entries/s on two cores)
BATCH_MAX_BYTES = 16 << 20
SCAN_MAX_ENTRIES = 100_000  # of the whole journal, since the drain before, only after files came or went: 1.2 s

FOLDERS = (Path("/run/log/journal"), Path("/var/log/journal"))
MACHINE_ID = Path("/etc/machine-id")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What one drain found. `gap`: entries are lost or may be, with the bounds in words. `suppressed`: messages that
    journald dropped by its rate limit. `truncated`: there is more, drain again."""

    entries: tuple[Entry, ...]
    gap: str | None = None
    suppressed: int = 0
    truncated: bool = False


# --- edge


class Follower:
    """Follows `units` from now on, or from `since_t` (BOOTTIME s): each entry comes in one drain, once.

    Aliases are not followed: give a unit's own name. Raises BlindError: no journal, or no permission to read the
    system's; UsageError: not names of service units.
    """

    def __init__(self, units: Sequence[str], *, since_t: float | None = None) -> None:
        self._units = frozenset(map(full_name, units))
        self._boot = _boot_id()
        self._since_t = since_t
        self._skip = ""  # the entry that a seek began at
        self._whole = _open()  # without a filter: the newest entry of all, and whether numbers are missing
        self._base = None if since_t is not None else self._newest()  # all up to here was read
        self._reader = self._follow(self._base)

    def drain(self, limit: int = BATCH_MAX_ENTRIES) -> Batch:
        """The entries since the drain before, oldest first, at most `limit` and 16 MiB of messages. Does not wait.

        Raises BlindError: the journal is gone.
        """
        found: list[Entry] = []
        newest: Mark | None = None
        trouble: OSError | None = None
        gaps: list[str] = []
        room, suppressed, full = BATCH_MAX_BYTES, 0, False
        try:
            # First of all: journald empties a file that it removes, and whoever goes on to read it dies of SIGBUS.
            self._whole.process()
            if self._reader.process() == _reader.INVALIDATE:
                gaps = self._lost()
            newest = self._newest()
            while not full and self._next():
                entry, dropped = take(self._reader, self._units, self._boot)
                suppressed += dropped
                if entry is None or (self._since_t is not None and (entry.t or 0.0) < self._since_t):
                    continue
                found.append(entry)
                room -= len(entry.message)
                full = len(found) >= limit or room <= 0
        except OSError as e:
            trouble = e
        reached = [mark_of(found[-1].cursor, (found[-1].t or 0.0) - boottime_of(0.0))] if found else []
        if newest is not None and not full and trouble is None:
            reached.append(newest)
        self._base = max(reached, key=lambda mark: mark.at_s, default=self._base)
        if trouble is not None:
            gaps.append(self._reopen(trouble))
        return Batch(entries=tuple(found), gap="; ".join(gaps) or None, suppressed=suppressed, truncated=full)

    def close(self) -> None:
        """Closes its files; a second time does nothing."""
        self._reader.close()
        self._whole.close()

    def _follow(self, after: Mark | None) -> Any:
        """A reader with the filter, placed behind the entry `after`, without it at `since_t`.

        Never by seek_tail() under the filter: with no match yet it loses what comes (99 of 100 lines, systemd 252).
        """
        reader = _open()
        _filter(reader, self._units)
        if self._since_t is not None:
            # this boot only: in a file without an entry of it the reader would begin at the first of all
            reader.add_conjunction()
            reader.add_match(f"_BOOT_ID={self._boot.hex()}")
        if after is not None:
            self._skip = after.cursor
            reader.seek_cursor(after.cursor)
        elif self._since_t is not None:
            reader.seek_monotonic(max(0, int((self._since_t - boottime_of(0.0)) * 1e6)), self._boot.hex())
        else:  # an empty journal
            reader.seek_head()
        return reader

    def _next(self) -> bool:
        if not self._reader._next():
            return False
        skip, self._skip = self._skip, ""
        return self._next() if skip and self._reader.test_cursor(skip) else True

    def _newest(self) -> Mark | None:
        self._whole.seek_tail()
        return mark(self._whole) if self._whole._previous() else None

    def _lost(self) -> list[str]:
        """After files came or went: whether entries that were not read yet are missing."""
        if self._base is None:
            return []
        seen: list[Mark] = []
        self._whole.seek_cursor(self._base.cursor)
        while len(seen) < SCAN_MAX_ENTRIES and self._whole._next():
            one = mark(self._whole)
            seen.append(Mark(one.number, one.at_s))
        if len(seen) == SCAN_MAX_ENTRIES:
            since = _clock(self._base.at_s)
            return [f"over {SCAN_MAX_ENTRIES} journal entries since {since}: too many to see if any are lost"]
        found = hole(self._base, seen)
        if found is None:
            return []
        count, before, after = found
        return [f"up to {count} journal entries lost between {_clock(before.at_s)} and {_clock(after.at_s)}"
                " (of all units: their files were removed before they were read)"]  # fmt: skip

    def _reopen(self, e: OSError) -> str:
        self.close()
        self._whole = _open()
        self._reader = self._follow(self._base)
        return f"the journal was opened again after an error ({e.strerror or e}); entries may be lost before {_clock()}"


def tail(units: Sequence[str], n: int) -> list[Entry]:
    """The last `n` entries of `units`, oldest first, of earlier boots too. Raises as Follower does."""
    names, boot = frozenset(map(full_name, units)), _boot_id()
    found: list[Entry] = []
    reader = _open()
    try:
        _filter(reader, names)
        reader.seek_tail()
        while len(found) < n and reader._previous():
            entry, _ = take(reader, names, boot)
            if entry is not None:
                found.append(entry)
    except OSError as e:
        raise BlindError(f"journal of {', '.join(sorted(names))}: {e.strerror or e}", "journalctl --verify") from e
    finally:
        reader.close()
    return found[::-1]


def _filter(reader: Any, units: Iterable[str]) -> None:
    """The units' own entries, systemd's about them, and journald's that it suppressed some of them. Matches of one
    field are alternatives, of several fields all hold."""
    terms: tuple[tuple[str, str], ...] = (
        ("", "_SYSTEMD_UNIT"), ("_PID=1", "UNIT"), ("_TRANSPORT=driver", "OBJECT_SYSTEMD_UNIT"),
    )  # fmt: skip
    for fixed, field in terms:
        if fixed:
            reader.add_disjunction()
            reader.add_match(fixed)
        for unit in units:
            reader.add_match(f"{field}={unit}")


def _open() -> Any:
    """A reader of this machine's journals, told by the kernel when files come and go. Raises BlindError."""
    _check_access()
    try:
        reader = _reader._Reader(flags=_reader.LOCAL_ONLY)
        reader.data_threshold = MESSAGE_MAX_BYTES + len("MESSAGE=") + 1
        reader.fileno()
    except OSError as e:
        raise BlindError(
            f"journal: {e.strerror or e}", "journalctl --verify; sysctl fs.inotify.max_user_instances"
        ) from e
    return reader


def _check_access() -> None:
    """sd_journal_open succeeds where nothing may be read. Raises BlindError."""
    machine = MACHINE_ID.read_text().strip() if MACHINE_ID.exists() else "*"
    folders = [folder for parent in FOLDERS for folder in parent.glob(machine)]
    files = [file for folder in folders for file in folder.glob("system*.journal")]
    if any(os.access(file, os.R_OK, effective_ids=True) for file in files):
        return
    shut = [*files, *(folder for folder in folders if not os.access(folder, os.R_OK | os.X_OK, effective_ids=True))]
    if not shut:
        raise BlindError(
            f"no journal files of this machine in {' or '.join(map(str, FOLDERS))}",
            "is systemd-journald running, and Storage= in journald.conf not none?",
        )
    try:
        group = grp.getgrgid(shut[0].stat().st_gid).gr_name
    except (KeyError, OSError):
        group = "root"
    group = "systemd-journal" if group == "root" else group  # root's where systemd-tmpfiles did not set it up
    raise BlindError(
        f"{shut[0]}: the system's journal is not readable for uid {os.geteuid()}",
        f"run as root, or add the user to group {group} (or adm): usermod -aG {group} USER; then log in again",
    )


def _boot_id() -> bytes:
    try:
        return bytes.fromhex(BOOT_ID.read_text().strip().replace("-", ""))
    except (OSError, ValueError) as e:
        raise BlindError(f"{BOOT_ID}: {e}", "is /proc mounted?") from e


def _clock(monotonic_s: float | None = None) -> str:
    """A MONOTONIC time of this boot, or now, as local wall time for people."""
    ago = time.clock_gettime(time.CLOCK_MONOTONIC) - monotonic_s if monotonic_s is not None else 0.0
    return time.strftime("%H:%M:%S", time.localtime(time.time() - ago))
