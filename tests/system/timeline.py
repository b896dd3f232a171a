"""The timeline of a demo: each line is printed only after it was verified; the first that is not ends it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from tests.engine.engine import EngineError
from tests.engine.running import Server
from tests.system.box import Box, BoxError
from tests.system.sentinel_unit import SentinelUnit, Told

TTY = sys.stdout.isatty()
WAIT_S = 120.0


class Unverified(Exception):
    """A line of the timeline that turned out not to be true."""


def check(true: bool, what: str) -> None:
    """Raises Unverified, with `what` was found instead, unless `true`."""
    if not true:
        raise Unverified(what)


class Timeline:
    """What happened, and by what it was verified."""

    def __init__(self) -> None:
        self.began, self.lines = time.monotonic(), 0

    def say(self, what: str, proof: str) -> None:
        """One verified line: seconds, what happened, by what it was verified."""
        self.lines += 1
        mark = "\x1b[32mok\x1b[0m" if TTY else "ok"
        print(f"{time.monotonic() - self.began:6.1f} s  {mark}  {what:<50}  {proof}"[: 110 if TTY else 99], flush=True)

    def now(self, what: str) -> None:
        """Progress, on stderr: what is being waited for."""
        print(f"{time.monotonic() - self.began:6.1f} s  ..  {what}", file=sys.stderr, flush=True)

    def told(self, sentinel: SentinelUnit, kind: str, what: str, after: int, since_t: float) -> Told:
        """Waits for the sentinel's event of that kind past the first `after` ones, and says when it came after
        `since_t` (BOOTTIME s). `{class}` in `what` is its class."""
        event = sentinel.wait(kind, WAIT_S, after)
        shown = what.replace("{class}", event.fields.get("INFEROPS_CLASS", "?"))
        self.say(f"{kind:<9} {shown}", f"journal +{event.t - since_t:.1f} s")
        return event


def undone(line: Timeline, server: Server, sentinel: SentinelUnit, old: int, after: int, since_t: float) -> None:
    """From the last look to a server that answers again, each step checked on the system; `old` is the wedged pid."""
    box = sentinel.box
    wedge = line.told(sentinel, "WEDGE", "stands on the last look: restarting", after, since_t)
    where = wedge.fields["INFEROPS_CAPTURE"]
    mode, state = box.run(["stat", "-c", "%a", where]).stdout.strip(), json.loads(box.read(f"{where}/manifest.json"))
    check((mode, state["state"]) == ("700", "whole"), f"capture mode {mode}, {state['state']}")
    line.say("the capture is whole and private", "manifest.json: whole, mode 0700")
    restarted = line.told(sentinel, "RESTARTED", "new pid, its port, ready", after, since_t)
    new = server.pid()
    check(new not in (0, old), f"main pid {old} -> {new}")
    check(str(new) in restarted.text, restarted.text)
    listener = box.run(["ss", "-ltnpH", "sport", "=", f":{server.port}"]).stdout
    check(f"pid={new}," in listener, f"the port is held by {listener.strip()}")
    line.say(f"pid {old} -> {new}, and {new} holds the port", "systemctl, ss")
    spent = json.loads(box.read(f"/var/lib/inferops/sentinel/{server.unit}/budget.json"))["restarts"]
    check([e["result"] for e in spent] == ["ok"], f"the budget has {spent}")
    line.say("the restart is counted: 1 of 2 in 30 minutes", "budget.json, written before it")
    answer = server.stream("are you back? answer in a few words", 8).end(120)
    check(not answer.error and bool(answer.times), answer.error)
    line.say("a new request is answered", f"first token in {answer.first() * 1000:.0f} ms")


def run(play: Callable[[Timeline, Box], str]) -> int:
    """Runs `play` in a box of its own; the exit code: 0 verified, 1 not, 3 no box to be had. What `play` returns is the
    end of the last line."""
    line = Timeline()
    if (why := Box.missing()) is not None:
        print(f"demo: no box can be had here: {why}", file=sys.stderr)
        return 3
    try:
        with Box() as box:
            shown = play(line, box)
    except Unverified as e:
        print(f"demo: NOT verified: {e}", file=sys.stderr)
        return 1
    except (BoxError, EngineError, OSError) as e:
        print(f"demo: {e}", file=sys.stderr)
        return 1
    print(f"demo: all {line.lines} lines verified in {time.monotonic() - line.began:.0f} s: {shown}")
    return 0
