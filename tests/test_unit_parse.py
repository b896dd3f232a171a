"""What systemctl prints becomes a UnitState, or one clear error."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferops.core import process, unit, unit_parse
from inferops.core.verdict import BlindError, InferopsError, UsageError

SHOWN = """\
Type=notify
Restart=on-failure
TimeoutStartUSec=infinity
TimeoutStopUSec=1min 30s
MainPID=359
Result=success
NRestarts=3
ExecMainStartTimestampMonotonic=727832171
ControlGroup=/system.slice/llama.service
Id=llama.service
LoadState=loaded
ActiveState=active
SubState=running
NeedDaemonReload=yes
InvocationID=bebe9845e3b84ffe8da1a53ed0ab6fc3
"""

NAMES = st.sampled_from(unit_parse.PROPERTIES)
VALUES = st.text().filter(lambda text: not any(f"\n{name}=" in text for name in unit_parse.PROPERTIES))


def test_a_real_answer_in_full() -> None:
    assert unit_parse.state(unit_parse.parse(SHOWN, unit_parse.PROPERTIES), 827.82) == unit_parse.UnitState(
        name="llama.service", load="loaded", active="active", sub="running", result="success", main_pid=359,
        start_t=827.82, restarts=3, control_group="/system.slice/llama.service",
        invocation_id="bebe9845e3b84ffe8da1a53ed0ab6fc3", need_daemon_reload=True, timeout_start_s=None,
        timeout_stop_s=90.0, restart="on-failure", unit_type="notify",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("offset_s", "born_t", "start_t"),
    [
        (0.0, None, 727.832171),  # no such process any more
        (100.0, None, 827.832171),  # suspended for 100 s, before it or after: nobody can tell
        (0.0, 727.83, 727.832171),
        (100.0, 827.83, 827.832171),  # suspended before it started
        (3600.0, 727.83, 727.84),  # suspended since: the kernel's word, rounded up
        (0.0, 900.0, 727.832171),  # somebody else has the pid now
    ],
)
def test_the_start_on_boottime(offset_s: float, born_t: float | None, start_t: float) -> None:
    assert unit_parse.started_t(727.832171, offset_s, born_t) == pytest.approx(start_t, abs=1e-9)


@given(st.dictionaries(NAMES, VALUES, min_size=1))
def test_values_with_equals_signs_and_newlines_come_back_whole(values: dict[str, str]) -> None:
    text = "".join(f"{name}={value}\n" for name, value in values.items())
    assert unit_parse.parse(text, values) == values


@pytest.mark.parametrize("forged", ["MainPID=1", "ControlGroup=/"])
def test_a_value_that_forges_another_property_is_refused(forged: str) -> None:
    with pytest.raises(BlindError, match=f"{forged.partition('=')[0]} is there twice"):
        unit_parse.parse(f"{SHOWN}{forged}\n", unit_parse.PROPERTIES)


def test_a_missing_property_is_named() -> None:
    with pytest.raises(BlindError, match="no NRestarts in"):
        unit_parse.parse(SHOWN.replace("NRestarts=3\n", ""), unit_parse.PROPERTIES)


@pytest.mark.parametrize("bad", ["MainPID=-3", "MainPID=", "NRestarts=many", "TimeoutStopUSec=soon"])
def test_a_value_of_the_wrong_kind_is_one_clear_error(bad: str) -> None:
    name = bad.partition("=")[0]
    text = "\n".join(bad if line.startswith(f"{name}=") else line for line in SHOWN.splitlines())
    with pytest.raises(BlindError, match="systemctl show"):
        unit_parse.state(unit_parse.parse(text, unit_parse.PROPERTIES), None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1min 30s", 90.0),
        ("0", 0.0),
        ("", 0.0),
        ("infinity", None),
        ("500ms", 0.5),
        ("1.500s", 1.5),
        ("2min 5.250s", 125.25),
        ("1h", 3600.0),
        ("1d 2h 3min 4s 5ms 6us", 93784.005006),
        ("1w", 604800.0),
        ("1month", 2629800.0),
        ("1y", 31557600.0),
    ],
)
def test_time_spans_as_systemctl_prints_them(text: str, seconds: float | None) -> None:
    assert unit_parse.span_s(text) == seconds


@given(st.integers(0, 10**6), st.integers(0, 59), st.integers(0, 999))
def test_any_span_adds_up(hours: int, minutes: int, ms: int) -> None:
    assert unit_parse.span_s(f"{hours}h {minutes}min {ms}ms") == pytest.approx(hours * 3600 + minutes * 60 + ms / 1000)


@pytest.mark.parametrize("text", ["1 30", "5parsecs", "-1s", "nan s", "1min30s"])
def test_what_is_no_time_span(text: str) -> None:
    with pytest.raises(BlindError, match="expected a time span"):
        unit_parse.span_s(text)


@pytest.mark.parametrize(
    ("given_name", "full"),
    [
        ("llama", "llama.service"),
        ("llama.service", "llama.service"),
        ("llama.cpp", "llama.cpp.service"),  # systemctl adds it too: .cpp is no unit type
        ("llama@gpu0", "llama@gpu0.service"),
        ("system-x\\x2dy", "system-x\\x2dy.service"),
        ("service", "service.service"),
    ],
)
def test_unit_names_are_completed(given_name: str, full: str) -> None:
    assert unit_parse.full_name(given_name) == full


@pytest.mark.parametrize(
    "name",
    ["", "-H", "--user", "a/b", "../x", "a b", "x\n", "ll*", "x?", "[a]", "@x", "x.timer", "x.socket", "x@",
     "x@.service", "ünit", "x\x1b[2J", "a" * 256],
)  # fmt: skip
def test_names_that_are_no_service_are_refused(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        unit_parse.full_name(name)
    assert str(caught.value).isprintable()
    assert caught.value.hint


@given(st.text(max_size=300))
def test_no_name_reaches_systemctl_as_an_option_or_a_path(name: str) -> None:
    try:
        full = unit_parse.full_name(name)
    except UsageError:
        return
    assert full.startswith(name)
    assert full.endswith(".service")
    assert full.isprintable()
    assert not full.startswith("-")
    assert not set(full) & set("/ *?[]\n")


@given(st.text(max_size=2000))
def test_systemctls_words_are_one_short_printable_line(text: str) -> None:
    line = unit_parse.words(text)
    assert line
    assert line.isprintable()
    assert len(line) <= unit_parse.WORDS_MAX


def test_only_the_first_two_lines_count_and_never_the_advice() -> None:
    said = 'Job for x.service failed.\nSee "systemctl status x.service" for details.\nWarning: changed.\nmore\n'
    assert unit_parse.words(said) == "Job for x.service failed.; Warning: changed."


def test_a_monotonic_time_keeps_its_answer() -> None:
    first = unit.boottime_of(1000.0)
    now = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    assert first - 1000.0 == pytest.approx(now, abs=0.02)
    assert {unit.boottime_of(1000.0) for _ in range(1000)} == {first}


def test_no_cgroup_has_no_processes() -> None:
    assert unit.pids("") == ()
    assert unit.pids("/") == ()  # never every process of the machine
    assert unit.pids(f"/nowhere-{os.getpid()}.slice") == ()


CGROUP2 = "31 23 0:28 / {} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1_SYSTEMD = "32 31 0:29 / /sys/fs/cgroup/systemd rw shared:10 - cgroup cgroup rw,xattr,name=systemd"
V1_CPU = "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"
OTHER = "24 1 0:5 / /proc rw - proc proc rw"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([OTHER, CGROUP2.format("/sys/fs/cgroup")], [("/sys/fs/cgroup", "/")]),
        ([V1_SYSTEMD, V1_CPU, CGROUP2.format("/sys/fs/cgroup/unified")],
         [("/sys/fs/cgroup/unified", "/"), ("/sys/fs/cgroup/systemd", "/")]),
        ([V1_CPU, V1_SYSTEMD], [("/sys/fs/cgroup/systemd", "/")]),
        ([CGROUP2.format("/mnt/a\\040b").replace(" / ", " /docker/1 ", 1)], [("/mnt/a b", "/docker/1")]),
        ([OTHER, V1_CPU], []),
    ],
)  # fmt: skip
def test_where_systemd_keeps_its_cgroups(lines: list[str], found: list[tuple[str, str]]) -> None:
    assert unit_parse.hierarchies("\n".join(lines) + "\n") == found


def test_without_systemctl_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BlindError, match="systemctl: not found"):
        unit.show("x")


def test_a_systemctl_that_hangs_meets_the_deadline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "systemctl"
    fake.write_text("#!/bin/sh\nexec sleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    began = time.monotonic()
    with pytest.raises(BlindError, match=r"no answer in 0\.2 s"):
        unit.show("x", deadline_s=0.2)
    assert time.monotonic() - began < 30


def test_a_restart_that_nobody_answers_says_that_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "systemctl"
    fake.write_text("#!/bin/sh\nexec sleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(InferopsError, match=r"restart of x\.service: not over after 0\.2 s; whether its job") as caught:
        unit.restart("x", 0.2)
    assert caught.value.hint


def test_own_start_on_boottime() -> None:
    born = process.start_t(os.getpid())
    assert born is not None
    assert 0 < time.clock_gettime(time.CLOCK_BOOTTIME) - born < 24 * 3600
