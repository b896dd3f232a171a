"""The sentinel's own pure parts: its poll grid, what it makes of settings, of journal entries and of events."""

from __future__ import annotations

import asyncio
import json
import math
import os
from pathlib import Path

import msgspec
import pytest

from inferops.core import announce, capturing, unit
from inferops.core.journal import STOPPING_ID, Entry
from inferops.core.lookout import seen_in
from inferops.core.poll import JournalSeen
from inferops.core.profile import load as load_profile
from inferops.core.settings import Resolved, load
from inferops.core.turn import Event, State
from inferops.core.unit import UnitState
from inferops.ops.sentinel import Sentinel, next_poll_at, patience_of

DATA = Path(__file__).parent / "data"


def resolved(**flags: object) -> Resolved:
    given = {"live.unit": "llama.service"} | {key.replace("__", "."): value for key, value in flags.items()}
    return load(flags=given, environ={}, cwd=Path("/"))


@pytest.mark.parametrize(
    ("now", "wanted"),
    [(100.0, 110.0), (100.4, 110.0), (109.999, 110.0), (110.0, 120.0), (113.0, 120.0), (155.0, 160.0)],
)
def test_polls_stay_on_the_grid_and_late_ones_are_skipped(now: float, wanted: float) -> None:
    assert next_poll_at(100.0, now, 10.0, math.inf, 5.0) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("due", "wanted"), [(104.0, 110.0), (105.0, 110.0), (107.5, 107.5), (110.0, 110.0), (114.9, 114.9), (115.0, 110.0)]
)
def test_a_poll_comes_when_a_timer_reaches_its_bound(due: float, wanted: float) -> None:
    assert next_poll_at(100.0, 105.0, 10.0, due, 5.0) == wanted


def test_the_policy_gets_the_operators_settings_and_the_profiles() -> None:
    patience = patience_of(resolved(sentinel__stall_s=200.0, sentinel__action="restart"))
    profile = load_profile("llama-cpp")
    assert (patience.stall_s, patience.action, patience.canary) == (200.0, "restart", True)
    assert patience.canary_moves_at_most == profile.canary.moves_at_most > 0
    assert patience.slowest_cadence_s == profile.slowest_cadence_s
    assert (patience.cpu_is_evidence, patience.stats_wait_for_engine) == (True, True)
    assert patience_of(resolved(sentinel__canary=False)).canary is False


def entry(t: float | None, message: str, **more: object) -> Entry:
    whole = {"cursor": "c", "t": t, "wall": 0.0, "message": message, "pid": 7, "priority": 6, "unit": "llama.service",
             "by_systemd": False, "message_id": "", "invocation": ""} | more  # fmt: skip
    return msgspec.convert(whole, Entry)


DECODE = "0.35.747.840 I slot print_timing: id  1 | task 13 | n_decoded =    100, tg =  31.67 t/s, tg_3s =  31.67 t/s"
CANCEL = "0.41.832.307 W srv          stop: cancel task, id_task = 269"
READY = "0.01.545.766 I srv  llama_server: model loaded"
STOPPING = {"by_systemd": True, "message_id": STOPPING_ID, "unit": "llama.service"}


def test_each_kind_of_line_sets_its_own_newest_time() -> None:
    profile = load_profile("llama-cpp")
    lines = [entry(1.0, READY), entry(2.0, DECODE), entry(5.0, DECODE), entry(4.0, "anything else"), entry(9.0, CANCEL)]
    seen = seen_in(lines, JournalSeen(), profile)
    assert seen == JournalSeen(ready_t=1.0, progress_t=5.0, any_t=5.0)  # the cancel line is our own doing
    assert seen_in([entry(3.0, DECODE)], seen, profile) == seen  # an older one takes nothing back
    assert seen_in([entry(None, DECODE)], JournalSeen(), profile) == JournalSeen()  # of another boot


def test_a_planned_stop_is_systemds_word_only() -> None:
    profile = load_profile("llama-cpp")
    assert seen_in([entry(3.0, "Stopping …", **STOPPING)], JournalSeen(), profile) == JournalSeen(stopping_t=3.0)
    forged = entry(3.0, "Stopping …", **(STOPPING | {"by_systemd": False}))
    assert seen_in([forged], JournalSeen(), profile).stopping_t is None


def test_an_event_is_one_escaped_line_and_one_object() -> None:
    event = Event("WEDGE", "alert", 12.5, "class C: \x1b[31mred\nnext", "C")
    assert announce.line(event, "x.service") == "WEDGE x.service: class C: \\x1b[31mred\\nnext"
    record = json.loads(announce.record(event, "x.service", 99.0))
    assert {"time", "level", "rule", "unit", "message"} <= set(record)
    assert (record["level"], record["rule"], record["class"], record["time"]) == ("alert", "WEDGE", "C", 99.0)


def test_journal_fields_of_an_event() -> None:
    fields = announce.fields(Event("ARMED", "warn", 1.0, "x", "C"), "x.service", {"capture": "/a\nb"})
    assert fields["MESSAGE_ID"] == announce.MESSAGE_IDS["ARMED"]
    assert fields["PRIORITY"] == 4
    assert fields["INFEROPS_CLASS"] == "C"
    assert fields["INFEROPS_CAPTURE"] == "/a\\nb"
    assert all(len(i) == 32 and int(i, 16) for i in announce.MESSAGE_IDS.values())


def test_a_capture_process_resolves_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key"
    key.write_text("k")
    key.chmod(0o600)
    monkeypatch.setenv("INFEROPS_SENTINEL_STALL_S", "999")  # the parent's own variable does not leak past its flags
    here = resolved(sentinel__stall_s=321.5, sentinel__stacks=False, live__api_key_file=str(key), captures__dir="/c")
    there = load(environ=capturing.environ(here), cwd=Path("/"))
    assert there.settings == here.settings
    assert "k" not in {v for n, v in capturing.environ(here).items() if n.startswith("INFEROPS_")}
    assert os.environ["INFEROPS_SENTINEL_STALL_S"] == "999"


def seen(pid: int, start_t: float) -> UnitState:
    return UnitState(
        name="llama.service", load="loaded", active="active", sub="running", result="success", main_pid=pid,
        start_t=start_t, restarts=0, control_group="/x", invocation_id="", need_daemon_reload=False,
        timeout_stop_s=5.0, timeout_start_s=90.0, restart="no", unit_type="simple",
    )  # fmt: skip


@pytest.mark.parametrize("who", ["another pid", "the same pid started anew", "another one that polls saw meanwhile"])
def test_only_the_process_that_was_judged_is_restarted(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the decision and systemctl somebody else restarted the unit: its new process was never judged."""
    sentinel = Sentinel(resolved(sentinel__action="restart"), "text")
    sentinel.state = State(key=(77, 10.0, None))
    now = seen(77, 20.0) if who == "the same pid started anew" else seen(78, 20.0)

    def show(name: str) -> UnitState:
        if who == "another one that polls saw meanwhile":
            sentinel.state = State(key=(78, 20.0, None))
        return now

    restarted: list[str] = []
    monkeypatch.setattr(unit, "show", show)
    monkeypatch.setattr(unit, "restart", lambda name, deadline_s: restarted.append(name))
    done = asyncio.run(sentinel.acting.restart(sentinel.state))
    assert (done.result, restarted) == ("failed", [])
    assert "not the one that was judged" in done.why
    assert sentinel.budget.read().restarts == ()


def test_the_judged_process_is_restarted_once_and_counted_before(monkeypatch: pytest.MonkeyPatch) -> None:
    sentinel = Sentinel(resolved(sentinel__action="restart"), "text")
    sentinel.state = State(key=(77, 10.0, None))
    shown = [seen(77, 10.0), seen(78, 30.0)]
    counted: list[list[str]] = []
    monkeypatch.setattr(unit, "show", lambda name: shown.pop(0))
    monkeypatch.setattr(
        unit, "restart", lambda name, deadline_s: counted.append([e.result for e in sentinel.budget.read().restarts])
    )
    assert asyncio.run(sentinel.acting.restart(sentinel.state)).result == "ok"
    assert counted == [["spent"]]
    assert [e.result for e in sentinel.budget.read().restarts] == ["ok"]


def test_a_restart_that_brings_no_new_pid_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    sentinel = Sentinel(resolved(sentinel__action="restart"), "text")
    sentinel.state = State(key=(77, 10.0, None))
    monkeypatch.setattr(unit, "show", lambda name: seen(77, 10.0))
    monkeypatch.setattr(unit, "restart", lambda name, deadline_s: None)
    done = asyncio.run(sentinel.acting.restart(sentinel.state))
    assert (done.result, done.why) == ("failed", "main pid is 77 after it")
    assert [e.result for e in sentinel.budget.read().restarts] == ["failed"]
