"""The wedge policy, by what readers found in it later: two sources for the whole bound, and what is over when it is."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from inferops.core.poll import Done, JournalSeen
from tests.polls import CLIENT, ERROR, HANG, PATIENCE, START_T, Run, ok, poll
from tests.test_wedge import other_pid

GPU = replace(PATIENCE, cpu_is_evidence=False)


def test_left_over_gauges_lend_their_age_to_no_new_request() -> None:
    """Gauges of a mass abort, flat for 980 s; then a request comes, and its prefill is silent for 60 s."""
    run = Run(GPU).until(20).until(1000, start=30, stats=ok(active=1)).until(1070, start=1010, stats=ok(active=2),
                                                                             clients=CLIENT)  # fmt: skip
    assert (run.kinds(), run.actions) == (["READY", "STALL", "PHANTOM"], [])
    run.until(1400, start=1080, stats=ok(active=2), clients=CLIENT)
    assert run.at("ARMED") == 1010 + 150


def test_a_request_after_an_armed_incident_that_nobody_waited_for_has_its_own_bound() -> None:
    run = Run(GPU).until(20).until(190, start=30, stats=ok(active=1), clients=CLIENT)
    run.until(5000, start=200, stats=ok(active=1))
    assert run.kinds()[3:] == ["CAPTURED", "PHANTOM"]
    assert "nobody waits" in run.events[-1].text
    assert run.state.stage == "watch"
    run.until(5060, start=5010, stats=ok(active=2), clients=CLIENT)
    assert run.restarts() == []


def test_a_connection_that_is_seen_now_and_then_is_no_second_source() -> None:
    run = Run(GPU).until(20)
    for n in range(3, 400):
        run.feed(poll(n * 10.0, stats=ok(active=1), clients=CLIENT if n % 6 == 0 else ()))
    assert run.restarts() == []
    assert "ARMED" not in run.kinds()


@pytest.mark.parametrize(("waits", "pauses"), [(30, 10), (60, 10), (100, 20), (120, 10)])
def test_clients_that_give_up_and_come_again_do_not_hide_a_wedge(waits: int, pauses: int) -> None:
    """Stats hang and the last answer was an idle one: only the clients and the hang speak."""
    run = Run().until(20)
    for n in range(3, 150):
        there = (n * 10) % (waits + pauses) >= pauses
        clients = (f"127.0.0.1:{40000 + n * 10 // (waits + pauses)}",) if there else ()
        run.feed(poll(n * 10.0, stats=HANG, clients=clients))
    assert run.at("ARMED") <= 30 + 2 * 150 + 10
    assert run.restarts()


def test_an_engine_that_fails_everything_is_not_well_again() -> None:
    """Class C, then the engine gives up: nothing runs, health says 503. It is class D after its bound, on one way."""
    run = Run(GPU).until(20).until(200, start=30, stats=ok(active=1), clients=CLIENT)
    assert run.kinds()[-1] == "CAPTURED"
    run.until(600, start=210, stats=ok(), clients=(), health=ERROR)
    assert run.kinds()[4:] == ["CANARY", "STACKS", "WEDGE"]
    assert run.events[-1].text.startswith("class D")
    assert run.restarts()[0] >= 210 + 150


def test_an_idle_answer_ends_it_and_says_nothing_of_the_capture() -> None:
    run = Run(GPU).until(20).until(200, start=30, stats=ok(active=1), clients=CLIENT).until(230, start=210)
    assert run.events[-1].text == "class C is over: an idle answer; nothing is restarted"


def test_a_canarys_own_lines_are_no_progress_after_its_token() -> None:
    """The back-off of 2, 4, 8 stalls stands, though each canary leaves a line and counts in the journal and stats."""
    run, line_t, canaries = Run().until(20), None, 0
    for n in range(3, 250):
        t, end_t = n * 10.0, line_t
        done = run.actions[-1:] == [(t - 10, "canary")]
        if done:
            canaries, line_t, end_t = canaries + 1, START_T + t + 0.4, None  # its line comes after this poll
            run._done = (Done(kind="canary", result="token", t=START_T + t - 0.1),)
        journal = JournalSeen(progress_t=end_t, any_t=START_T)
        run.feed(poll(t, stats=ok(active=1, free=1, n=2.0 * canaries), clients=CLIENT, journal=journal))
    times = [e.t - START_T for e in run.events if e.kind == "ARMED"]
    assert canaries == len(times) >= 3
    assert [round(b - a, -2) for a, b in pairwise(times)][:2] == [300, 600]


def test_an_idle_answer_forgets_the_back_off() -> None:
    run = Run(canary="token").until(20).until(230, start=30, stats=ok(active=1, free=1), clients=CLIENT)
    assert run.kinds()[-1] == "PHANTOM"
    run.until(1000, start=240).until(1400, start=1010, stats=ok(active=1, free=0), clients=CLIENT)
    assert [e.t - START_T for e in run.events if e.kind == "ARMED"][1] == 1010 + 150


def test_after_a_failed_restart_the_wait_is_told_and_no_blindness() -> None:
    run = Run(GPU).until(20).until(240, start=30, stats=ok(active=1), clients=CLIENT)
    assert run.kinds()[-1] == "WEDGE"
    failed = Done(kind="restart", result="failed", t=START_T + 245, why="the lock is held")
    run.feed(poll(250, stats=ok(active=1), clients=CLIENT, done=(failed,)))
    run.until(840, start=260, stats=ok(active=1), clients=CLIENT)
    index = run.kinds().index("FAILED")
    assert "no other is tried for 10 minutes" in run.events[index].text
    assert run.kinds()[index + 1 :] == []


def test_another_process_has_its_own_wedge_alert() -> None:
    alert = replace(GPU, action="alert")
    run = Run(alert).until(20).until(260, start=30, stats=ok(active=1), clients=CLIENT)
    assert run.kinds()[-1] == "WEDGE"
    unit = other_pid(88, 265)
    run.feed(poll(270, unit=unit))
    run.until(560, start=280, unit=unit, stats=ok(active=1), clients=CLIENT)
    assert run.kinds()[-1] == "WEDGE"


def test_a_blind_look_is_no_look() -> None:
    run = Run(GPU).until(20).until(180, start=30, stats=ok(active=1), clients=CLIENT)
    run.until(330, start=190, stats=None, clients=None, owner=None)
    assert run.actions == [(180, "capture")]


def test_the_restart_that_uses_the_budget_up_is_told() -> None:
    run = Run(GPU).until(20).until(240, start=30, stats=ok(active=1), clients=CLIENT)
    assert run.restarts() == [240]
    done = Done(kind="restart", result="ok", t=START_T + 248, why="the budget is latched (2 restarts in 30 minutes)")
    run.feed(poll(250, unit=other_pid(78, 245), done=(done,)))
    assert [e.text for e in run.events if e.kind == "LATCHED"] == [
        "that was the last restart: the budget is latched (2 restarts in 30 minutes)"
    ]
