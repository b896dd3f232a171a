"""Lines of the wedge policy that `make mutants` found held by no other test, each with the shortest recording."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inferops.core import evidence as ev
from inferops.core import idle
from inferops.core.poll import Done, Health, HostSeen, JournalSeen, Poll, RequestsSeen, Stats, UnitSeen
from inferops.core.turn import REPEAT_S, State, Turn
from tests.polls import CLIENT, ERROR, HANG, PATIENCE, READY, SILENT, START_T, Run, ok, poll

IDLE = replace(PATIENCE, idle_canary_s=300.0)
STRANGER = ("10.0.0.9:5000",)


def turn(one: Poll, **state: Any) -> Turn:
    known: dict[str, Any] = {"key": (77, START_T, None), "ready_t": START_T, "idle_clients": frozenset[str]()}
    return Turn(State(**(known | state)), one, IDLE, 10.0)


@pytest.mark.parametrize(
    ("parts", "state", "due"),
    [
        ({}, {}, True),
        ({"owner": None}, {}, False),
        ({"owner": "nobody"}, {}, False),
        ({"clients": STRANGER}, {}, False),
        ({"clients": STRANGER}, {"idle_clients": None}, True),
        ({"clients": STRANGER, "requests": RequestsSeen(open=1, oldest_t=START_T + 5)},
         {"idle_clients": frozenset(STRANGER)}, False),
        ({"stats": ok(1)}, {}, False),
        ({"stats": ok(1)}, {"missed": 1}, True),
        ({"stats": ok(2)}, {"missed": 1}, False),
        ({"stats": HANG}, {"missed": 1}, True),
        ({}, {"missed": 2}, False),
        ({}, {"canary_out": True}, False),
        ({}, {"real_progress_t": START_T + 101}, False),
        ({}, {"real_progress_t": START_T + 100}, True),
        ({}, {"idle_t": START_T + 101}, False),
        ({}, {"ready_t": START_T + 101}, False),
        ({}, {"missed": 1, "idle_t": START_T + 340}, True),
        ({}, {"missed": 1, "idle_t": START_T + 341}, False),
    ],
)  # fmt: skip
def test_when_a_canary_to_an_idle_server_is_due(parts: dict[str, Any], state: dict[str, Any], due: bool) -> None:
    assert idle.due(turn(poll(400, **parts), **state)) == due


def test_no_canary_to_an_idle_server_where_canaries_are_off() -> None:
    one = turn(poll(400))
    one.p = replace(IDLE, canary=False)
    assert not idle.due(one)
    one.p = replace(IDLE, idle_canary_s=0.0)
    assert not idle.due(one)


def test_only_the_end_of_this_process_canary_is_the_end_of_it() -> None:
    ends = (
        Done(kind="capture", result="token", t=1.0, pid=77),
        Done(kind="canary", result="token", t=1.0, pid=78),
    )
    one = turn(poll(400, done=ends), canary_out=True)
    idle.ended(one)
    assert one.s.canary_out
    one = turn(poll(400, done=(*ends, Done(kind="canary", result="none", t=1.0, pid=77))), canary_out=True)
    idle.ended(one)
    assert (one.s.canary_out, one.s.missed, one.s.idle_t) == (False, 1, START_T + 400)


def test_a_request_older_than_an_idle_canarys_token_is_lost_and_waits_for_nothing() -> None:
    lost = RequestsSeen(open=1, oldest_t=START_T + 40)
    run = Run(IDLE, canary="token").until(400, requests=lost).until(900, start=410, requests=lost, clients=CLIENT)
    assert run.kinds() == ["READY"]


def test_class_f_that_ends_starts_again_from_nothing() -> None:
    """Armed by two misses, then a token of somebody's request: the next canary is a whole interval away."""
    run = Run(IDLE).until(390)
    assert (run.state.stage, run.state.missed) == ("capture", 2)
    run.feed(poll(400, stats=ok(n=50)))
    assert (run.kinds()[-1], run.state.missed, run.state.idle_t) == ("RESUMED", 0, START_T + 400)
    run.until(690, start=410, stats=ok(n=50))
    assert [action for _, action in run.actions] == ["canary", "canary", "capture"]
    run.until(700, start=700, stats=ok(n=50))
    assert run.actions[-1] == (700, "canary")


def test_an_idle_answer_does_not_end_class_f() -> None:
    run = Run(IDLE).until(500)
    assert len(run.restarts()) == 1


def test_a_canary_to_an_idle_server_that_never_ends_is_not_out_for_the_class_that_arms_meanwhile() -> None:
    run = Run(IDLE).until(310)
    assert (run.actions, run.state.canary_out) == ([(310, "canary")], True)
    run._done = ()
    run.until(460, start=320, stats=HANG, clients=CLIENT)
    assert (run.state.stage, run.state.canary_out) == ("watch", True)
    run.until(470, start=470, stats=HANG, clients=CLIENT)
    assert (run.state.stage, run.state.canary_out) == ("capture", False)


@pytest.mark.parametrize(("t", "name"), [(90.0, "a progress line"), (100.0, "a progress line"), (110.0, "a request")])
def test_the_newest_dated_evidence_speaks_and_a_line_before_an_end_of_the_same_moment(t: float, name: str) -> None:
    one = poll(200, journal=JournalSeen(progress_t=START_T + 100), requests=RequestsSeen(done=1, done_t=START_T + t))
    found = ev.dated(one)
    assert found is not None
    assert (found.t, found.by[: len(name)]) == (START_T + max(100.0, t), name)


@pytest.mark.parametrize(("proof", "waits"), [(64.9, 1), (65.0, 0), (65.1, 0)])
def test_a_request_waits_if_no_token_came_after_its_start(proof: float, waits: int) -> None:
    one = poll(200, clients=CLIENT, requests=RequestsSeen(open=1, oldest_t=START_T + 65))
    assert ev.unanswered(one, START_T + proof) == waits


@pytest.mark.parametrize(("start_t", "stopping_t", "told"), [
    (START_T, START_T, "STOPPED"), (START_T, START_T - 0.1, "DEAD"), (None, 0.5, "STOPPED"), (START_T, None, "DEAD"),
])  # fmt: skip
def test_a_stop_is_planned_if_systemd_said_so_of_this_process(
    start_t: float | None, stopping_t: float | None, told: str
) -> None:
    unit = UnitSeen(active="active", sub="running", main_pid=77, start_t=start_t, restarts=0)
    run = Run().until(60, unit=unit)
    run.feed(poll(70, unit=UnitSeen(active="inactive"), journal=JournalSeen(stopping_t=stopping_t)))
    assert run.kinds()[-1] == told


def test_a_stop_seen_before_any_process_is_planned_if_systemd_said_so() -> None:
    run = Run().until(0, unit=UnitSeen(active="inactive"), journal=JournalSeen(stopping_t=0.5))
    assert run.kinds() == ["STOPPED"]


def test_a_strangers_answers_are_dropped_and_all_else_of_the_poll_is_kept() -> None:
    """The checker's own ends, the journal, the host and the gate are not the stranger's."""
    run = Run().until(60, stats=ok(1, n=5), clients=CLIENT)
    run.until(400, start=70, owner="other", journal=JournalSeen(fatal_t=START_T + 70), health=ERROR, stats=ok(1, n=99))
    assert run.kinds() == ["READY", "FATAL", "BLIND", "STALL"]
    assert run.state.counters == {"n_decode_total": 5}


def test_a_fatal_line_counts_once_and_only_if_it_came_after_readiness() -> None:
    at = START_T + 1.0
    run = Run().until(60, journal=JournalSeen(ready_t=at, fatal_t=at))
    assert run.kinds() == ["READY"], "of the very moment it got ready: of the load"
    run.until(100, start=70, journal=JournalSeen(ready_t=at, fatal_t=at + 0.1))
    assert run.kinds() == ["READY", "FATAL"]


def test_time_that_nobody_saw_moves_every_clock_of_a_state() -> None:
    clocks = ("progress_t", "real_progress_t", "first_t", "stands_t", "idle_t", "silent_since", "deaf_since", "seen_t",
              "ended_t", "generated_t", "work_since", "error_since", "down_since", "restart_t")  # fmt: skip
    state = State(**{name: 100.0 + n for n, name in enumerate(clocks)}, tasks={"a": 7.0})  # type: ignore[arg-type]
    later = state.shifted(50.0)
    assert {name: getattr(later, name) for name in clocks} == {name: 150.0 + n for n, name in enumerate(clocks)}
    assert later.tasks == {"a": 57.0}
    for name in ("work_since", "error_since", "down_since", "restart_t"):
        assert getattr(State().shifted(50.0), name) is None


def test_busy_threads_speak_for_an_hour_from_whatever_began_last() -> None:
    """From readiness, from the beginning of the work, from real progress: the latest of the three."""
    hot = HostSeen(hot=4, gpu=False)
    late = {"ready_t": START_T + 3000.0, "any_t": START_T + 3000.0}
    run = Run().until(3000, health=SILENT, stats=HANG, journal=JournalSeen())
    run.until(9000, start=3010, stats=HANG, clients=CLIENT, host=hot, health=READY, journal=JournalSeen(**late))
    assert "ARMED" not in run.kinds(), "no work was ever seen beside the threads: nothing arms"
    run = Run().until(5000).until(9000, start=5010, stats=ok(1), clients=CLIENT, host=hot)
    assert run.at("ARMED") == 5010 + 3600 + 150
    run = Run().until(60, stats=ok(1), clients=CLIENT).until(2000, start=70, stats=ok(1, n=7), clients=CLIENT, host=hot)
    run.until(9000, start=2010, stats=ok(1, n=8), clients=CLIENT, host=hot)
    assert run.at("ARMED") == 2010 + 3600 + 150


def test_what_is_told_once_is_told_again_exactly_when_ten_minutes_have_passed() -> None:
    one = turn(poll(0))
    assert one.tell("A", "note", "x", once="w")
    one.forget("w")
    one.poll = poll(REPEAT_S - 0.1)
    assert not one.tell("A", "note", "x", once="w")
    one.poll = poll(REPEAT_S)
    assert one.tell("A", "note", "x", once="w")
    assert one.tell("A", "note", "x", once="w"), "it is told by now"
    assert [e.t - START_T for e in one.events] == [0, REPEAT_S]


def test_stats_that_are_refused_while_nothing_answers_are_no_nonsense() -> None:
    gone: dict[str, Any] = {"health": SILENT, "stats": Stats(answer="refused")}
    run = Run().until(60).until(200, start=70, **gone)
    assert run.kinds() == ["READY"]


def test_busy_threads_between_two_canaries_to_an_idle_server_start_again() -> None:
    run = Run(IDLE).until(320)
    assert run.state.missed == 1
    run.until(340, start=330, host=HostSeen(hot=4, gpu=False)).until(630, start=350)
    assert [t for t, action in run.actions if action == "canary"] == [310, 620]
    assert (run.state.missed, "ARMED" in run.kinds()) == (1, False)


def test_class_f_that_ends_by_busy_threads_does_not_arm_again_at_once() -> None:
    run = Run(IDLE).until(390)
    run.until(400, start=400, host=HostSeen(hot=4, gpu=False))
    assert (run.kinds()[-1], run.state.missed) == ("RESUMED", 0)
    run.until(600, start=410)
    assert [kind for kind in run.kinds() if kind == "ARMED"] == ["ARMED"]


def test_the_canary_of_an_incident_that_is_over_ends_unheard() -> None:
    run = Run(IDLE).until(60, stats=lambda t: ok(1, n=t), clients=CLIENT)
    run.until(240, start=70, stats=ok(1, n=60), clients=CLIENT)
    assert run.actions[-1][1] == "canary"
    run._done = ()
    run.until(250, start=250, stats=ok(1, n=99), clients=CLIENT)
    assert (run.kinds()[-1], run.state.canary_out) == ("RESUMED", False)
    run.feed(poll(260, stats=ok(1, n=120), clients=CLIENT, done=(Done(kind="canary", result="none", t=1.0, pid=77),)))
    assert (run.kinds()[-1], run.state.missed) == ("RESUMED", 0)


@pytest.mark.parametrize(
    ("ends", "lives"),
    [({}, False), ({"done": 1}, True), ({"failed": 1}, True), ({"other": 1}, True), ({"done": 1, "failed": 1}, True)],
)
def test_a_request_log_lives_once_it_has_shown_an_end(ends: dict[str, int], lives: bool) -> None:
    assert ev.log_lives(poll(1, requests=RequestsSeen(open=0, **ends))) == lives
    assert not ev.log_lives(poll(1))


def test_errors_and_instance_of_a_stranger_are_not_the_units() -> None:
    run = Run().until(60, instance="a")
    run.until(200, start=70, owner="other", health=ERROR, instance="b")
    run.until(500, start=210, health=ERROR, instance="a")
    assert [e.kind for e in run.events if e.kind in ("STARTED", "ARMED")] == ["ARMED"]
    assert run.at("ARMED") == 210 + 150


def test_a_wedge_that_is_held_stands() -> None:
    run = Run(replace(PATIENCE, action="alert")).until(60, stats=ok(1, n=1), clients=CLIENT)
    run.until(400, start=70, stats=ok(1, n=1), clients=CLIENT)
    assert (run.kinds()[-1], run.state.stage) == ("WEDGE", "standing")


def test_a_wedge_in_d_state_was_judged_until_the_last_poll_of_it() -> None:
    run = Run().until(60, stats=ok(1, n=1), clients=CLIENT)
    asleep = HostSeen(hot=0, gpu=False, d_tids=(11,))
    run.until(500, start=70, stats=ok(1, n=1), clients=CLIENT, host=asleep)
    run.until(640, start=510, stats=ok(1, n=1), clients=CLIENT, owner=None)
    assert run.kinds()[-1] == "WEDGE"
    run.until(650, start=650, stats=ok(1, n=1), clients=CLIENT, owner=None)
    assert (run.kinds()[-1], "can't be judged any more" in run.events[-1].text) == ("BLIND", True)


def test_one_step_of_a_counter_that_outgrew_its_digits_is_progress() -> None:
    run = Run(replace(PATIENCE, counter_digits=6))
    run.until(2000, stats=lambda t: ok(1, n=2e7 + t // 140 * 100), clients=CLIENT)
    assert "ARMED" not in run.kinds()


def test_one_gauge_against_a_live_request_log_is_too_little() -> None:
    ended = RequestsSeen(open=0, other=6)
    run = Run().until(60, requests=ended).until(600, start=70, stats=ok(1), clients=CLIENT, requests=ended)
    assert (run.kinds(), run.restarts()) == (["READY", "STALL", "BLIND"], [])


def test_busy_threads_without_work_are_seen_for_an_hour_from_readiness() -> None:
    run = Run().until(20).until(5000, start=30, stats=HANG, host=HostSeen(hot=4, gpu=False))
    assert run.at("BLIND") == 3600 + 150


# --- what only alerts


def failing(t: float) -> RequestsSeen:
    n = int(t // 10)
    return RequestsSeen(failed=n, failing=n, failing_t=START_T + 10, failed_t=START_T + n * 10, open=0)


@pytest.mark.parametrize(("rises", "told"), [(False, True), (True, False)])
def test_tokens_that_are_counted_and_do_not_come_are_none(rises: bool, told: bool) -> None:
    run = Run().until(400, stats=lambda t: Stats(answer="ok", active=0, queued=0, generated=5 + rises * t),
                      requests=failing)  # fmt: skip
    assert ("FAILING" in run.kinds()) == told


def test_failures_without_their_times_are_no_run_of_failures() -> None:
    run = Run().until(900, requests=RequestsSeen(failed=9, failing=9, failing_t=START_T + 10))
    run.until(1800, start=910, requests=RequestsSeen(failed=9, failing=9, failed_t=START_T + 900))
    assert run.kinds() == ["READY"]


def test_failures_that_ended_and_began_again_are_told_again() -> None:
    run = Run().until(400, requests=failing).until(1000, start=410, requests=RequestsSeen(failed=40, done=1))
    run.until(1500, start=1010, requests=failing)
    assert run.kinds() == ["READY", "FAILING", "FAILING"]
    run = Run().until(400, requests=failing).until(1000, start=410).until(1500, start=1010, requests=failing)
    assert run.kinds() == ["READY", "FAILING", "FAILING"]


def busy(t: float, *tasks: str) -> Stats:
    return Stats(answer="ok", active=1, queued=0, counters={"n_decode_total": t}, tasks=tasks)


def test_starvation_that_ended_and_began_again_is_told_again() -> None:
    run = Run().until(3000, stats=lambda t: busy(t, "a" if t < 1000 else "b"), clients=CLIENT)
    assert [e.t - START_T for e in run.events if e.kind == "STARVED"] == [900, 1900]


def test_a_task_ages_through_a_stats_endpoint_that_hangs_now_and_then() -> None:
    run = Run().until(1000, stats=lambda t: HANG if t % 20 else busy(t, "a"), clients=CLIENT)
    assert run.at("STARVED") == 900


def test_the_oldest_request_of_all_that_are_known_is_told() -> None:
    log = RequestsSeen(open=1, oldest_t=START_T + 20)
    run = Run().until(1000, stats=lambda t: busy(t, "a" if t > 500 else "b"), clients=CLIENT, requests=log)
    assert run.at("STARVED") == 920
    assert "the oldest request of the log has no end for 900 s" in run.events[-1].text


@pytest.mark.parametrize(("last", "kinds"), [(900, ["STALL", "ARMED"]), (910, ["STARVED"])])
def test_an_old_request_beside_no_progress_for_the_bound_is_a_wedge(last: float, kinds: list[str]) -> None:
    log = RequestsSeen(open=1, oldest_t=START_T + 150)
    run = Run().until(1050, stats=lambda t: busy(min(t, last)), clients=CLIENT, requests=log)
    told = [kind for kind in run.kinds() if kind not in ("READY", "STALL")]
    assert told == [kind for kind in kinds if kind != "STALL"]


def restarts(*at: float) -> Any:
    return lambda t: UnitSeen(active="active", sub="running", main_pid=77, start_t=START_T,
                              restarts=sum(one <= t for one in at))  # fmt: skip


@pytest.mark.parametrize(("third", "told"), [(1900, False), (1890, True)])
def test_three_rises_make_a_loop_if_the_first_is_less_than_the_window_ago(third: float, told: bool) -> None:
    run = Run().until(2500, unit=restarts(100, 1000, third))
    assert ("CRASHLOOP" in run.kinds()) == told


def test_a_loop_that_ended_and_began_again_is_told_again() -> None:
    run = Run().until(9000, unit=restarts(100, 200, 300, 5000, 5100, 5200))
    assert [e.t - START_T for e in run.events if e.kind == "CRASHLOOP"] == [300, 5200]


def test_what_a_new_process_takes_over_is_the_units_and_the_watchs_own() -> None:
    old = State(key=(77, 1.0, None), last_t=90.0, late=5, restart_t=70.0, said={"x": 1.0}, rises=(3.0,), restarts=4,
                gaps=((80.0, 30.0),), progress_t=85.0, missed=1, stage="canary", told=frozenset({"stall"}))  # fmt: skip
    new = old.of_process((78, None, None), 100.0, frozenset({"loop"}))
    assert new == State(key=(78, None, None), last_t=100.0, first_t=100.0, idle_t=100.0, late=5, restart_t=70.0,
                        said={"x": 1.0}, rises=(3.0,), restarts=4, gaps=((80.0, 30.0),),
                        told=frozenset({"loop"}))  # fmt: skip
    assert replace(old, stage="restart").of_process(None, 100.0, frozenset()).stage == "restart"


def test_a_second_fatal_line_after_ten_minutes_is_told() -> None:
    def journal(t: float) -> JournalSeen:
        return JournalSeen(ready_t=START_T + 1, fatal_t=START_T + (70 if t < 800 else 790), any_t=START_T + t)

    run = Run().until(60).until(1000, start=70, journal=journal)
    assert [(e.kind, e.t - START_T) for e in run.events[1:]] == [("FATAL", 70), ("FATAL", 800)]


# --- what one incident leaves to the next: nothing


def wedge(run: Run, start: float, until: float, n: float, **more: Any) -> Run:
    parts: dict[str, Any] = {"stats": ok(1, n=n), "clients": CLIENT} | more
    return run.until(until, start=start, **parts)


def test_what_a_canary_moves_by_and_by_is_added_up() -> None:
    run = wedge(Run().until(60, stats=lambda t: ok(1, n=t), clients=CLIENT), 70, 240, 60)
    assert run.state.canary_out
    run._done = ()
    wedge(run, 250, 250, 63)
    assert run.state.canary_out, "three of the four that may be its own"
    wedge(run, 260, 260, 66)
    assert run.kinds()[-1] == "RESUMED"


def test_real_progress_after_a_phantom_gives_the_bound_back() -> None:
    run = wedge(Run(canary="token").until(60, stats=lambda t: ok(1, n=t), clients=CLIENT), 70, 300, 60)
    assert (run.kinds()[-1], run.state.proofs) == ("PHANTOM", 1)
    wedge(wedge(run, 310, 310, 99), 320, 900, 99)
    assert [e.t - START_T for e in run.events if e.kind == "ARMED"][:2] == [210, 310 + 150]


def test_after_a_failed_restart_nothing_arms_for_ten_minutes_to_the_second() -> None:
    run = wedge(Run().until(60, stats=lambda t: ok(1, n=t), clients=CLIENT), 70, 270, 60)
    assert run.restarts() == [270]
    failed = Done(kind="restart", result="failed", t=START_T + 280, why="no job")
    run.feed(poll(280, stats=ok(1, n=60), clients=CLIENT, done=(failed,)))
    wedge(run, 290, 900, 60)
    assert [e.t - START_T for e in run.events if e.kind == "ARMED"] == [210, 280 + 600]


@pytest.mark.parametrize(("clients", "kind"), [((), "PHANTOM"), (None, "BLIND")])
def test_a_phantom_and_a_lonely_gauge_are_told_again_after_progress(clients: Any, kind: str) -> None:
    run = Run(replace(PATIENCE, cpu_is_evidence=False)).until(60, stats=lambda t: ok(1, n=t), clients=CLIENT)
    wedge(run, 70, 900, 60, clients=clients)
    wedge(wedge(run, 910, 910, 99, clients=clients), 920, 1500, 99, clients=clients)
    assert [e.t - START_T for e in run.events if e.kind == kind] == [210, 910 + 150]


def test_no_restart_on_the_capture_of_an_incident_before() -> None:
    run = wedge(Run().until(60, stats=lambda t: ok(1, n=t), clients=CLIENT), 70, 230, 60)
    wedge(run, 240, 240, 99)
    assert run.kinds()[-1] == "RESUMED"
    run.ends["capture"] = "failed"
    wedge(run, 250, 800, 99)
    assert run.kinds()[-2:] == ["ARMED", "WEDGE"]
    assert run.restarts() == []


def test_no_restart_on_the_canary_of_an_incident_before() -> None:
    log = RequestsSeen(open=1, oldest_t=START_T + 65)
    run = Run().until(60).until(260, start=70, clients=CLIENT, requests=log)
    assert (run.state.stage, run.state.canaried) == ("stacks", True)
    run.until(270, start=270)
    assert run.kinds()[-1] == "RESUMED"
    run.ends["canary"] = "inconclusive"
    run.until(900, start=280, clients=CLIENT, requests=RequestsSeen(open=1, oldest_t=START_T + 275))
    assert (run.restarts(), "no canary says otherwise" in run.events[-1].text) == ([], True)


def test_work_that_was_only_a_connection_is_over_when_it_is_gone() -> None:
    run = Run().until(60).until(100, start=70, stats=HANG, clients=CLIENT)
    run.until(400, start=110, stats=Stats(answer="bad"), clients=())
    assert (run.kinds(), run.state.work_since) == (["READY", "BLIND"], None)
    run = Run().until(60).until(100, start=70, stats=HANG, clients=CLIENT).until(4000, start=110, stats=HANG)
    assert set(run.kinds()) == {"READY", "STALL", "BLIND"}, "stats that hang say nothing of an end: nothing is armed"
    run = Run().until(60).until(100, start=70, stats=HANG, clients=CLIENT).until(400, start=110, stats=HANG,
                                                                              clients=None)  # fmt: skip
    assert run.state.work_since == START_T + 70, "not looked at is not gone"


@pytest.mark.parametrize("answer", ["ready", "busy", "loading"])
def test_any_answer_that_is_no_error_begins_the_bound_of_class_d_anew(answer: Any) -> None:
    run = Run().until(60).until(200, start=70, health=ERROR).until(210, start=210, health=Health(answer=answer))
    run.until(500, start=220, health=ERROR)
    assert run.at("ARMED") == 220 + 150


def test_unseen_time_does_not_count_for_the_hour_of_busy_threads() -> None:
    hot, unread = HostSeen(hot=4, gpu=False), HostSeen(hot=None, gpu=False)
    run = Run().until(60, stats=lambda t: ok(1, n=t), clients=CLIENT)
    run.until(1800, start=70, stats=HANG, clients=CLIENT, host=hot)
    run.until(2400, start=1810, stats=HANG, clients=CLIENT, host=unread, journal=None)
    run.until(6000, start=2410, stats=HANG, clients=CLIENT, host=hot)
    assert run.at("ARMED") == 60 + 3600 + 600 + 150


def test_unseen_time_moves_the_beginning_of_the_work_and_does_not_forget_it() -> None:
    run = Run().until(60).until(100, start=70, stats=HANG, clients=CLIENT)
    run.until(150, start=110, stats=HANG, clients=CLIENT, host=None, journal=None)
    run.until(500, start=160, stats=HANG, clients=CLIENT)
    assert run.at("ARMED") == 70 + 150 + 50


@pytest.mark.parametrize(
    ("parts", "kind", "at"),
    [({"stats": HANG, "clients": CLIENT}, "STALL", 80), ({"stats": ok(1)}, "PHANTOM", 150),
     ({"stats": ok(1), "clients": None}, "BLIND", 150)],
)  # fmt: skip
def test_what_was_told_of_work_that_is_over_is_told_of_the_next(parts: dict[str, Any], kind: str, at: float) -> None:
    run = Run(replace(PATIENCE, action="alert")).until(60)
    run.until(70 + at + 5, start=70, **parts).until(1000, start=70 + at + 10, stats=ok(n=0), health=ERROR)
    run.until(1010 + at + 5, start=1010, **parts)
    told = [e.t - START_T for e in run.events if e.kind == kind]
    assert [round(t / 10) * 10 for t in told] == [round((70 + at) / 10) * 10, round((1010 + at) / 10) * 10]


def test_a_stall_is_told_after_a_canary_without_a_token_too() -> None:
    run = Run(IDLE).until(320)
    assert run.state.missed == 1
    run.until(410, start=330, stats=HANG, clients=CLIENT)
    assert "STALL" in run.kinds()


def test_canaries_that_prove_nothing_are_told_again_after_one_that_did() -> None:
    for proof in ("token", "none"):
        run = Run(IDLE)
        for end, until in (("inconclusive", 330), (proof, 640), ("inconclusive", 2000)):
            run.ends["canary"] = end
            run.until(until, start=run.state.last_t - START_T + 10 if run.state.last_t else 0)
        told = [e.text for e in run.events if "inconclusive" in e.text]
        assert len(told) == 2
