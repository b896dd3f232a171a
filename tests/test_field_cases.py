"""Each public incident of field_cases.py gets its right answer, under the settings that stand with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inferops.core.budget import RESTARTS_MAX, Entry, Ledger, counted, held
from inferops.core.poll import Done, Gate, RequestsSeen, Stats
from inferops.core.profile import load
from tests.field_cases import ALERTS, CALM, ELSEWHERE, GPU, REFUSED, WEDGES, Case, gauges, moving, process
from tests.polls import CLIENT, START_T, Run, poll

QUIET = {"READY", "STALL", "PROGRESS", "SEEING"}
WAY = {"ARMED", "CAPTURED", "STACKS", "WEDGE", "RESUMED", "RESTARTED"}
IDS = (
    "A02 A04 A05 A06 A08 A09 A10 A11 A12 A13 A15 A20 A22 A23 A24 A25 A26 A27 A29 A31 A33 A34 A35 A38 A39 A40 A42 A43 "
    "A44 A45 A46 A47 A49 A50 A51 A52 A53 A55 A57 A58 B01 B02 B03 B04 B05 B06 B08 B10 B11 B15 B16 B17 B18 B20 B21 B23 "
    "B24 B26 B27 B28 B29 B30 B31"
).split()
ROOT = Path(__file__).resolve().parents[1]


def played(case: Case) -> Run:
    """A minute of `before` (decode unless said), then the shape; ten minutes of ordinary work after a healthy one."""
    run = Run(case.patience, canary=case.canary)
    before: dict[str, Any] = {"stats": lambda t: gauges(1, 0, t * 60.0), "clients": CLIENT} | dict(case.before)
    run.until(60, **before)
    t = 70.0
    while t <= case.until_s and not run.restarts():
        run.until(t, start=t, **case.shape)
        t += 10
    if case.wclass is None and not case.told:
        later = {"unit": case.shape["unit"]} if "unit" in case.shape else {}
        end = t
        run.until(end + 600, start=end, stats=lambda s: gauges(1, 0, 1e6 + s * 40), clients=CLIENT, **later)
    return run


def name(case: Case) -> str:
    return f"{case.id} {case.what[:60]}"


@pytest.mark.parametrize("case", WEDGES, ids=name)
def test_a_wedge_is_found_at_its_bound(case: Case) -> None:
    run = played(case)
    assert [e.wclass for e in run.events if e.kind == "ARMED"] == [case.wclass]
    assert run.at("ARMED") == case.armed_s
    assert len(run.restarts()) == case.restarts
    assert [e.level for e in run.events if e.kind == "WEDGE"] == ["alert"]
    way = [e for e in run.events if e.kind == "CANARY" and e.wclass]
    told = [e.kind for e in run.events if e.kind not in QUIET | WAY and e not in way]
    assert told == list(case.told)


@pytest.mark.parametrize("case", ALERTS, ids=name)
def test_what_only_alerts_restarts_nothing(case: Case) -> None:
    run = played(case)
    assert run.restarts() == []
    assert [e.wclass for e in run.events if e.kind == "ARMED"] == ([case.wclass] if case.wclass else [])
    if case.armed_s is not None:
        assert run.at("ARMED") == case.armed_s
    told = [e.kind for e in run.events if e.kind not in QUIET | WAY and not (e.kind == "CANARY" and e.wclass)]
    assert tuple(dict.fromkeys(told)) == case.told
    assert ("RESUMED" in run.kinds()) == case.resumed


@pytest.mark.parametrize("case", CALM, ids=name)
def test_healthy_but_scary_arms_nothing(case: Case) -> None:
    run = played(case)
    assert set(run.kinds()) <= QUIET, run.kinds()
    assert run.actions == []


def test_every_incident_has_its_answer() -> None:
    covered = {case.id for case in [*WEDGES, *ALERTS, *CALM]} | set(ELSEWHERE)
    assert sorted(covered) == sorted(IDS)
    blind = {case.id for case in CALM if case.blind}
    assert blind <= {case.id for case in WEDGES}, "what is blind by default is seen under another setting"


@pytest.mark.parametrize(("id", "node"), [(id, node) for id, (node, _) in ELSEWHERE.items()])
def test_what_is_held_elsewhere_is_a_test_there(id: str, node: str) -> None:
    file, _, test = node.partition("::")
    assert f"def {test}(" in (ROOT / file).read_text()


def test_a_poison_request_restarts_twice_and_then_only_alerts() -> None:
    """A04: the same request comes back after each restart: the budget ends it."""
    ledger, run, shape = Ledger(), Run(GPU), {"stats": gauges(0, 1), "clients": CLIENT}
    start = 0.0
    for life in range(4):
        unit = process(77 + life, start)
        ended = (Done(kind="restart", result="ok", t=START_T + start),) if life else ()
        run.feed(poll(start + 5, unit=unit, stats=gauges(1), clients=CLIENT, done=ended))
        run.until(start + 60, start=start + 15, unit=unit, stats=lambda t: gauges(1, 0, t * 60.0), clients=CLIENT)
        for n in range(7, 40):
            t = start + n * 10
            run.feed(poll(t, unit=unit, gate=Gate(held=held(ledger)), **shape))
            if len(run.restarts()) > len(ledger.restarts):
                entry = Entry(boot="b", t=START_T + t, wall=0.0, pid=77 + life)
                ledger = counted(ledger, entry)
                break
        start = t + 5
    assert len(run.restarts()) == RESTARTS_MAX
    last = [e for e in run.events if e.kind == "WEDGE"][-1]
    assert (last.level, "not restarted" in last.text) == ("alert", True)


def test_after_a_restart_the_load_is_waited_for() -> None:
    """A53: 38 s of cold load after the restart, and minutes elsewhere: nothing is judged before it is ready."""
    run = Run(GPU).until(60, stats=lambda t: gauges(1, 0, t), clients=CLIENT)
    run.until(290, start=70, stats=gauges(3), clients=CLIENT)
    assert len(run.restarts()) == 1
    cold: dict[str, Any] = {"unit": process(78, 295), "stats": Stats(answer="loading"), "owner": "nobody"}
    run.until(700, start=300, health=REFUSED, clients=CLIENT, **(cold | {"journal": None}))
    assert [e.wclass for e in run.events if e.kind == "ARMED"] == ["C"]


@pytest.mark.parametrize("how", ["another process", "the same pid's next life"])
def test_a_test_server_in_the_same_place_arms_nothing(how: str) -> None:
    """B29: the counters of a test server begin at 0, below the live one's: no advance, and no wedge."""
    run = Run(GPU).until(60, stats=lambda t: gauges(1, 0, 1e6 + t), clients=CLIENT)
    low: dict[str, Any] = {"stats": gauges(1, 0, 5.0), "clients": CLIENT}
    if how == "another process":
        run.until(900, start=70, owner="other", **low)
        assert "BLIND" in run.kinds()
    else:
        run.until(200, start=70, unit=process(78, 65), **low)
        assert "STARTED" in run.kinds()
    assert "ARMED" not in run.kinds()


def test_an_all_zero_residual_says_nothing() -> None:
    """B30: 19 of them were read as 19 recoveries; a count of probes is no counter of progress either."""
    profile = load("ninfer")
    zero = "main_kv_pages=0 backend_kv_pages=0 device_state_slots=0 host_state_slots=0 host_kv_bytes=0"
    assert profile.journal_kind(f"[engine] post-recovery residual (fail-all): {zero}") == "other"
    body = '{"scheduler":{"running":0,"waiting":0},"pressure":{"publication_cell_probes":108544},"counters":{}}'
    row = profile.stats[0].read(body, "/stats")
    assert not [counter for counter in row.counters if "probes" in counter]


@pytest.mark.parametrize(
    ("engine", "line", "kind"),
    # A02, A12: a status line with rates of zero is no progress; A45: the queue's deadline is a failure; B05: one left
    [
        ("ninfer", "throughput interval 5.0s prefill=0.0tok/s decode=0.0tok/s running=35 waiting=115", "other"),
        ("ninfer", "throughput interval 5.0s prefill=382.6tok/s decode=118.5tok/s running=35 waiting=115", "progress"),
        ("ninfer", "req#9 failed while queued | openai | HTTP 408 | request_queue_timeout", "failed"),
        ("ninfer", "req#9 started | anthropic stream | 3 messages | max output 100 | tools 0", "other"),
        ("ninfer", "[engine] admission stalled head=3 lanes_free=4", "other"),
        ("ninfer", "[relief-kv] released 12 pages", "working"),
        ("ninfer", "[admission] queued KV block head=2", "working"),
        ("llama-cpp", "0.06.469.532 W srv          stop: cancel task, id_task = 15", "own"),
        ("llama-cpp", "CUDA error: out of memory", "fatal"),
        ("llama-cpp", "0.41.832.307 I slot      release: id  1 | task 13 | stop processing: n_tokens = 90", "other"),
    ],
)  # fmt: skip
def test_how_a_line_of_an_incident_is_read(engine: str, line: str, kind: str) -> None:
    assert load(engine).journal_kind(line) == kind


def test_what_health_says_of_a_busy_llama_server() -> None:
    """B16, B28: the body tells which 503 it is."""
    health = load("llama-cpp").health
    assert health.means(503, '{"status":"no slot available","slots_idle":0,"slots_processing":4}') == "busy"
    assert health.means(503, '{"error":{"message":"Loading model"}}') == "loading"
    assert health.means(503, '{"error":{"message":"x"}}') == "unavailable"


def test_the_default_action_alerts_where_the_case_restarts() -> None:
    """Every wedge above under the default: found at the same moment, told, nothing restarted."""
    for case in WEDGES:
        run = played(replace(case, patience=replace(case.patience, action="alert")))
        assert run.restarts() == [], case.id
        assert run.at("ARMED") == case.armed_s, case.id
        assert "action is alert" in next(e.text for e in run.events if e.kind == "WEDGE"), case.id


def test_a_request_log_shows_ends_of_the_whole_decode() -> None:
    """B06's kind for NInfer: nothing else moves for us, requests end with tokens."""
    run = Run(replace(GPU, counters_move_in_prefill=False)).until(60, stats=moving(), clients=CLIENT)
    ends = lambda t: RequestsSeen(done=int(t // 60), done_t=START_T + t // 60 * 60, open=2)  # noqa: E731
    run.until(1800, start=70, stats=gauges(2), clients=CLIENT, requests=ends, unit=process(77, 0.0))
    assert set(run.kinds()) <= QUIET
