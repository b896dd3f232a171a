"""One look at the live server through every eye at once -> Poll. A part that could not be looked at is None.

Reads: systemd (unit), /proc (threads, sockets, who holds the port), the unit's journal, health and stats over HTTP.
Each look ends within the probes' deadline plus BLOCKING_MAX_S; a look whose /proc or systemd reads hang is a checker
failure, and no second one is started beside it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from inferops.core import ports, unit
from inferops.core.journal import STOPPING_ID, Entry, Follower
from inferops.core.poll import HostSeen, JournalSeen, Poll, PortOwner, UnitSeen
from inferops.core.probe import Prober
from inferops.core.process import CpuWatch
from inferops.core.profile import Profile
from inferops.core.settings import Resolved
from inferops.core.verdict import InferopsError

BLOCKING_MAX_S = 15.0  # systemctl has 5 s of its own, the rest is /proc on a machine that swaps
DRAINS_MAX = 20  # journal batches a look; what is left is read at the next one
TROUBLE_REPEAT_S = 600.0  # a trouble that comes and goes is told once in this
TROUBLES_MAX = 200  # texts remembered; the one told longest ago is forgotten first


def boottime() -> float:
    """Seconds on CLOCK_BOOTTIME."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def seen_in(entries: Iterable[Entry], before: JournalSeen, profile: Profile) -> JournalSeen:
    """`before` with the newest time of each kind of line in `entries`; lines of our own probing count as none."""
    times = {name: getattr(before, f"{name}_t") for name in ("progress", "ready", "fatal", "any", "stopping")}

    def note(name: str, t: float) -> None:
        times[name] = t if times[name] is None else max(times[name], t)

    for entry in entries:
        if entry.t is None:
            continue
        if entry.by_systemd:
            if entry.message_id == STOPPING_ID:
                note("stopping", entry.t)
            continue
        kind = profile.journal_kind(entry.message)
        if kind == "own":
            continue
        note("any", entry.t)
        if kind in ("progress", "ready", "fatal"):
            note(kind, entry.t)
    return JournalSeen(**{f"{name}_t": t for name, t in times.items()})


class Troubles:
    """Which troubles of a look are news: those that the look before did not have, a text once in TROUBLE_REPEAT_S."""

    def __init__(self) -> None:
        self._last: frozenset[str] = frozenset()
        self._told: dict[str, float] = {}

    def news(self, troubles: Iterable[str], t: float) -> list[str]:
        """Those of `troubles`, seen at `t` (BOOTTIME s), that are to be told."""
        now = dict.fromkeys(troubles)
        recent = {text: at for text, at in self._told.items() if t - at < TROUBLE_REPEAT_S}
        news = [text for text in now if text not in self._last and text not in recent]
        recent |= dict.fromkeys(news, t)
        self._last, self._told = frozenset(now), dict(list(recent.items())[-TROUBLES_MAX:])
        return news


@dataclass
class Still:
    """The blocking half of a look."""

    unit: UnitSeen | None = None
    owner: PortOwner | None = None
    clients: tuple[str, ...] | None = None
    journal: JournalSeen | None = None
    host: HostSeen | None = None
    troubles: list[str] = field(default_factory=list)


# --- edge


class Lookout:
    """Looks at one server. `troubles` holds what the last look could not read, in words, for the caller to tell."""

    def __init__(self, resolved: Resolved) -> None:
        live = resolved.settings.live
        self.unit = live.unit
        self.port = urlsplit(live.url).port or 80
        self.prober = Prober(resolved.profile, live, resolved.settings.sentinel.probe_deadline_s)
        self.state: unit.UnitState | None = None
        self.troubles: list[str] = []
        self._profile = resolved.profile
        self._follower: Follower | None = None
        self._seen = JournalSeen()
        self._cpu = CpuWatch()
        self._still: asyncio.Future[Still] | None = None

    async def poll(self) -> Poll:
        """One Poll, stamped when its first probe was sent. Never raises for anything of the server's."""
        t, wall = boottime(), time.time()
        health = asyncio.create_task(self.prober.health())
        stats = asyncio.create_task(self.prober.stats())
        still = asyncio.create_task(self._look_still())
        try:
            await asyncio.wait({health, stats, still})  # all have ended: nothing of this poll runs into the next
        except asyncio.CancelledError:
            for task in (health, stats, still):
                task.cancel()
            await asyncio.gather(health, stats, still, return_exceptions=True)
            raise
        seen = still.result()
        if seen is None:
            return Poll(t=t, wall=wall, checker=f"systemd or /proc did not answer within {BLOCKING_MAX_S:.0f} s")
        self.troubles = seen.troubles
        return Poll(t=t, wall=wall, health=health.result(), stats=stats.result(), unit=seen.unit, owner=seen.owner,
                    clients=seen.clients, journal=seen.journal, host=seen.host)  # fmt: skip

    async def _look_still(self) -> Still | None:
        if self._still is None:
            self._still = asyncio.ensure_future(asyncio.to_thread(self._read_still))
        done, _ = await asyncio.wait({self._still}, timeout=BLOCKING_MAX_S)
        if not done:
            return None
        still, self._still = self._still, None
        return still.result()

    def _read_still(self) -> Still:
        still = Still()
        pids: tuple[int, ...] = ()
        group = ""
        try:
            self.state = state = unit.show(self.unit)
            still.unit = UnitSeen(active=state.active, sub=state.sub, main_pid=state.main_pid, start_t=state.start_t,
                                  restarts=state.restarts)  # fmt: skip
            group = state.control_group
            pids = unit.pids(group)
        except InferopsError as e:
            still.troubles.append(str(e))
        try:
            still.owner = ports.owner(self.port, pids, group)[0]
            still.clients = ports.established(self.port)
        except InferopsError as e:
            still.troubles.append(str(e))
        if pids:
            still.host = self._cpu.sample(pids, boottime())
        try:
            still.journal = self._read_journal(still)
        except InferopsError as e:
            still.troubles.append(str(e))
        return still

    def _read_journal(self, still: Still) -> JournalSeen:
        if self._follower is None:
            since = self.state.start_t if self.state is not None else None
            self._follower = Follower([self.state.name if self.state is not None else self.unit], since_t=since)
        for _ in range(DRAINS_MAX):
            batch = self._follower.drain()
            if batch.gap is not None:
                still.troubles.append(batch.gap)
            self._seen = seen_in(batch.entries, self._seen, self._profile)
            if not batch.truncated:
                break
        return self._seen

    async def close(self) -> None:
        await self.prober.aclose()
        if self._still is not None:  # a look that was cut short: its thread reads the journal that is closed below
            await asyncio.wait({self._still}, timeout=BLOCKING_MAX_S)
        if self._follower is not None and (self._still is None or self._still.done()):
            self._follower.close()
