"""The wedge policy, by what was once found wrong in it: each test is the shortest recording that showed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from inferops.core.poll import Done, Gate, Health, HostSeen, JournalSeen, Poll, RequestsSeen, Stats, UnitSeen
from tests.polls import CLIENT, ERROR, HANG, PATIENCE, SILENT, START_T, Run, ok, poll
from tests.test_wedge import decoding, other_pid

ODD = Health(answer="odd", code=404)


@pytest.mark.parametrize("health", [ODD, None, SILENT])
def test_one_500_followed_by_anything_but_500_is_no_class_d(health: Health | None) -> None:
    run = Run().until(20)
    run.feed(poll(30, health=ERROR))
    run.until(2000, start=40, health=health)
    assert "ARMED" not in run.kinds()


def test_time_in_which_health_was_not_seen_does_not_count_for_class_d() -> None:
    run = Run().until(20).until(100, start=30, health=ERROR).until(500, start=110, health=None)
    run.until(900, start=510, health=ERROR)
    assert run.at("ARMED") == 580  # 30 to 100 and 500 to 580 are 150 s of errors


@pytest.mark.parametrize("kind", ["capture", "canary", "stacks"])
@pytest.mark.parametrize("bad", ["checker", "no unit"])
def test_the_end_of_an_action_is_not_lost_with_a_bad_poll(kind: str, bad: str) -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    t = 70.0
    while run.actions[-1:] == [] or run.actions[-1][1] != kind:
        run.feed(poll(t, stats=HANG, clients=CLIENT))
        t += 10
    if bad == "checker":
        run.feed(Poll(t=START_T + t, checker="OSError: x"))
    else:
        run.feed(poll(t, stats=HANG, clients=CLIENT, unit=None))
    run.until(t + 300, start=t + 10, stats=HANG, clients=CLIENT)
    assert len(run.restarts()) == 1


@pytest.mark.parametrize("result", ["ok", "failed"])
def test_the_end_of_a_restart_is_not_lost_where_systemd_did_not_answer(result: str) -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT).until(270, start=70, stats=HANG, clients=CLIENT)
    assert run.restarts() == [270]
    run.feed(poll(280, unit=None, done=(Done(kind="restart", result=result, t=START_T + 279, why="x"),)))
    run.until(600, start=290, unit=other_pid(78, 285))
    assert ("FAILED" in run.kinds()) == (result == "failed")
    assert run.kinds()[-1] == {"ok": "RESTARTED", "failed": "READY"}[result]


def test_a_crash_loop_after_our_restart_is_told() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT).until(270, start=70, stats=HANG, clients=CLIENT)
    done: tuple[Done, ...] = (Done(kind="restart", result="ok", t=START_T + 275),)
    for n in range(200):
        t = 280 + n * 10
        unit = other_pid(100 + n, t - 1) if n % 2 else UnitSeen(active="activating", sub="auto-restart")
        run.feed(poll(t, unit=unit, health=Health(answer="refused"), owner="nobody", stats=None, done=done))
        done = ()
    assert "RESTARTED" not in run.kinds()
    assert run.kinds().count("FAILED") == 1
    assert "not verified" in next(e.text for e in run.events if e.kind == "FAILED")
    assert run.kinds().count("STARTED") > 1  # the first new pid was ours, the rest not


@pytest.mark.parametrize("active", ["activating", "deactivating"])
def test_a_unit_that_is_neither_up_nor_down_for_long_is_an_alert_once(active: str) -> None:
    pid = 77 if active == "deactivating" else 0
    run = Run().until(20).until(20_000, start=30, unit=UnitSeen(active=active, main_pid=pid, start_t=START_T))
    assert run.kinds() == ["READY", "DEAD"]
    assert run.at("DEAD") == pytest.approx(30 + 900, abs=10.1)


def test_somebody_elses_progress_line_during_the_canary_is_not_swallowed() -> None:
    run = Run(canary="none").until(60, stats=decoding, clients=CLIENT)
    run.until(240, start=70, stats=HANG, clients=CLIENT)
    assert run.actions[-1] == (240, "canary")
    line = JournalSeen(progress_t=START_T + 245, any_t=START_T + 245)
    run._done = ()
    run.feed(poll(250, stats=HANG, clients=CLIENT, journal=line))
    assert run.state.stage == "canary"  # it may be the canary's own
    run.feed(poll(260, stats=HANG, clients=CLIENT, journal=line, done=(Done(kind="canary", result="none", t=0.0),)))
    run.feed(poll(270, stats=HANG, clients=CLIENT, journal=line))
    assert run.kinds()[-1] == "RESUMED"  # no token came, so it was not
    assert run.restarts() == []


def test_polls_that_always_come_late_are_blind() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT).until(3000, start=95, every=35, stats=HANG, clients=CLIENT)
    assert "BLIND" in run.kinds()
    assert "polls come 35 s apart" in next(e.text for e in run.events if e.kind == "BLIND")
    assert run.kinds().count("BLIND") <= 6


@pytest.mark.parametrize("lost", [{"owner": None}, {"clients": None}])
def test_armed_and_no_longer_to_be_judged_is_blind(lost: dict[str, Any]) -> None:
    stale = ok(active=1, n=3600)
    run = Run().until(60, stats=decoding, clients=CLIENT).until(220, start=70, stats=stale, clients=CLIENT)
    assert run.state.stage == "look"
    parts: dict[str, Any] = {"stats": stale, "clients": CLIENT} | lost
    run.until(900, start=230, **parts)
    assert run.kinds()[-1] == "BLIND"
    assert "can't be judged any more" in run.events[-1].text


def test_a_phantom_is_no_licence_to_be_blind() -> None:
    stale = ok(active=1, n=3600)
    run = (
        Run(canary="token").until(60, stats=decoding, clients=CLIENT).until(260, start=70, stats=stale, clients=CLIENT)
    )
    assert run.kinds()[-1] == "PHANTOM"
    run.until(2000, start=270, stats=stale, clients=None)
    assert "BLIND" in run.kinds()


@pytest.mark.parametrize("trouble", ["capture", "D state"])
def test_a_failed_capture_or_a_passing_d_state_is_tried_again(trouble: str) -> None:
    run = Run(capture="failed" if trouble == "capture" else "ok").until(60, stats=decoding, clients=CLIENT)
    stuck = HostSeen(hot=0, d_tids=(81,) if trouble == "D state" else (), gpu=False)
    run.until(300, start=70, stats=HANG, clients=CLIENT, host=stuck)
    assert run.restarts() == []
    run.ends["capture"] = "ok"
    run.until(1200, start=310, stats=HANG, clients=CLIENT)
    assert len(run.restarts()) == 1
    assert 800 <= run.restarts()[0] <= 960  # after RETRY_S


def test_a_late_capture_of_another_process_is_no_capture_of_this_one() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT).until(210, start=70, stats=HANG, clients=CLIENT)
    run._done = ()  # the capture of pid 77 still runs while somebody restarts the unit
    unit = other_pid(99, 215)
    run.until(230, start=220, unit=unit, stats=decoding, clients=CLIENT)
    run.until(380, start=240, unit=unit, stats=HANG, clients=CLIENT)
    assert run.state.stage == "capture"
    run._done = ()
    late = (Done(kind="capture", result="ok", t=0.0, pid=77),)
    run.feed(poll(390, unit=unit, stats=HANG, clients=CLIENT, done=late))
    run.until(700, start=400, unit=unit, stats=HANG, clients=CLIENT)
    assert run.state.stage == "capture"
    assert run.restarts() == []


@pytest.mark.parametrize("result", ["inconclusive", "failed"])
def test_a_canary_that_proves_nothing_is_told_as_a_warning(result: str) -> None:
    run = Run(canary=result).until(60, stats=decoding, clients=CLIENT).until(400, start=70, stats=HANG, clients=CLIENT)
    assert [e.level for e in run.events if e.kind == "CANARY"] == ["warn"]


def test_a_left_over_gauge_with_a_kept_alive_connection_is_no_wedge() -> None:
    stale = ok(active=1, n=1, free=0)
    run = Run().until(60, clients=CLIENT).until(3000, start=70, stats=stale, clients=CLIENT)
    assert "ARMED" not in run.kinds()
    assert "BLIND" in run.kinds()


def test_time_without_any_source_of_progress_does_not_run_the_timer() -> None:
    stale = ok(active=1, n=3600)
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.until(200, start=70, stats=None, clients=None, journal=None, host=None)
    run.until(600, start=210, stats=stale, clients=CLIENT)
    assert run.at("ARMED") == pytest.approx(200 + 150, abs=10.1)


FLAPS: dict[str, Callable[[int], dict[str, Any]]] = {
    "stats": lambda n: {"stats": Stats(answer="bad", why="html") if n % 3 else ok()},
    "owner": lambda n: {"owner": "other" if n % 3 else "unit"},
    "checker": lambda n: {"checker": f"OSError: {n}"} if n % 2 else {},
    "fatal": lambda n: {"journal": JournalSeen(fatal_t=START_T + n * 10, any_t=START_T + n * 10)},
    "start": lambda n: {"unit": other_pid(77, 0.001 * (n % 3))},
    "no start": lambda n: {"unit": UnitSeen(active="active", main_pid=77, start_t=None if n % 2 else START_T)},
}


@pytest.mark.parametrize("what", sorted(FLAPS))
def test_what_flaps_is_told_once_in_ten_minutes(what: str) -> None:
    run = Run()
    for n in range(360):  # an hour
        run.feed(poll(n * 10, **FLAPS[what](n)))
    worst = max(run.kinds().count(kind) for kind in set(run.kinds()))
    assert worst <= 7, {kind: run.kinds().count(kind) for kind in run.kinds()}
    assert len(run.state.said) < 20


def test_a_lock_that_changes_hands_is_told_once_in_ten_minutes() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    for n in range(7, 367):
        held = Gate(held=f"the machine lock is held by pid {n} (a swap)")
        run.feed(poll(n * 10, stats=HANG, clients=CLIENT, gate=held))
    assert run.kinds().count("WEDGE") == 1


def test_time_that_goes_backwards_holds() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT).until(150, start=70, stats=HANG, clients=CLIENT)
    run.until(140, start=100, stats=HANG, clients=CLIENT)
    run.until(400, start=150, stats=HANG, clients=CLIENT)
    assert run.at("ARMED") == 160  # 150 s of it were observed: 60 to 150, and 100 to 160 after the step back


def test_a_gap_that_ends_in_a_poll_without_data_is_held_once() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.feed(poll(3500, stats=None, clients=None, journal=None, host=None))
    run.until(4000, start=3510, stats=HANG, clients=CLIENT)
    assert run.at("ARMED") == pytest.approx(3500 + 150, abs=10.1)


def test_our_own_restart_is_not_verified_by_a_line_of_the_journal() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT).until(270, start=70, stats=HANG, clients=CLIENT)
    run.feed(poll(280, unit=other_pid(78, 275), done=(Done(kind="restart", result="ok", t=START_T + 276),),
                  health=SILENT, owner="nobody", stats=None, journal=JournalSeen(ready_t=START_T + 279)))  # fmt: skip
    assert run.kinds()[-1] == "WEDGE"


def test_a_second_blindness_after_ten_minutes_is_told_again() -> None:
    bad = Stats(answer="bad", why="html")
    run = Run().until(100, stats=bad).until(800, start=110).until(900, start=810, stats=bad)
    assert run.kinds().count("BLIND") == 2


def test_a_progress_line_from_the_future_counts_as_now() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.until(400, start=70, stats=HANG, clients=CLIENT, journal=JournalSeen(progress_t=START_T + 5000))
    assert run.at("ARMED") == 70 + 150


def test_a_recorded_end_keeps_its_pid() -> None:
    one = Done(kind="capture", result="ok", t=1.0, pid=77)
    assert msgspec.json.decode(msgspec.json.encode(one), type=Done) == one


GPU = HostSeen(hot=0, gpu=True)


def test_a_journal_without_one_line_of_the_unit_is_no_source() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT, host=GPU, journal=JournalSeen())
    run.until(3000, start=70, stats=HANG, clients=CLIENT, host=GPU, journal=JournalSeen())
    assert run.restarts() == []
    assert "BLIND" in run.kinds()


@pytest.mark.parametrize(("clients", "told"), [((), "PHANTOM"), (None, "BLIND")])
def test_an_endpoint_that_hangs_does_not_second_its_own_old_gauges(clients: tuple[str, ...] | None, told: str) -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT).until(3000, start=70, stats=HANG, clients=clients)
    assert run.restarts() == []
    assert told in run.kinds()


def test_gauges_that_say_work_and_no_source_of_progress_are_blind() -> None:
    stats = Stats(answer="ok", active=4, queued=9, free_slots=0)
    run = Run().until(60).until(3000, start=70, stats=stats, clients=CLIENT, journal=None, host=GPU)
    assert "BLIND" in run.kinds()
    assert run.restarts() == []


def test_errors_on_a_port_of_unknown_owner_are_blind() -> None:
    run = Run().until(60).until(3000, start=70, health=ERROR, owner=None)
    assert run.kinds() == ["READY", "BLIND"]


def test_a_failed_restart_is_not_asked_for_again_at_once() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    t, done = 70, ()
    while t < 3670:
        before = len(run.restarts())
        run.feed(poll(t, stats=HANG, clients=CLIENT, done=done))
        failed = Done(kind="restart", result="failed", t=START_T + t, why="x", pid=77)
        done = (failed,) if len(run.restarts()) > before else ()  # type: ignore[assignment]
        t += 10
    assert 2 <= len(run.restarts()) <= 6
    assert run.kinds().count("FAILED") <= 6


def test_progress_after_a_stall_is_told_once_in_ten_minutes() -> None:
    run = Run().until(3600, stats=lambda t: ok(active=1, n=t // 90), clients=CLIENT, host=GPU)
    assert run.kinds().count("PROGRESS") <= 7


def test_a_line_of_the_interval_does_not_hide_what_the_threads_show_now() -> None:
    """A progress line 5 s old in the same poll as hot threads: the threads are the newer evidence."""
    run = Run().until(60, stats=decoding, clients=CLIENT)
    line = JournalSeen(progress_t=START_T + 65, any_t=START_T + 65)
    run.feed(poll(70, stats=HANG, clients=CLIENT, journal=line, host=HostSeen(hot=2, gpu=False)))
    run.until(400, start=80, stats=HANG, clients=CLIENT, journal=line)
    assert run.at("ARMED") == 70 + 150


def test_old_gauges_and_a_health_probe_that_hangs_only_now_are_no_work_for_the_bound() -> None:
    """Work was last seen at 60 s, then stats were unread for minutes: it may have ended. Health hangs from 400 s on."""
    run = Run().until(60, stats=decoding, clients=())
    run.until(390, start=70, stats=None, clients=())
    run.until(530, start=400, stats=None, clients=(), health=SILENT)
    assert run.restarts() == []
    assert "ARMED" not in run.kinds()
    run.until(900, start=540, stats=None, clients=(), health=SILENT)
    assert run.at("ARMED") == 400 + 150


# --- what the second round of fresh readers broke: healthy servers first

OLD = Stats(answer="ok", active=1, queued=0, counters={"prompt_total": 6886.0, "predicted_total": 3469.0})
NINFER = replace(PATIENCE, cpu_is_evidence=False, counters_move_in_prefill=False, canary_moves_at_most=64.0)
LLAMA = replace(PATIENCE, busy_counter="n_decode_total", counter_digits=6)


def test_counters_of_which_none_moves_in_any_work_are_no_proof() -> None:
    """A fork of llama-server without n_decode_total, on a GPU, its journal unread, in the middle of an answer."""
    run = Run(LLAMA).until(60, clients=(), stats=OLD).until(
        400, start=70, stats=OLD, clients=CLIENT, host=GPU, journal=None)  # fmt: skip
    assert (run.restarts(), run.kinds()) == ([], ["READY", "BLIND"])
    assert "no counter that moves in any work (n_decode_total)" in run.events[-1].text


@pytest.mark.parametrize(("n", "armed"), [(999_999.0, True), (1_000_000.0, False)])
def test_a_counter_that_outgrew_its_digits_moves_in_steps(n: float, armed: bool) -> None:
    run = Run(LLAMA).until(60, stats=ok(1, n=n - 1), clients=CLIENT)
    run.until(400, start=70, stats=ok(1, n=n), clients=CLIENT, host=GPU, journal=None)
    assert ("ARMED" in run.kinds()) == armed
    assert ("BLIND" in run.kinds()) == (not armed)


@pytest.mark.parametrize(("rise", "resumed"), [(4.0, False), (100.0, False), (101.0, True)])
def test_a_canary_may_move_such_a_counter_by_a_whole_step(rise: float, resumed: bool) -> None:
    run = Run(LLAMA).until(60, stats=lambda t: ok(1, n=2e7 - 200 if t < 60 else 2e7), clients=CLIENT)
    run.until(240, start=70, stats=ok(1, n=2e7), clients=CLIENT)
    assert run.state.canary_out
    run.feed(poll(250, stats=ok(1, n=2e7 + rise), clients=CLIENT))
    assert ("RESUMED" in run.kinds()) == resumed


def test_phantom_gauges_that_a_live_request_log_contradicts_restart_nothing() -> None:
    """A mass abort leaves gauges until the next token; then somebody opens a page and keeps the connection."""
    ended = RequestsSeen(open=0, other=6)
    run = Run(NINFER).until(60, host=GPU, stats=ok(), requests=ended)
    run.until(600, start=70, host=GPU, stats=ok(6, n=200), clients=("10.0.0.9:4000",), requests=ended)
    assert (run.restarts(), run.kinds()) == ([], ["READY", "STALL", "BLIND"])
    assert "the request log has an end for each request" in run.events[-1].text
    silent = Run(NINFER).until(60, host=GPU, stats=ok(), requests=RequestsSeen(open=0))
    silent.until(600, start=70, host=GPU, stats=ok(6, n=200), clients=("10.0.0.9:4000",), requests=RequestsSeen(open=0))
    assert len(silent.restarts()) == 1, "a log without one end may be one that nobody writes"


def test_nor_does_such_a_log_speak_against_a_server_that_does_not_answer() -> None:
    """Frozen before it wrote the request's start."""
    ended = RequestsSeen(open=0, other=6)
    run = Run().until(60, requests=ended).until(400, start=70, stats=HANG, clients=CLIENT, requests=ended)
    assert len(run.restarts()) == 1


@pytest.mark.parametrize(("canary", "restarts"), [("none", 1), ("inconclusive", 0), ("not-sent", 0), ("token", 0)])
def test_idle_gauges_and_an_open_request_restart_only_with_a_canary_that_says_so(canary: str, restarts: int) -> None:
    """The end of that request may be lost, and the connection kept alive."""
    log = RequestsSeen(open=1, oldest_t=START_T + 65, done=3, done_t=START_T + 55)
    run = Run(NINFER, canary=canary).until(60, host=GPU, stats=ok())
    run.until(500, start=70, host=GPU, stats=ok(), clients=CLIENT, requests=log)
    assert len(run.restarts()) == restarts
    if canary != "token":
        assert ("not restarted: stats say idle" in run.events[-1].text) == (not restarts)


@pytest.mark.parametrize(("mb", "armed"), [(200.0, False), (199.0, True)])
def test_weights_that_are_read_from_disk_again_are_work(mb: float, armed: bool) -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    reads = HostSeen(hot=0, gpu=False, read_mb=mb, d_tids=(7,))
    run.until(600, start=70, stats=ok(1, n=3600), clients=CLIENT, host=reads)
    assert ("ARMED" in run.kinds()) == armed


def test_reading_from_disk_is_work_for_an_hour_and_no_longer() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    reads = HostSeen(hot=0, gpu=False, read_mb=900.0)
    run.until(4000, start=70, stats=ok(1, n=3600), clients=CLIENT, host=reads)
    assert run.at("ARMED") == 60 + 3600 + 150


# --- what was never told


@pytest.mark.parametrize(
    "parts",
    [
        {"health": SILENT, "clients": CLIENT},
        {"health": Health(answer="refused"), "owner": "nobody"},
        {"health": Health(answer="odd", code=404)},
    ],
)
def test_idle_stats_beside_a_port_that_answers_nobody_are_blind(parts: dict[str, Any]) -> None:
    run = Run(NINFER).until(60, host=GPU).until(219, start=70, host=GPU, **parts)
    assert run.kinds() == ["READY"]
    run.until(1000, start=220, host=GPU, **parts).until(1100, start=1010, host=GPU)
    assert (run.kinds(), run.at("BLIND")) == (["READY", "BLIND", "SEEING"], 70 + 150)
    assert "stats say idle, and health has no answer for 150 s" in run.events[1].text


def test_health_that_hangs_beside_tokens_is_no_blindness() -> None:
    run = Run(NINFER).until(60, host=GPU).until(2000, start=70, host=GPU, health=SILENT, stats=decoding, clients=CLIENT)
    assert run.kinds() == ["READY"]
    run = Run(NINFER).until(60, host=GPU).until(2000, start=70, host=GPU, health=None)
    assert run.kinds() == ["READY"], "not asked is not unanswered"


@pytest.mark.parametrize(
    ("parts", "wclass"),
    [
        ({"clients": ()}, "D"),
        ({"clients": CLIENT}, "C"),
        ({"clients": (), "journal": None}, None),
        ({"clients": (), "stats": HANG}, None),
        ({"clients": (), "stats": decoding}, None),
    ],
)
def test_class_d_with_a_gauge_left_over_from_who_was_served_when_the_engine_died(
    parts: dict[str, Any], wclass: str | None
) -> None:
    run = Run(NINFER).until(60, host=GPU)
    run.until(1000, start=70, **({"host": GPU, "health": ERROR, "stats": ok(active=1)} | parts))
    assert [e.wclass for e in run.events if e.kind == "WEDGE"] == ([wclass] if wclass else [])
    assert wclass != "D" or run.at("ARMED") == 70 + 150


# --- a machine that slept


def asleep(first: dict[str, Any], then: dict[str, Any] | None = None, slept: float = 3600.0) -> list[str]:
    """What an hour's sleep leads to in the ten polls after it."""
    run = Run(NINFER).until(60, host=GPU).until(100, start=70, host=GPU, **first)
    run.until(100 + slept + 100, start=100 + slept, host=GPU, **(first if then is None else then))
    return [kind for kind in run.kinds() if kind != "READY"]


def under_way(t: float) -> Stats:
    return Stats(answer="ok", active=1, queued=0, free_slots=1, counters={"n_decode_total": t}, tasks=("9",), ended=3)


@pytest.mark.parametrize(
    "parts",
    [
        {"stats": under_way, "clients": CLIENT},
        {"stats": decoding, "clients": CLIENT, "requests": RequestsSeen(open=1, oldest_t=START_T + 75)},
        {"requests": RequestsSeen(failed=3, failing=3, failing_t=START_T + 70, failed_t=START_T + 90)},
        {
            "requests": lambda t: RequestsSeen(
                failed=4, failing=4, failing_t=START_T + 70, failed_t=START_T + (t if t > 100 else 90)
            )
        },
        {"stats": lambda t: HANG if t > 100 else ok()},
        {"unit": UnitSeen(active="activating", sub="auto-restart")},
    ],
)
def test_an_hours_sleep_ages_nothing(parts: dict[str, Any]) -> None:
    assert asleep(parts) == []


def test_a_sleep_while_it_loads_or_right_after_our_restart_is_no_failure() -> None:
    loads: dict[str, Any] = {"health": Health(answer="loading"), "stats": Stats(answer="loading"),
                             "journal": JournalSeen()}  # fmt: skip
    run = Run().until(30, **loads).until(4000, start=3630, **loads)
    assert run.kinds() == []
    run = Run().until(60, stats=decoding, clients=CLIENT).until(300, start=70, stats=HANG, clients=CLIENT)
    done = Done(kind="restart", result="ok", t=START_T + 310)
    run.feed(poll(310, unit=other_pid(78, 305), done=(done,), journal=JournalSeen(), health=Health(answer="refused"),
                  owner="nobody"))  # fmt: skip
    run.until(4000, start=3910, unit=other_pid(78, 305), journal=JournalSeen())
    assert run.kinds()[-1] == "RESTARTED"


def test_every_other_poll_too_late_is_too_seldom_to_judge_and_one_in_three_is_not() -> None:
    run, t = Run().until(60), 60.0
    for n in range(12):
        t += 35 if n % 2 else 10
        run.feed(poll(t))
    assert run.kinds() == ["READY", "BLIND"]
    assert "too seldom to judge" in run.events[-1].text
    run.until(t + 3000, start=t + 10)
    assert run.state.late == 0
    run, t = Run().until(60), 60.0
    for n in range(60):
        t += 10 if n % 3 else 35
        run.feed(poll(t))
    assert run.kinds() == ["READY"]


def test_polls_that_come_late_again_are_told_again() -> None:
    run = Run().until(60).until(800, start=95, every=35).until(1800, start=810)
    assert run.kinds().count("BLIND") == 1
    run.until(2100, start=1835, every=35)
    assert run.kinds().count("BLIND") == 2


# --- the last word is true


def test_what_goes_on_after_a_flap_is_told_when_ten_minutes_have_passed() -> None:
    bad = Stats(answer="bad", why="html")
    run = Run().until(60).until(100, start=70, stats=bad).until(110, start=110).until(2000, start=120, stats=bad)
    assert [(e.kind, e.t - START_T) for e in run.events][1:] == [("BLIND", 80), ("SEEING", 110), ("BLIND", 680)]


def test_a_second_seeing_within_ten_minutes_is_told_when_they_have_passed() -> None:
    bad = Stats(answer="bad", why="html")
    run = Run().until(60).until(100, start=70, stats=bad).until(110, start=110).until(690, start=120, stats=bad)
    run.until(2000, start=700)
    assert [(e.kind, e.t - START_T) for e in run.events][1:] == [
        ("BLIND", 80), ("SEEING", 110), ("BLIND", 680), ("SEEING", 710)]  # fmt: skip


def test_a_stall_that_ended_is_told_to_have_ended() -> None:
    def halts(t: float) -> Stats:
        return ok(1, n=100 if t < 140 else min(t, 600) if t < 700 else t)

    run = Run(NINFER).until(2000, stats=halts, clients=CLIENT, host=GPU)
    assert [(e.kind, e.t - START_T) for e in run.events][1:] == [
        ("STALL", 80), ("PROGRESS", 140), ("STALL", 680), ("PROGRESS", 740)]  # fmt: skip


def test_down_again_right_after_it_was_up_is_told_again_at_once() -> None:
    down = UnitSeen(active="failed")
    planned = JournalSeen(stopping_t=START_T + 400)
    run = Run().until(60).until(100, start=70, unit=down).until(200, start=110, unit=other_pid(78, 105))
    run.until(300, start=210, unit=down)
    assert [(e.kind, e.t - START_T) for e in run.events if e.kind == "DEAD"] == [("DEAD", 70), ("DEAD", 210)]
    run.until(390, start=310, unit=other_pid(79, 305)).until(440, start=400, unit=down, journal=planned)
    assert run.kinds()[-1] == "STOPPED"


# --- the third round


def test_a_token_of_any_canary_starts_the_count_of_misses_again() -> None:
    run = Run(replace(PATIENCE, idle_canary_s=300.0, cpu_is_evidence=False)).until(320)
    assert run.state.missed == 1
    run.ends["canary"] = "token"
    run.until(520, start=330, stats=ok(1), clients=CLIENT)
    assert (run.kinds()[-1], run.state.missed) == ("PHANTOM", 0)
    run.ends["canary"] = "none"
    run.until(860, start=530)
    assert "F" not in [e.wclass for e in run.events]


def test_a_canary_that_a_d_state_outran_hides_no_progress() -> None:
    run = Run(replace(PATIENCE, cpu_is_evidence=False)).until(60, stats=decoding, clients=CLIENT)
    run.until(240, start=70, stats=HANG, clients=CLIENT)
    assert run.state.canary_out
    run._done = ()
    run.until(260, start=250, stats=HANG, clients=CLIENT, host=HostSeen(hot=0, gpu=True, d_tids=(11,)))
    assert (run.state.stage, run.state.canary_out) == ("standing", False)
    line = JournalSeen(progress_t=START_T + 265, any_t=START_T + 265)
    run.until(270, start=270, stats=HANG, clients=CLIENT, journal=line)
    assert run.kinds()[-1] == "RESUMED"


def test_a_journal_that_was_written_once_does_not_speak_for_counters_that_cannot() -> None:
    run = Run(LLAMA).until(60, stats=OLD).until(900, start=70, stats=OLD, clients=CLIENT, host=GPU)
    assert (run.restarts(), [kind for kind in run.kinds() if kind == "ARMED"]) == ([], [])
    assert "BLIND" in run.kinds()


@pytest.mark.parametrize("what", ["gap", "checker"])
def test_moments_that_nobody_saw_put_off_no_alert_for_good(what: str) -> None:
    loads: dict[str, Any] = {"health": Health(answer="loading"), "stats": Stats(answer="loading"),
                             "journal": JournalSeen()}  # fmt: skip
    run, t = Run(), 0.0
    for n in range(200):
        t += 40 if what == "gap" and n % 50 == 49 else 10
        run.feed(poll(t, **loads, checker="OSError" if what == "checker" and n % 50 == 49 else None))
    assert "LOADING" in run.kinds()
    assert 900 < run.at("LOADING") < 1000
    assert run.state.seen_s(START_T, START_T + t) == t - (4 * 40 if what == "gap" else 4 * 10)


def test_what_could_not_be_judged_is_told_in_the_next_incident_too() -> None:
    run = Run(NINFER).until(60, stats=decoding, clients=CLIENT, host=GPU)
    run.until(210, start=70, stats=ok(1, n=3600), clients=CLIENT, host=GPU)
    run.until(400, start=220, stats=ok(1, n=3600), clients=None, host=GPU)
    run.until(3700, start=410, stats=lambda t: ok(1, n=t * 60), clients=CLIENT, host=GPU)
    run.until(3860, start=3710, stats=ok(1, n=9e5), clients=CLIENT, host=GPU)
    run.until(6000, start=3870, stats=ok(1, n=9e5), clients=None, host=GPU)
    told = [e.t - START_T for e in run.events if "can't be judged any more" in e.text]
    assert len(told) == 2


def test_a_fatal_line_of_the_next_process_is_told_at_once_and_none_is_lost() -> None:
    def seen(fatal: float) -> JournalSeen:
        return JournalSeen(ready_t=START_T + 1, fatal_t=START_T + fatal, any_t=START_T + fatal)

    run = Run().until(60).until(100, start=70, journal=seen(70)).until(200, start=110, journal=seen(105))
    run.until(800, start=210, journal=seen(105))
    assert [e.t - START_T for e in run.events if e.kind == "FATAL"] == [70, 670]
    run = Run().until(60).until(100, start=70, journal=seen(70))
    run.until(290, start=110, unit=other_pid(78, 105)).until(320, start=300, unit=other_pid(78, 105), journal=seen(300))
    assert [e.t - START_T for e in run.events if e.kind == "FATAL"] == [70, 300]


def test_what_a_canary_moved_that_got_its_token_gives_no_bound_back() -> None:
    run = Run(replace(PATIENCE, cpu_is_evidence=False), canary="token").until(60, stats=decoding, clients=CLIENT)
    n = 3600.0
    for t in range(70, 3000, 10):
        before = len(run.actions)
        run.feed(poll(t, stats=ok(1, n=n), clients=CLIENT))
        n += 2 if run.actions[before:] and run.actions[-1][1] == "canary" else 0
    assert [t for t, action in run.actions if action == "capture"] == [210, 550, 1190, 2430]


def test_a_phantom_stretches_no_bound_but_that_of_stale_gauges() -> None:
    run = Run(canary="token").until(60, stats=decoding, clients=CLIENT)
    run.until(300, start=70, stats=ok(1, n=3600), clients=CLIENT)
    assert run.state.proofs == 1
    run.until(400, start=310).until(900, start=410, health=ERROR)
    assert [e.t - START_T for e in run.events if e.kind == "ARMED"] == [210, 410 + 150]


def test_idle_stats_and_a_health_probe_that_hangs_are_no_class_e() -> None:
    log = RequestsSeen(open=1, oldest_t=START_T + 65, done=3)
    run = Run(NINFER, canary="inconclusive").until(60, host=GPU)
    run.until(900, start=70, host=GPU, health=SILENT, clients=CLIENT, requests=log)
    assert (run.restarts(), {e.wclass for e in run.events if e.kind == "ARMED"}) == ([], {"A"})
