"""The wedge policy: `step(state, poll, patience)` gives the next state, the events, and at most one wanted action.

Pure: time is in the polls. Missing data never clears a timer and never runs one to a restart by itself. Classes that
may restart: A (queued, idle engine), B (stuck between queue and engine), C (work in flight, no progress), D (explicit
5xx, nothing to do), E (nothing answers), F (idle-looking, no canary gets a token). Classes that only alert: G, LOADING,
CRASHLOOP, DEAD, STARVED, BLIND. What one poll proves is in evidence.py, whose process it is about in binding.py, the
way from armed to restart in armed.py, F in idle.py, G, STARVED and CRASHLOOP in lasting.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec

from inferops.core import armed, binding, idle, lasting
from inferops.core import evidence as ev
from inferops.core.evidence import Patience
from inferops.core.poll import Health, Poll
from inferops.core.turn import Action, Event, State, Step, Turn

__all__ = ["Action", "Event", "Patience", "State", "Step", "step"]

# A gap this many intervals long (a suspended laptop, a paused VM, a stopped checker) was observed by nobody: it holds.
GAP_INTERVALS = 3
# 1-token requests took 38 to 96 s while the kernel moved 825,669 pages to compact memory, then 0.1 s again.
COMPACTED_MIN = 10_000
GAPS_KEPT = 1000  # of whatever a poll dates before them
LATE_MIN, LATE_MOST = 6, 12  # three gaps in a row, or every other poll: not a suspend, the checker cannot keep up
SEEING_ENDS = ("blind:stats", "blind:stall", "blind:other", "blind:health")


def step(state: State, poll: Poll, patience: Patience) -> Step:
    """The policy for one poll; a poll whose `t` is before the last one's is held like a gap."""
    if state.last_t is None:
        state = replace(state, last_t=poll.t, first_t=poll.t)
    dt = poll.t - (state.last_t if state.last_t is not None else poll.t)
    gap = dt < 0 or dt > GAP_INTERVALS * patience.poll_s
    if poll.checker is not None or gap:
        state = replace(state.shifted(dt), gaps=(*state.gaps, (poll.t, dt))[-GAPS_KEPT:])
    if poll.health is not None and (poll.health.latency_s or 0.0) > patience.poll_s:  # it is of a moment long past
        poll = msgspec.structs.replace(poll, health=Health(answer="timeout", latency_s=poll.health.latency_s))
    if poll.owner == "other":  # a stranger's answers say nothing of the unit
        poll = _without_answers(poll)
    if state.done:  # ends that came with a poll which could not take them
        poll = msgspec.structs.replace(poll, done=(*state.done, *poll.done))
    turn = Turn(
        replace(state, last_t=poll.t, done=(), late=min(state.late + 2, LATE_MOST) if gap else max(0, state.late - 1)),
        poll, patience, 0.0 if gap else dt,
    )  # fmt: skip
    if poll.checker is not None:
        turn.tell("BLIND", "alert", f"the checker itself failed: {poll.checker}", once="blind:checker")
        turn.s = replace(turn.s, done=poll.done)
        return turn.end()
    turn.forget("blind:checker")
    if not turn.s.late:
        turn.forget("blind:late")
    if turn.s.late >= LATE_MIN:
        why = f"polls come {dt:.0f} s apart, wanted every {patience.poll_s:g} s: too seldom to judge"
        turn.tell("BLIND", "alert", why, once="blind:late")
    lasting.loop(turn)
    bound = binding.bind(turn)
    binding.verify(turn)
    if not bound or not _ready(turn):
        return turn.end()
    progressed = _progress(turn)
    _work(turn)
    _blind(turn, progressed)
    lasting.watch(turn)
    if turn.s.stage != "watch":
        return armed.go_on(turn, progressed)
    return _watch(turn, progressed)


def _without_answers(poll: Poll) -> Poll:
    return msgspec.structs.replace(poll, health=None, instance=None, stats=None, clients=None)


def _ready(turn: Turn) -> bool:
    """True once this pid was proven ready: a ready answer from a port that the unit holds, or its own ready line."""
    poll, s = turn.poll, turn.s
    if s.ready:
        return True
    start = s.key[1] if s.key is not None and s.key[1] is not None else s.first_t
    answered = poll.health is not None and poll.health.answer in ("ready", "busy") and poll.owner == "unit"
    line_t = poll.journal.ready_t if poll.journal is not None else None
    if line_t is not None and line_t < start:
        line_t = None
    if s.restart_t is not None:  # our own restart is verified by what answers, not by a line
        line_t = None
    if not answered and line_t is None:
        loading_s = s.seen_s(start, poll.t)  # it slept as we did
        if loading_s > turn.p.load_max_s:
            how = poll.health.answer if poll.health is not None else "not asked"
            whose = " by our restart" if s.restart_t is not None else ""
            reads = poll.host.read_mb if poll.host is not None else None
            reads_on = f", {reads:.0f} MB read from disk since the last poll" if reads else ""
            why = f"pid {s.pid} not ready {loading_s:.0f} s after its start{whose} (health: {how}{reads_on})"
            turn.tell("LOADING", "alert", f"{why}; never restarted while loading", once="loading")
        return False
    ready_t = line_t if line_t is not None else poll.t
    calm = s.said if lasting.looping(s) else {w: t for w, t in s.said.items() if not w.startswith(binding.ENDS)}
    turn.s = replace(turn.s, ready_t=ready_t, seen_t=poll.t, restart_t=None, said=calm)
    if s.restart_t is not None:
        turn.tell(
            "RESTARTED",
            "warn",
            f"verified: pid {s.pid} is new, holds the port and is ready, {ready_t - start:.1f} s after its start",
        )
    else:
        text = f"pid {s.pid} is ready; {poll.t - start:.0f} s since its start"
        turn.tell("READY", "note", text, once="loop:ready" if lasting.looping(s) else "")
    return True


def _progress(turn: Turn) -> ev.Progress | None:
    """Counts this poll's evidence of progress into the state."""
    poll, s, p = turn.poll, turn.s, turn.p
    base = max(s.real_progress_t, s.ready_t, s.work_since if s.work_since is not None else -math.inf)
    known = ev.Known(counters=s.counters, dated_t=s.dated_t, working_t=s.working_t, canary_out=s.canary_out,
                     cpu_until=base + p.cpu_only_max_s, relief_until=base + p.relief_max_s)  # fmt: skip
    every = ev.progress_in(poll, p, known)
    found = every[0] if every else None
    if poll.journal is not None:
        fatal_t = poll.journal.fatal_t
        if fatal_t is not None and fatal_t > max(s.fatal_t, s.ready_t):
            if turn.tell("FATAL", "alert", "a fatal line in the journal while the process lives", once="fatal"):
                s = replace(s, fatal_t=fatal_t)
            turn.forget("fatal")
    if not s.canary_out:  # else it counts when the canary has ended without a token: then it was not the canary's
        newest, line_t = ev.dated(poll), poll.journal.working_t if poll.journal is not None else None
        s = replace(s, dated_t=max(s.dated_t, newest.t if newest is not None else -math.inf),
                    working_t=max(s.working_t, line_t if line_t is not None else -math.inf))  # fmt: skip
    if poll.stats is not None and poll.stats.answer == "ok":
        if not s.canary_out or found is not None:
            s = replace(s, counters={**s.counters, **poll.stats.counters})
        s = replace(s, last_stats=poll.stats)
    if found is not None:
        s = replace(s, progress_t=max(s.progress_t, *(one.t for one in every)), missed=0)
        if not found.weak:
            s = replace(s, real_progress_t=max(s.real_progress_t, found.t), proofs=0)
    turn.s = replace(s, said=turn.s.said)
    return found


def _work(turn: Turn) -> None:
    """Keeps since when work is outstanding, and since when health answers an explicit error."""
    poll, s = turn.poll, turn.s
    if armed.nothing_waits(s, poll):
        known = frozenset(poll.clients) if poll.clients is not None else s.idle_clients
        s = replace(s, work_since=None, idle_clients=known, proofs=0)
    elif s.work_since is None and armed.work_said(s, poll, turn.p):
        s = replace(s, work_since=poll.t)
    elif poll.clients == () and ev.gauges(s.last_stats) in (None, (0, 0, 0)) and not ev.hangs(poll):
        s = replace(s, work_since=None)
    s = _agreed(s, turn)
    if poll.health is not None and poll.health.answer == "unavailable":
        s = replace(s, error_since=poll.t if s.error_since is None else s.error_since)
    elif poll.health is not None and poll.health.answer in ("ready", "busy", "loading"):
        s = replace(s, error_since=None)
    elif s.error_since is not None:  # no answer, or an unknown one, is no error either: that time does not count
        s = replace(s, error_since=s.error_since + turn.dt)
    if poll.health is not None:
        deaf = ev.nothing_answers(poll) or poll.health.answer == "odd"
        s = replace(s, silent_since=min(s.silent_since, poll.t) if ev.nothing_answers(poll) else math.inf,
                    deaf_since=min(s.deaf_since, poll.t) if deaf else math.inf)  # fmt: skip
    if not ev.could_show_progress(poll, turn.p):  # nor does time in which progress could not have been seen
        s = replace(s, progress_t=s.progress_t + turn.dt, real_progress_t=s.real_progress_t + turn.dt,
                    work_since=None if s.work_since is None else s.work_since + turn.dt)  # fmt: skip
    turn.s = s


def _agreed(s: State, turn: Turn) -> State:
    """Keeps since when two sources of work agree. Time in which they were seen not to (a client gave up and comes
    again) does not count; `stall_s` without, or the end of the work, begins anew."""
    poll = turn.poll
    if s.work_since is None:
        return replace(s, two_since=math.inf, alone_s=0.0, apart=False)
    agree = len(armed.work_said(s, poll, turn.p)) >= armed.SOURCES_MIN
    looked = poll.clients is not None and (ev.gauges(poll.stats) is not None or ev.hangs(poll))
    apart, alone_s = looked and not agree, 0.0 if agree else s.alone_s + turn.dt
    two_since = s.two_since + turn.dt if apart or s.apart else s.two_since
    if alone_s >= turn.p.stall_s:
        two_since = math.inf
    return replace(s, two_since=min(two_since, poll.t) if agree else two_since, alone_s=alone_s, apart=apart)


def _blind(turn: Turn, progressed: ev.Progress | None) -> None:
    """Tells when nothing usable was seen for `stall_s`; on the second poll where a source answers nonsense."""
    poll, s, p = turn.poll, turn.s, turn.p
    known = ev.gauges(poll.stats) is not None and poll.owner is not None
    if progressed is not None or (known and (ev.idle(poll) or ev.could_show_progress(poll, p))):
        turn.s = replace(s, seen_t=poll.t)
        deaf_s = poll.t - s.deaf_since
        if progressed is None and ev.idle(poll) and deaf_s >= p.stall_s and poll.health is not None:
            why = f"stats say idle, and health has no answer for {deaf_s:.0f} s ({poll.health.answer})"
            turn.tell("BLIND", "alert", f"{why}: whether anybody is served is not known", once="blind:health")
            return
        was_blind = any(word in s.told for word in SEEING_ENDS)
        if not was_blind or turn.tell("SEEING", "note", "progress or gauges are seen again", once="seeing"):
            turn.forget(*SEEING_ENDS, "seeing")
        turn.forget("bad")
        return
    unseen = poll.t - s.seen_t
    if s.work_since is not None and ev.could_show_progress(poll, p):
        unseen = min(unseen, poll.t - s.quiet_since())  # work first seen late has its own bound, which `judge` keeps
    bad = poll.stats is not None and (
        poll.stats.answer == "bad" or (poll.stats.answer == "refused" and not ev.nothing_answers(poll))
    )
    if poll.owner == "other":
        turn.tell(
            "BLIND",
            "alert",
            "the port is answered by a process outside the unit; its answers do not count",
            once="blind:other",
        )
    elif bad and "bad" in s.told:
        turn.tell("BLIND", "alert", ev.why_blind(poll, p), once="blind:stats")
    elif unseen >= p.stall_s and armed.judge(s, poll, p) is None:
        turn.tell(
            "BLIND",
            "alert",
            f"neither gauges nor progress seen for {unseen:.0f} s: {ev.why_blind(poll, p)}",
            once="blind:stall",
        )
    if bad:
        turn.s = replace(turn.s, told=turn.s.told | {"bad"})


def _watch(turn: Turn, progressed: ev.Progress | None) -> Step:
    """Not armed: arms when a class stands; tells of a stall at half time, of phantom work, of a lonely gauge."""
    idle.ended(turn)
    poll, s, p = turn.poll, turn.s, turn.p
    if progressed is not None:
        if "stall" not in s.told or turn.tell("PROGRESS", "note", f"again: {progressed.by}", once="progress"):
            turn.forget("stall", "progress")
        turn.forget("phantom", "alone")
        return turn.end()
    found = armed.judge(s, poll, p) if poll.t >= s.hold_t else None
    if found is not None:
        turn.s = replace(turn.s, stage="capture", wclass=found[0], captured=False, canaried=False, d_tids=frozenset(),
                         stands_t=poll.t, canary_out=False)  # fmt: skip
        turn.tell("ARMED", "warn", f"class {found[0]}: {found[1]}{_memory(poll)}")
        return turn.end("capture")
    if idle.due(turn):
        turn.s = replace(s, canary_out=True)
        return turn.end("canary")
    quiet = poll.t - s.quiet_since()
    if s.work_since is None:
        turn.forget("stall", "phantom", "alone")
    if quiet < p.stall_s / 2 or (s.missed and idle.looks_idle(turn)):  # a canary's own gauge is no stall
        return turn.end()
    says = armed.work_said(s, poll, p)
    turn.tell(
        "STALL", "note", f"no progress for {quiet:.0f} s; {', '.join(says) or 'work when last seen'}", once="stall"
    )
    if quiet < armed.bound_s(s, p) or s.two_since < math.inf:  # two sources agree, or did a moment ago: not yet due
        return turn.end()
    if ev.phantom(poll, says):
        turn.tell(
            "PHANTOM",
            "warn",
            f"{says[0]}, but no client is connected: nobody waits, nothing is restarted",
            once="phantom",
        )
    elif ev.gauges(poll.stats) is not None:
        turn.tell("BLIND", "alert", f"no progress for {quiet:.0f} s but too little to judge by: {', '.join(says)}; "
                  f"{ev.why_blind(poll, p)}", once="alone")  # fmt: skip
    return turn.end()


def _memory(poll: Poll) -> str:
    """What the kernel does to memory meanwhile, where it is much: it makes a healthy engine stand."""
    pages = poll.host.compacted if poll.host is not None else None
    if pages is None or pages < COMPACTED_MIN:
        return ""
    return f"; the kernel compacts memory, {pages:,} pages moved since the last poll"
