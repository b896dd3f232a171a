"""The NInfer profile on lines and answers of its shapes, both generations; the rows of a profile that no other has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inferops.core import profile
from inferops.core.poll import Stats
from inferops.core.reading import MAX_NOTE_CHARS, StatsRow, merge
from inferops.core.verdict import BlindError, UsageError

DATA = Path(__file__).parent / "data" / "ninfer"
LINES = (DATA / "journal.lines").read_text().splitlines()


@pytest.fixture(scope="module")
def ninfer() -> profile.Profile:
    return profile.load("ninfer")


def test_each_line_of_the_annotated_log_is_of_its_kind(ninfer: profile.Profile) -> None:
    assert len(LINES) > 40
    assert [line for line in LINES if ninfer.journal_kind(line[9:]) != line[:9].strip()] == []


def test_the_log_reaches_every_pattern_and_every_kind(ninfer: profile.Profile) -> None:
    for kind in profile.KINDS:
        for item in ninfer.journal.of(kind):
            assert any(re.search(item.pattern, line[9:], re.ASCII) for line in LINES), f"{kind}: {item.pattern}"
    assert {line[:9].strip() for line in LINES} == {*profile.KINDS, "other"} - {"own"}


def test_a_line_inside_other_text_is_of_no_kind(ninfer: profile.Profile) -> None:
    told = [line[9:] for line in LINES if not line.startswith("other")]
    for line in told:
        for around in ("user: {}", '{{"content":"{}"}}', "> {}", "2026-10-02 09:31:25.442  INFO  prompt {}"):
            assert ninfer.journal_kind(around.format(line)) == "other", around.format(line)


def test_every_pattern_has_a_miss_that_holds_its_words(ninfer: profile.Profile) -> None:
    for kind in profile.KINDS:
        for item in ninfer.journal.of(kind):
            anywhere = item.pattern.removeprefix("^").replace("|$)", "|)")
            assert any(re.search(anywhere, miss, re.ASCII) for miss in item.misses), item.pattern


@pytest.mark.parametrize(
    ("scheduler", "active", "stuck"),
    [
        ({"running": 0, "prefilling": 1, "decode_ready": 0, "materializing": 0}, 1, 0),
        ({"running": 3, "prefilling": 1, "decode_ready": 2, "materializing": 0}, 3, 0),
        ({"running": 2, "prefilling": 1, "decode_ready": 0, "materializing": 1}, 2, 1),
        ({"running": 0, "prefilling": 1, "decode_ready": 2, "materializing": 4}, 3, 4),
        ({"running": 1}, 1, None),
    ],
)
def test_what_runs_is_the_larger_of_two_counts(
    ninfer: profile.Profile, scheduler: dict[str, int], active: int, stuck: int | None
) -> None:
    body = str({"scheduler": scheduler}).replace("'", '"')
    row = ninfer.stats[0].read(body, "/stats")
    assert (row.active, row.stuck, row.free_slots, row.open) == (active, stuck, None, None)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"server_instance_id":"x"}', "/stats: nothing in it that this profile knows"),
        ('{"status":"ok"}', "/stats: nothing in it that this profile knows"),
        ('{"scheduler":{"running":-1}}', "not the stats this profile expects: Expected `int` >= 0"),
        ('{"scheduler":{"running":1},"server_instance_id":7}', "not the stats this profile expects: Expected `str"),
        ('{"scheduler":[1]}', "/stats: "),
        ('{"scheduler":{"running":1},"counters":{"decode_rounds":"many"}}', "Expected `float"),
        ("[]", "/stats: jq"),
    ],
)
def test_a_body_that_is_no_stats_is_one_clear_line(ninfer: profile.Profile, body: str, said: str) -> None:
    with pytest.raises(BlindError) as error:
        ninfer.stats[0].read(body, "/stats")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_gauge_that_nobody_knows_is_named_bounded_and_escaped(ninfer: profile.Profile) -> None:
    body = '{"scheduler":{"running":1,"parked":0,"\\u001b[2Jx' + "y" * 5000 + '":1}}'
    row = ninfer.stats[0].read(body, "/stats")
    assert row.active == 1
    assert row.note is not None
    assert row.note.startswith("scheduler has gauges this profile does not know: \\x1b[2Jxy")
    assert row.note.isprintable()
    assert len(row.note) == MAX_NOTE_CHARS
    assert merge([row, StatsRow(note="two")]).why == f"{row.note}; two"


def test_probes_and_bytes_are_no_progress(ninfer: profile.Profile) -> None:
    body = ninfer.stats[0].samples[0].body
    assert "publication_cell_probes" in body
    names = set(ninfer.stats[0].read(body, "/stats").counters)
    assert not [name for name in names if re.search("probe|byte|aborted|pages", name)]
    assert len(names) == 5


def test_merged_rows_keep_tasks_instance_and_counts() -> None:
    rows = [StatsRow(active=1, tasks=(), ended=4), StatsRow(active=2, tasks=("7",), instance="i", open=0, stuck=0)]
    assert merge(rows) == Stats(answer="ok", active=1, ended=4, tasks=("7",), instance="i", open=0, stuck=0)


def test_health_has_no_answer_that_says_loading(ninfer: profile.Profile) -> None:
    said = [ninfer.health.means(code, '{"status":"unavailable"}') for code in (200, 503, 500, 404, 429)]
    assert said == ["ready", "unavailable", "unavailable", "odd", "odd"]


def test_what_the_policy_is_told_of_it(ninfer: profile.Profile) -> None:
    assert (ninfer.stall_min_s, ninfer.slowest_cadence_s, ninfer.stats_port) == (150.0, 5.0, 8081)
    assert (ninfer.cpu_is_evidence, ninfer.counters_move_in_prefill) == (False, False)
    assert ninfer.stats[0].waits_for_engine
    assert "120 s" in ninfer.stall_why
    assert (ninfer.canary.body["max_tokens"], ninfer.canary.body["stream"]) == (1, True)


def test_a_record_with_a_status_of_the_clients_is_no_failure(ninfer: profile.Profile) -> None:
    assert ninfer.requests is not None
    base = {"event": "request_error", "server_instance_id": "i", "request": {"request_id": 4}, "timestamp_unix_ms": 1}
    kinds = {}
    for status in (None, 400, 408, 429, 499, 500, 503):
        row = ninfer.requests.read(base | ({} if status is None else {"error": {"status": status}}))
        assert row is not None
        kinds[status] = row.kind
    assert kinds == {
        None: "failed",
        400: "other",
        408: "failed",
        429: "other",
        499: "other",
        500: "failed",
        503: "failed",
    }


def test_extends_takes_the_new_tables_too(ninfer: profile.Profile, tmp_path: Path) -> None:
    fast = profile.load(str(DATA / "impatient.toml"))
    assert (fast.name, fast.stall_min_s) == ("ninfer-impatient", 2.0)
    assert (fast.requests, fast.stats_port, fast.journal) == (ninfer.requests, 8081, ninfer.journal)
    mine = tmp_path / "mine.toml"
    mine.write_text('extends = "ninfer"\nname = "mine"\nstats_port = 9\n')
    assert profile.load(str(mine)).stats_port == 9


TEXT = Path(profile.__file__).parent.parent.joinpath("profiles", "ninfer.toml").read_text()
WRONG = [
    ("stats_port = 8081", "stats_port = 0", "stats_port", "expected a whole number >= 1"),
    ("stats_port = 8081", "stats_prot = 8081", "stats_prot", "did you mean `stats_port`"),
    ('then "start"', 'then "begin"', r"requests\.samples\[1\]", "not a record that this profile expects: Invalid enum"),
    ("tokens: (.result.completion_tokens?", "tokens: (.result.prompt_tokens?", r"requests\.samples\[2\]", "expected {"),
    ("tokens: (.result.completion_tokens? // null)", "tokens: now", r"requests\.jq", "`now`"),
    ("stuck = 1\n", "stuck = 2\n", r"stats\[0\]\.samples\[1\]", "expected {'active': 1, 'queued': 2, 'stuck': 2"),
    ('instance = "0c"', 'instance = "0d"', r"stats\[0\]\.samples\[2\]", "'instance': '0c'"),
    (": parked", ": packed", r"stats\[0\]\.samples\[2\]", "not know: parked"),
    ('["[relief-kv] released', '["relief-kv] released', r"journal\.working\[0\]\.hits\[0\]", "does not find it"),
    (r"HTTP (?:5\d\d|408)", r"HTTP \d\d\d", r"journal\.failed\[0\]\.misses\[0\]", "the pattern finds it"),
    ('"what is [relief-kv]', '"[relief-kv]', r"journal\.working\[0\]\.misses\[0\]", "the pattern finds it"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "key", "said"), WRONG)
def test_a_wrong_profile_is_refused_with_line_and_key(old: str, new: str, key: str, said: str) -> None:
    assert old in TEXT
    with pytest.raises(UsageError, match=rf"^p\.toml:\d+: {key}: ") as error:
        profile.loads(TEXT.replace(old, new, 1), "p.toml")
    assert said in str(error.value)
