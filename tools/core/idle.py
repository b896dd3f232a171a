"""Class F: a server that looks idle and answers nobody. Only where asked for: a canary each `idle_canary_s`. Pure.

Two canaries, at least CONFIRM_S apart, must have got no token in time; any progress between them starts again. A server
with nobody to serve is asked, one that works is not.
"""

from __future__ import annotations

from dataclasses import replace

from inferops.core import evidence as ev
from inferops.core.turn import Turn

MISSES = 2
CONFIRM_S = (
    60.0  # healthy servers were silent for 30 to 70 s (a kernel compiled, memory compacted), and one is asked twice
)


def due(turn: Turn) -> bool:
    """True where the next canary is to be sent now."""
    s, p = turn.s, turn.p
    if not p.idle_canary_s or not p.canary or s.canary_out or s.missed >= MISSES:
        return False
    quiet_since = max(s.idle_t, s.real_progress_t, s.ready_t)
    return turn.poll.t - quiet_since >= (CONFIRM_S if s.missed else p.idle_canary_s) and looks_idle(turn)


def looks_idle(turn: Turn) -> bool:
    """True where nobody waits: no client beside the kept-alive ones, and gauges that say so. After a canary without a
    token the one request in the gauges is that canary, and stats may hang over it."""
    poll, s = turn.poll, turn.s
    if poll.owner != "unit" or ev.new_clients(poll, s.idle_clients) or ev.unanswered(poll, s.proof_t):
        return False
    if not s.missed:
        return ev.idle(poll)
    seen = ev.gauges(poll.stats)
    return seen is None or sum(seen) <= s.missed


def ended(turn: Turn) -> None:
    """Takes the end of the canary that is out, if this poll has it."""
    if not turn.s.canary_out:
        return
    done = next((done for done in turn.poll.done if done.kind == "canary" and done.pid in (0, turn.s.pid)), None)
    if done is None:
        return
    if done.result in ("none", "token"):
        turn.forget("idle:canary")
    s = turn.s
    missed = {"none": s.missed + 1, "token": 0}.get(done.result, s.missed)
    own = turn.poll.stats.counters if turn.poll.stats is not None and turn.poll.stats.answer == "ok" else {}
    turn.s = replace(s, canary_out=False, missed=missed, idle_t=turn.poll.t, counters={**s.counters, **own})
    if done.result == "token":
        turn.s = replace(turn.s, proof_t=turn.poll.t)
        if s.missed:
            turn.tell("CANARY", "note", "to an idle server: a token came, it answers again")
    elif done.result == "none":
        turn.tell("CANARY", "warn", f"to an idle server: none, {missed} of {MISSES}; {done.why}")
    else:
        turn.tell("CANARY", "warn", f"to an idle server: {done.result}: {done.why}", once="idle:canary")
