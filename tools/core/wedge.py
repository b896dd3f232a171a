"""The wedge policy: `step(state, poll, patience)` gives the next state, the events, and at most one wanted action.

Pure: time is in the polls. Missing data never clears a timer and never runs one to a restart by itself. Classes here:
A (queued, idle engine), C (work in flight, no progress), D (explicit 5xx, nothing to do), E (nothing answers),
LOADING, DEAD, BLIND. The way from armed to restart is in armed.py, what one poll proves in evidence.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

from inferops.core import armed
from inferops.core import evidence as ev
from inferops.core.evidence import Patience
from inferops.core.poll import Poll
from inferops.core.turn import Action, Event, Key, State, Step, Turn

__all__ = ["Action", "Event", "Patience", "State", "Step", "step"]

# A gap this many intervals long (a suspended laptop, a paused VM, a stopped checker) was observed by nobody: it holds.
GAP_INTERVALS = 3


def step(state: State, poll: Poll, patience: Patience) -> Step:
    """The policy for one poll; a poll whose `t` is before the last one's is held like a gap."""
    if state.last_t is None:
        state = replace(state, last_t=poll.t, first_t=poll.t, seen_t=poll.t)
    dt = poll.t - (state.last_t if state.last_t is not None else poll.t)
    if poll.checker is not None or dt < 0 or dt > GAP_INTERVALS * patience.poll_s:
        state = state.shifted(dt)
    if poll.owner == "other":  # a stranger's answers say nothing of the unit
        poll = _without_answers(poll)
    turn = Turn(replace(state, last_t=poll.t), poll, patience)
    if poll.checker is not None:
        turn.tell("BLIND", "alert", f"the checker itself failed: {poll.checker}", once=f"blind:{poll.checker}")
        return turn.end()
    if not _bind(turn) or not _ready(turn):
        return turn.end()
    progressed = _progress(turn)
    _work(turn)
    _blind(turn, progressed)
    if turn.s.stage != "watch":
        return armed.go_on(turn, progressed)
    return _watch(turn, progressed)


def _without_answers(poll: Poll) -> Poll:
    return Poll(t=poll.t, wall=poll.wall, unit=poll.unit, owner=poll.owner, journal=poll.journal, host=poll.host,
                gate=poll.gate, done=poll.done, checker=poll.checker)  # fmt: skip


def _bind(turn: Turn) -> bool:
    """Binds the state to the process in this poll; False where there is none to judge."""
    poll, s = turn.poll, turn.s
    if poll.unit is None:
        if "nounit" in s.told:
            turn.tell("BLIND", "alert", "systemd says nothing of the unit: no pid to judge", once="blind:unit")
        turn.s = replace(turn.s, told=turn.s.told | {"nounit"})
        return s.key is not None and s.stage != "restart"
    turn.forget("nounit")
    s = turn.s
    if poll.unit.main_pid == 0 or poll.unit.active == "deactivating":
        _no_process(turn)
        _end_restart(turn)
        return False
    pid, start_t = poll.unit.main_pid, poll.unit.start_t
    same = s.key is not None and s.key[:2] == (pid, start_t)
    key: Key = (pid, start_t, poll.instance if poll.instance is not None or not same or s.key is None else s.key[2])
    if key != s.key and not (same and s.key is not None and s.key[2] is None):
        ours = s.restarted or s.stage == "restart"
        if s.pid and not ours:
            was = "" if s.stage == "watch" else f", class {s.wclass} is disarmed"
            turn.tell("STARTED", "warn", f"main pid {s.pid} -> {pid}, not by this sentinel{was}")
        turn.s = State(key=key, last_t=poll.t, first_t=poll.t, seen_t=poll.t, restarted=ours,
                       stage="restart" if s.stage == "restart" else "watch")  # fmt: skip
    turn.s = replace(turn.s, key=key)
    _end_restart(turn)
    return turn.s.stage != "restart"


def _no_process(turn: Turn) -> None:
    """The unit stops or is down: whatever was armed is not any more; unplanned is an alert, never a start."""
    poll, s = turn.poll, turn.s
    assert poll.unit is not None
    if s.stage not in ("watch", "restart"):
        turn.tell("DISARMED", "note", f"class {s.wclass}: the unit is {poll.unit.active}, not by this sentinel")
    stopping_t = poll.journal.stopping_t if poll.journal is not None else None
    planned = stopping_t is not None and stopping_t >= (s.key[1] or 0.0 if s.key is not None else 0.0)
    turn.s = State(key=s.key, last_t=poll.t, first_t=s.first_t, seen_t=poll.t, restarted=s.restarted, told=s.told,
                   stage="restart" if s.stage == "restart" else "watch")  # fmt: skip
    if poll.unit.active not in ("inactive", "failed") or turn.s.stage == "restart":
        return
    if planned:
        turn.tell("STOPPED", "note", f"the unit is {poll.unit.active} after a planned stop", once="dead")
    else:
        turn.tell(
            "DEAD", "alert", f"the unit is {poll.unit.active}, no planned stop seen; not started by us", once="dead"
        )


def _end_restart(turn: Turn) -> None:
    """Takes the end of our own restart out of the poll; it is verified by the readiness of the new pid."""
    for done in turn.poll.done:
        if done.kind != "restart" or turn.s.stage != "restart":
            continue
        if done.result == "ok":
            turn.s = replace(turn.s, stage="watch", restarted=True)
        else:
            turn.tell("FAILED", "alert", f"the restart did not work: {done.why}")
            turn.s = replace(turn.s, stage="watch", restarted=False)


def _ready(turn: Turn) -> bool:
    """True once this pid was proven ready: a ready answer from a port that the unit holds, or its own ready line."""
    poll, s = turn.poll, turn.s
    if s.ready_t is not None:
        return True
    start = s.key[1] if s.key is not None and s.key[1] is not None else s.first_t
    answered = poll.health is not None and poll.health.answer in ("ready", "busy") and poll.owner == "unit"
    line_t = poll.journal.ready_t if poll.journal is not None else None
    if line_t is not None and line_t < start:
        line_t = None
    if s.restarted:  # our own restart is verified by what answers, not by a line
        line_t = None
    if not answered and line_t is None:
        if poll.t - start > turn.p.load_max_s:
            how = poll.health.answer if poll.health is not None else "not asked"
            turn.tell("LOADING", "alert", f"pid {s.pid} not ready {poll.t - start:.0f} s after its start"
                      f"{' by our restart' if s.restarted else ''} (health: {how}); never restarted while loading",
                      once="loading")  # fmt: skip
        return False
    ready_t = line_t if line_t is not None else poll.t
    turn.s = replace(s, ready_t=ready_t, seen_t=poll.t, restarted=False)
    if s.restarted:
        turn.tell(
            "RESTARTED",
            "warn",
            f"verified: pid {s.pid} is new, holds the port and is ready, {ready_t - start:.1f} s after its start",
        )
    else:
        turn.tell("READY", "note", f"pid {s.pid} is ready; {poll.t - start:.0f} s since its start")
    return True


def _progress(turn: Turn) -> ev.Progress | None:
    """Counts this poll's evidence of progress into the state."""
    poll, s, p = turn.poll, turn.s, turn.p
    base = max(s.real_progress_t, s.ready_t or -math.inf, s.work_since if s.work_since is not None else -math.inf)
    found = ev.progress_in(poll, p, counters=s.counters, journal_t=s.journal_t, canary_out=s.canary_out,
                           cpu_until=base + p.cpu_only_max_s)  # fmt: skip
    if poll.journal is not None:
        fatal_t = poll.journal.fatal_t
        if fatal_t is not None and fatal_t > max(s.fatal_t, s.ready_t or -math.inf):
            turn.tell("FATAL", "alert", "a fatal line in the journal while the process lives")
            s = replace(s, fatal_t=fatal_t)
        s = replace(s, journal_t=max(s.journal_t, poll.journal.progress_t or -math.inf))
    if poll.stats is not None and poll.stats.answer == "ok":
        if not s.canary_out or found is not None:
            s = replace(s, counters={**s.counters, **poll.stats.counters})
        s = replace(s, last_stats=poll.stats)
    if found is not None:
        s = replace(s, progress_t=max(s.progress_t, found.t))
        if not found.cpu_only:
            s = replace(s, real_progress_t=max(s.real_progress_t, found.t), proofs=0)
    turn.s = replace(s, told=turn.s.told)
    return found


def _work(turn: Turn) -> None:
    """Keeps since when work is outstanding, and since when health answers an explicit error."""
    poll, s = turn.poll, turn.s
    if ev.idle(poll):
        s = replace(
            s, work_since=None, idle_clients=frozenset(poll.clients) if poll.clients is not None else s.idle_clients
        )
    elif s.work_since is None and armed.work_said(s, poll, turn.p):
        s = replace(s, work_since=poll.t)
    elif poll.clients == () and ev.gauges(s.last_stats) in (None, (0, 0)):
        s = replace(s, work_since=None)
    if poll.health is not None and poll.health.answer == "unavailable":
        s = replace(s, error_since=poll.t if s.error_since is None else s.error_since)
    elif poll.health is not None and poll.health.answer in ("ready", "busy", "loading"):
        s = replace(s, error_since=None)
    turn.s = s


def _blind(turn: Turn, progressed: ev.Progress | None) -> None:
    """Tells when nothing usable was seen for `stall_s`; on the second poll where a source answers nonsense."""
    poll, s, p = turn.poll, turn.s, turn.p
    if progressed is not None or ev.gauges(poll.stats) is not None:
        if any(word.startswith("blind") for word in s.told):
            turn.tell("SEEING", "note", "progress or gauges are seen again")
        turn.s = replace(turn.s, seen_t=poll.t)
        turn.forget("blind", "bad")
        return
    quiet_since = s.quiet_since()  # work first seen later than anything else has its own bound, which `judge` keeps
    unseen = poll.t - (s.seen_t if quiet_since == math.inf else max(s.seen_t, quiet_since))
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
    poll, s, p = turn.poll, turn.s, turn.p
    if progressed is not None:
        if "stall" in s.told:
            turn.tell("PROGRESS", "note", f"again: {progressed.by}")
        turn.forget("stall", "phantom", "alone")
        return turn.end()
    found = armed.judge(s, poll, p)
    if found is not None:
        turn.s = replace(turn.s, stage="capture", wclass=found[0], captured=False, d_tids=frozenset())
        turn.tell("ARMED", "warn", f"class {found[0]}: {found[1]}")
        return turn.end("capture")
    quiet = poll.t - s.quiet_since()
    if quiet < 0 and s.error_since is None:
        turn.forget("stall", "phantom", "alone")
    if quiet < p.stall_s / 2:
        return turn.end()
    says = armed.work_said(s, poll, p)
    turn.tell(
        "STALL", "note", f"no progress for {quiet:.0f} s; {', '.join(says) or 'work when last seen'}", once="stall"
    )
    if quiet >= p.stall_s and ev.phantom(poll, says):
        turn.tell(
            "PHANTOM",
            "warn",
            f"{says[0]}, but no client is connected: nobody waits, nothing is restarted",
            once="phantom",
        )
    elif quiet >= p.stall_s and ev.gauges(poll.stats) is not None and not s.proofs:
        turn.tell("BLIND", "alert", f"no progress for {quiet:.0f} s but too little to judge by: {', '.join(says)}; "
                  f"{ev.why_blind(poll, p)}", once="alone")  # fmt: skip
    return turn.end()
