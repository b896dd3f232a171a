"""How many restarts are left: at most two in any 30 minutes, then a latch that only a person opens.

The arithmetic is on CLOCK_BOOTTIME, which no clock change moves. An entry of an earlier boot counts until this boot is
itself 30 minutes old: that much time has then passed whatever the wall clock says.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from inferops.core.state import write_atomic
from inferops.core.verdict import InferopsError

RESTARTS_MAX = 2  # two tell a lucky fix from a server that wedges on every start; a third would be a loop
WINDOW_S = 1800.0
KEPT = 50  # entries kept for people to read


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One restart: `boot` id, `t` BOOTTIME s, `wall` for people, `result` spent | ok | failed."""

    boot: str
    t: float
    wall: float
    pid: int
    result: str = "spent"


class Ledger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: str = "inferops.budget/1"
    restarts: tuple[Entry, ...] = ()
    latched: str | None = None


def recent(ledger: Ledger, boot: str, now: float) -> int:
    """How many restarts count at `now` (BOOTTIME s of boot `boot`): failed ones do, and those from the future."""
    return sum(1 for e in ledger.restarts if (now - e.t if e.boot == boot else now) < WINDOW_S)


def held(ledger: Ledger) -> str | None:
    """Why no restart may happen, or None."""
    if ledger.latched is not None:
        return f"the budget is latched ({ledger.latched}); look, then `inferops sentinel rearm`"
    return None


def counted(ledger: Ledger, entry: Entry) -> Ledger:
    """The ledger with one more restart: the one that uses the budget up latches it."""
    ledger = msgspec.structs.replace(ledger, restarts=(*ledger.restarts, entry)[-KEPT:])
    if (used := recent(ledger, entry.boot, entry.t)) >= RESTARTS_MAX:
        return msgspec.structs.replace(ledger, latched=f"{used} restarts in {WINDOW_S / 60:g} minutes")
    return ledger


# --- edge


class Budget:
    """The ledger on disk. Unreadable or unwritable means no restart: `held` says so, `spend` raises."""

    def __init__(self, path: Path, boot: str, now: Callable[[], float]) -> None:
        self.path, self._boot, self._now = path, boot, now

    @classmethod
    def here(cls, path: Path) -> Budget:
        """The ledger at `path`, by this boot's id and this machine's CLOCK_BOOTTIME."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return cls(path, boot, lambda: time.clock_gettime(time.CLOCK_BOOTTIME))

    def read(self) -> Ledger:
        """The ledger; an absent file is an empty one. Raises OSError or msgspec.MsgspecError."""
        if self.path.is_symlink():
            raise OSError(f"{self.path} is a symlink")
        if not self.path.exists():
            return Ledger()
        ledger = msgspec.json.decode(self.path.read_bytes(), type=Ledger)
        if ledger.schema != "inferops.budget/1":
            raise msgspec.ValidationError(f"schema {ledger.schema!r}, expected inferops.budget/1")
        return ledger

    def held(self) -> str | None:
        """Why no restart may happen now, or None."""
        try:
            return held(self.read())
        except (OSError, msgspec.MsgspecError) as e:
            return f"the restart budget {self.path} cannot be read: {e}"

    def spend(self, pid: int, wall: float) -> None:
        """Writes one restart down, synced, before it happens. Raises OSError, InferopsError or MsgspecError."""
        entry = Entry(boot=self._boot, t=self._now(), wall=wall, pid=pid)
        self._write(counted(self.read(), entry))
        if self.read().restarts[-1:] != (entry,):
            raise OSError(f"{self.path} did not keep what was written")

    def settle(self, result: str) -> None:
        """Notes how the last restart ended; losing this note loses no budget."""
        with contextlib.suppress(InferopsError, OSError, msgspec.MsgspecError, IndexError):
            ledger = self.read()
            last = msgspec.structs.replace(ledger.restarts[-1], result=result)
            self._write(msgspec.structs.replace(ledger, restarts=(*ledger.restarts[:-1], last)))

    def rearm(self) -> Ledger:
        """Opens the latch and forgets the counted restarts; returns the ledger as it was. Raises as `read`."""
        ledger = self.read()
        self._write(Ledger())
        return ledger

    def _write(self, ledger: Ledger) -> None:
        write_atomic(self.path, msgspec.json.encode(ledger))
