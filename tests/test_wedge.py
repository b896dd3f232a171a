"""The wedge policy, shape by shape: each test is a short recording and its right answer."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest

from inferops.core.armed import due_t
from inferops.core.poll import Done, Gate, Health, HostSeen, JournalSeen, Poll, Stats, UnitSeen
from tests.polls import CLIENT, ERROR, HANG, PATIENCE, READY, SILENT, START_T, Run, ok, poll

WAY = ["READY", "STALL", "ARMED", "CAPTURED", "CANARY", "STACKS", "WEDGE"]


def decoding(t: float) -> Stats:
    return ok(active=1, n=t * 60)


def hot(n: int, gpu: bool | None = False) -> HostSeen:
    return HostSeen(hot=n, cpu_s=1.0, gpu=gpu)


def test_idle_server_says_only_that_it_is_ready() -> None:
    run = Run().until(3600)
    assert run.kinds() == ["READY"]
    assert run.actions == []


def test_class_c_goes_the_whole_way_in_order_and_is_detected_within_one_poll_of_the_bound() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT).until(400, start=70, stats=HANG, clients=CLIENT)
    assert run.kinds() == WAY
    assert run.at("ARMED") == 60 + 150
    assert [a for _, a in run.actions] == ["capture", "canary", "stacks", "restart"]
    assert run.events[-1].wclass == "C"
    assert "77" in run.events[-1].text


def test_detection_is_never_earlier_than_the_bound_wherever_the_poll_grid_falls() -> None:
    for offset in (0.1, 3.7, 9.9):
        run = Run().until(60, stats=decoding, clients=CLIENT)
        run.until(400, start=60 + offset, stats=HANG, clients=CLIENT)
        assert 150 <= run.at("ARMED") - 60 < 150 + 10 + 1e-6


def test_a_poll_is_due_when_the_bound_is_reached_and_arms_there() -> None:
    run = Run()
    assert due_t(run.state, PATIENCE) == math.inf
    run.until(60, stats=decoding, clients=CLIENT).until(200, start=70, stats=HANG, clients=CLIENT)
    assert due_t(run.state, PATIENCE) == START_T + 60 + 150
    run.until(210, start=210, stats=HANG, clients=CLIENT)
    assert (run.state.stage, due_t(run.state, PATIENCE)) == ("capture", math.inf)
    run = Run().until(20).until(100, start=30, health=ERROR)
    assert due_t(run.state, PATIENCE) == START_T + 30 + 150


def test_class_a_queue_with_an_idle_engine() -> None:
    stale = ok(active=0, queued=3, n=7)
    run = Run().until(20).until(400, start=30, stats=stale, clients=CLIENT)
    assert [e.wclass for e in run.events if e.kind == "WEDGE"] == ["A"]
    assert run.at("ARMED") == 30 + 150
    assert "queued" in next(e.text for e in run.events if e.kind == "CANARY")  # a queue forbids the canary
    assert "canary" not in [a for _, a in run.actions]


def test_class_c_with_stale_answers_of_a_later_build() -> None:
    stale = ok(active=1, n=129)
    run = Run().until(20, stats=decoding, clients=CLIENT).until(400, start=30, stats=stale, clients=CLIENT)
    assert run.kinds() == WAY
    assert run.events[-1].wclass == "C"


def test_class_d_needs_known_zero_gauges_and_an_explicit_error_for_the_bound() -> None:
    run = Run().until(20).until(400, start=30, health=ERROR)
    assert [e.wclass for e in run.events if e.kind == "WEDGE"] == ["D"]
    assert run.at("ARMED") == 30 + 150
    assert "not sent: the server takes no requests" in [e.text for e in run.events if e.kind == "CANARY"]


def test_class_d_not_with_unknown_gauges_nor_with_a_timeout() -> None:
    assert Run().until(20).until(900, start=30, health=ERROR, stats=Stats(answer="bad", why="x")).restarts() == []
    assert Run().until(20).until(900, start=30, health=SILENT).restarts() == []


def test_class_d_error_that_ends_is_over() -> None:
    run = Run().until(20).until(200, start=30, health=ERROR).until(900, start=210)
    assert run.kinds()[-1] == "RESUMED"
    assert run.restarts() == []


def test_class_e_nothing_answers_and_the_journal_is_silent() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.until(400, start=70, stats=HANG, health=SILENT, clients=CLIENT)
    assert [e.wclass for e in run.events if e.kind == "WEDGE"] == ["E"]
    assert run.at("ARMED") == 210


@pytest.mark.parametrize(("line_t", "wclass"), [(75, "E"), (300, "C")])
def test_the_journal_is_silent_when_it_was_so_for_the_bound(line_t: float, wclass: str) -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.until(400, start=70, stats=HANG, health=SILENT, clients=CLIENT,
              journal=lambda t: JournalSeen(any_t=START_T + min(t, line_t)))  # fmt: skip
    assert [e.wclass for e in run.events if e.kind == "WEDGE"] == [wclass]


def test_nothing_answers_on_an_idle_server_is_blind_and_never_a_restart() -> None:
    run = Run().until(60).until(2000, start=70, stats=HANG, health=SILENT)
    assert run.kinds() == ["READY", "BLIND"]
    assert run.restarts() == []


def test_long_prefill_on_a_cpu_engine_is_left_alone_though_stats_hang() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.until(1800, start=70, stats=HANG, clients=CLIENT, host=hot(2))
    assert run.kinds() == ["READY"]
    assert run.state.stage == "watch"


def test_one_hot_thread_is_a_spin_not_a_prefill() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.until(400, start=70, stats=HANG, clients=CLIENT, host=hot(1))
    assert run.kinds() == WAY


def test_hot_threads_say_nothing_where_a_gpu_is_open() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.until(400, start=70, stats=HANG, clients=CLIENT, host=hot(8, True))
    assert len(run.restarts()) == 1


@pytest.mark.parametrize("host", [None, hot(8, None), HostSeen(gpu=False)])
def test_threads_that_were_not_read_are_not_cold_ones(host: HostSeen | None) -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.until(3000, start=70, stats=HANG, clients=CLIENT, host=host)
    assert run.restarts() == []
    assert "BLIND" in run.kinds()


def test_cpu_alone_speaks_for_an_hour_and_no_longer() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.until(6000, start=70, stats=HANG, clients=CLIENT, host=hot(2))
    assert run.at("ARMED") == pytest.approx(60 + 3600 + 150, abs=10.1)


def test_a_progress_line_counts_from_its_own_time_not_from_when_it_was_read() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    old = JournalSeen(progress_t=START_T + 65, any_t=START_T + 65)
    run.until(400, start=70, stats=HANG, clients=CLIENT, journal=old)
    assert run.at("ARMED") == 220  # the first poll at or over 65 + 150


def test_progress_lines_keep_a_prefill_without_cpu_evidence_alive() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.until(2000, start=70, stats=HANG, clients=CLIENT, host=hot(0),
              journal=lambda t: JournalSeen(progress_t=START_T + t // 20 * 20, any_t=START_T + t))  # fmt: skip
    assert run.kinds() == ["READY"]


def test_journal_noise_that_is_no_progress_does_not_save_a_wedge() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.until(400, start=70, stats=HANG, clients=CLIENT, journal=lambda t: JournalSeen(any_t=START_T + t))
    assert run.kinds() == WAY


def test_a_counter_that_falls_is_a_new_task_not_progress() -> None:
    run = Run().until(60, stats=lambda t: ok(active=1, n=1000 + t), clients=CLIENT)
    run.until(400, start=70, stats=lambda t: ok(active=1, n=1000 - t), clients=CLIENT)
    assert run.kinds() == WAY


def test_phantom_gauges_without_any_client_alert_and_never_restart() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT).until(3000, start=70, stats=ok(active=1, n=3600), clients=())
    assert run.kinds() == ["READY", "STALL", "PHANTOM"]


def test_gauges_alone_with_connections_unread_are_too_little() -> None:
    run = Run().until(60, stats=decoding).until(3000, start=70, stats=ok(active=1, n=3600), clients=None)
    assert run.kinds() == ["READY", "STALL", "BLIND"]
    assert run.restarts() == []


def test_kept_alive_connections_of_an_idle_server_are_no_work() -> None:
    run = Run().until(60, clients=CLIENT).until(3000, start=70, stats=HANG, clients=CLIENT)
    assert "ARMED" not in run.kinds()


def test_a_connection_opened_after_the_last_idle_answer_is_work() -> None:
    run = Run().until(60, clients=CLIENT).until(400, start=70, stats=HANG, clients=(*CLIENT, "127.0.0.1:40999"))
    assert run.at("ARMED") == 70 + 150


def test_work_seen_while_stats_hang_has_its_own_bound_before_anything_is_called_blind() -> None:
    run = Run().until(60).until(120, start=70, stats=HANG)
    run.until(400, start=130, stats=HANG, clients=CLIENT)
    assert run.kinds() == ["READY", "STALL", "ARMED", "CAPTURED", "CANARY", "STACKS", "WEDGE"]
    assert run.at("ARMED") == 130 + 150


def test_stats_that_hang_are_no_look_without_journal_or_cpu() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.until(3000, start=70, stats=HANG, clients=CLIENT, journal=None, host=None)
    assert "ARMED" not in run.kinds()
    assert "BLIND" in run.kinds()


@pytest.mark.parametrize(
    ("stage", "feed_until"), [("capture", 210), ("look", 230), ("canary", 240), ("stacks", 250), ("last", 260)]
)
def test_progress_at_any_stage_of_the_way_ends_it(stage: str, feed_until: float) -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.until(feed_until, start=70, stats=HANG, clients=CLIENT)
    assert run.state.stage == stage
    assert run.feed(poll(feed_until + 10, stats=ok(active=1, n=9e9), clients=CLIENT)) == ["RESUMED"]
    assert run.state.stage == "watch"
    assert "of a healthy engine" in run.events[-1].text
    run.until(900, start=feed_until + 20, stats=lambda t: ok(active=1, n=9e9 + t), clients=CLIENT)
    assert run.restarts() == []


def test_a_canary_token_is_phantom_and_arms_again_only_after_twice_the_stall() -> None:
    run = Run(canary="token").until(60, stats=decoding, clients=CLIENT)
    run.until(500, start=70, stats=ok(active=1, n=3600), clients=CLIENT)
    assert run.kinds()[-1] == "PHANTOM"
    first = run.at("PHANTOM")
    run.until(2000, start=510, stats=ok(active=1, n=3600), clients=CLIENT)
    armed = [e.t - START_T for e in run.events if e.kind == "ARMED"]
    assert armed[1] - first == pytest.approx(300, abs=10.1)
    assert run.restarts() == []


def test_what_the_canary_itself_moves_is_no_progress_and_more_than_that_is() -> None:
    def upto_canary() -> Run:
        run = Run(canary="none").until(60, stats=decoding, clients=CLIENT)
        return run.until(240, start=70, stats=ok(active=1, n=3600), clients=CLIENT)

    run = upto_canary()
    assert run.state.stage == "canary"
    run._done = ()  # the canary is still out
    run.until(250, start=250, stats=ok(active=1, n=3602), clients=CLIENT)
    ended = (Done(kind="canary", result="none", t=START_T + 259),)
    run.feed(poll(260, stats=ok(active=1, n=3603), clients=CLIENT, done=ended))
    run.until(300, start=270, stats=ok(active=1, n=3603), clients=CLIENT)
    assert len(run.restarts()) == 1
    run = upto_canary()
    run._done = ()
    assert run.feed(poll(250, stats=ok(active=1, n=3605), clients=CLIENT)) == ["RESUMED"]


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (ok(active=2, n=1, free=0), "0 free slots and 0 queued"),
        (ok(active=1, queued=2, n=1, free=1), "1 free slots and 2 queued"),
        (Stats(answer="ok", active=1, queued=0, counters={"n_decode_total": 1.0}), "free slots unknown"),
    ],
)
def test_the_canary_is_not_sent_and_why(last: Stats, said: str) -> None:
    run = Run().until(60, stats=last, clients=CLIENT).until(400, start=70, stats=HANG, clients=CLIENT)
    assert said in next(e.text for e in run.events if e.kind == "CANARY")
    assert "canary" not in [a for _, a in run.actions]
    assert len(run.restarts()) == 1


def test_no_restart_without_a_capture() -> None:
    run = Run(capture="failed").until(60, stats=decoding, clients=CLIENT)
    run.until(3000, start=70, stats=HANG, clients=CLIENT)
    assert run.restarts() == []
    assert "the capture failed (by the test); not restarted without one" in run.events[-1].text
    assert run.kinds().count("WEDGE") == 1


def test_action_alert_tells_once_and_never_restarts() -> None:
    run = Run(replace(PATIENCE, action="alert")).until(60, stats=decoding, clients=CLIENT)
    run.until(3000, start=70, stats=HANG, clients=CLIENT)
    assert run.kinds() == WAY
    assert "not restarted: action is alert" in run.events[-1].text
    assert run.restarts() == []


def test_a_held_restart_happens_when_the_hold_is_gone_and_the_wedge_stands() -> None:
    held = Gate(held="the machine lock is held by a swap")
    run = Run().until(60, stats=decoding, clients=CLIENT).until(1000, start=70, stats=HANG, clients=CLIENT, gate=held)
    assert run.restarts() == []
    assert run.kinds() == WAY
    run.until(1020, start=1010, stats=HANG, clients=CLIENT)
    assert run.restarts() == [1010]


def test_a_held_restart_is_off_when_progress_comes() -> None:
    held = Gate(held="a swap")
    run = Run().until(60, stats=decoding, clients=CLIENT).until(1000, start=70, stats=HANG, clients=CLIENT, gate=held)
    run.until(1500, start=1010, stats=lambda t: ok(active=1, n=9e9 + t), clients=CLIENT)
    assert run.kinds()[-1] == "RESUMED"
    assert run.restarts() == []


def test_an_unknown_gate_holds() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT).until(1000, start=70, stats=HANG, clients=CLIENT, gate=None)
    assert run.restarts() == []


def test_d_state_twice_alerts_and_never_restarts() -> None:
    stuck = HostSeen(hot=0, d_tids=(81, 82), gpu=False)
    run = Run().until(60, stats=decoding, clients=CLIENT).until(3000, start=70, stats=HANG, clients=CLIENT, host=stuck)
    assert run.restarts() == []
    assert "[81, 82]" in run.events[-1].text


def test_d_state_in_one_sample_is_a_disk_read() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.until(400, start=70, stats=HANG, clients=CLIENT,
              host=lambda t: HostSeen(hot=0, d_tids=(81,) if t % 20 else (82,), gpu=False))  # fmt: skip
    assert len(run.restarts()) == 1


def test_a_gap_holds_neither_advancing_nor_clearing() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT).until(100, start=70, stats=HANG, clients=CLIENT)
    run.until(9000 + 400, start=9000, stats=HANG, clients=CLIENT)  # suspended from 100 to 9000
    assert run.at("ARMED") == 9000 + (150 - 40)


def test_the_checkers_own_failure_is_told_once_and_holds() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    t = 70.0
    while t <= 2000:
        run.feed(Poll(t=START_T + t, checker="OSError: x"))
        t += 10
    assert run.kinds() == ["READY", "BLIND"]
    run.until(2400, start=2010, stats=HANG, clients=CLIENT)
    assert run.at("ARMED") == pytest.approx(2000 + 150, abs=10.1)


LOADING = Health(answer="loading", code=503)


def unready(t: float) -> dict[str, object]:
    return {"health": LOADING, "stats": Stats(answer="loading"), "journal": JournalSeen(any_t=START_T + t)}


def test_loading_is_never_a_wedge_and_alerts_once_after_load_max() -> None:
    run = Run()
    for t in range(0, 3000, 10):
        run.feed(poll(t, clients=CLIENT, **unready(t)))
    assert run.kinds() == ["LOADING"]
    assert run.at("LOADING") == 910
    run.until(3100, start=3000)
    assert run.kinds() == ["LOADING", "READY"]


def test_a_stranger_on_the_port_proves_no_readiness_and_is_blind() -> None:
    run = Run().until(600, owner="other", journal=JournalSeen())
    assert run.kinds() == []
    run = Run().until(20).until(600, start=30, owner="other", stats=ok(active=1), clients=CLIENT)
    assert run.kinds() == ["READY", "BLIND"]
    assert "outside the unit" in run.events[-1].text


def test_a_ready_answer_from_an_unknown_owner_proves_nothing_and_arms_nothing() -> None:
    assert Run().until(600, owner=None, journal=JournalSeen()).kinds() == []
    run = Run().until(60, stats=decoding, clients=CLIENT).until(2000, start=70, stats=HANG, clients=CLIENT, owner=None)
    assert "ARMED" not in run.kinds()


def test_the_ready_line_of_an_earlier_start_is_not_this_pids() -> None:
    assert Run().until(60, health=SILENT, journal=JournalSeen(ready_t=START_T - 5)).kinds() == []


def other_pid(pid: int, t: float) -> UnitSeen:
    return UnitSeen(active="active", sub="running", main_pid=pid, start_t=START_T + t, restarts=1)


def test_a_restart_by_somebody_else_disarms() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT).until(220, start=70, stats=HANG, clients=CLIENT)
    assert run.state.stage == "look"
    run.until(900, start=230, unit=other_pid(78, 225))
    assert run.kinds()[-2:] == ["STARTED", "READY"]
    assert "77 -> 78, not by this sentinel, class C is disarmed" in run.events[-2].text
    assert run.restarts() == []


def test_the_same_pid_with_another_start_is_another_process() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT).until(220, start=70, stats=HANG, clients=CLIENT)
    assert "STARTED" in run.feed(poll(230, unit=other_pid(77, 225)))


def test_a_stop_by_hand_disarms_and_is_no_page() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT).until(220, start=70, stats=HANG, clients=CLIENT)
    stopping = JournalSeen(stopping_t=START_T + 225)
    run.feed(poll(230, unit=UnitSeen(active="deactivating", main_pid=77, start_t=START_T), journal=stopping))
    run.until(900, start=240, unit=UnitSeen(active="inactive"), health=Health(answer="refused"), owner="nobody",
              stats=Stats(answer="refused"), journal=stopping)  # fmt: skip
    assert run.kinds()[-2:] == ["DISARMED", "STOPPED"]


def test_dead_without_a_planned_stop_is_an_alert_once_and_never_a_start() -> None:
    failed = UnitSeen(active="failed")
    run = Run().until(60).until(900, start=70, unit=failed, health=Health(answer="refused"), owner="nobody")
    assert run.kinds() == ["READY", "DEAD"]
    assert run.actions == []
    run = Run().until(60).until(900, start=70, unit=UnitSeen(active="failed"), owner="nobody",
                                journal=JournalSeen(stopping_t=START_T - 500))  # fmt: skip
    assert run.kinds() == ["READY", "DEAD"]  # that planned stop was of an earlier process


def restarted(result: str) -> Run:
    run = Run().until(60, stats=decoding, clients=CLIENT).until(270, start=70, stats=HANG, clients=CLIENT)
    assert run.restarts() == [270]
    run.feed(poll(280, unit=UnitSeen(active="deactivating", main_pid=77, start_t=START_T)))
    run.feed(poll(290, unit=other_pid(78, 285), health=LOADING, stats=Stats(answer="loading"),
                  done=(Done(kind="restart", result=result, t=START_T + 288,
                             why="" if result == "ok" else "no job"),)))  # fmt: skip
    return run


def test_our_restart_is_told_only_when_verified() -> None:
    run = restarted("ok")
    assert run.kinds()[-1] == "WEDGE"
    run.feed(poll(300, unit=other_pid(78, 285), owner="other"))
    assert run.kinds()[-1] != "RESTARTED"
    run.feed(poll(310, unit=other_pid(78, 285)))
    assert run.kinds()[-1] == "RESTARTED"
    assert "pid 78" in run.events[-1].text
    assert "STARTED" not in run.kinds()


def test_a_restart_that_never_gets_ready_is_an_alert() -> None:
    run = restarted("ok").until(1500, start=300, unit=other_pid(78, 285), health=LOADING, stats=Stats(answer="loading"))
    assert run.kinds()[-2:] == ["LOADING", "FAILED"]
    assert "by our restart" in run.events[-2].text
    assert "not verified" in run.events[-1].text


def test_a_failed_restart_is_an_alert() -> None:
    assert "FAILED" in restarted("failed").kinds()


@pytest.mark.parametrize("answer", ["bad", "refused"])
def test_a_stats_endpoint_that_answers_nonsense_is_told_on_the_second_poll(answer: str) -> None:
    bad = Stats(answer="bad" if answer == "bad" else "refused", why="/metrics answered text/html")
    run = Run().until(3000, stats=bad, clients=CLIENT)
    assert run.kinds() == ["READY", "BLIND"]
    assert run.at("BLIND") == 10
    assert "text/html" in run.events[-1].text
    run.until(3020, start=3010, stats=ok())
    assert run.kinds()[-1] == "SEEING"


def test_a_unit_that_systemd_no_longer_shows_is_blind_and_never_a_restart() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT).until(900, start=70, stats=HANG, clients=CLIENT, unit=None)
    assert run.kinds() == ["READY", "BLIND", "STALL", "BLIND"]
    assert run.at("BLIND") == 80
    run.until(920, start=910, stats=ok())
    assert run.kinds()[-1] == "SEEING"


@pytest.mark.parametrize("stats", [Stats(answer="bad", why="html"), Stats(answer="refused"), None])
def test_gauges_from_before_a_lost_stats_endpoint_are_no_work(stats: Stats | None) -> None:
    run = Run().until(60, stats=ok(active=1, queued=2, n=1), clients=CLIENT)
    run.until(3000, start=70, stats=stats, clients=CLIENT)
    assert run.restarts() == []
    assert "BLIND" in run.kinds()


def test_a_fatal_line_is_told_once_while_the_process_lives() -> None:
    run = Run().until(60).until(300, start=70, journal=JournalSeen(fatal_t=START_T + 65, any_t=START_T + 65))
    assert run.kinds() == ["READY", "FATAL"]


def test_a_poll_survives_its_tape_form_unchanged() -> None:
    one = poll(5, stats=ok(active=1, n=3.5), clients=CLIENT, done=(Done(kind="canary", result="none", t=1.0, why="x"),))
    assert msgspec.json.decode(msgspec.json.encode(one), type=Poll) == one
    assert READY.answer == "ready"
