"""The simulated engine in virtual time: how a request goes through it, and the shape of every fault as the sentinel
reads it: through the ninfer profile."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from inferops.core import profile as profiles
from inferops.sim import steps
from inferops.sim.faults import FAULTS
from inferops.sim.jobs import Job
from inferops.sim.model import SESSIONS_MAX, Config, Model, Rejected, Request

PROFILE = profiles.load("ninfer")
T0 = 3_600_000.0  # six weeks of uptime: a clock whose steps are coarser than a token's rounding
MANY = 100_000  # steps that no advance here needs: one more is a hang


class Rig:
    """A model that has just become ready, and its present."""

    def __init__(self, t0: float = T0, **config: Any) -> None:
        self.model, self.t = Model(Config(**config), seed=1, now=t0), t0
        self.go(self.model.config.load_s)
        self.model.listen(self.t)
        self.news()

    def go(self, seconds: float, step: float = 0.25) -> Rig:
        end = self.t + seconds
        while self.t < end:
            self.t = min(end, self.t + step)
            self.model.advance(self.t)
        return self

    def ask(self, prompt: int = 50, tokens: int = 60, session: str = "", **more: Any) -> Job:
        asked = Request(prompt_tokens=prompt, max_tokens=tokens, session=session, **more)
        return self.model.request(self.model.submit(asked, self.t))

    def fault(self, name: str, **args: float) -> Rig:
        self.model.fault(name, self.t, **args)
        return self

    def news(self) -> list[str]:
        return [text for _, text in self.model.take_lines()]

    def kinds(self) -> set[str]:
        """What the profile takes the lines since the last look for; "other" left out."""
        return {str(PROFILE.journal_kind(text)) for text in self.news()} - {"other", "None"}

    def gauges(self) -> tuple[int | None, int | None, int | None]:
        """active, queued, stuck: as the profile reads /stats."""
        row = PROFILE.stats[0].read(json.dumps(self.model.stats(self.t)).encode(), "stats")
        return row.active, row.queued, row.stuck

    def counters(self) -> dict[str, int]:
        found: dict[str, int] = self.model.stats(self.t)["counters"]
        return found

    def works(self) -> bool:
        """Whether a new request gets its tokens."""
        job = self.ask(20, 3)
        self.go(5)
        return job.state == "done" and job.tokens_out == 3


# --- healthy


def test_a_request_goes_through_the_states_at_the_configured_rates() -> None:
    rig = Rig(prefill_tok_s=1000.0, decode_tok_s=10.0, materialize_s=0.5)
    job = rig.ask(2000, 31)
    seen = [job.state]
    for _ in range(80):
        rig.go(0.1, 0.1)
        if seen[-1] != job.state:
            seen.append(job.state)
    assert seen == ["materializing", "prefilling", "decoding", "done"]
    assert job.ttft == pytest.approx(2.5)
    assert job.total == pytest.approx(2.5 + 30 / 10)  # the prefill makes the first token
    assert (job.tokens_out, job.finish) == (31, "length")
    assert rig.counters()["computed_prefill_tokens"] == 2000
    assert rig.counters()["committed_decode_tokens"] == 31
    assert rig.gauges() == (0, 0, 0)


def test_it_comes_out_the_same_however_far_an_advance_goes() -> None:
    def run(step: float) -> tuple[list[str], list[str]]:
        rig = Rig(lanes=2)
        for n in range(6):
            rig.ask(3000 * (n + 1), 40 * (n + 1), f"s{n % 2}")
        rig.go(200, step)
        return rig.news(), [record["event"] for record in rig.model.take_records()]

    fine, coarse = run(0.05), run(200.0)
    assert len(fine[0]) >= 15
    assert fine == coarse


@pytest.mark.parametrize("t0", [0.0, 1.5e4, T0, 1e8, 1.8e9])
def test_it_never_stands_in_one_moment_of_a_coarse_clock(t0: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A remainder of 1e-8 tokens once was an event less than one step of the clock ahead, for ever."""
    count, real = 0, steps.one

    def counted(model: Model, now: float) -> bool:
        nonlocal count
        count += 1
        assert count < MANY, f"hangs at {model.t}"
        return real(model, now)

    monkeypatch.setattr(steps, "one", counted)
    rig, asked = Rig(t0), []
    for n in range(400):
        asked.append(rig.ask(10 + 37 * n % 4000, 1 + 13 * n % 300))
        rig.go(3.7, 0.3)
    rig.go(60)
    assert {job.state for job in asked} == {"done"}
    assert rig.counters()["committed_decode_tokens"] == sum(job.request.max_tokens for job in asked)
    count = 0
    rig.go(3_600_000, 3_600_000)
    assert count < 10, "idle time is to cost nothing"
    assert rig.news()[-1].startswith("throughput")


def test_lanes_bound_what_runs_and_the_queue_is_first_come() -> None:
    rig = Rig(lanes=2)
    jobs = [rig.ask(10, 120) for _ in range(5)]
    rig.go(1)
    assert rig.gauges() == (2, 3, 0)
    rig.go(15)
    ends = [job.t_end for job in jobs]
    assert None not in ends
    assert ends == sorted(ends, key=lambda end: end or 0.0)


def test_a_conversation_that_goes_on_finds_its_prefix_another_does_not() -> None:
    rig = Rig()
    rig.ask(10_000, 100, "story")
    rig.go(20)
    more, other = rig.ask(10_400, 10, "story"), rig.ask(10_400, 10, "another")
    rig.go(20)
    assert (more.cached, other.cached) == (10_100, 0)
    records = [r for r in rig.model.take_records() if r["event"] == "request_done"]
    assert [r["result"]["prefix_reuse_path"] for r in records] == ["root", "private_long_anchor", "root"]
    assert records[1]["result"]["computed_prefill_tokens"] == 300
    assert rig.model.stats(rig.t)["cache_reuse"]["reused_prompt_tokens"] == 10_100


def test_the_queue_gives_up_after_its_deadline() -> None:
    rig = Rig(lanes=1)
    rig.ask(10, 100, endless=True)
    waiting = rig.ask()
    rig.go(119)
    assert waiting.state == "queued"
    rig.go(2)
    ended = rig.model.request(waiting.id)
    assert (ended.state, ended.status) == ("failed", 408)
    assert ended.total == pytest.approx(120.0)
    assert "HTTP 408 | request_queue_timeout" in " ".join(rig.news())
    last = [PROFILE.requests.read(r) for r in rig.model.take_records() if PROFILE.requests][-2:]
    assert "failed" in {row.kind for row in last if row}  # since a82a667: over, and its client got nothing


def test_what_is_refused_and_how() -> None:
    rig = Rig(lanes=1, queue_max=2, max_context=1000)
    for asked, status in [(Request(prompt_tokens=1000, max_tokens=1), 400)]:
        with pytest.raises(Rejected) as got:
            rig.model.submit(asked, rig.t)
        assert (got.value.status, got.value.kind) == (status, "context_length_exceeded")
    clipped = rig.ask(990, 64_000)
    assert clipped.request.max_tokens == 10  # the answer ends where the context does
    rig.go(0.1)
    rig.ask(), rig.ask()
    with pytest.raises(Rejected) as full:
        rig.ask()
    assert (full.value.status, full.value.kind) == (429, "queue_full")
    assert rig.model.health(rig.t)[0] == 200  # a full queue is not unavailability
    assert [r["status"] for r in rig.model.take_records() if r["event"] == "request_rejected"] == [400, 429]
    loading = Model(Config(load_s=9.0), now=0.0)
    with pytest.raises(Rejected) as early:
        loading.submit(Request(prompt_tokens=1, max_tokens=1), 8.9)
    assert early.value.status == 503


@pytest.mark.parametrize("state", ["queued", "materializing", "prefilling", "decoding"])
def test_a_client_that_leaves_takes_its_request_along(state: str) -> None:
    rig = Rig(lanes=1, materialize_s=1.0)
    if state == "queued":
        rig.ask(10, 1000)
    job = rig.ask(5000, 1000)
    while job.state != state:
        rig.go(0.05, 0.05)
    rig.model.cancel(job.id, rig.t)
    assert job.state == "cancelled"
    rig.go(30)
    assert rig.gauges() == (0, 0, 0)
    ends = [
        PROFILE.requests.read(r) for r in rig.model.take_records() if PROFILE.requests and r["event"] == "request_error"
    ]
    assert [row.kind for row in ends if row] == ["other"]


@pytest.mark.parametrize("generation", [1, 2])
def test_rate_lines_are_progress_and_an_idle_interval_prints_none(generation: int) -> None:
    rig = Rig(generation=generation)
    rig.ask(20_000, 600)
    rig.go(12)
    lines = [line for line in rig.news() if line.startswith("throughput")]
    assert len(lines) == 2
    assert {PROFILE.journal_kind(line) for line in lines} == {"progress"}
    assert lines[0].startswith("throughput interval" if generation == 1 else "throughput |")
    rig.go(30)
    rig.news()
    rig.go(600)
    assert rig.news() == []


def test_batch_is_rows_a_round_of_the_interval_not_the_lanes_of_its_end() -> None:
    """150, 150 and 450 tokens, the first of each from its prefill: 149 rounds of three rows, 300 of one."""
    rig = Rig(decode_tok_s=100.0, prefill_tok_s=1e6, materialize_s=0.001)
    for tokens in (150, 150, 450):
        rig.ask(1, tokens)
    rig.go(5.1)
    (line,) = (line for line in rig.news() if line.startswith("throughput"))
    assert line.endswith("batch 1.66")
    (record,) = (r for r in rig.model.take_records() if r["event"] == "throughput")
    assert (record["decode_tok_s"], record["prefill_tok_s"]) == (pytest.approx(149.4, abs=0.2), 0.6)
    rig.ask(1, 100_000)
    rig.go(10.2)
    assert [line.rpartition("batch ")[2] for line in rig.news() if line.startswith("throughput")] == ["1.00"] * 2


def test_the_log_has_how_long_a_request_waited_for_a_lane() -> None:
    rig = Rig(lanes=1, decode_tok_s=10.0, prefill_tok_s=1e6, materialize_s=0.001)
    rig.ask(10, 31)
    rig.ask(10, 2)
    rig.go(5)
    waited = [r["engine_timing"] for r in rig.model.take_records() if r["event"] == "request_done"]
    assert [w["queue_wait_seconds"] for w in waited] == [0.0, pytest.approx(3.0, abs=0.01)]


def test_in_flight_is_all_that_was_taken_and_has_no_end() -> None:
    rig = Rig(lanes=2, materialize_s=1.0, queue_max=7)
    rig.ask(10, 5000)
    rig.go(1.5)
    for _ in range(4):
        rig.ask(10, 5000)
    stats = rig.model.stats(rig.t)
    assert {k: v for k, v in stats["scheduler"].items() if v} == {
        "running": 1, "decode_ready": 1, "materializing": 1, "waiting": 3}  # fmt: skip
    assert stats["http"] == {"in_flight": 5, "max_in_flight": 9}


def test_of_too_many_conversations_the_oldest_is_forgotten() -> None:
    rig = Rig(lanes=64, queue_max=200, prefill_tok_s=1e6, materialize_s=0.001)
    for n in range(SESSIONS_MAX + 1):
        rig.ask(100, 2, session=f"s{n}")
        rig.go(0.5)
    assert [rig.ask(200, 2, session=f"s{n}").cached for n in (0, 1, SESSIONS_MAX)] == [0, 102, 102]


def test_a_client_that_leaves_what_sticks_is_gone_once_it_is_mended() -> None:
    rig = Rig().fault("materializing-wedge")
    stuck, queued = rig.ask(10, 5), rig.ask(10, 5)
    rig.go(1)
    assert (stuck.state, queued.state) == ("materializing", "queued")
    for job in (stuck, queued):
        rig.model.cancel(job.id, rig.t)
    assert (stuck.state, stuck.gone, queued.state) == ("materializing", True, "cancelled")
    assert rig.gauges() == (0, 0, 1)
    rig.model.clear(rig.t)
    assert (stuck.state, rig.gauges()) == ("cancelled", (0, 0, 0))


def test_a_stop_fails_the_work_and_leaves_nothing_behind() -> None:
    rig = Rig()
    job = rig.ask(10, 1000)
    rig.go(1)
    rig.news()
    rig.fault("idle-wedge")
    lost = rig.ask(10, 1000)
    rig.model.shutdown(rig.t)
    lines = rig.news()
    assert (job.state, job.status) == ("failed", 503)
    assert lines[-2].startswith("[engine] fail-all cleanup: ")
    assert lines[-1].endswith(
        "(fail-all): main_kv_pages=0 backend_kv_pages=0 device_state_slots=0 host_state_slots=0 host_kv_bytes=0"
    )
    assert (lost.state, lost.status) == ("failed", 503), "whoever waits for it learns of the stop"
    with pytest.raises(Rejected) as late:
        rig.ask()
    assert late.value.status == 503
    assert rig.model.health(rig.t)[0] == 503
    rig.model.cancel(job.id, rig.t)
    rig.go(60)
    assert rig.news() == [], "those were the last lines"


# --- the faults


def standing(rig: Rig, seconds: float = 400.0) -> None:
    """No token, no counter, no line of progress for so long; /health as before."""
    rig.go(1)
    rig.kinds()
    before = rig.counters()
    rig.go(seconds)
    assert rig.counters() == before
    assert "progress" not in rig.kinds()
    assert rig.model.health(rig.t)[0] == 200


def queue_wedge() -> None:
    rig = Rig().fault("queue-wedge")
    rig.ask(), rig.ask()
    standing(rig)
    assert rig.gauges() == (0, 2, 0)


def relief_livelock() -> None:
    rig = Rig().fault("relief-livelock")
    rig.ask(10, 60)
    rig.go(1)
    before, seen = rig.counters(), 0
    for _ in range(60):  # a quarter of an hour, far over the engine's own queue deadline
        rig.go(15.5)
        kinds = rig.kinds()
        seen += "working" in kinds
        assert "progress" not in kinds
    assert seen >= 58
    assert rig.gauges() == (0, 1, 0)
    assert rig.counters() == before


def materializing_wedge() -> None:
    rig = Rig()
    rig.ask(10, 60)
    rig.go(0.1).fault("materializing-wedge")
    rig.ask(), rig.ask()
    rig.go(5)
    assert rig.gauges() == (0, 1, 1)
    standing(rig)
    assert rig.gauges() == (0, 1, 1)


def decode_wedge() -> None:
    rig = Rig()
    job = rig.ask(10, 600)
    rig.go(2).fault("decode-wedge")
    tokens = job.tokens_out
    standing(rig)
    assert 0 < tokens == job.tokens_out
    assert rig.gauges() == (1, 0, 0)
    assert not rig.model.holds_stats(rig.t)


def mutex_wedge() -> None:
    rig = Rig()
    rig.ask(10, 600)
    rig.go(2).fault("mutex-wedge")
    standing(rig)
    assert rig.model.holds_stats(rig.t)
    assert not rig.model.holds_health(rig.t)


def prefill_wedge() -> None:
    rig = Rig().fault("prefill-wedge")
    rig.ask(5000, 10)
    standing(rig)
    assert rig.model.stats(rig.t)["scheduler"]["prefilling"] == 1
    assert rig.news() == []


def unavailable() -> None:
    rig = Rig()
    lost = [rig.ask(10, 600) for _ in range(7)]
    rig.go(1).fault("unavailable")
    rig.go(300)
    assert {(job.state, job.status) for job in lost} == {("failed", 503)}
    assert rig.model.health(rig.t) == (503, {"status": "unavailable"})
    assert rig.gauges() == (0, 0, 0)
    assert not rig.model.holds_stats(rig.t)
    with pytest.raises(Rejected) as got:
        rig.ask()
    assert got.value.status == 503


def silent() -> None:
    rig = Rig()
    job = rig.ask(10, 600)
    rig.go(2).fault("silent")
    rig.news(), rig.model.take_records()
    late = rig.ask()
    rig.go(300)
    rig.model.cancel(job.id, rig.t)
    assert rig.model.holds_stats(rig.t)
    assert rig.model.holds_health(rig.t)
    assert rig.model.silent()
    assert late.tokens_out == 0
    assert (rig.news(), rig.model.take_records()) == ([], [])


def idle_wedge() -> None:
    rig = Rig().fault("idle-wedge")
    jobs = [rig.ask(10, 1), rig.ask(10, 1)]
    standing(rig)
    assert rig.gauges() == (0, 0, 0)
    assert [job.tokens_out for job in jobs] == [0, 0]


def failing() -> None:
    rig = Rig()
    rig.ask(10, 600)
    rig.go(1).fault("failing")
    made = rig.counters()["committed_decode_tokens"]
    for _ in range(20):
        rig.ask(10, 5)
        rig.go(10)
    rows = [PROFILE.requests.read(r) for r in rig.model.take_records() if PROFILE.requests]
    assert [row.kind for row in rows if row].count("failed") == 21
    assert rig.counters()["committed_decode_tokens"] - made <= 1
    assert "failed" in rig.kinds()


def runaway() -> None:
    rig = Rig()
    first = rig.ask(10, 60)
    rig.go(0.5).fault("runaway")
    behind = rig.ask(10, 60)
    rig.go(110)
    assert rig.gauges() == (1, 1, 0)
    rig.go(3000)
    assert first.tokens_out > 60_000
    assert (first.state, behind.status) == ("decoding", 408)
    assert "progress" in rig.kinds()


def long_prefill() -> None:
    rig = Rig().fault("long-prefill", seconds=150)
    job = rig.ask(1000, 5)
    rig.go(1)
    before, rig_lines = rig.counters(), 0
    for _ in range(28):
        rig.go(5.2)
        rig_lines += "progress" in rig.kinds()
        assert rig.counters() == before
        assert rig.gauges() == (1, 0, 0)
    assert rig_lines == 28
    rig.go(10)
    assert job.state == "done"
    assert job.ttft == pytest.approx(150, abs=0.1)


@pytest.mark.parametrize("prompt", [1, 10, 18, 1000, 250_000])
@pytest.mark.parametrize("generation", [1, 2])
def test_the_rate_lines_of_a_long_prefill_add_up_to_its_prompt(prompt: int, generation: int) -> None:
    rig = Rig(generation=generation).fault("long-prefill", seconds=47)
    rig.ask(prompt, 5)
    rig.go(60)
    rates = [r["prefill_tok_s"] for r in rig.model.take_records() if r["event"] == "throughput"]
    assert sum(rates) * rig.model.config.throughput_s == pytest.approx(prompt, abs=0.05 * 5 * len(rates))
    if generation == 2:
        told = re.findall(r"prefill \S+ tok/s \(([\d,]+) tok\)", "\n".join(rig.news()))
        assert sum(int(tokens.replace(",", "")) for tokens in told) == prompt


def held(name: str, holds: Callable[[Rig], bool]) -> Callable[[], None]:
    def shape() -> None:
        rig = Rig()
        job = rig.ask(10, 2400)
        rig.go(1).fault(name, seconds=30)
        rig.go(29)
        assert holds(rig)
        assert "progress" in rig.kinds()
        rig.go(2)
        assert not holds(rig)
        assert job.state == "decoding"

    return shape


def page_relief() -> None:
    rig = Rig().fault("page-relief")
    job = rig.ask(100, 5)
    rounds = 0
    for _ in range(7):
        rig.go(15.5)
        kinds = rig.kinds()
        rounds += "working" in kinds
        assert "progress" not in kinds
        assert rig.gauges() == (0, 1, 0)
    assert rounds == 7
    rig.go(10)
    assert job.state == "done"
    assert job.queued_s == pytest.approx(112.0)


@pytest.mark.parametrize("seconds", [119.0, 120.0, 121.0, 500.0])
def test_a_queue_that_is_worked_is_admitted_however_long_that_took(seconds: float) -> None:
    rig = Rig(lanes=1).fault("page-relief", seconds=seconds)
    first, second = rig.ask(100, 5), rig.ask(100, 12_000)
    third = rig.ask(100, 5)
    rig.go(seconds + 5)
    assert (first.state, second.state, third.state) == ("done", "decoding", "queued")
    assert first.queued_s == pytest.approx(seconds)
    rig.go(121)
    assert third.status == 408, "from there on the limit is the queue's own"


def phantom() -> None:
    rig = Rig(lanes=2)
    jobs = [rig.ask(10, 600) for _ in range(5)]
    rig.go(1).fault("phantom")
    assert {job.state for job in jobs} == {"cancelled"}
    rig.go(3600)
    assert rig.gauges() == (106, 15, 0)
    assert rig.works()
    assert rig.gauges() == (0, 0, 0)


def burst() -> None:
    rig = Rig().fault("http-500-burst", count=3)
    states = []
    for _ in range(5):
        job = rig.ask(10, 3)
        rig.go(1)
        states.append((job.state, job.status))
    assert states == [("failed", 500)] * 3 + [("done", 0)] * 2


def recovery(name: str, first: str, zero: bool) -> Callable[[], None]:
    def shape() -> None:
        rig = Rig()
        jobs = [rig.ask(10, 600) for _ in range(6)]
        rig.go(1)
        rig.news()
        rig.fault(name)
        lines = rig.news()
        assert lines[0].startswith(first)
        assert "post-recovery residual (recover): main_kv_pages=" in lines[-1]
        assert ("main_kv_pages=0 " in lines[-1] and lines[-1].endswith("host_kv_bytes=0")) is zero
        assert not {"fatal", "progress"} & {str(PROFILE.journal_kind(line)) for line in lines}
        assert {(job.state, job.status) for job in jobs} == {("failed", 500)}
        assert rig.works()

    return shape


def contamination() -> None:
    rig = Rig().fault("contamination")
    one = rig.ask(10, 300, "alpha")
    rig.go(1)
    two = rig.ask(10, 10, "beta")
    rig.go(10)
    assert (one.marker, two.marker) == ("alpha", "alpha")
    rig.go(10)
    after = rig.ask(10, 10, "gamma")  # and where nobody else is running: of who was answered last
    rig.go(5)
    assert after.marker == "alpha"


def dies(name: str, how: tuple[str, int], last: str) -> Callable[[], None]:
    def shape() -> None:
        rig = Rig()
        job = rig.ask(10, 600)
        rig.go(1)
        rig.news()
        rig.fault(name)
        assert rig.model.dead == how
        assert rig.news() == ([last] if last else [])
        rig.go(10)
        assert job.state == "decoding"

    return shape


def slow_stop() -> None:
    rig = Rig().fault("slow-stop", seconds=60)
    assert rig.model.broken.stop_s == 60
    assert rig.works()


def slow_load() -> None:
    model = Model(Config(load_s=2.0), now=T0)
    model.fault("slow-load", T0, seconds=180)
    assert not model.ready(T0 + 179)
    assert model.ready(T0 + 180)


def crash_loop() -> None:
    model = Model(Config(load_s=2.0), now=T0)
    model.fault("crash-loop", T0, times=1)
    model.fault("slow-load", T0, seconds=180)  # in any order
    model.advance(T0 + 180.5)
    assert model.ready(T0 + 180.5)
    assert model.dead is None
    model.listen(T0 + 180.5)  # a clock looks now and then
    model.advance(T0 + 181.4)
    assert model.dead is None
    model.advance(T0 + 181.6)
    assert model.dead == ("abort", 6)


def test_a_slow_load_is_mended_by_clear() -> None:
    for cleared, ready in [(1.0, 2.0), (50.0, 50.0), (200.0, 180.0)]:
        model = Model(Config(load_s=2.0), now=T0)
        model.fault("slow-load", T0, seconds=180)
        model.clear(T0 + cleared)
        assert not model.ready(T0 + ready - 0.1)
        assert model.ready(T0 + ready)
        assert model.stats(T0 + 300)["load"]["load_seconds"] == ready, "what it took, once it is over"


SHAPES: dict[str, Callable[[], None]] = {
    "queue-wedge": queue_wedge, "relief-livelock": relief_livelock, "materializing-wedge": materializing_wedge,
    "decode-wedge": decode_wedge, "mutex-wedge": mutex_wedge, "prefill-wedge": prefill_wedge,
    "unavailable": unavailable, "silent": silent, "idle-wedge": idle_wedge, "failing": failing, "runaway": runaway,
    "long-prefill": long_prefill, "stats-held": held("stats-held", lambda rig: rig.model.holds_stats(rig.t)),
    "health-held": held("health-held", lambda rig: rig.model.holds_health(rig.t)), "page-relief": page_relief,
    "phantom": phantom, "http-500-burst": burst,
    "oom": recovery("oom", "[engine] WORKER OOM: ", zero=True),
    "oom-residual": recovery("oom-residual", "[engine] WORKER OOM: ", zero=False),
    "underflow": recovery("underflow", "[engine] WORKER RECOVER: resource subtraction underflow", zero=False),
    "contamination": contamination,
    "abort": dies("abort", ("abort", 6), "terminate called after throwing an instance of 'std::runtime_error'"),
    "exit-0": dies("exit-0", ("exit", 0), ""), "slow-stop": slow_stop, "slow-load": slow_load,
    "crash-loop": crash_loop,
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_the_shape_of_each_fault(name: str) -> None:
    SHAPES[name]()


@pytest.mark.parametrize("name", sorted(set(FAULTS) - {"abort", "exit-0", "crash-loop", "slow-load"}))
def test_what_is_mended_works_again_and_has_forgotten_who_left(name: str) -> None:
    rig = Rig()
    jobs = [rig.ask(10, 6000), rig.ask(10, 6000)]
    rig.go(1).fault(name)
    jobs.append(rig.ask(10, 6000)) if name != "unavailable" else None
    rig.go(30)
    for job in jobs:
        rig.model.cancel(job.id, rig.t)
    rig.model.clear(rig.t)
    assert rig.works()
    assert rig.gauges() == (0, 0, 0)
    assert rig.model.health(rig.t) == (200, {"status": "ok"})


def test_an_answer_without_an_end_gets_one_when_it_is_mended() -> None:
    rig = Rig()
    job = rig.ask(10, 60)
    rig.go(0.5).fault("runaway")
    rig.go(100)
    rig.model.clear(rig.t)
    rig.go(1)
    assert (job.state, rig.counters()["committed_decode_tokens"]) == ("done", job.tokens_out)


def test_no_such_fault() -> None:
    with pytest.raises(KeyError):
        Rig().fault("queue-wegde")
    with pytest.raises(TypeError):
        Rig().fault("abort", seconds=3)
