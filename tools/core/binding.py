"""Which process the policy's state belongs to; our own restart, and whether it came true. Pure."""

from __future__ import annotations

from dataclasses import replace

from inferops.core.lasting import looping
from inferops.core.turn import REPEAT_S, Key, Turn

# One process's start, read twice; a pid comes round again only after many thousand others.
SAME_START_S = 0.5
ENDS = ("stopped", "dead", "down", "fatal", "held")  # news again, however soon, once a process was ready in between


def bind(turn: Turn) -> bool:
    """Binds the state to the process in this poll; False where there is none to judge."""
    poll, s = turn.poll, turn.s
    if poll.unit is None:
        if "nounit" in s.told:
            turn.tell("BLIND", "alert", "systemd says nothing of the unit: no pid to judge", once="blind:unit")
        waits = s.stage == "restart"
        turn.s = replace(turn.s, told=turn.s.told | {"nounit"}, done=poll.done if waits else ())
        return s.key is not None and not waits
    turn.forget("nounit", "blind:unit")
    if poll.unit.main_pid == 0 or poll.unit.active == "deactivating":
        _no_process(turn)
        _end_restart(turn)
        return False
    s, pid, start_t = turn.s, poll.unit.main_pid, poll.unit.start_t
    same = s.key is not None and s.key[0] == pid and _same_start(s.key[1], start_t)
    if s.key is not None and same and poll.instance in (None, s.key[2]):
        turn.s = replace(s, down_since=None)
    elif s.key is not None and same and s.key[2] is None:
        turn.s = replace(s, key=(pid, s.key[1], poll.instance), down_since=None)
    else:
        if s.pid and s.ours != s.key:
            was = "" if s.stage == "watch" else f", class {s.wclass} is disarmed"
            what = f"main pid {s.pid} -> {pid}" if not same else f"pid {pid} has another instance id"
            turn.tell(
                "STARTED", "warn", f"{what}, not by this sentinel{was}", once="loop:started" if looping(s) else ""
            )
        key: Key = (pid, start_t, poll.instance)
        turn.s = turn.s.of_process(key, poll.t, frozenset(w for w in turn.s.told if w.startswith("loop")))
    _end_restart(turn)
    return turn.s.stage != "restart"


def _same_start(known: float | None, now: float | None) -> bool:
    return known is None or now is None or abs(known - now) < SAME_START_S


def _no_process(turn: Turn) -> None:
    """The unit stops or is down: whatever was armed is not any more; unplanned is an alert, never a start."""
    poll, s = turn.poll, turn.s
    if poll.unit is None:
        return
    if s.stage not in ("watch", "restart"):
        turn.tell("DISARMED", "note", f"class {s.wclass}: the unit is {poll.unit.active}, not by this sentinel")
    stopping_t = poll.journal.stopping_t if poll.journal is not None else None
    start_t = s.key[1] if s.key is not None else None
    planned = stopping_t is not None and (start_t is None or stopping_t >= start_t)
    since = poll.t if s.down_since is None else s.down_since
    turn.s = replace(turn.s.of_process(s.key, poll.t, turn.s.told), ours=s.ours, down_since=since)
    ended = poll.unit.active in ("inactive", "failed")
    if turn.s.stage == "restart":
        return
    if ended and planned:
        turn.tell("STOPPED", "note", f"the unit is {poll.unit.active} after a planned stop", once="stopped")
    elif ended:
        turn.tell(
            "DEAD", "alert", f"the unit is {poll.unit.active}, no planned stop seen; not started by us", once="dead"
        )
    elif poll.t - since > turn.p.load_max_s:
        turn.tell(
            "DEAD", "alert", f"the unit is {poll.unit.active} for {poll.t - since:.0f} s and serves nobody", once="down"
        )


def _end_restart(turn: Turn) -> None:
    """Takes the end of our own restart out of the poll; it is verified by the readiness of the new pid."""
    for done in turn.poll.done:
        if done.kind != "restart" or turn.s.stage != "restart":
            continue
        if done.result == "ok":
            turn.s = replace(turn.s, stage="watch", restart_t=turn.poll.t)
            if done.why:
                turn.tell("LATCHED", "alert", f"that was the last restart: {done.why}")
        else:
            why = f"the restart did not work: {done.why}; no other is tried for {REPEAT_S / 60:.0f} minutes"
            turn.tell("FAILED", "alert", why)
            turn.s = replace(turn.s, stage="watch", ours=None, hold_t=turn.poll.t + REPEAT_S)


def verify(turn: Turn) -> None:
    """Our restart must be verified within the time that a load may take, whatever comes up and dies meanwhile."""
    s, unit = turn.s, turn.poll.unit
    if s.restart_t is None or turn.poll.t - s.restart_t <= turn.p.load_max_s:
        return
    state = f"{unit.active}, {unit.sub or 'no state'}, pid {unit.main_pid}" if unit is not None else "not shown"
    turn.tell(
        "FAILED",
        "alert",
        f"the restart is not verified {turn.poll.t - s.restart_t:.0f} s after it: the unit is {state}",
    )
    turn.s = replace(turn.s, restart_t=None)
