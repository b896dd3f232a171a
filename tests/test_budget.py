"""The restart budget: arithmetic in any window, no clock frees it, a broken ledger forbids."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferops.core.budget import RESTARTS_MAX, WINDOW_S, Budget, Entry, Ledger, counted, held, recent
from inferops.core.verdict import BlindError


def entry(t: float, boot: str = "b", result: str = "ok") -> Entry:
    return Entry(boot=boot, t=t, wall=0.0, pid=1, result=result)


@pytest.mark.parametrize(
    ("times", "now", "counted"),
    [
        ([], 5000, 0),
        ([5000], 5000, 1),
        ([5000], 5000 + WINDOW_S - 0.001, 1),
        ([5000], 5000 + WINDOW_S, 0),
        ([5000, 5100], 6000, 2),
        ([9000], 5000, 1),  # from the future: counts
    ],
)
def test_recent(times: list[float], now: float, counted: int) -> None:
    assert recent(Ledger(restarts=tuple(map(entry, times))), "b", now) == counted


def test_another_boots_entries_count_until_this_boot_is_as_old_as_the_window() -> None:
    ledger = Ledger(restarts=(entry(99_999, "earlier"), entry(1, "earlier")))
    assert recent(ledger, "b", WINDOW_S - 1) == 2
    assert recent(ledger, "b", WINDOW_S) == 0


def test_failed_restarts_count() -> None:
    assert "latched (2 restarts in 30 minutes)" in str(held(counted(Ledger(restarts=(entry(5000, result="failed"),)),
                                                                    entry(5001))))  # fmt: skip


@given(st.lists(st.floats(0, 20_000), min_size=1, max_size=60))
def test_never_more_than_the_budget_in_any_window(wishes: list[float]) -> None:
    ledger, made = Ledger(), []
    for now in sorted(wishes):
        if held(ledger) is None:
            ledger = counted(ledger, entry(now))
            made.append(now)
    assert made
    for start in made:
        assert len([t for t in made if start <= t < start + WINDOW_S]) <= RESTARTS_MAX


class Clock:
    now = 5000.0

    def __call__(self) -> float:
        return self.now


def test_spent_is_on_disk_before_and_after_a_new_process(tmp_path: Path) -> None:
    path, clock = tmp_path / "budget.json", Clock()
    budget = Budget(path, "b", clock)
    assert budget.held() is None
    budget.spend(7, wall=1.0)
    assert [e.result for e in Budget(path, "b", clock).read().restarts] == ["spent"]
    budget.settle("failed")
    budget.spend(8, wall=2.0)
    assert [(e.pid, e.result) for e in Budget(path, "b", clock).read().restarts] == [(7, "failed"), (8, "spent")]
    budget.settle("ok")
    assert [(e.pid, e.result) for e in Budget(path, "b", clock).read().restarts] == [(7, "failed"), (8, "ok")]
    held = "the budget is latched (2 restarts in 30 minutes); look, then `inferops sentinel rearm`"
    assert Budget(path, "b", clock).held() == held
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_latch_outlives_the_window_and_rearm_opens_it(tmp_path: Path) -> None:
    clock = Clock()
    budget = Budget(tmp_path / "budget.json", "b", clock)
    budget.spend(7, wall=1.0)
    assert budget.held() is None
    clock.now += WINDOW_S
    budget.spend(7, wall=1.0)
    assert budget.held() is None  # never two in one window
    clock.now += WINDOW_S - 1
    budget.spend(7, wall=1.0)  # the one that uses it up latches it, whether or not another is wanted in time
    clock.now += 10 * WINDOW_S
    assert "latched" in str(budget.held())
    before = budget.rearm()
    assert (len(before.restarts), before.latched) == (3, "2 restarts in 30 minutes")
    assert budget.held() is None


def test_the_ledger_of_this_machine_counts_by_its_boot_and_its_boottime(tmp_path: Path) -> None:
    path = tmp_path / "budget.json"
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    Budget.here(path).spend(7, wall=1.0)
    (made,) = Budget.here(path).read().restarts
    assert made.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert before <= made.t <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_only_so_many_entries_are_kept_for_people(tmp_path: Path) -> None:
    clock = Clock()
    budget = Budget(tmp_path / "budget.json", "b", clock)
    for pid in range(1, 53):
        budget.spend(pid, wall=1.0)
    assert [e.pid for e in budget.read().restarts] == list(range(3, 53))


@pytest.mark.parametrize("content", [None, b"{", b"{}"])
def test_the_end_of_a_restart_that_cannot_be_noted_is_no_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "budget.json"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    Budget(path, "b", Clock()).settle("ok")
    assert content is None or path.read_bytes() == content
    Budget(tmp_path / "none.json", "b", Clock()).settle("ok")


def test_the_end_of_a_restart_in_a_state_directory_that_is_gone_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = Budget(tmp_path / "budget.json", "b", Clock())
    budget.spend(7, wall=1.0)

    def refuse(path: Path, data: bytes) -> None:
        raise BlindError(f"{path}: cannot write it", "make room")

    monkeypatch.setattr("inferops.core.budget.write_atomic", refuse)
    budget.settle("ok")


def test_a_ledger_that_does_not_keep_what_was_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferops.core.budget.write_atomic", lambda path, data: None)
    with pytest.raises(OSError, match=r"budget\.json did not keep what was written"):
        Budget(tmp_path / "budget.json", "b", Clock()).spend(7, wall=1.0)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"schema":"inferops.budget/2"}', b'{"restarts":[{"t":1}]}', b"\xff\xfe"]
)
def test_a_broken_ledger_forbids_a_restart(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "budget.json"
    path.write_bytes(content)
    budget = Budget(path, "b", Clock())
    assert "cannot be read" in str(budget.held())
    with pytest.raises((OSError, msgspec.MsgspecError)):
        budget.spend(7, wall=1.0)
    assert path.read_bytes() == content


def test_a_ledger_of_another_schema_says_which(tmp_path: Path) -> None:
    path = tmp_path / "budget.json"
    path.write_bytes(b'{"schema":"inferops.budget/2"}')
    why = str(Budget(path, "b", Clock()).held())
    assert "schema 'inferops.budget/2', expected inferops.budget/1" in why


def test_a_symlinked_or_unreadable_ledger_forbids_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "budget.json"
    path.symlink_to(tmp_path / "elsewhere")
    assert f"{path} is a symlink" in str(Budget(path, "b", Clock()).held())
    path.unlink()
    path.mkdir()
    assert "cannot be read" in str(Budget(path, "b", Clock()).held())


def test_an_unwritable_ledger_raises_before_anything_is_restarted(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"cannot write|No such file"):
        Budget(tmp_path / "gone" / "budget.json", "b", Clock()).spend(7, wall=1.0)
