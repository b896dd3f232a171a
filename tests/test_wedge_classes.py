"""The classes beside A, C, D and E: B and F on their way to a restart; G, STARVED and CRASHLOOP, which only alert; a
queue that is worked; what a request log adds. Each test is a short recording and its right answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from inferops.core.poll import Done, Health, HostSeen, JournalSeen, Poll, RequestsSeen, Stats, UnitSeen
from tests.polls import CLIENT, HANG, PATIENCE, READY, START_T, Run, ok, poll
from tests.test_wedge import WAY, decoding

GPU = HostSeen(hot=8, gpu=True)
NINFER = replace(PATIENCE, cpu_is_evidence=False, counters_move_in_prefill=False, canary_moves_at_most=64.0)
IDLE_CANARY = replace(PATIENCE, idle_canary_s=300.0)
NEW = ("127.0.0.1:40999",)


def gauges(active: int = 0, queued: int = 0, stuck: int = 0, n: float = 100.0, **more: Any) -> Stats:
    return Stats(answer="ok", active=active, queued=queued, stuck=stuck, counters={"rounds": n}, **more)


def lines(every: float, since: float = 0.0, kind: str = "working_t", until: float = 1e9) -> Any:
    """A journal in which a line of `kind` comes each `every` seconds from `since` to `until`."""

    def seen(t: float) -> JournalSeen:
        t = min(t, until)
        at = {kind: START_T + since + (t - since) // every * every} if t >= since else {}
        return JournalSeen(**({"ready_t": START_T + 1.0, "any_t": START_T + t} | at))

    return seen


# --- B


def test_class_b_is_work_between_queue_and_engine_with_nothing_running() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.until(400, start=70, stats=ok(queued=1, n=3600), clients=CLIENT)
    assert [e.wclass for e in run.events if e.kind == "WEDGE"] == ["A"]
    stuck = Stats(answer="ok", active=0, queued=1, stuck=1, counters={"n_decode_total": 3600.0})
    run = Run().until(60, stats=decoding, clients=CLIENT).until(400, start=70, stats=stuck, clients=CLIENT)
    assert [e.wclass for e in run.events if e.kind == "WEDGE"] == ["B"]
    assert run.at("ARMED") == 60 + 150
    assert "gauges 0 active 1 queued 1 between" in run.events[-1].text
    assert len(run.restarts()) == 1


def test_one_that_is_stuck_beside_running_work_is_class_c() -> None:
    run = Run().until(20).until(400, start=30, stats=gauges(active=1, stuck=1), clients=CLIENT)
    assert [e.wclass for e in run.events if e.kind == "WEDGE"] == ["C"]


def test_only_stuck_work_is_work_and_its_end_is_the_end() -> None:
    run = Run().until(20).until(400, start=30, stats=gauges(stuck=1), clients=CLIENT)
    assert [e.wclass for e in run.events if e.kind == "WEDGE"] == ["B"]
    run = Run().until(20).until(200, start=30, stats=gauges(stuck=1), clients=CLIENT).until(900, start=210)
    assert (run.kinds()[-1], run.restarts()) == ("RESUMED", [])


# --- a queue that is being worked


def test_a_worked_queue_is_progress_for_relief_max_and_no_longer() -> None:
    run = Run(NINFER).until(60, stats=decoding, clients=CLIENT, host=GPU)
    waiting = ok(queued=1, n=3600)
    run.until(660, start=70, stats=waiting, clients=CLIENT, host=GPU, journal=lines(15, 60))
    assert run.kinds() == ["READY"]
    run.until(1200, start=670, stats=waiting, clients=CLIENT, host=GPU, journal=lines(15, 60))
    # the last line that counts is the one at or before 60 + 600: then `stall_s`, and at most a poll
    assert run.at("ARMED") == 660 + 150
    assert [e.wclass for e in run.events if e.kind == "WEDGE"] == ["A"]


def test_a_worked_queue_that_admits_its_request_was_healthy() -> None:
    run = Run(NINFER).until(60, stats=decoding, clients=CLIENT, host=GPU)
    run.until(170, start=70, stats=ok(queued=1, n=3600), clients=CLIENT, host=GPU, journal=lines(15, 60))
    run.until(900, start=180, stats=lambda t: ok(active=1, n=3600 + t), clients=CLIENT, host=GPU)
    assert run.kinds() == ["READY"]


def test_each_real_progress_gives_the_queue_its_time_again() -> None:
    run = Run(NINFER).until(60, stats=decoding, clients=CLIENT, host=GPU)
    run.until(490, start=70, stats=ok(queued=1, n=3600), clients=CLIENT, host=GPU, journal=lines(15, 60))
    run.until(1100, start=500, stats=ok(queued=1, n=3700), clients=CLIENT, host=GPU, journal=lines(15, 60))
    assert run.kinds() == ["READY"]


def test_one_old_line_of_a_worked_queue_counts_once() -> None:
    run = Run(NINFER).until(60, stats=decoding, clients=CLIENT, host=GPU)
    run.until(500, start=70, stats=ok(queued=1, n=3600), clients=CLIENT, host=GPU, journal=lines(15, 60, until=90))
    assert run.at("ARMED") == 90 + 150


# --- counters that stand still in a prefill


def test_flat_counters_of_such_an_engine_say_nothing_without_its_journal() -> None:
    prefill = ok(active=1, n=3600)
    run = Run(NINFER).until(60, stats=decoding, clients=CLIENT, host=GPU)
    run.until(2000, start=70, stats=prefill, clients=CLIENT, host=GPU, journal=None)
    assert run.restarts() == []
    assert "ARMED" not in run.kinds()
    assert "BLIND" in run.kinds()
    assert "counters stand still in a prefill here" in next(e.text for e in run.events if e.kind == "BLIND")
    run = Run(replace(NINFER, counters_move_in_prefill=True)).until(60, stats=decoding, clients=CLIENT, host=GPU)
    run.until(400, start=70, stats=prefill, clients=CLIENT, host=GPU, journal=None)
    assert len(run.restarts()) == 1


def test_its_rate_lines_keep_a_cold_prefill_of_minutes_alive() -> None:
    run = Run(NINFER).until(60, stats=decoding, clients=CLIENT, host=GPU)
    run.until(1500, start=70, stats=ok(active=1, n=3600), clients=CLIENT, host=GPU, journal=lines(5, 60, "progress_t"))
    assert run.kinds() == ["READY"]


# --- what a request log adds


def log(**seen: Any) -> RequestsSeen:
    return RequestsSeen(**seen)


def test_a_request_that_ended_with_tokens_is_progress_at_its_own_time() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.until(400, start=70, stats=HANG, clients=CLIENT, requests=log(done=1, done_t=START_T + 65, open=1))
    assert run.at("ARMED") == 220  # the first poll at or over 65 + 150
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.until(900, start=70, stats=HANG, clients=CLIENT,
              requests=lambda t: log(done=int(t), done_t=START_T + t - 3, open=1))  # fmt: skip
    assert run.kinds() == ["READY"]


def test_failed_and_cancelled_requests_are_no_progress() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.until(400, start=70, stats=HANG, clients=CLIENT,
              requests=lambda t: log(failed=0, other=int(t), open=1))  # fmt: skip
    assert run.at("ARMED") == 60 + 150


def test_an_accepted_request_that_is_never_scheduled_is_class_a_though_gauges_are_zero() -> None:
    run = Run().until(60)
    lost = log(open=1, oldest_t=START_T + 65)
    run.until(500, start=70, clients=NEW, requests=lost)
    assert [e.wclass for e in run.events if e.kind == "WEDGE"] == ["A"]
    assert run.at("ARMED") == 70 + 150
    assert "1 request without an end in the request log, 1 client connection" in run.events[-1].text


def test_without_a_request_log_the_same_is_not_seen_by_default() -> None:
    run = Run().until(60).until(2000, start=70, clients=NEW)
    assert run.kinds() == ["READY"]


@pytest.mark.parametrize(("clients", "told"), [((), False), (CLIENT, True)])
def test_a_request_lost_from_the_log_alone_restarts_nothing(clients: tuple[str, ...], told: bool) -> None:
    run = Run().until(60, clients=CLIENT)
    run.until(2000, start=70, clients=clients, requests=log(open=1, oldest_t=START_T + 65))
    assert run.restarts() == []
    assert ("BLIND" in run.kinds()) == told


def test_a_request_that_a_canarys_token_came_after_is_lost_not_waiting() -> None:
    run = Run(canary="token").until(60).until(3000, start=70, clients=NEW, requests=log(open=1, oldest_t=START_T + 65))
    assert run.kinds().count("ARMED") == 1
    assert "PHANTOM" in run.kinds()
    assert run.restarts() == []


def test_requests_that_are_counted_as_open_but_stand_in_no_gauge_are_queued() -> None:
    stats = Stats(answer="ok", active=0, queued=0, open=3, counters={"n": 5.0})
    run = Run().until(20).until(400, start=30, stats=stats, clients=CLIENT)
    assert [e.wclass for e in run.events if e.kind == "WEDGE"] == ["A"]
    assert "0 active 3 queued" in run.events[-1].text
    within = Stats(answer="ok", active=2, queued=1, open=3, counters={"n": 5.0})
    run = Run().until(20).until(400, start=30, stats=within, clients=CLIENT)
    assert "2 active 1 queued" in run.events[-1].text


# --- F


def test_class_f_two_canaries_without_a_token_on_an_idle_server() -> None:
    run = Run(IDLE_CANARY).until(2000)
    assert run.kinds() == ["READY", "CANARY", "CANARY", "ARMED", "CAPTURED", "CANARY", "STACKS", "WEDGE"]
    assert [a for _, a in run.actions] == ["canary", "canary", "capture", "stacks", "restart"]
    first, second = [t for t, a in run.actions if a == "canary"]
    assert first == 310  # the first poll `idle_canary_s` after this process was ready, at 1
    assert second - first == 70  # 60 s after the first one's end was heard of
    assert run.at("ARMED") == second + 10
    assert {e.wclass for e in run.events if e.kind in ("ARMED", "WEDGE")} == {"F"}
    assert [e.text for e in run.events if e.kind == "CANARY"][2] == "not sent: 2 were"


def test_class_f_is_off_unless_asked_for() -> None:
    assert Run(canary="none").until(9000).actions == []


def test_a_canarys_token_says_that_an_idle_server_is_well_and_is_no_event() -> None:
    run = Run(IDLE_CANARY, canary="token").until(3600)
    assert run.kinds() == ["READY"]
    assert [t for t, _ in run.actions] == [310 + 310 * n for n in range(11)]


def test_a_token_after_a_miss_is_told_and_starts_again() -> None:
    run = Run(IDLE_CANARY, canary="none").until(320)
    run.ends["canary"] = "token"
    run.until(660, start=330)
    assert run.kinds() == ["READY", "CANARY", "CANARY"]
    assert "answers again" in run.events[-1].text
    assert run.state.missed == 0


def test_an_inconclusive_canary_counts_for_nothing() -> None:
    run = Run(IDLE_CANARY, canary="inconclusive").until(3600)
    assert set(run.kinds()) == {"READY", "CANARY"}
    assert run.restarts() == []


def test_no_canary_goes_to_a_server_at_work_nor_to_a_stranger() -> None:
    assert Run(IDLE_CANARY).until(3600, stats=decoding, clients=CLIENT).actions == []
    assert Run(IDLE_CANARY).until(60).until(3600, start=70, owner="other").actions == []
    assert Run(IDLE_CANARY).until(60).until(250, start=70, stats=HANG).actions == []
    assert Run(replace(IDLE_CANARY, canary=False)).until(3600).actions == []


def test_progress_between_the_two_canaries_starts_again() -> None:
    run = Run(IDLE_CANARY).until(320)
    assert run.state.missed == 1
    run.feed(poll(330, stats=ok(n=500)))
    assert run.state.missed == 0
    run.until(620, start=340, stats=ok(n=500))
    assert [t for t, _ in run.actions] == [310]


def test_what_a_canary_to_an_idle_server_left_in_the_gauges_is_no_stall_and_no_phantom() -> None:
    run = Run(IDLE_CANARY).until(310)
    run.until(2000, start=320, stats=ok(active=1, n=2.0))
    assert [e.wclass for e in run.events if e.kind == "WEDGE"] == ["F"]
    assert not {"STALL", "PHANTOM", "BLIND"} & set(run.kinds())


def test_never_two_canaries_are_out() -> None:
    run = Run(IDLE_CANARY).until(310)
    run._done = ()  # it is still out
    run.until(1500, start=320)
    assert [a for _, a in run.actions] == ["canary"]


def test_the_end_of_a_canary_is_heard_beside_progress() -> None:
    run = Run(IDLE_CANARY, canary="token").until(310)
    assert run.state.canary_out
    run.feed(poll(320, stats=ok(n=900)))
    assert not run.state.canary_out


# --- G


def failing(
    every: float = 20.0, since: float = 70.0, until: float = 1e9, **more: Any
) -> Callable[[float], RequestsSeen]:
    """A request log in which a request fails each `every` seconds from `since` on."""

    def seen(t: float) -> RequestsSeen:
        n = 0 if t < since else int((min(t, until) - since) // every) + 1
        last = None if not n else START_T + since + (n - 1) * every
        first = None if not n else START_T + since
        return RequestsSeen(**({"failed": n, "failed_t": last, "failing": n, "failing_t": first, "open": 0} | more))

    return seen


def test_class_g_alerts_when_every_request_fails_for_the_bound_and_restarts_nothing() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT, requests=log(open=0))
    run.until(2000, start=70, clients=CLIENT, requests=failing(), stats=ok(n=3600))
    assert run.kinds() == ["READY", "FAILING"]
    assert run.at("FAILING") == 230, "the first failure at or after the bound: at 210 they went on for 140 s"
    assert "each of the last 9 requests ended in a server error, for 160 s" in run.events[-1].text
    assert run.events[-1].level == "alert"


def test_class_g_needs_three_failures() -> None:
    run = Run().until(60, requests=log(open=0)).until(2000, start=70, requests=failing(until=90))
    assert run.kinds() == ["READY"]
    run = Run().until(60, requests=log(open=0)).until(2000, start=70, requests=failing(every=2, until=74))
    assert run.kinds() == ["READY"], "one request with its two retries, and then nobody asks"
    run = Run().until(60, requests=log(open=0)).until(2000, start=70, requests=failing(every=100))
    assert run.at("FAILING") == 70 + 200


def with_done(t: float) -> RequestsSeen:
    """One request in a hundred seconds is answered."""
    return failing(since=70.0 + t // 100 * 100 if t >= 100 else 70.0)(t)


@pytest.mark.parametrize(
    "token",
    [
        {"requests": with_done},
        {"stats": lambda t: Stats(answer="ok", active=0, queued=0, generated=t)},
    ],
)
def test_class_g_not_while_tokens_come_out(token: dict[str, Any]) -> None:
    parts: dict[str, Any] = {"requests": failing(), "stats": ok(n=3600)} | token
    run = Run().until(60, requests=log(open=0)).until(2000, start=70, **parts)
    assert "FAILING" not in run.kinds()


def test_class_g_is_not_undone_by_prefills_that_end_in_failures() -> None:
    run = Run().until(60, requests=log(open=0))
    run.until(400, start=70, requests=failing(), stats=lambda t: ok(active=1, n=t), clients=CLIENT)
    assert run.at("FAILING") == 230


def test_class_g_never_counts_a_clients_error() -> None:
    run = Run().until(60, requests=log(open=0)).until(2000, start=70, requests=lambda t: log(other=int(t), open=0))
    assert run.kinds() == ["READY"]


def test_class_g_is_told_again_only_after_it_was_over() -> None:
    run = Run().until(60, requests=log(open=0)).until(400, start=70, requests=failing())
    run.until(1100, start=410, requests=log(open=0, done=1, done_t=START_T + 405))
    run.until(1500, start=1110, requests=failing(since=1110))
    assert [e.t - START_T for e in run.events if e.kind == "FAILING"] == [230, 1270]


# --- STARVED


@pytest.mark.parametrize(
    "age",
    [
        {"requests": log(open=2, oldest_t=START_T + 30)},
        {"stats": lambda t: msgspec.structs.replace(ok(active=1, queued=14, n=t), tasks=("7",))},
        {"stats": lambda t: msgspec.structs.replace(ok(active=1, queued=14, n=t), ended=40)},
    ],
)
def test_starved_is_told_beside_progress_at_request_max_and_restarts_nothing(age: dict[str, Any]) -> None:
    parts: dict[str, Any] = {"stats": lambda t: ok(active=1, queued=14, n=t), "clients": CLIENT} | age
    run = Run().until(20).until(5000, start=30, **parts)
    assert run.kinds() == ["READY", "STARVED"]
    assert 30 + 900 - 10 <= run.at("STARVED") <= 30 + 900
    assert run.restarts() == []


def test_requests_that_come_and_go_starve_nobody() -> None:
    busy: dict[str, Any] = {
        "stats": lambda t: msgspec.structs.replace(
            ok(active=1, queued=14, n=t), tasks=(str(int(t) // 300),), ended=int(t) // 300
        ),
        "clients": CLIENT,
        "requests": lambda t: log(open=2, oldest_t=START_T + t - 300),
    }
    assert Run().until(20).until(5000, start=30, **busy).kinds() == ["READY"]


def test_an_old_request_without_progress_is_a_wedge_and_not_starved() -> None:
    run = Run(canary="none").until(60, stats=decoding, clients=CLIENT)
    run.until(3000, start=70, stats=ok(active=1, n=3600), clients=CLIENT, requests=log(open=1, oldest_t=START_T + 50))
    assert "STARVED" not in run.kinds()
    assert "WEDGE" in run.kinds()


def test_a_request_without_end_in_the_log_starves_nobody_where_nobody_is_connected() -> None:
    run = Run().until(20).until(3000, start=30, stats=lambda t: ok(n=t), requests=log(open=1, oldest_t=START_T + 5))
    assert run.kinds() == ["READY"]


# --- CRASHLOOP


def up(pid: int, start: float, restarts: int) -> UnitSeen:
    return UnitSeen(active="active", sub="running", main_pid=pid, start_t=START_T + start, restarts=restarts)


def crashing(every: float, first: int = 0) -> Any:
    def unit(t: float) -> UnitSeen:
        n = int(t // every)
        return up(100 + n, n * every, first + n)

    return unit


def loops(run: Run) -> list[str]:
    return [e.text for e in run.events if e.kind == "CRASHLOOP"]


def test_crashloop_is_told_at_the_third_restart_in_30_minutes_and_its_processes_are_no_news_from_then_on() -> None:
    run = Run().until(600, unit=crashing(100), journal=lambda t: JournalSeen(ready_t=START_T + t))
    assert run.at("CRASHLOOP") == 300
    assert len(loops(run)) == 1
    assert "3 times in 200 s, now 3 in all" in loops(run)[0]
    told = [e.kind for e in run.events if e.t > START_T + 300]
    assert told.count("STARTED") + told.count("READY") <= 2
    assert run.restarts() == []


def test_two_restarts_or_three_in_an_hour_are_no_loop() -> None:
    assert loops(Run().until(290, unit=crashing(100))) == []
    assert loops(Run().until(7200, unit=crashing(1000))) == []


def test_a_counter_that_was_there_before_us_is_no_loop_and_one_that_falls_starts_again() -> None:
    assert loops(Run().until(290, unit=crashing(100, first=9))) == []
    run = Run().until(250, unit=crashing(100, first=9))
    run.until(540, start=260, unit=lambda t: up(300, 255, 0))
    assert loops(run) == []


def test_a_counter_that_jumps_between_two_polls_counts_whole() -> None:
    run = Run().until(50).until(100, start=60, unit=up(78, 55, 5))
    assert run.at("CRASHLOOP") == 60


def test_a_loop_seen_between_processes_counts_too() -> None:
    run = Run().until(20)
    for i in range(4):
        down = UnitSeen(active="activating", sub="auto-restart", main_pid=0, restarts=i)
        run.feed(poll(30 + 10 * i, unit=down, health=Health(answer="refused"), owner="nobody", stats=HANG))
    assert run.at("CRASHLOOP") == 60


# --- an answer of a moment long past, memory, instance ids


def test_a_health_answer_older_than_a_poll_is_no_answer() -> None:
    late = Health(answer="unavailable", code=503, latency_s=11.0)
    assert "ARMED" not in Run().until(20).until(900, start=30, health=late).kinds()
    slow = Health(answer="unavailable", code=503, latency_s=9.0)
    assert "ARMED" in Run().until(20).until(900, start=30, health=slow).kinds()


@pytest.mark.parametrize(("pages", "told"), [(9_999, False), (825_669, True)])
def test_memory_compaction_is_told_with_the_class(pages: int, told: bool) -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.until(210, start=70, stats=HANG, clients=CLIENT, host=HostSeen(hot=0, gpu=False, compacted=pages))
    assert run.kinds()[-1] == "ARMED"
    assert ("compacts memory, 825,669 pages" in run.events[-1].text) == told


def test_another_instance_under_the_same_pid_is_another_server() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT, instance="a")
    run.until(200, start=70, stats=HANG, clients=CLIENT)  # unknown: still the same
    run.until(500, start=210, stats=ok(active=1, n=3600), clients=CLIENT, instance="b")
    assert run.kinds() == [
        "READY",
        "STALL",
        "STARTED",
        "READY",
        "ARMED",
        "CAPTURED",
        "CANARY",
        "STACKS",
        "WEDGE",
    ]
    assert "another instance id" in next(e.text for e in run.events if e.kind == "STARTED")
    armed = run.at("ARMED")
    assert armed == 210 + 150


def test_a_late_load_says_whether_it_still_reads_from_disk() -> None:
    loading: dict[str, Any] = {
        "health": Health(answer="loading"),
        "stats": Stats(answer="loading"),
        "journal": JournalSeen(),
    }
    run = Run().until(1000, host=HostSeen(read_mb=812.4), **loading)
    assert "812 MB read from disk since the last poll" in next(e.text for e in run.events if e.kind == "LOADING")


def test_the_way_is_the_same_for_a_class_that_is_seen_through_ends_alone() -> None:
    run = Run().until(60, stats=decoding, clients=CLIENT)
    run.until(400, start=70, stats=HANG, clients=CLIENT, requests=log(done=3, done_t=START_T + 60, open=1))
    assert run.kinds() == WAY
    done: tuple[Done, ...] = ()
    assert isinstance(poll(1, done=done, health=READY), Poll)


@pytest.mark.parametrize(("open_", "restarts"), [(0, 0), (None, 1), (1, 1)])
def test_gauges_left_over_before_any_idle_answer_are_told_apart_by_the_request_log(
    open_: int | None, restarts: int
) -> None:
    """All clients of a young process left at once, a proxy keeps its connections: nobody ever saw it idle."""
    requests = log(open=open_, oldest_t=START_T + 5 if open_ else None)
    run = Run(NINFER).until(400, stats=gauges(106, 15), clients=CLIENT, host=GPU, requests=requests,
                            journal=lines(10, kind="any_t"))  # fmt: skip
    assert len(run.restarts()) == restarts
    assert ("BLIND" in run.kinds()) == (not restarts)
