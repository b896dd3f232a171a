"""What one poll proves: progress, outstanding work, blindness. Pure; the wedge policy (wedge.py) adds time to it.

Progress is whitelisted. GPU use, an access-log 200, a health answer, an error, and whatever our own probing or canary
moved are not on the list, nor is an arrival. Work needs two sources that agree: a gauge can be left over from a dead
request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from inferops.core.poll import Poll, Stats

# Two: a blocked engine heats none, a spinning one heats exactly one, a prefill on CPU heats every compute thread
# (llama-server b10068, -t 2, futex and spin injected inside llama_decode).
HOT_THREADS_MIN = 2
# A disk reads 100 MB/s and more while a server pages its weights in; a log file or a cache beside it is far below.
READ_MB_S_MIN = 20.0
STATS_HANG = "stats unanswered by the engine"
HEALTH_HANGS = "health unanswered"
NO_WORK_ALONE = (STATS_HANG, HEALTH_HANGS)  # they agree with work, they are none


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """The settings the policy holds under; seconds unless the name says otherwise. Defaults are design values:
    `stall_s` is the longest queue deadline of an engine (120) plus 30; a queue was once worked for 112 s before it
    moved (`relief_max_s` leaves five times that). `idle_canary_s` 0: no canary is sent to an idle server.
    `counters_move_in_prefill`: a healthy prefill, however long, moves the counter `busy_counter` ("": one of them);
    they are printed with so many digits (`counter_digits`; 0: with all), beyond which they move in steps."""

    poll_s: float = 10.0
    stall_s: float = 150.0
    load_max_s: float = 900.0
    cpu_only_max_s: float = 3600.0
    relief_max_s: float = 600.0
    request_max_s: float = 900.0
    idle_canary_s: float = 0.0
    look_polls: int = 2
    slowest_cadence_s: float = 0.0
    action: str = "alert"
    canary: bool = True
    canary_moves_at_most: float = 0.0
    stacks: bool = True
    cpu_is_evidence: bool = False
    counters_move_in_prefill: bool = True
    busy_counter: str = ""
    counter_digits: int = 0
    stats_wait_for_engine: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """One piece of evidence that the engine works, with the moment (BOOTTIME) it speaks for. `weak`: only for a bounded
    time (busy threads, weights read from disk, a queue that is worked)."""

    t: float
    by: str
    weak: bool = False


class Gauges(NamedTuple):
    """Requests by where they are. `stuck`: between queue and engine."""

    active: int
    queued: int
    stuck: int


def moved(prev: Mapping[str, float], now: Mapping[str, float], allowance: float, digits: int) -> str | None:
    """The first counter that rose by more than `allowance`, as "name +n"; a fall is a new task or a reset, not work.
    A counter printed with so many `digits` may rise by a whole step through what `allowance` allows."""
    for name, value in now.items():
        rise = value - prev.get(name, value)
        if rise > max(allowance, _step(value, digits) if allowance else 0.0):
            return f"{name} +{rise:g}"
    return None


def _step(value: float, digits: int) -> float:
    """The least rise that a counter printed with `digits` digits can show: 10 for 1.90511e+06 with 6."""
    return 10.0 ** (math.floor(math.log10(value)) + 1 - digits) if digits and value >= 10.0**digits else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What progress is measured against: counters (while our canary is out: their values at its start), the newest
    dated evidence and the newest line of a worked queue already counted, and until when (BOOTTIME s) busy threads or
    such lines alone may speak."""

    counters: Mapping[str, float]
    dated_t: float
    working_t: float
    cpu_until: float
    relief_until: float
    canary_out: bool


def progress_in(poll: Poll, p: Patience, known: Known) -> tuple[Progress, ...]:
    """Every evidence of progress in this poll, the strongest first: a line may be older than what the threads show."""
    found: list[Progress] = []
    if poll.stats is not None and poll.stats.answer == "ok":
        allowance = p.canary_moves_at_most if known.canary_out else 0.0
        name = moved(known.counters, poll.stats.counters, allowance, p.counter_digits)
        if name is not None:
            found.append(Progress(poll.t, name))
    line = None if known.canary_out else dated(poll)  # while it is out, a line or an end may be its own
    if line is not None and line.t > known.dated_t:
        found.append(Progress(min(line.t, poll.t), line.by))
    host, weakly = poll.host, poll.t <= known.cpu_until
    if weakly and host is not None and host.hot is not None and host.hot >= HOT_THREADS_MIN and cpu_speaks(poll, p):
        found.append(Progress(poll.t, f"{host.hot} compute threads busy", weak=True))
    if weakly and host is not None and host.read_mb is not None and host.read_mb >= READ_MB_S_MIN * p.poll_s:
        found.append(Progress(poll.t, f"{host.read_mb:.0f} MB read from disk", weak=True))
    working_t = poll.journal.working_t if poll.journal is not None and not known.canary_out else None
    if working_t is not None and known.working_t < working_t <= known.relief_until:
        found.append(Progress(min(working_t, poll.t), "a line of a queue that is being worked", weak=True))
    return tuple(found)


def dated(poll: Poll) -> Progress | None:
    """The newest evidence that carries its own time: a progress line, a request that ended with tokens."""
    line_t = poll.journal.progress_t if poll.journal is not None else None
    end_t = poll.requests.done_t if poll.requests is not None else None
    if line_t is not None and (end_t is None or line_t >= end_t):
        return Progress(line_t, "a progress line in the journal")
    return None if end_t is None else Progress(end_t, "a request that ended with tokens")


def cpu_speaks(poll: Poll, p: Patience) -> bool:
    """True where this poll's CPU reading may count: an open GPU device, or not knowing, silences it (busy-waiting)."""
    return p.cpu_is_evidence and poll.host is not None and poll.host.hot is not None and poll.host.gpu is False


def could_show_progress(poll: Poll, p: Patience) -> bool:
    """True where a source that would show a healthy engine at work was looked at: without one, no progress seen
    means nothing. A stats endpoint that hangs is none: it hangs in a long healthy prefill too, and on a CPU engine the
    threads must then have been read. Nor are counters that stand still in a prefill, nor a journal that never held a
    line of the unit."""
    if counters_speak(poll, p):
        return True
    if p.counters_move_in_prefill and poll.stats is not None and poll.stats.answer == "ok" and poll.stats.counters:
        return cpu_speaks(poll, p)  # such counters stand still in healthy work, and such a journal is silent in it
    host, journal = poll.host, poll.journal
    if p.cpu_is_evidence and (host is None or host.hot is None or host.gpu is None):
        return False
    written = journal is not None and any(t is not None for t in (journal.any_t, journal.ready_t, journal.progress_t))
    return written or cpu_speaks(poll, p)


def counters_speak(poll: Poll, p: Patience) -> bool:
    """True where this poll's counters would have moved in any healthy work: not where the one that does is missing, nor
    where it has outgrown the digits it is printed with."""
    if not p.counters_move_in_prefill or poll.stats is None or poll.stats.answer != "ok":
        return False
    busy = {n: v for n, v in poll.stats.counters.items() if n == p.busy_counter or not p.busy_counter}
    return any(_step(value, p.counter_digits) == 0.0 for value in busy.values())


def gauges(stats: Stats | None) -> Gauges | None:
    """What an answer says of the requests in the server, or None where it did not say. Requests that it counts as
    accepted and not ended, but has in no gauge, wait somewhere."""
    if stats is None or stats.answer != "ok" or stats.active is None:
        return None
    seen = Gauges(stats.active, stats.queued or 0, stats.stuck or 0)
    return seen._replace(queued=seen.queued + max(0, (stats.open or 0) - sum(seen)))


def idle(poll: Poll) -> bool:
    """True only where a fresh answer says that nothing runs and nothing waits."""
    return gauges(poll.stats) == (0, 0, 0)


def work_sources(
    poll: Poll, p: Patience, *, last: Stats | None, idle_clients: frozenset[str] | None, proof_t: float
) -> tuple[str, ...]:
    """Which sources say that work is outstanding. `last` is this process's latest stats answer, `idle_clients` the
    connections that were open at its last idle answer: kept-alive ones are no work. Before any idle answer there is no
    telling, and every connection agrees with gauges that say work, unless the request log has an end for each request.
    A request that a canary's token came after (`proof_t`) is lost, it shows no wedge. Gauges that a live request log
    contradicts have no connection to agree with either."""
    says: list[str] = []
    fresh = gauges(poll.stats)
    seen = fresh if fresh is not None else gauges(last) if hangs(poll) else None
    if seen is not None and sum(seen) > 0:
        between = f" {seen.stuck} between" if seen.stuck else ""
        when = "" if fresh is not None else " when last answered"
        says.append(f"gauges {seen.active} active {seen.queued} queued{between}{when}")
    if lost := unanswered(poll, proof_t):
        says.append(f"{lost} request{'s' if lost > 1 else ''} without an end in the request log")
    waiting = new_clients(poll, idle_clients)
    log_idle = poll.requests is not None and poll.requests.open == 0
    if says and idle_clients is None:
        waiting = 0 if log_idle else len(poll.clients or ())
    elif log_idle and fresh is not None and log_lives(poll):
        waiting = 0
    if waiting:
        says.append(f"{waiting} client connection{'s' if waiting > 1 else ''}")
    if waiting and p.stats_wait_for_engine and poll.stats is not None and poll.stats.answer == "timeout":
        says.append(STATS_HANG)  # to old gauges alone it would be the same endpoint twice
    if nothing_answers(poll):
        says.append(HEALTH_HANGS)
    return tuple(says)


def unanswered(poll: Poll, proof_t: float) -> int:
    """How many requests the request log has started and not ended, while anybody is connected to wait for them."""
    log = poll.requests
    if log is None or not log.open or poll.clients == () or log.oldest_t is None or log.oldest_t <= proof_t:
        return 0
    return log.open


def log_lives(poll: Poll) -> bool:
    """True where the request log has shown the end of any request of this process."""
    log = poll.requests
    return log is not None and log.done + log.failed + log.other > 0


def new_clients(poll: Poll, idle_clients: frozenset[str] | None) -> int:
    """How many client connections were opened since the last idle answer; 0 where that could not be looked at."""
    if poll.clients is None or idle_clients is None:
        return 0
    return len(set(poll.clients) - idle_clients)


def hangs(poll: Poll) -> bool:
    """True while what was last said of work still counts. Where stats answer nonsense or were not read, the work may
    have ended unseen."""
    return nothing_answers(poll) or (poll.stats is not None and poll.stats.answer == "timeout")


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
    if not p.counters_move_in_prefill:
        parts.append("counters stand still in a prefill here")
    elif poll.stats is not None and poll.stats.counters and not counters_speak(poll, p):
        parts.append(f"no counter that moves in any work ({p.busy_counter or 'they are too large'})")
    if poll.requests is not None and poll.requests.open == 0 and log_lives(poll):
        parts.append("the request log has an end for each request")
    if not cpu_speaks(poll, p):
        parts.append("CPU is no evidence here")
    return "; ".join(parts)
