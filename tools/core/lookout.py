"""One look at the live server through every eye at once -> Poll. A part that could not be looked at is None.

Reads: systemd (unit), /proc (threads, sockets, who holds the port), the unit's journal, health and stats over HTTP, the
request log where there is one.
Each look ends within the probes' deadline plus BLOCKING_MAX_S; a look whose /proc or systemd reads hang is a checker
failure, and no second one is started beside it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import msgspec

from inferops.core import ports, unit
from inferops.core.journal import STOPPING_ID, Entry, Follower
from inferops.core.poll import HostSeen, JournalSeen, Poll, PortOwner, RequestsSeen, Stats, UnitSeen
from inferops.core.probe import Prober, stats_bases
from inferops.core.process import CpuWatch
from inferops.core.profile import Profile
from inferops.core.requestlog import RequestLog
from inferops.core.schema import Live
from inferops.core.settings import Resolved
from inferops.core.verdict import InferopsError

BLOCKING_MAX_S = 15.0  # systemctl has 5 s of its own, the rest is /proc on a machine that swaps
DRAINS_MAX = 20  # journal batches a look; what is left is read at the next one
LOOPBACK = {"localhost", "127.0.0.1", "::1"}
TROUBLE_REPEAT_S = 600.0  # a trouble that comes and goes is told once in this
TROUBLES_MAX = 200  # texts remembered; the one told longest ago is forgotten first


def boottime() -> float:
    """Seconds on CLOCK_BOOTTIME."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def seen_in(
    entries: Iterable[Entry], before: JournalSeen, profile: Profile, failed: list[tuple[float, bool]] | None = None
) -> JournalSeen:
    """`before` with the newest time of each kind of line in `entries`; lines of our own probing count as none. `failed`
    takes, in order, each line of a failed request (t, True) and of progress (t, False)."""
    names = ("progress", "working", "ready", "fatal", "any", "stopping")
    times = {name: getattr(before, f"{name}_t") for name in names}

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
        if kind in names:
            note(kind, entry.t)
        if kind in ("failed", "progress") and failed is not None:
            failed.append((entry.t, kind == "failed"))
    return JournalSeen(**{f"{name}_t": t for name, t in times.items()})


def with_failed(seen: RequestsSeen, lines: Iterable[tuple[float, bool]], since: float) -> RequestsSeen:
    """`seen` with the `lines` of failed requests (t, True) and of progress (t, False), from `since` (BOOTTIME s) on:
    any progress may have been a token, so it ends a run of failures. Lines do not count what else ended."""
    for t, failed in lines:
        if t >= since:
            seen = RequestsSeen(
                failed=seen.failed + failed, failed_t=max(t, seen.failed_t or t) if failed else seen.failed_t,
                failing=seen.failing + 1 if failed else 0,
                failing_t=None if not failed else t if seen.failing_t is None else min(t, seen.failing_t),
            )  # fmt: skip
    return seen


def owned(stats: Stats, port: int | None, holder: str | None) -> Stats:
    """The stats, or none where they came from `port`, another one than the live server's, and `holder` (None: the unit)
    has it: an answer of a stranger's, a hang too, says nothing of the unit."""
    if holder is None or stats.answer in ("bad", "refused"):
        return stats
    return Stats(answer="bad", why=f"port {port} is held by {holder}, not by the unit; set live.stats_url")


def other_port(live: Live, profile: Profile) -> int | None:
    """The port of the live server's host, another one than its own, where its stats may come from; None: there is none.
    Of another host nobody here can tell whose a port is."""
    own = urlsplit(live.url)
    for parts in map(urlsplit, stats_bases(live, profile)):
        here = parts.hostname == own.hostname or {parts.hostname, own.hostname} <= LOOPBACK
        if parts.port != own.port and here:
            return parts.port
    return None


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
    stats_holder: str | None = None  # who has the stats' own port, if not the unit
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
        self._stats_port = other_port(live, resolved.profile)
        self._process: tuple[int, float | None] = (0, None)
        self._instance: str | None = None  # of that process, as last answered
        self._log = RequestLog(live.request_log, resolved.profile) if live.request_log is not None else None
        self._follower: Follower | None = None
        self._seen = JournalSeen()
        self._failed = RequestsSeen()
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
        said = stats.result()
        if self.prober.stats_port == self._stats_port is not None:
            said = owned(said, self._stats_port, seen.stats_holder)
            if said is not stats.result():
                self.prober.disown(self._stats_port)
        self._instance = said.instance or self._instance
        self.troubles = [*seen.troubles, *(self.prober.notes if said.answer == "ok" else ())]
        return Poll(t=t, wall=wall, health=health.result(), stats=said, unit=seen.unit, owner=seen.owner,
                    instance=said.instance, clients=seen.clients, journal=seen.journal, requests=self._requests(seen),
                    host=seen.host)  # fmt: skip

    def _requests(self, seen: Still) -> RequestsSeen | None:
        """What is known of this process's requests; None where neither log nor journal says."""
        if self._log is not None:
            log, start_t = self._log.tally(self._instance), self._process[1]
            if log is None or log.oldest_t is None or start_t is None:
                return log
            return msgspec.structs.replace(log, oldest_t=max(log.oldest_t, start_t))  # a clock jump before our start
        written = seen.journal is not None and seen.journal.any_t is not None
        return self._failed if self._profile.journal.failed and written else None

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
            if (state.main_pid, state.start_t) != self._process:
                self._process, self._instance, self._failed = (state.main_pid, state.start_t), None, RequestsSeen()
            group = state.control_group
            pids = unit.pids(group)
        except InferopsError as e:
            still.troubles.append(str(e))
        try:
            still.owner = ports.owner(self.port, pids, group)[0]
            still.clients = ports.established(self.port)
            if self._stats_port is not None:
                still.stats_holder = "somebody unknown"
                whose, who = ports.owner(self._stats_port, pids, group)
                still.stats_holder = None if whose == "unit" else who or "nobody"
        except InferopsError as e:
            still.troubles.append(str(e))
        if pids:
            still.host = self._cpu.sample(pids, boottime())
        try:
            still.journal = self._read_journal(still)
        except InferopsError as e:
            still.troubles.append(str(e))
        if self._log is not None:
            still.troubles += self._log.read(boottime(), time.time())
        return still

    def _read_journal(self, still: Still) -> JournalSeen:
        if self._follower is None:
            since = self.state.start_t if self.state is not None else None
            self._follower = Follower([self.state.name if self.state is not None else self.unit], since_t=since)
        for _ in range(DRAINS_MAX):
            batch = self._follower.drain()
            if batch.gap is not None:
                still.troubles.append(batch.gap)
            failed: list[tuple[float, bool]] = []
            self._seen = seen_in(batch.entries, self._seen, self._profile, failed)
            self._failed = with_failed(self._failed, failed, self._process[1] or 0.0)
            if not batch.truncated:
                break
        return self._seen

    async def close(self) -> None:
        await self.prober.aclose()
        if self._still is not None:  # a look that was cut short: its thread reads the journal that is closed below
            await asyncio.wait({self._still}, timeout=BLOCKING_MAX_S)
        if self._follower is not None and (self._still is None or self._still.done()):
            self._follower.close()
        if self._log is not None and (self._still is None or self._still.done()):
            self._log.close()
