"""Settings that are wrong: one line each, with the file, the line, the key, what was expected and what is there."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from inferops.core.settings import load
from inferops.core.verdict import UsageError

PLAIN = '[live]\nunit = "llama.service"\n'


def refusal(tmp_path: Path, text: str | None, flags: Mapping[str, object] | None = None, /, **environ: str) -> str:
    """The line with which this inferops.toml in tmp_path (None: as it is there) is refused, the directory cut out."""
    if text is not None:
        (tmp_path / "inferops.toml").write_text(text)
    with pytest.raises(UsageError) as error:
        load(flags=flags or {}, environ=environ, cwd=tmp_path)
    line = str(error.value)
    assert "\n" not in line
    assert error.value.exit == 2
    return line.replace(f"{tmp_path}/", "")


WRONG_LINES = [  # a line under [sentinel], which is line 5 -> the complaint about it
    ("stal_s = 3", "sentinel.stal_s: unknown key; did you mean `stall_s`?"),
    ("zzz = 3", "sentinel.zzz: unknown key"),
    ('stall_s = "x"', "sentinel.stall_s: expected a number, got text 'x'"),
    ("stall_s = inf", "sentinel.stall_s: expected a finite number, got inf"),
    ("stall_s = nan", "sentinel.stall_s: expected a finite number, got nan"),
    ("stall_s = true", "sentinel.stall_s: expected a number, got a boolean True"),
    ("poll_s = 0.1", "sentinel.poll_s: expected a number >= 0.2, got 0.1"),
    ("poll_s = 10_000_000", "sentinel.poll_s: expected a number <= 2592000.0, got 10000000"),
    ("poll_s = 1979-05-27", "sentinel.poll_s: expected a number, got datetime.date(1979, 5, 27)"),
    ('action = "reboot"', "sentinel.action: expected one of alert, restart, got text 'reboot'"),
    ("canary = 1", "sentinel.canary: expected true or false, got 1"),
    ("look_polls = 1.5", "sentinel.look_polls: expected a whole number, got 1.5"),
    ("look_polls = 0", "sentinel.look_polls: expected a whole number >= 1, got 0"),
    ("canary_deadline_s = -1", "sentinel.canary_deadline_s: expected a number > 0.0, got -1"),
    ("poll_s = []", "sentinel.poll_s: expected a number, got an array []"),
    ("poll_s.x = 1", "sentinel.poll_s: expected a number, got a table {'x': 1}"),
    ('"poll\\u001b" = 1', "sentinel.poll\\x1b: unknown key; did you mean `poll_s`?"),
    ("stall_s = = 3", "not TOML: Invalid value"),
    ("stall_s = 200\nstall_s = 300", "not TOML: Cannot overwrite a value"),
]


@pytest.mark.parametrize(("line", "said"), WRONG_LINES)
def test_file_line_key_expected_got(tmp_path: Path, line: str, said: str) -> None:
    at = 6 if "\n" in line else 5
    assert refusal(tmp_path, f"{PLAIN}\n[sentinel]\n{line}\n") == f"inferops.toml:{at}: {said}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[lvie]\nunit = 'x'\n", "inferops.toml:1: lvie: unknown key; did you mean `live`?"),
        ("live = 3\n", "inferops.toml:1: live: expected a table, [live]"),
        ("\n[[live]]\nunit = 'x'\n", "inferops.toml:2: live: expected a table, [live]"),
        ("[live]\nunit = 3\n", "inferops.toml:2: live.unit: expected text, got 3"),
        ("[live]\nunit = ''\n", "inferops.toml:2: live.unit: expected text of length >= 1, got text ''"),
        ("[live]\nunit = '--now'\n", "inferops.toml:2: live.unit: expected NAME.service, got '--now'"),
        ("[live]\nunit = 'a b.service'\n", "inferops.toml:2: live.unit: expected NAME.service, got 'a b.service'"),
        ("[live]\nunit = 'x.timer'\n", "inferops.toml:2: live.unit: expected NAME.service, got 'x.timer'"),
        (
            PLAIN + "engine = 'llama'\n",
            "inferops.toml:3: live.engine: engine profile 'llama': no such built-in profile; did you mean `llama-cpp`?",
        ),
        (PLAIN + "sentinel.x = 1\n", "inferops.toml:3: live.sentinel: unknown key"),
        (
            "live.unit = 'x'\n\nsentinel = { poll_s = 5, stal_s = 3 }\n",
            "inferops.toml:3: sentinel.stal_s: unknown key; did you mean",
        ),
    ],
)
def test_what_else_a_file_can_have_wrong(tmp_path: Path, text: str, said: str) -> None:
    assert refusal(tmp_path, text).startswith(said)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("127.0.0.1:8080", "expected http(s)://HOST:PORT"),
        ("http://127.0.0.1", "expected http(s)://HOST:PORT"),
        ("ftp://127.0.0.1:8080", "expected http(s)://HOST:PORT"),
        ("http://:8080", "expected http(s)://HOST:PORT"),
        ("http://127.0.0.1:99999", "expected a URL like http://127.0.0.1:8080"),
        ("http://127.0.0.1:0", "expected http(s)://HOST:PORT"),
        ("http://127.0.0.1:8080/?a=b", "expected http(s)://HOST:PORT"),
        ("http://127.0.0.1:8080/ x", "expected http(s)://HOST:PORT"),
        ("http://[::1:8080", "expected a URL like http://127.0.0.1:8080"),
        ("http://bob:hunter2@127.0.0.1:8080", "credentials in a URL end up in logs"),
        ("http://bob:hunter2/x@127.0.0.1:8080", "credentials in a URL end up in logs"),
        ("http://hunter2@127.0.0.1:8080", "credentials in a URL end up in logs"),
    ],
)
@pytest.mark.parametrize("key", ["url", "stats_url"])
def test_urls(tmp_path: Path, key: str, url: str, said: str) -> None:
    line = refusal(tmp_path, PLAIN + f'{key} = "{url}"\n')
    assert line.startswith(f"inferops.toml:3: live.{key}: {said}")
    assert "hunter2" not in line


def test_a_probe_must_end_before_the_next_poll(tmp_path: Path) -> None:
    line = refusal(tmp_path, PLAIN + "[sentinel]\npoll_s = 5\n")
    assert line.startswith(
        "sentinel.probe_deadline_s = 5 (default): expected less than sentinel.poll_s = 5 (inferops.toml:4)"
    )


def test_a_stall_under_the_engines_own_patience_is_refused(tmp_path: Path) -> None:
    line = refusal(tmp_path, PLAIN + "[sentinel]\nstall_s = 149.9\n")
    assert line.startswith(
        "sentinel.stall_s = 149.9 (inferops.toml:4): expected at least 150, the stall_min_s of profile llama-cpp: "
    )
    assert line.endswith("; a shorter stall would restart a healthy server")


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("INFEROPS_SENTINEL_STAL_S", "3", "unknown variable; did you mean `INFEROPS_SENTINEL_STALL_S`?"),
        ("INFEROPS_SENTINAL_STALL_S", "3", "unknown variable; did you mean `INFEROPS_SENTINEL_STALL_S`?"),
        ("INFEROPS_LIVE_X", "3", "unknown variable; did you mean `INFEROPS_LIVE_URL`?"),
        ("INFEROPS_STATEDIR", "/x", "unknown variable; did you mean `INFEROPS_STATE_DIR`?"),
        ("INFEROPS_SENTINEL_STALL_S", "nan", "sentinel.stall_s: expected a finite number, got 'nan'"),
        ("INFEROPS_SENTINEL_STALL_S", "1e999", "sentinel.stall_s: expected a finite number, got '1e999'"),
        ("INFEROPS_SENTINEL_STALL_S", "", "sentinel.stall_s: expected a finite number, got ''"),
        ("INFEROPS_SENTINEL_POLL_S", "0.1", "sentinel.poll_s: expected a number >= 0.2, got 0.1"),
        ("INFEROPS_SENTINEL_LOOK_POLLS", "2.5", "sentinel.look_polls: expected a whole number, got '2.5'"),
        ("INFEROPS_SENTINEL_CANARY", "maybe", "sentinel.canary: expected true or false, got 'maybe'"),
        ("INFEROPS_SENTINEL_ACTION", "x\x1b[31m", "sentinel.action: expected one of alert, restart"),
        ("INFEROPS_LIVE_UNIT", "", "live.unit: expected text of length >= 1"),
    ],
)  # fmt: skip
def test_variables(tmp_path: Path, variable: str, text: str, said: str) -> None:
    line = refusal(tmp_path, PLAIN, **{variable: text})
    assert line.startswith(f"{variable}: {said}")
    assert "\x1b" not in line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"sentinel.stall_s": math.nan}, "--stall: sentinel.stall_s: expected a finite number, got nan"),
        ({"sentinel.stall_s": 3.0}, "sentinel.stall_s = 3 (--stall): expected at least 150"),
        ({"sentinel.poll_s": -1.0}, "--poll: sentinel.poll_s: expected a number >= 0.2, got -1.0"),
        ({"live.url": "x"}, "--url: live.url: expected http(s)://HOST:PORT"),
        ({"live.request_log": "r"}, "--request-log: live.request_log: profile llama-cpp does not say how to read one"),
        ({"sentinel.idle_canary_s": 59.0}, "--idle-canary: sentinel.idle_canary_s: expected a number >= 60"),
        ({"sentinel.request_max_s": 0.0}, "--request-max: sentinel.request_max_s: expected a number > 0"),
        ({"live.engine": "ninfer", "sentinel.stall_s": 149.0}, "sentinel.stall_s = 149 (--stall): expected at least"),
        ({"sentinel.stall": 3.0}, "flag for sentinel.stall: no such setting; did you mean `sentinel.stall_s`?"),
    ],
)
def test_flags_are_checked_like_the_rest(tmp_path: Path, flags: dict[str, object], said: str) -> None:
    assert refusal(tmp_path, PLAIN, flags).startswith(said)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "inferops.toml"
    said = {}
    file.mkdir()
    said["directory"] = refusal(tmp_path, None)
    file.rmdir()
    file.symlink_to(file)
    said["loop"] = refusal(tmp_path, None)
    file.unlink()
    file.symlink_to(tmp_path / "nowhere")
    said["dangling"] = refusal(tmp_path, None)
    file.unlink()
    os.mkfifo(file)
    said["fifo"] = refusal(tmp_path, None)
    file.unlink()
    file.write_bytes(b'[live]\nunit = "\xff"\n')
    said["latin1"] = refusal(tmp_path, None)
    with open(file, "wb") as big:
        big.truncate(50_000_000)
    said["big"] = refusal(tmp_path, None)
    file.write_text("x = " + "[" * 100_000)
    said["deep"] = refusal(tmp_path, None)
    file.write_text("x = " + "1" * 10_000)
    said["digits"] = refusal(tmp_path, None)
    assert said == {
        "directory": "inferops.toml: the settings file cannot be read: Is a directory",
        "loop": "inferops.toml: the settings file cannot be read: Too many levels of symbolic links",
        "dangling": "inferops.toml: the settings file cannot be read: No such file or directory",
        "fifo": "inferops.toml: the settings file is not a regular file, expected a TOML file",
        "latin1": "inferops.toml:2: the settings file is not UTF-8: byte 0xff at offset 15",
        "big": "inferops.toml: the settings file has 50,000,000 bytes, at most 1,048,576 are read",
        "deep": "inferops.toml: not TOML that can be read: RecursionError",
        "digits": "inferops.toml: not TOML that can be read: ValueError",
    }
