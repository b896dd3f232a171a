"""What one poll proves: progress, outstanding work, blindness. Pure; the wedge policy (wedge.py) adds time to it.

Progress is whitelisted. GPU use, an access-log 200, a health answer, an error, and whatever our own probing or canary
moved are not on the list. Work needs two sources that agree, since one gauge can be left over from a dead request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inferops.core.poll import Poll, Stats

# Two: a blocked engine heats none, a spinning one heats exactly one, a prefill on CPU heats every compute thread
# (llama-server b10068, -t 2, futex and spin injected inside llama_decode).
HOT_THREADS_MIN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """The settings the policy holds under; seconds unless the name says otherwise. Defaults are design values:
    `stall_s` is the longest queue deadline of an engine (120) plus 30."""

    poll_s: float = 10.0
    stall_s: float = 150.0
    load_max_s: float = 900.0
    cpu_only_max_s: float = 3600.0
    look_polls: int = 2
    slowest_cadence_s: float = 0.0
    action: str = "alert"
    canary: bool = True
    canary_moves_at_most: float = 0.0
    stacks: bool = True
    cpu_is_evidence: bool = False
    stats_wait_for_engine: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """One piece of evidence that the engine works, with the moment (BOOTTIME) it speaks for."""

    t: float
    by: str
    cpu_only: bool = False


def moved(prev: Mapping[str, float], now: Mapping[str, float], allowance: float) -> str | None:
    """The first counter that rose by more than `allowance`, as "name +n"; a fall is a new task or a reset, not work."""
    for name, value in now.items():
        rise = value - prev.get(name, value)
        if rise > allowance:
            return f"{name} +{rise:g}"
    return None


def progress_in(
    poll: Poll, p: Patience, *, counters: Mapping[str, float], journal_t: float, canary_out: bool, cpu_until: float
) -> Progress | None:
    """The evidence of progress in this poll, strongest first, or None.

    `counters` is what to compare with (while our canary is out: their values at its start), `journal_t` the newest
    progress line already counted, `cpu_until` the end of the time in which busy threads alone may speak.
    """
    if poll.stats is not None and poll.stats.answer == "ok":
        name = moved(counters, poll.stats.counters, p.canary_moves_at_most if canary_out else 0.0)
        if name is not None:
            return Progress(poll.t, name)
    line_t = poll.journal.progress_t if poll.journal is not None else None
    if line_t is not None and line_t > journal_t and not canary_out:
        return Progress(min(line_t, poll.t), "a progress line in the journal")
    if (
        cpu_speaks(poll, p)
        and poll.host is not None
        and (poll.host.hot or 0) >= HOT_THREADS_MIN
        and poll.t <= cpu_until
    ):
        return Progress(poll.t, f"{poll.host.hot} compute threads busy", cpu_only=True)
    return None


def cpu_speaks(poll: Poll, p: Patience) -> bool:
    """True where this poll's CPU reading may count: an open GPU device, or not knowing, silences it (busy-waiting)."""
    return p.cpu_is_evidence and poll.host is not None and poll.host.hot is not None and poll.host.gpu is False


def could_show_progress(poll: Poll, p: Patience) -> bool:
    """True where a source that would show a healthy engine at work was looked at: without one, no progress seen
    means nothing. A stats endpoint that hangs is none: it hangs in a long healthy prefill too, and on a CPU engine the
    threads must then have been read. A journal that never held a line of the unit is none either."""
    if poll.stats is not None and poll.stats.answer == "ok" and poll.stats.counters:
        return True
    host, journal = poll.host, poll.journal
    if p.cpu_is_evidence and (host is None or host.hot is None or host.gpu is None):
        return False
    written = journal is not None and any(t is not None for t in (journal.any_t, journal.ready_t, journal.progress_t))
    return written or cpu_speaks(poll, p)


def gauges(stats: Stats | None) -> tuple[int, int] | None:
    """(active, queued) of an answer, or None where it did not say."""
    if stats is None or stats.answer != "ok" or stats.active is None:
        return None
    return stats.active, stats.queued or 0


def idle(poll: Poll) -> bool:
    """True only where a fresh answer says that nothing runs and nothing waits."""
    return gauges(poll.stats) == (0, 0)


def work_sources(
    poll: Poll, p: Patience, *, last: Stats | None, idle_clients: frozenset[str] | None
) -> tuple[str, ...]:
    """Which sources say that work is outstanding. `last` is this process's latest stats answer, `idle_clients` the
    connections that were open at its last idle answer: kept-alive ones are no work. Before any idle answer there is no
    telling, and every connection agrees with gauges that say work."""
    says: list[str] = []
    fresh = gauges(poll.stats)
    # Old gauges count while the endpoint hangs or nothing answers. Where it answers nonsense or was not read, the work
    # may have ended unseen.
    hangs = nothing_answers(poll) or (poll.stats is not None and poll.stats.answer == "timeout")
    seen = fresh if fresh is not None else gauges(last) if hangs else None
    if seen is not None and sum(seen) > 0:
        when = "" if fresh is not None else " when last answered"
        says.append(f"gauges {seen[0]} active {seen[1]} queued{when}")
    waiting = len(poll.clients or ()) if says and idle_clients is None else new_clients(poll, idle_clients)
    if waiting:
        says.append(f"{waiting} client connection{'s' if waiting > 1 else ''}")
    if waiting and p.stats_wait_for_engine and poll.stats is not None and poll.stats.answer == "timeout":
        says.append("stats unanswered by the engine")  # to old gauges alone it would be the same endpoint twice
    if nothing_answers(poll):
        says.append("health unanswered")
    return tuple(says)


def new_clients(poll: Poll, idle_clients: frozenset[str] | None) -> int:
    """How many client connections were opened since the last idle answer; 0 where that could not be looked at."""
    if poll.clients is None or idle_clients is None:
        return 0
    return len(set(poll.clients) - idle_clients)


def nothing_answers(poll: Poll) -> bool:
    """True where health was asked and gave no answer at all (a timeout is the server's, None would be ours)."""
    return poll.health is not None and poll.health.answer in ("timeout", "refused")


def journal_silent(poll: Poll, since: float) -> bool:
    """True where the journal was looked at and the unit wrote nothing after `since` (BOOTTIME s)."""
    return poll.journal is not None and (poll.journal.any_t is None or poll.journal.any_t <= since)


def phantom(poll: Poll, sources: tuple[str, ...]) -> bool:
    """Gauges alone speak of work while the port has no client at all: left over from a dead request, nobody waits."""
    return len(sources) == 1 and sources[0].startswith("gauges") and poll.clients == ()


def why_blind(poll: Poll, p: Patience) -> str:
    """One line for people: which source did not speak, and how."""
    parts: list[str] = []
    if poll.stats is None:
        parts.append("stats not read")
    elif poll.stats.answer != "ok":
        parts.append(f"stats {poll.stats.answer}" + (f" ({poll.stats.why})" if poll.stats.why else ""))
    elif poll.stats.active is None:
        parts.append("stats without gauges")
    if poll.clients is None:
        parts.append("client connections not read")
    parts.append("journal not readable" if poll.journal is None else "no progress line in the journal")
    if not cpu_speaks(poll, p):
        parts.append("CPU is no evidence here")
    return "; ".join(parts)
