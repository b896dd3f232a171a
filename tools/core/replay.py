"""Runs recorded polls through the wedge policy: what it would have said, when, and whether it would have restarted.

Pure. Where the policy asks for an action whose end the tape does not hold, an end is assumed and named as assumed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import msgspec

from inferops.core.evidence import Patience
from inferops.core.poll import Done, Gate, Poll
from inferops.core.tape import Header
from inferops.core.turn import Action, Event, State
from inferops.core.verdict import UsageError
from inferops.core.wedge import step

AHEAD_S = 120.0  # how far ahead on the tape an action's own end is looked for before one is assumed
ASSUMED: Mapping[str, str] = {"capture": "ok", "canary": "none", "stacks": "ok"}


@dataclass(frozen=True, slots=True)
class Replay:
    """`restarts`: BOOTTIME s of each restart asked for; `longest_quiet_s`: the longest time with work and no progress
    that did not arm; `assumed`: actions whose end was not on the tape."""

    events: tuple[Event, ...]
    polls: int
    span_s: float
    restarts: tuple[float, ...]
    longest_quiet_s: float
    assumed: tuple[str, ...]


def patience_from(header: Header, settings: Iterable[str]) -> Patience:
    """The tape's own settings with "name=value" ones over them. Raises UsageError on a name or value it has not."""
    known = [f.name for f in fields(Patience)]
    values: dict[str, float | bool | str] = dict(header.patience)
    for setting in settings:
        name, eq, text = setting.partition("=")
        if not eq:
            raise UsageError(f"--set {setting!r}: expected NAME=VALUE", hint="for example --set stall_s=30")
        values[name] = _value(text)
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise UsageError(f"no setting {name!r} of the policy", hint=hint)
    try:
        return msgspec.convert(values, Patience)
    except msgspec.ValidationError as e:
        raise UsageError(f"settings of the tape: {e}", hint="override it with --set NAME=VALUE") from e


def _value(text: str) -> float | bool | str:
    if text in ("true", "false"):
        return text == "true"
    try:
        number = float(text)
    except ValueError:
        return text
    return number if number - number == 0 else text


def run(polls: Sequence[Poll], patience: Patience, assumed: Mapping[str, str] = ASSUMED) -> Replay:
    """Replays `polls` in order, up to a restart that was not made when they were recorded."""
    state, quiet = State(), 0.0
    events: list[Event] = []
    restarts: list[float] = []
    guessed: set[str] = set()
    pending: Done | None = None
    number = 0
    for number, poll in enumerate(polls):
        if pending is not None:
            poll = msgspec.structs.replace(poll, done=(*poll.done, pending))
            pending = None
        if poll.gate is None:
            poll = msgspec.structs.replace(poll, gate=Gate())
        result = step(state, poll, patience)
        state = result.state
        events.extend(result.events)
        if state.stage == "watch":
            quiet = max(quiet, poll.t - state.quiet_since())
        if result.action == "restart":
            restarts.append(poll.t)
            if not _on_tape(polls[number + 1 :], "restart", poll.t):
                guessed.add("restart")
                break
        elif result.action is not None and not _on_tape(polls[number + 1 :], result.action, poll.t):
            guessed.add(result.action)
            pending = Done(kind=result.action, result=assumed[result.action], t=poll.t, why="assumed, not on the tape")
    span = polls[number].t - polls[0].t
    return Replay(tuple(events), number + 1, span, tuple(restarts), quiet, tuple(sorted(guessed)))


def _on_tape(polls: Sequence[Poll], kind: Action, t: float) -> bool:
    for poll in polls:
        if poll.t - t > AHEAD_S:
            return False
        if any(done.kind == kind for done in poll.done):
            return True
    return False
