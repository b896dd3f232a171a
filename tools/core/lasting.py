"""The classes that only alert: G (every request fails), STARVED (a request waits too long beside progress), CRASHLOOP
(systemd restarts it again and again). No restart heals what these show. Pure."""

from __future__ import annotations

from dataclasses import replace

from inferops.core import evidence as ev
from inferops.core.turn import State, Turn

# Two failures may be two bad requests, three in two seconds one client's retries; a server that fails three of three
# over `stall_s` serves nobody.
FAILED_MIN = 3
# RestartSec=2 with systemd's defaults never reaches the start limit: a counter of 9 and rising, unit "active".
LOOP_RISES = 3
LOOP_WINDOW_S = 1800.0


def loop(turn: Turn) -> None:
    """CRASHLOOP: NRestarts rose by LOOP_RISES in LOOP_WINDOW_S, whichever processes came and went meanwhile."""
    poll, s = turn.poll, turn.s
    if poll.unit is None or poll.unit.restarts is None:
        return
    rose = poll.unit.restarts - s.restarts if s.restarts is not None else 0  # it falls when somebody starts it by hand
    rises = (*s.rises, *[poll.t] * max(0, min(rose, LOOP_RISES)))
    rises = tuple(t for t in rises if poll.t - t < LOOP_WINDOW_S)[-LOOP_RISES:]
    turn.s = replace(s, restarts=poll.unit.restarts, rises=rises)
    if len(rises) < LOOP_RISES:
        turn.forget("loop")
        return
    turn.tell("CRASHLOOP", "alert", f"systemd restarted it {LOOP_RISES} times in {poll.t - rises[0]:.0f} s, now "
              f"{poll.unit.restarts} in all; not restarted by us", once="loop")  # fmt: skip


def looping(s: State) -> bool:
    """True while a crash loop is on: then each new process is no news."""
    return len(s.rises) >= LOOP_RISES


def watch(turn: Turn) -> None:
    """G and STARVED on this poll; neither arms anything."""
    _failing(turn)
    _starved(turn)


def _failing(turn: Turn) -> None:
    """G: FAILED_MIN requests or more failed over `stall_s`, and no token came out since the first of them. The request
    log says so at the end of a request; some engines count tokens besides."""
    poll, s, log = turn.poll, turn.s, turn.poll.requests
    generated = poll.stats.generated if poll.stats is not None and poll.stats.answer == "ok" else None
    if generated is not None:
        more = s.generated is not None and generated > s.generated
        turn.s = s = replace(s, generated=generated, generated_t=poll.t if more else s.generated_t)
    if log is None or log.failing_t is None or log.failed_t is None or log.failing < FAILED_MIN:
        turn.forget("failing")
        return
    failed_s = s.seen_s(max(log.failing_t, s.generated_t), log.failed_t)  # until the last one, not until now
    if failed_s < turn.p.stall_s:
        turn.forget("failing")
        return
    turn.tell("FAILING", "alert", f"class G: each of the last {log.failing} requests ended in a server error, for "
              f"{failed_s:.0f} s, and no token came out; not restarted for that", once="failing")  # fmt: skip


def _starved(turn: Turn) -> None:
    """STARVED: tokens come, yet the oldest request known is older than `request_max_s`."""
    poll, s, p = turn.poll, turn.s, turn.p
    stats = poll.stats if poll.stats is not None and poll.stats.answer == "ok" else None
    if stats is not None:
        tasks = {task: s.tasks.get(task, poll.t) for task in stats.tasks}
        moved = stats.ended is None or stats.ended != s.ended or ev.idle(poll)
        turn.s = s = replace(s, tasks=tasks, ended=stats.ended, ended_t=poll.t if moved else s.ended_t)
    ages = {f"request {task} runs": t for task, t in s.tasks.items()}
    if s.ended is not None:
        ages["requests wait or run and none ended"] = s.ended_t
    log = poll.requests
    if log is not None and log.open and log.oldest_t is not None and poll.clients != ():
        ages["the oldest request of the log has no end"] = poll.t - s.seen_s(log.oldest_t, poll.t)
    what, since = min(ages.items(), key=lambda item: item[1]) if ages else ("", poll.t)
    if poll.t - since < p.request_max_s:
        turn.forget("starved")
    elif poll.t - s.progress_t < p.stall_s:  # else it is no starvation but a wedge
        turn.tell("STARVED", "alert", f"the engine works, but {what} for {poll.t - since:.0f} s; not restarted for "
                  "that", once="starved")  # fmt: skip
