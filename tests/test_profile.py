"""Profiles: the built-in one reads real answers and real logs of three llama.cpp builds, and a wrong one is refused."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from inferops.core import profile
from inferops.core.poll import Stats
from inferops.core.promtext import to_json
from inferops.core.verdict import BlindError

DATA = Path(__file__).parent / "data" / "llama-cpp"
LOGS = sorted(path.name for path in DATA.glob("*.lines"))


@pytest.fixture(scope="module")
def llama() -> profile.Profile:
    return profile.load("llama-cpp")


# --- the built-in profile on what real servers said


@pytest.mark.parametrize("log", LOGS)
def test_each_line_of_a_recorded_log_is_of_its_kind(llama: profile.Profile, log: str) -> None:
    lines = (DATA / log).read_text().splitlines()
    assert len(lines) > 20, "the annotated log is there"
    wrong = [line for line in lines if llama.journal_kind(line[9:]) != line[:9].strip()]
    assert wrong == []


def test_the_logs_reach_every_pattern(llama: profile.Profile) -> None:
    assert LOGS == ["b10068-lv5.lines", "b10068.lines", "b11549.lines", "older.lines"]
    lines = [line[9:] for log in LOGS for line in (DATA / log).read_text().splitlines()]
    unreached = [
        f"{kind}: {item.pattern}"
        for kind in profile.KINDS
        for item in llama.journal.of(kind)
        if not any(re.search(item.pattern, line, re.ASCII) for line in lines)
    ]
    assert unreached == []


def test_a_long_prefill_shows_progress_between_its_timed_out_probes(llama: profile.Profile) -> None:
    kinds = [llama.journal_kind(line[9:]) for line in (DATA / "b10068.lines").read_text().splitlines()]
    assert kinds.count("own") == 8, "what 8 timed-out probes left in the log"
    between = kinds[kinds.index("own") : len(kinds) - kinds[::-1].index("own")]
    assert between.count("progress") == 3, "and the batches that the engine finished meanwhile"


def test_each_progress_pattern_has_a_hostile_miss(llama: profile.Profile) -> None:
    for item in llama.journal.progress:
        anywhere = item.pattern.removeprefix("^(?:[\\d.]{8,20} [DIWE] )?").removeprefix("^")
        assert any(re.search(anywhere, miss, re.ASCII) for miss in item.misses), item.pattern


def test_hostile_lines_take_no_time(llama: profile.Profile) -> None:
    starts = [hit for kind in profile.KINDS for item in llama.journal.of(kind) for hit in item.hits]
    lines = [start[:cut] + filler * 60_000 for start in starts for cut in (12, 40) for filler in (" ", "0", "a:", ".9")]
    began = time.process_time()
    for line in lines:
        llama.journal_kind(line)
    assert time.process_time() - began < 10, f"{len(lines)} lines of 60,000 characters and more"


@pytest.mark.parametrize(
    ("code", "body", "means"),
    [
        (200, '{"status":"ok"}', "ready"),
        (503, '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}', "loading"),
        (503, '{"error":{"code":503,"message":"no slot available","type":"unavailable_error"}}', "busy"),
        (503, '{"error":{"code":503,"message":"x","type":"unavailable_error"}}', "unavailable"),
        (500, "", "unavailable"),
        (502, "<html>Bad gateway</html>", "unavailable"),
        (204, "", "odd"),
        (404, '{"error":{"message":"File Not Found","type":"not_found_error","code":404}}', "odd"),
        (429, "Loading model", "odd"),
        (301, "", "odd"),
    ],
)
def test_health(llama: profile.Profile, code: int, body: str, means: str) -> None:
    assert llama.health.means(code, body) == means


@pytest.mark.parametrize(
    ("metrics", "slots", "stats"),
    [
        (
            "b10068-metrics-idle.txt", "b10068-slots-idle.json",
            Stats(answer="ok", active=0, queued=0, free_slots=2, generated=86, counters={
                "n_decode_total": 97, "prompt_tokens_total": 136, "tokens_predicted_total": 86,
                "slot0.prompt": 24, "slot0.decoded": 2, "slot1.prompt": 5, "slot1.decoded": 5,
            }),
        ),
        (
            "b10068-metrics-queue.txt", "b10068-slots-busy.json",
            Stats(answer="ok", active=1, queued=2, free_slots=0, generated=0, tasks=("0",), counters={
                "n_decode_total": 5, "prompt_tokens_total": 13, "tokens_predicted_total": 0,
                "slot0.prompt": 13, "slot0.decoded": 5,
            }),
        ),
        (
            "b11434-metrics-wedged.txt", "b11434-slots-wedged.json",
            Stats(answer="ok", active=1, queued=0, free_slots=1, generated=0, tasks=("0",), counters={
                "n_decode_total": 129, "prompt_tokens_total": 13, "tokens_predicted_total": 0,
                "slot1.prompt": 13, "slot1.decoded": 128,
            }),
        ),
    ],
)  # fmt: skip
def test_stats_of_real_servers(llama: profile.Profile, metrics: str, slots: str, stats: Stats) -> None:
    rows = [
        source.read((DATA / name).read_bytes(), name)
        for source, name in zip(llama.stats, (metrics, slots), strict=True)
    ]
    assert profile.merge(rows) == stats


def test_slots_that_were_never_used(llama: profile.Profile) -> None:
    row = llama.stats[1].read((DATA / "b10068-slots-fresh.json").read_bytes(), "/slots")
    assert (row.active, row.free_slots, row.queued, row.counters) == (0, 2, None, {})


VLLM = 'vllm:num_requests_running{engine="0"} 1.0\nvllm:num_requests_waiting{engine="0"} 0.0\n'


@pytest.mark.parametrize(
    ("source", "body", "said"),
    [
        (0, "<!doctype html><html><body>hello</body></html>", "expected Prometheus text"),
        (0, "", "expected Prometheus text, got no sample in an empty body"),
        (0, '{"error": "x"}', "expected Prometheus text"),
        (0, "llamacpp:requests_processing NaN\n", "llamacpp:requests_processing is NaN or infinite"),
        (0, "llamacpp:n_decode_total +Inf\nllamacpp:requests_processing 1\n", "llamacpp:n_decode_total is NaN"),
        (0, "llamacpp:requests_processing -1\n", "not the stats this profile expects: Expected `int` >= 0"),
        (0, "llamacpp:requests_processing 0.5\n", "not the stats this profile expects: Expected `int"),
        (0, 'llamacpp:requests_processing{a="b"} 1\n', "not the stats this profile expects: Expected `int"),
        (0, VLLM, "nothing in it that this profile knows"),
        (0, b"\xff\xfe\x00", "expected Prometheus text"),
        (1, "<html>", "expected JSON"),
        (1, '[{"id":0,"is_processing":tr', "expected JSON"),
        (1, '{"error":{"code":501,"message":"no"}}', "/slots: nothing in it that this profile knows"),
        (1, '[{"id":0}]', "/slots: nothing in it that this profile knows"),
        (1, "[3]", "/slots: jq: jq failed on the document"),
        (1, "NaN", "expected JSON"),
        (1, '[{"id":0,"is_processing":true,"n_prompt_tokens_processed":"12"}]', "not the stats this profile expects"),
        (1, "[" * 5000 + "]" * 5000, "JSON|nested deeper"),
    ],
)
def test_a_body_that_is_no_stats_is_one_clear_line(
    llama: profile.Profile, source: int, body: str | bytes, said: str
) -> None:
    with pytest.raises(BlindError, match=said) as error:
        llama.stats[source].read(body, llama.stats[source].path)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_a_gauge_that_nobody_reads_may_be_nan(llama: profile.Profile) -> None:
    row = llama.stats[0].read("llamacpp:requests_processing 1\nllamacpp:prompt_tokens_seconds NaN\n", "/metrics")
    assert row.active == 1


def test_prometheus_text_as_json() -> None:
    document, odd = to_json('# HELP a b\na 1\nb{x="1"} 2\nb{x="2"} 3\nc{y="z"} NaN\nh_bucket{le="+Inf"} 4\n', "here")
    assert odd == {"c"}
    assert document == {
        "a": 1.0,
        "b": [{"labels": {"x": "1"}, "value": 2.0}, {"labels": {"x": "2"}, "value": 3.0}],
        "c": [{"labels": {"y": "z"}, "value": None}],
        "h_bucket": [{"labels": {"le": "+Inf"}, "value": 4.0}],
    }


def test_canary_reads_the_first_token_of_a_real_stream(llama: profile.Profile) -> None:
    events = [
        line[6:]
        for line in (DATA / "b10068-completion-stream.txt").read_text().splitlines()
        if line.startswith("data: ")
    ]
    assert len(events) == 6
    assert all(llama.canary.has_token(json.loads(event)) for event in events)
    assert not llama.canary.has_token({"error": {"code": 500, "message": "x"}})
    assert not llama.canary.has_token({})


def test_canary_body_asks_for_one_token_and_touches_no_cache(llama: profile.Profile) -> None:
    body = llama.canary.body
    assert (body["n_predict"], body["cache_prompt"], body["stream"]) == (1, False, True)


def test_what_a_person_must_add_is_said(llama: profile.Profile) -> None:
    assert [(source.path, source.required, source.missing) for source in llama.stats] == [
        ("/metrics", True, "start llama-server with --metrics"),
        ("/slots", False, "start llama-server without --no-slots"),
    ]
