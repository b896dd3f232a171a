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
from inferops.core.typed import complaint, dotted, got
from inferops.core.verdict import UsageError
from inferops.core.wedge import step

# How far ahead on the tape an action's own end is looked for before one is assumed, seconds. A restart may take the
# unit's load_max_s (900) and its stop (300); any other end that comes so late is another incident's.
AHEAD_S: Mapping[Action, float] = {"capture": 120.0, "canary": 120.0, "stacks": 120.0, "restart": 1230.0}
ASSUMED: Mapping[str, str] = {"capture": "ok", "canary": "none", "stacks": "ok"}

MOST = 1e9  # of any number: 30 years of seconds, and still one that can be counted with
LEAST: Mapping[str, float] = {"poll_s": 0.01, "look_polls": 1, "canary_moves_at_most": 0, "slowest_cadence_s": 0,
                              "idle_canary_s": 0}  # fmt: skip
_SET = "set it with --set NAME=VALUE"
ABOVE_0 = ("stall_s", "load_max_s", "cpu_only_max_s", "relief_max_s", "request_max_s")


@dataclass(frozen=True, slots=True)
class Replay:
    """`restarts`: BOOTTIME s of each restart asked for; `longest_quiet_s`: the longest time with work and no progress
    that did not arm; `assumed`: ends that were not on the tape ("canary none"); `seen`: polls in which unit, health,
    stats or journal said anything."""

    events: tuple[Event, ...]
    polls: int
    seen: int
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
        values[name] = text
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise UsageError(f"no setting {name!r} of the policy", hint=hint)
    try:
        patience = msgspec.convert(values, Patience, strict=False)  # text of --set, and 2.0 for 2
    except msgspec.ValidationError as e:
        said, keys = complaint(e)
        raise UsageError(f"{dotted(keys)}: {said}{got(values, keys)}", hint=_SET) from e
    bounds = [(name, getattr(patience, name) > 0, "over 0") for name in ABOVE_0]
    bounds += [(name, getattr(patience, name) >= least, f"at least {least:g}") for name, least in LEAST.items()]
    for name, holds, expected in bounds:
        if not holds or getattr(patience, name) > MOST:
            raise UsageError(f"{name}: expected {expected} and at most {MOST:g}{got(values, (name,))}", hint=_SET)
    if patience.action not in ("alert", "restart"):
        raise UsageError(f"action: expected alert or restart{got(values, ('action',))}", hint=_SET)
    return patience


def run(polls: Sequence[Poll], patience: Patience, assumed: Mapping[str, str] = ASSUMED) -> Replay:
    """Replays `polls` in order, up to a restart that was not made when they were recorded."""
    state, quiet = State(), 0.0
    events: list[Event] = []
    restarts: list[float] = []
    guessed: set[str] = set()
    due: set[str] = set()  # asked for here, with an end on the tape: no other recorded end is an answer to us
    assumed_end: tuple[Done, ...] = ()
    number = 0
    for number, poll in enumerate(polls):
        recorded = tuple(done for done in poll.done if done.kind in due)
        due -= {done.kind for done in recorded}
        poll = msgspec.structs.replace(poll, done=(*recorded, *assumed_end))
        assumed_end = ()
        if poll.gate is None:
            poll = msgspec.structs.replace(poll, gate=Gate())
        result = step(state, poll, patience)
        state = result.state
        events.extend(result.events)
        if state.stage == "watch":
            quiet = max(quiet, poll.t - state.quiet_since())
        if result.action == "restart":
            restarts.append(poll.t)
        if result.action is None:
            continue
        if _on_tape(polls[number + 1 :], result.action, poll.t):
            due.add(result.action)
            continue
        if result.action == "restart":
            guessed.add("restart not made")
            break  # what the tape holds from here on, a restarted server would not have done
        how = assumed[result.action] if state.stage != "watch" else "not-sent"  # to an idle server: it proves nothing
        guessed.add(f"{result.action} {how}")
        end = Done(kind=result.action, result=how, t=poll.t, why="assumed, not on the tape")
        assumed_end = (end,)
    seen = sum(any((p.unit, p.health, p.stats, p.journal)) for p in polls[: number + 1])
    span = polls[number].t - polls[0].t
    return Replay(tuple(events), number + 1, seen, span, tuple(restarts), quiet, tuple(sorted(guessed)))


def _on_tape(polls: Sequence[Poll], kind: Action, t: float) -> bool:
    for poll in polls:
        if poll.t - t > AHEAD_S[kind]:
            return False
        if any(done.kind == kind for done in poll.done):
            return True
    return False
