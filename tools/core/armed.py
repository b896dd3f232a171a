"""From armed to restart: capture, look, canary, stacks, last look, restart; every poll on the way may end it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from inferops.core import evidence as ev
from inferops.core import idle
from inferops.core.evidence import Patience
from inferops.core.poll import Done, Poll
from inferops.core.turn import EventLevel, State, Step, Turn

# Work must be said by two sources: gauges outlive their requests, connections outlive their work.
SOURCES_MIN = 2
# The beginning of a reason says which it is ("the machine lock is held", "action is alert"); holders come and go.
HELD_CHARS = 24
# A capture that failed (a full disk) is tried again after so long, while the wedge stands.
RETRY_S = 600.0
# After a canary's token the same stale gauges arm again only after 2, 4, 8 stalls: each round costs a capture.
PROOFS_MAX = 3
# A canary's lines and counts come within that of its token, whichever of them the poll saw first.
CANARYS_S = 1.0
# What a capture is, when progress was seen after all: the end of a RESUMED.
OF_A_HEALTHY_ENGINE = "the capture is of a healthy engine"


def judge(s: State, poll: Poll, p: Patience) -> tuple[str, str] | None:
    """(class, why) of the wedge that stands on this poll's own evidence for the class's bound, or None.

    Whose process answers the port must be known, and a source that would show a healthy engine must have been looked
    at; without them nothing stands.
    """
    if poll.owner not in ("unit", "nobody") or poll.unit is None:
        return None
    bound = bound_s(s, p)
    error = poll.health is not None and poll.health.answer == "unavailable"
    if error and s.error_since is not None and poll.t - max(s.error_since, s.progress_t) >= p.stall_s:
        for_s = f"health answers an error for {poll.t - s.error_since:.0f} s"
        if ev.idle(poll):
            return "D", f"{for_s}, gauges known and zero"
        if poll.clients == () and ev.gauges(poll.stats) is not None and ev.could_show_progress(poll, p):
            return "D", f"{for_s}, no client is connected, and what the gauges say does not move"
    if not ev.could_show_progress(poll, p):
        return None
    if s.missed >= idle.MISSES:
        return (
            "F",
            f"{s.missed} canaries to an idle server got no token, {idle.CONFIRM_S:.0f} s apart, and nothing moved",
        )
    says = work_said(s, poll, p)
    if len(says) < SOURCES_MIN or poll.t - max(s.quiet_since(), s.two_since) < bound:
        return None
    if len(says) == SOURCES_MIN and ev.HEALTH_HANGS in says and poll.t - s.silent_since < bound:
        return None  # old gauges and a health probe that began to hang only now: the work may have ended between them
    why = f"no progress from any source for {poll.t - s.quiet_since():.0f} s; " + ", ".join(says)
    seen = ev.gauges(poll.stats)
    if seen is None and ev.nothing_answers(poll) and ev.journal_silent(poll, poll.t - bound):
        return "E", "nothing answers, the journal is silent, " + why
    if seen is None or seen.active:
        return "C", why
    return ("B" if seen.stuck else "A"), why


def bound_s(s: State, p: Patience) -> float:
    """How long a class must stand before it arms, seconds."""
    return p.stall_s * (1 << s.proofs)


def due_t(s: State, p: Patience) -> float:
    """When the running timers reach their bound, BOOTTIME s; +inf where none runs. A poll is wanted then: on the grid
    alone detection would be late by up to one poll and the probes' deadline."""
    if s.stage != "watch":
        return math.inf
    errors = math.inf if s.error_since is None else max(s.error_since, s.progress_t)
    return min(max(s.quiet_since(), s.two_since) + bound_s(s, p), errors + p.stall_s)


def nothing_waits(s: State, poll: Poll) -> bool:
    """True only where a fresh answer shows an idle server, and no request is known that it owes an answer."""
    return ev.idle(poll) and not ev.unanswered(poll, s.proof_t)


def work_said(s: State, poll: Poll, p: Patience) -> tuple[str, ...]:
    """The sources that say work is outstanding; none of them where neither gauges nor clients do."""
    says = ev.work_sources(poll, p, last=s.last_stats, idle_clients=s.idle_clients, proof_t=s.proof_t)
    return says if any(word not in ev.NO_WORK_ALONE for word in says) else ()


def go_on(turn: Turn, progressed: ev.Progress | None) -> Step:
    """Armed: looks again at every poll, then the stage decides what is wanted next."""
    poll, s = turn.poll, turn.s
    ended: dict[str, Done] = {done.kind: done for done in poll.done if done.pid in (0, s.pid)}
    over = s.error_since is None and (s.wclass == "D" or (s.wclass != "F" and nothing_waits(s, poll)))
    if progressed is not None or over:
        how = progressed.by if progressed is not None else "a healthy answer" if s.wclass == "D" else "an idle answer"
        whose = f"; {OF_A_HEALTHY_ENGINE}" if progressed is not None and (s.captured or s.stage == "capture") else ""
        turn.tell("RESUMED", "warn", f"class {s.wclass} is over: {how}; nothing is restarted{whose}")
        return _stand_down(turn)
    if (canary := ended.get("canary")) is not None and canary.result == "token":
        turn.tell(
            "PHANTOM", "warn", "the canary got a token: the engine works, the sources that say otherwise are stale"
        )
        turn.s = replace(canarys(s, turn, canary), progress_t=poll.t, proofs=min(s.proofs + 1, PROOFS_MAX))
        return _stand_down(turn)
    if poll.host is not None:
        stuck = sorted(s.d_tids.intersection(poll.host.d_tids))
        turn.s = replace(s, d_tids=frozenset(poll.host.d_tids))
        if stuck:
            why = f"class {s.wclass}, threads {stuck[:4]} twice in D state: a restart would hang in the kernel"
            turn.tell("WEDGE", "alert", f"{why}; not restarted", once="held:dstate")
            turn.s = replace(turn.s, stage="standing", stands_t=poll.t, captured=False, canary_out=False,
                             retry_t=poll.t + RETRY_S)  # fmt: skip
            return turn.end()
    found, unjudged_s = judge(turn.s, poll, turn.p), poll.t - s.stands_t
    if found is not None:
        turn.s = replace(turn.s, stands_t=poll.t, wclass=found[0])
        turn.forget("blind:armed")
    elif unjudged_s >= turn.p.stall_s and ev.phantom(poll, work_said(s, poll, turn.p)):
        turn.tell("PHANTOM", "warn", f"class {s.wclass} is over: no client is connected for {unjudged_s:.0f} s, nobody "
                  "waits; nothing is restarted")  # fmt: skip
        step = _stand_down(turn)
        return replace(step, state=replace(step.state, told=step.state.told | {"stall", "phantom"}))  # said just now
    elif unjudged_s >= turn.p.stall_s and s.error_since is None:  # else class D is on its way
        turn.tell("BLIND", "alert", f"class {s.wclass} was armed and can't be judged any more: "
                  + ev.why_blind(poll, turn.p), once="blind:armed")  # fmt: skip
    return _STAGES[turn.s.stage](turn, ended)


def canarys(s: State, turn: Turn, done: Done) -> State:
    """The state once a canary got a token: the lines and counts that are its own, seen or still to be seen, are no
    progress."""
    own = {name: value + turn.p.canary_moves_at_most for name, value in _own(turn.poll).items()}
    until = max(turn.poll.t, done.t) + CANARYS_S
    return replace(s, proof_t=turn.poll.t, counters={**s.counters, **own}, dated_t=max(s.dated_t, until),
                   working_t=max(s.working_t, until))  # fmt: skip


def _stand_down(turn: Turn) -> Step:
    turn.s = replace(turn.s, stage="watch", wclass="", canary_out=False, missed=0, idle_t=turn.poll.t)
    turn.forget("stall", "phantom", "alone", "held", "blind:armed")
    return turn.end()


def _capturing(turn: Turn, ended: Mapping[str, Done]) -> Step:
    done = ended.get("capture")
    if done is None:
        return turn.end()
    if done.result != "ok":
        why = f"class {turn.s.wclass}, but the capture failed ({done.why}); not restarted without one"
        turn.tell("WEDGE", "alert", why, once="held:capture")
        turn.s = replace(turn.s, stage="standing", retry_t=turn.poll.t + RETRY_S)
        return turn.end()
    turn.tell("CAPTURED", "note", done.why or "passive capture done")
    polls = max(turn.p.look_polls, math.ceil(turn.p.slowest_cadence_s / turn.p.poll_s))
    turn.s = replace(turn.s, stage="look", captured=True, look_left=polls)
    return turn.end()


def _looking(turn: Turn, ended: Mapping[str, Done]) -> Step:
    """Counts only polls in which the class stands: a blind look is none."""
    if judge(turn.s, turn.poll, turn.p) is None:
        return turn.end()
    turn.s = replace(turn.s, look_left=turn.s.look_left - 1)
    if turn.s.look_left > 0:
        return turn.end()
    refusal = no_canary(turn.s, turn.p)
    if refusal is None:
        turn.s = replace(turn.s, stage="canary", canary_out=True)
        return turn.end("canary")
    turn.tell("CANARY", "note", f"not sent: {refusal}")
    return _to_stacks(turn)


def no_canary(s: State, p: Patience) -> str | None:
    """Why no canary may go out, or None: this process's latest answer must show a free slot and no queue."""
    if not p.canary:
        return "switched off"
    if s.wclass in ("D", "E"):
        return "the server takes no requests"
    if s.wclass == "F":
        return f"{s.missed} were"
    seen = ev.gauges(s.last_stats)
    if seen == (0, 0, 0):
        return None  # nothing runs, so there is a slot
    if s.last_stats is None or s.last_stats.free_slots is None:
        return "free slots unknown"
    queued = s.last_stats.queued or 0
    if s.last_stats.free_slots < 1 or queued > 0:
        return f"{s.last_stats.free_slots} free slots and {queued} queued when last answered"
    return None


def _awaiting_canary(turn: Turn, ended: Mapping[str, Done]) -> Step:
    done = ended.get("canary")
    if done is None:
        return turn.end()
    level: EventLevel = "note" if done.result == "none" else "warn"  # else the canary protected nobody
    turn.tell("CANARY", level, f"{done.result}: {done.why}" if done.why else done.result)
    turn.s = replace(
        turn.s, canary_out=False, counters={**turn.s.counters, **_own(turn.poll)}, canaried=done.result == "none"
    )
    return _to_stacks(turn)


def _own(poll: Poll) -> Mapping[str, float]:
    """The counters as a canary left them: what it moved is no progress."""
    return poll.stats.counters if poll.stats is not None and poll.stats.answer == "ok" else {}


def _to_stacks(turn: Turn) -> Step:
    turn.s = replace(turn.s, stage="stacks" if turn.p.stacks else "last")
    return turn.end("stacks" if turn.p.stacks else None)


def _awaiting_stacks(turn: Turn, ended: Mapping[str, Done]) -> Step:
    if (done := ended.get("stacks")) is not None:
        turn.tell("STACKS", "note" if done.result == "ok" else "warn", done.why or done.result)
        turn.s = replace(turn.s, stage="last")
    return turn.end()


def _deciding(turn: Turn, ended: Mapping[str, Done]) -> Step:
    """The last look: the class still stands on this poll's own evidence, a capture exists, and nothing forbids it."""
    poll, s, p = turn.poll, turn.s, turn.p
    found = judge(s, poll, p)
    if found is not None and not s.captured and poll.t >= s.retry_t:
        turn.s = replace(s, stage="capture")
        return turn.end("capture")
    if found is None or not s.captured:
        return turn.end()
    text = f"class {found[0]}, pid {s.pid}: {found[1]}"
    held = "action is alert" if p.action != "restart" else "budget and lock unknown"
    if p.action == "restart" and found[0] == "A" and ev.idle(poll) and not s.canaried:
        held = "stats say idle, and no canary says otherwise"  # a lost end of a request and an open connection
    elif p.action == "restart" and poll.gate is not None:
        held = poll.gate.held or ""
    if held:
        turn.tell("WEDGE", "alert", f"{text}; not restarted: {held}", once=f"held:{held[:HELD_CHARS]}")
        turn.s = replace(turn.s, stage="standing")
        return turn.end()
    turn.tell("WEDGE", "alert", f"{text}; restarting the unit")
    turn.s = replace(turn.s, stage="restart", ours=s.key)
    return turn.end("restart")


def _waiting(turn: Turn, ended: Mapping[str, Done]) -> Step:
    return turn.end()


_STAGES = {
    "watch": _waiting,
    "capture": _capturing,
    "look": _looking,
    "canary": _awaiting_canary,
    "stacks": _awaiting_stacks,
    "last": _deciding,
    "standing": _deciding,
    "restart": _waiting,
}
