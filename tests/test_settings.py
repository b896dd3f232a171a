"""Settings: what counts, where it came from, and one clear line for everything that is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from inferops.core import settings as under_test
from inferops.core.schema import KEYS
from inferops.core.settings import Live, Resolved, load, read_api_key
from inferops.core.verdict import UsageError

PLAIN = '[live]\nunit = "llama.service"\n'


def resolve(
    tmp_path: Path, text: str | None = PLAIN, flags: Mapping[str, object] | None = None, /, **environ: str
) -> Resolved:
    """Settings of an inferops.toml in tmp_path (None: no file), with flags and variables."""
    if text is not None:
        (tmp_path / "inferops.toml").write_text(text)
    return load(config=None, flags=flags or {}, environ=environ, cwd=tmp_path)


# --- what counts


def test_defaults(tmp_path: Path) -> None:
    resolved = resolve(tmp_path)
    s = resolved.settings
    assert (s.live.unit, s.live.engine, s.live.url) == ("llama.service", "llama-cpp", "http://127.0.0.1:8080")
    assert (s.sentinel.action, s.sentinel.poll_s, s.sentinel.stall_s, s.sentinel.canary) == ("alert", 10.0, 150.0, True)
    assert (s.captures.max_count, s.captures.max_bytes, s.captures.max_days) == (20, 2_000_000_000, 30)
    assert resolved.profile.name == "llama-cpp"
    origins = dict(resolved.origin)
    assert origins.pop("live.unit") == f"{tmp_path}/inferops.toml:2"
    assert set(origins.values()) == {"default"}
    assert set(resolved.origin) == set(KEYS)


def test_a_flag_beats_a_variable_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    text = PLAIN + "[sentinel]\nstall_s = 200\n"
    name = "sentinel.stall_s"
    seen = [
        resolve(tmp_path, PLAIN),
        resolve(tmp_path, text),
        resolve(tmp_path, text, INFEROPS_SENTINEL_STALL_S="300"),
        resolve(tmp_path, text, {name: 400.0}, INFEROPS_SENTINEL_STALL_S="300"),
        resolve(tmp_path, text, {name: None}, INFEROPS_SENTINEL_STALL_S="300"),
    ]
    assert [r.settings.sentinel.stall_s for r in seen] == [150, 200, 300, 400, 300]
    assert [r.origin[name].removeprefix(f"{tmp_path}/") for r in seen] == [
        "default", "inferops.toml:4", "INFEROPS_SENTINEL_STALL_S", "--stall", "INFEROPS_SENTINEL_STALL_S",
    ]  # fmt: skip


SAMPLES: dict[str, tuple[str, object]] = {  # key -> its text in a variable, its value
    "live.unit": ("other.service", "other.service"), "live.engine": ("llama-cpp", "llama-cpp"),
    "live.url": ("http://127.0.0.1:9000", "http://127.0.0.1:9000"), "live.stats_url": ("http://[::1]:9/x", "http://[::1]:9/x"),
    "live.api_key_file": ("/etc/key", "/etc/key"), "sentinel.action": ("restart", "restart"),
    "sentinel.poll_s": ("6.5", 6.5), "sentinel.probe_deadline_s": ("1", 1.0), "sentinel.stall_s": ("151", 151.0),
    "live.request_log": ("/var/log/r.jsonl", "/var/log/r.jsonl"), "sentinel.relief_max_s": ("601", 601.0),
    "sentinel.request_max_s": ("901", 901.0), "sentinel.idle_canary_s": ("60", 60.0),
    "sentinel.kill_after_s": ("30", 30.0),
    "sentinel.load_max_s": ("9e2", 900.0), "sentinel.cpu_only_max_s": ("5", 5.0), "sentinel.look_polls": ("3", 3),
    "sentinel.canary": ("false", False), "sentinel.canary_deadline_s": ("7", 7.0), "sentinel.stacks": ("no", False),
    "sentinel.stacks_deadline_s": ("8", 8.0), "sentinel.capture_gap_s": ("0", 0.0),
    "captures.dir": ("/var/c", "/var/c"),
    "captures.max_count": ("4", 4), "captures.max_bytes": ("5000000", 5_000_000), "captures.max_days": ("2", 2),
}  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_each_key_has_a_variable(tmp_path: Path, key: str) -> None:
    text, value = SAMPLES[key]
    variable = KEYS[key].env
    plain = PLAIN + 'engine = "ninfer"\n' if key == "live.request_log" else PLAIN  # not every engine writes one
    resolved = resolve(tmp_path, plain, **{variable: text})
    table, name = key.split(".")
    got = msgspec.to_builtins(resolved.settings)[table][name]
    assert got == value
    assert type(got) is type(value)
    assert resolved.origin[key] == variable


def test_without_any_file_the_unit_is_asked_for(tmp_path: Path) -> None:
    resolved = resolve(tmp_path, None, INFEROPS_LIVE_UNIT="x")
    assert (resolved.settings.live.unit, resolved.path) == ("x.service", None)
    with pytest.raises(
        UsageError, match=r"^live\.unit: required, but not set: no inferops\.toml from /.* upward or in /etc$"
    ):
        resolve(tmp_path, None)
    with pytest.raises(UsageError, match=r"/inferops\.toml does not set it$"):
        resolve(tmp_path, "[sentinel]\n")


# --- which file


def test_found_upward_and_nearest_first(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "inferops.toml").write_text('[live]\nunit = "top"\n')
    assert load(environ={}, cwd=deep).settings.live.unit == "top.service"
    (tmp_path / "a" / "inferops.toml").write_text('[live]\nunit = "near"\n')
    assert load(environ={}, cwd=deep).settings.live.unit == "near.service"
    named = tmp_path / "named.toml"
    named.write_text('[live]\nunit = "named"\n')
    assert load(environ={"INFEROPS_CONFIG": str(named)}, cwd=deep).path == named
    flag = load(config=Path("../inferops.toml"), environ={"INFEROPS_CONFIG": str(named)}, cwd=deep)
    assert flag.settings.live.unit == "near.service", "--config beats INFEROPS_CONFIG, and counts from the directory"


def test_the_systems_file_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = tmp_path / "etc.toml"
    system.write_text('[live]\nunit = "system"\n')
    monkeypatch.setattr(under_test, "SYSTEM_FILE", system)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert load(environ={}, cwd=empty).settings.live.unit == "system.service"


def test_relative_paths_count_from_the_file_or_from_here(tmp_path: Path) -> None:
    deep = tmp_path / "deep"
    deep.mkdir()
    (tmp_path / "inferops.toml").write_text(
        PLAIN + 'engine = "ninfer"\napi_key_file = "key"\nrequest_log = "r.jsonl"\n[captures]\ndir = "kept"\n'
    )
    settings = load(environ={"INFEROPS_CAPTURES_DIR": "mine"}, cwd=deep).settings
    assert settings.live.api_key_file == f"{tmp_path}/key"
    assert settings.live.request_log == f"{tmp_path}/r.jsonl"
    assert settings.captures.dir == f"{deep}/mine"


def test_a_profile_may_be_a_file_beside_the_settings(tmp_path: Path) -> None:
    (tmp_path / "fast.toml").write_text(
        'extends = "llama-cpp"\nname = "fast"\nstall_min_s = 2\nstall_why = "a test"\nslowest_cadence_s = 1\n'
    )
    resolved = resolve(
        tmp_path, PLAIN + 'engine = "fast.toml"\n[sentinel]\nstall_s = 3\npoll_s = 1\nprobe_deadline_s = 0.5\n'
    )
    assert (resolved.profile.name, resolved.settings.sentinel.stall_s) == ("fast", 3.0)


def test_a_found_file_of_another_user_is_not_taken_unasked(tmp_path: Path) -> None:
    file = tmp_path / "inferops.toml"
    file.write_text(PLAIN)
    file.chmod(0o666)
    with pytest.raises(UsageError, match="is writable by everyone, so it is not taken unasked"):
        load(environ={}, cwd=tmp_path)
    assert load(config=file, environ={}, cwd=tmp_path).path == file, "asked for by name"
    file.chmod(0o644)
    if os.geteuid() == 0:
        os.chown(file, 12345, -1)
        with pytest.raises(UsageError, match="belongs to another user"):
            load(environ={}, cwd=tmp_path)
        assert load(environ={"SUDO_UID": "12345"}, cwd=tmp_path).path == file, "the user behind sudo"


def test_a_url_may_have_a_prefix(tmp_path: Path) -> None:
    assert resolve(tmp_path, PLAIN + 'url = "https://[::1]:8080/api/"\n').settings.live.url == "https://[::1]:8080/api"


def test_other_variables_are_left_alone(tmp_path: Path) -> None:
    resolve(
        tmp_path, PLAIN, INFEROPS_STATE_DIR="/x", INFEROPS_RUN_DIR="/y", INFEROPS_UNIT="x", INFEROPS_E2E="1", HOME="/"
    )


# --- the API key


def test_the_api_key_is_read_and_never_told(tmp_path: Path) -> None:
    key = tmp_path / "key"
    live = Live(unit="x", api_key_file=str(key))
    assert read_api_key(Live(unit="x")) is None
    said = []

    def refused() -> None:
        with pytest.raises(UsageError) as error:
            read_api_key(live)
        text = f"{error.value} {error.value.hint} {error.value!r} {error.value.__cause__!r}"
        assert "sk-" not in text
        assert "\n" not in str(error.value)
        said.append(str(error.value).removeprefix(f"live.api_key_file: {key}: "))

    refused()
    key.mkdir()
    refused()
    key.rmdir()
    key.write_text("sk-secret\n")
    key.chmod(0o604)
    refused()
    key.chmod(0o640)
    assert read_api_key(live) == "sk-secret"
    key.write_bytes(b"sk-secret\r\n")
    assert read_api_key(live) == "sk-secret"
    for wrong in (
        b"",
        b"\n",
        b"sk-one\nsk-two\n",
        b"sk-with space",
        "sk-ü".encode(),
        b"sk-\x00",
        b"sk-" + b"x" * 20_000,
    ):
        key.write_bytes(wrong)
        refused()
    assert said[:3] == [
        "cannot be read: No such file or directory",
        "cannot be read: Is a directory",
        "mode 0604 lets everyone read the key, expected 0600 or 0640",
    ]
    assert all(line.startswith("expected one line of printable ASCII without spaces (") for line in said[3:])
    assert len(said) == 10


# --- the command


def run(cwd: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "inferops", "settings", *words],
        cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_command_prints_each_key_with_its_origin(tmp_path: Path) -> None:
    (tmp_path / "inferops.toml").write_text(PLAIN)
    done = run(tmp_path, "--stall", "222", "--no-canary", "--output", "json", INFEROPS_SENTINEL_POLL_S="12")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["instrument"], report["verdict"]) == ("settings", "ok")
    rows = {row["evidence"]["key"]: row["evidence"] for row in report["findings"] if row.get("evidence")}
    assert set(rows) == set(KEYS)
    keys = ("sentinel.stall_s", "sentinel.canary", "sentinel.poll_s")
    assert [(rows[k]["value"], rows[k]["origin"]) for k in keys] == [
        (222.0, "--stall"), (False, "--no-canary"), (12.0, "INFEROPS_SENTINEL_POLL_S"),
    ]  # fmt: skip
    text = run(tmp_path)
    assert f"oklive.unitllama.service({tmp_path}/inferops.toml:2)" in "".join(text.stdout.split()), "wrapped or not"
    assert all(len(line) < 100 for line in text.stdout.splitlines())


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "inferops.toml").write_text(PLAIN + "engin = 'x'\n")
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    where = f"{tmp_path}/inferops.toml:3"
    assert done.stderr.startswith(f"inferops settings: {where}: live.engin: unknown key; did you mean `engine`?")
    assert done.stderr.count("\n") == 1
