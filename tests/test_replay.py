"""Replays: settings that make sense, which end of an action counts, where it stops, and what an empty tape proves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inferops.core.poll import Done, DoneKind, Poll, UnitSeen
from inferops.core.replay import AHEAD_S, Replay, patience_from, run
from inferops.core.tape import Header, Writer
from inferops.core.verdict import UsageError
from inferops.ops.sentinel_replay import main
from tests.polls import CLIENT, PATIENCE, START_T, ok, poll

# --- settings


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("poll_s=0", "poll_s: expected at least 0.01 and at most 1e+09, got text '0'"),
        ("poll_s=0.009", "poll_s: expected at least 0.01"),
        ("poll_s=nan", "poll_s: expected at least 0.01"),
        ("stall_s=0", "stall_s: expected over 0"),
        ("stall_s=-5", "stall_s: expected over 0"),
        ("stall_s=inf", "stall_s: expected over 0 and at most 1e+09"),
        ("load_max_s=0", "load_max_s: expected over 0"),
        ("cpu_only_max_s=-1", "cpu_only_max_s: expected over 0"),
        ("look_polls=0", "look_polls: expected at least 1"),
        ("look_polls=1.5", "look_polls: expected a whole number"),
        ("canary_moves_at_most=-1", "canary_moves_at_most: expected at least 0"),
        ("slowest_cadence_s=-0.1", "slowest_cadence_s: expected at least 0"),
        ("action=reboot", "action: expected alert or restart, got text 'reboot'"),
        ("canary=maybe", "canary: expected true or false, got text 'maybe'"),
        ("stall_s=soon", "stall_s: expected a number, got text 'soon'"),
        ("stal_s=5", "no setting 'stal_s' of the policy"),
        ("stall_s", "expected NAME=VALUE"),
    ],
)
def test_a_setting_that_makes_no_sense_is_one_clear_line(setting: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        patience_from(Header(), [setting])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_go_over_the_tapes_own() -> None:
    header = Header(patience={"stall_s": 150.0, "look_polls": 2, "canary": True})
    found = patience_from(header, ["look_polls=3", "canary=false", "poll_s=0.01", "cpu_only_max_s=0.001"])
    assert (found.stall_s, found.look_polls, found.canary) == (150.0, 3, False)
    assert (found.poll_s, found.cpu_only_max_s) == (0.01, 0.001)


def test_a_tape_with_nonsense_in_its_header_is_refused_too() -> None:
    with pytest.raises(UsageError, match="poll_s: expected at least"):
        patience_from(Header(patience={"poll_s": 0.0}), [])


# --- ends of actions


def wedged(until: int, *ends: tuple[int, DoneKind, str]) -> list[Poll]:
    """An engine that is idle for a minute, then has one request and never moves; `ends` are what was recorded."""
    polls = []
    for t in range(0, until + 1, 10):
        parts = {"stats": ok(active=1, free=1), "clients": CLIENT} if t >= 60 else {}
        done = tuple(Done(kind=kind, result=result, t=START_T + at, why="recorded") for at, kind, result in ends
                     if t - 10 < at <= t)  # fmt: skip
        polls.append(poll(t, done=done, **parts))
    return polls


def told(replay: Replay, kind: str) -> list[tuple[float, str]]:
    return [(e.t - START_T, e.text) for e in replay.events if e.kind == kind]


ARMED = 210  # a minute of quiet and stall_s


def test_a_replay_stops_at_a_restart_that_the_recording_did_not_make() -> None:
    polls = wedged(1000)
    back = poll(1010, stats=ok(n=50.0))  # by itself; whoever restarted would not have seen it
    replay = run([*polls, back], PATIENCE)
    assert len(replay.restarts) == 1
    assert replay.assumed == ("canary none", "capture ok", "restart not made", "stacks ok")
    assert replay.polls == (replay.restarts[0] - START_T) / 10 + 1 < 40
    assert replay.span_s == replay.restarts[0] - START_T
    assert replay.events[-1].kind == "WEDGE"


@pytest.mark.parametrize("after", [600, 1200])
def test_a_restart_that_the_recording_made_is_followed_to_its_end(after: int) -> None:
    asked = round(run(wedged(1000), PATIENCE).restarts[0] - START_T)
    polls = [p for p in wedged(asked + after, (asked + after, "restart", "ok")) if p.t <= START_T + asked]
    new = UnitSeen(active="active", sub="running", main_pid=78, start_t=START_T + asked + after - 1)
    end = Done(kind="restart", result="ok", t=START_T + asked + after)
    polls += [
        poll(asked + after, unit=new, done=(end,), journal=None),
        poll(asked + after + 10, unit=new, journal=None),
    ]
    replay = run(polls, PATIENCE)
    assert "restart not made" not in replay.assumed
    assert replay.events[-1].kind == "RESTARTED"
    assert replay.polls == len(polls)


def test_an_end_on_the_tape_is_taken_and_none_assumed() -> None:
    within = ARMED + int(AHEAD_S["capture"]) - 10
    replay = run(wedged(within + 60, (within, "capture", "ok")), PATIENCE)
    assert told(replay, "CAPTURED") == [(within, "recorded")]
    assert "capture ok" not in replay.assumed


def test_an_end_that_comes_too_late_is_assumed_and_the_recorded_one_is_another_incidents() -> None:
    """Both for one canary would let the late token end a wedge that this replay judged without it."""
    asked = told(run(wedged(1000), PATIENCE), "CANARY")[0][0] - 10
    late = int(asked + AHEAD_S["canary"]) + 10
    patient = replace(PATIENCE, action="alert")
    replay = run(wedged(late + 60, (late, "canary", "token")), patient)
    assert told(replay, "CANARY") == [(asked + 10, "none: assumed, not on the tape")]
    assert "canary none" in replay.assumed
    assert told(replay, "PHANTOM") == []
    soon = run(wedged(late + 60, (late - 20, "canary", "token")), patient)
    assert [t for t, _ in told(soon, "PHANTOM")] == [late - 20]
    assert "canary none" not in soon.assumed


# --- the command


def replayed(tmp_path: Path, *polls: Poll, args: tuple[str, ...] = ()) -> int:
    writer = Writer(tmp_path, Header(subject="x.service"))
    for one in polls:
        writer.write(one)
    writer.close()
    code = main.main([str(writer.path), *args], standalone_mode=False)
    assert isinstance(code, int)
    return code


def test_a_tape_on_which_nothing_was_seen_is_blind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed(tmp_path, Poll(t=1.0, clients=()), Poll(t=11.0)) == 3
    out = capsys.readouterr().out
    assert "nothing of the server was seen in 2 polls over 10 s" in out
    assert "no restart" not in out


def test_one_healthy_poll_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed(tmp_path, poll(1)) == 0
    assert "no restart in 1 poll over 0 s" in capsys.readouterr().out


def test_an_alert_is_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed(tmp_path, *wedged(400)) == 1
    assert "alerted, no restart, in 41 polls over 400 s" in capsys.readouterr().out
