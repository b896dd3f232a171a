"""The output contract: levels to exit codes, text that fits, JSON that parses, errors as one line."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferops.core.verdict import (
    BlindError,
    Finding,
    InferopsError,
    Level,
    Output,
    Refused,
    UsageError,
    Verdict,
    columns,
    escape,
    guard,
    render,
    wrap,
)

OUTPUTS: tuple[Output, ...] = ("text", "json")


def verdict(*levels: Level) -> Verdict:
    return Verdict("capture", "llama.service", tuple(Finding(x, f"id.{n}", f"says {n}") for n, x in enumerate(levels)))


@pytest.mark.parametrize(
    ("levels", "word", "code", "summary"),
    [
        (("ok",), "ok", 0, "1 of 1 check held"),
        (("ok", "ok", "note"), "ok", 0, "2 of 2 checks held"),
        (("ok", "ok", "ok", "blind"), "blind", 3, "3 of 4 checks held, 1 blind: says 3"),
        (("ok", "fail"), "fail", 1, "1 of 2 checks held, 1 failed: says 1"),
        (("fail", "blind", "fail"), "fail", 1, "0 of 3 checks held, 2 failed: id.0, id.2, 1 blind: says 1"),
        ((), "blind", 3, "0 checks ran: nothing was looked at"),
        (("note",), "blind", 3, "0 checks ran: nothing was looked at"),
    ],
)
def test_levels_make_the_verdict(levels: tuple[Level, ...], word: str, code: int, summary: str) -> None:
    v = verdict(*levels)
    assert (v.verdict, v.exit, v.summary()) == (word, code, summary)
    assert render(v, "text", colour=False).splitlines()[-1] == f"capture llama.service: {summary}"


def test_text_is_aligned_and_wrapped_with_a_hanging_indent() -> None:
    v = Verdict("x", "y", (Finding("ok", "port", "held"), Finding("blind", "long.id", "word " * 40)))
    lines = render(v, "text", colour=False).splitlines()
    assert lines[0] == "ok     port     held"
    assert lines[1].startswith("blind  long.id  word word")
    assert lines[2].startswith(" " * 16 + "word word")
    assert max(map(len, lines)) < 100


def test_colour_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[32mok   \x1b[0m" in render(verdict("ok"), "text", colour=True)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert "\x1b" not in render(verdict("ok", "fail"), "text")


@given(st.lists(st.tuples(st.sampled_from(["ok", "fail", "note", "blind"]), st.text(), st.text())))
def test_any_text_stays_printable_and_under_100_columns(rows: list[tuple[Level, str, str]]) -> None:
    v = Verdict("i", "s", tuple(Finding(*row) for row in rows))
    for line in render(v, "text", colour=False).split("\n"):
        assert line.isprintable()
        assert columns(line) < 100
    back = json.loads(render(v, "json"))
    assert [f["level"] for f in back["findings"]] == [row[0] for row in rows]


def test_json_holds_the_schema_and_what_orjson_would_lose() -> None:
    evidence = {"nan": float("nan"), "big": 2**70, "path": Path("/a"), "raw": "\ud800\u202e\x9b", 3: (1, {2})}
    text = render(Verdict("i", "s", (Finding("fail", "a", "b", evidence),)), "json")  # type: ignore[arg-type]
    assert text.isprintable()
    assert json.loads(text) == {
        "schema": "inferops.verdict/1",
        "instrument": "i",
        "subject": "s",
        "verdict": "fail",
        "findings": [
            {
                "level": "fail",
                "id": "a",
                "message": "b",
                "evidence": {
                    "nan": "nan", "big": str(2**70), "path": "/a", "raw": "\\ud800\u202e\x9b", "3": [1, [2]],
                },
            }
        ],
        "exit": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain ünïcode 日本", "plain ünïcode 日本"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x1b[2J\x1b]0;x\x07", "\\x1b[2J\\x1b]0;x\\x07"),
        ("\u202eexe.\u2066", "\\u202eexe.\\u2066"),
        ("\x9b31m\x00\ud800", "\\x9b31m\\x00\\ud800"),
    ],
)
def test_escape(raw: str, shown: str) -> None:
    assert escape(raw) == shown


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("", 5, [""]),
        ("one two", 7, ["one two"]),
        ("one two", 6, ["one", "two"]),
        ("abcdefgh i", 3, ["abc", "def", "gh", "i"]),
        ("日本日本", 5, ["日本", "日本"]),
    ],
)
def test_wrap(text: str, width: int, lines: list[str]) -> None:
    assert wrap(text, width) == lines


# --- guard: each case in a process of its own, as an entry point runs


def run(body: str, **more: object) -> subprocess.CompletedProcess[str]:
    code = "import sys, os, signal\nfrom inferops.core.verdict import *\n@guard\ndef main():\n"
    code += "".join(f"    {line}\n" for line in body.splitlines()) + "sys.argv[0] = 'inferops'\nsys.exit(main())\n"
    given: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60, **more}
    done: subprocess.CompletedProcess[str] = subprocess.run([sys.executable, "-c", code], check=False, **given)
    return done


@pytest.mark.parametrize(
    ("body", "code", "stderr"),
    [
        ("return 0", 0, ""),
        ("return None", 0, ""),
        ("return 4", 4, ""),
        ("sys.exit(1)", 1, ""),
        ("raise UsageError('a.toml:3: x', 'y')", 2, "inferops: a.toml:3: x  -> y\n"),
        ("raise BlindError('no\\nsystemctl \\x1b')", 3, "inferops: no\\nsystemctl \\x1b\n"),
        ("raise Refused('held', 'wait')", 4, "inferops: held  -> wait\n"),
        ("raise InferopsError('base')", 3, "inferops: base\n"),
        ("raise KeyboardInterrupt", 130, "inferops: interrupted\n"),
        ("os.kill(os.getpid(), signal.SIGTERM); signal.pause()", 143, ""),
    ],
)
def test_guard_keeps_the_exit_contract(body: str, code: int, stderr: str) -> None:
    done = run(body)
    assert (done.returncode, done.stderr, done.stdout) == (code, stderr, "")


def test_guard_names_the_command_that_an_error_carries() -> None:
    done = run("e = UsageError('x', 'y')\ne.command = 'inferops load'\nraise e")
    assert done.stderr == "inferops load: x  -> y\n"


def test_sigterm_runs_the_finally_blocks() -> None:
    done = run("try:\n    os.kill(os.getpid(), signal.SIGTERM); signal.pause()\nfinally:\n    print('undone')")
    assert (done.returncode, done.stdout) == (143, "undone\n")


@pytest.mark.parametrize(
    "body", ["raise ValueError('Bearer s3cret')", "return 'odd'", "raise BrokenPipeError(32, 'x')"]
)
def test_the_unexpected_is_blind_with_its_traceback_in_a_private_file(body: str, private_state: Path) -> None:
    done = run(body)
    (file,) = (private_state / "state" / "tracebacks").glob("*.txt")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert str(file) in done.stderr
    assert "s3cret" not in done.stderr
    assert "Traceback (most recent call last)" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_crash_loop_keeps_twenty_tracebacks(private_state: Path) -> None:
    directory = private_state / "state" / "tracebacks"
    directory.mkdir(parents=True, mode=0o700)
    for n in range(25):
        (directory / f"20200101T0000{n:02d}.000Z-1.txt").touch()
    run("1 / 0")
    left = sorted(path.name for path in directory.iterdir())
    assert len(left) == 20
    assert left[0] == "20200101T000006.000Z-1.txt"


def test_an_unwritable_state_directory_still_gives_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("1 / 0", env={**os.environ, "INFEROPS_STATE_DIR": str(tmp_path / "file" / "sub")})
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_left_is_no_crash(unbuffered: str, private_state: Path) -> None:
    code = (
        "import sys\nfrom inferops.core.verdict import guard\n@guard\ndef main():\n    print('x' * 9)\nsys.exit(main())"
    )
    reader, writer = os.pipe()
    os.close(reader)
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False, env=env)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
    assert not (private_state / "state").exists()


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_under_stdout_is_told(unbuffered: str) -> None:
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        done = run("print('x')", capture_output=False, stdout=full, stderr=subprocess.PIPE, env=env)
    assert done.returncode == 3
    want = "inferops: cannot write the report: No space left on device  -> give it a place to write and run it again\n"
    assert done.stderr == want


def test_no_stdout_at_all_is_fine() -> None:
    command = (
        f"{sys.executable} -c 'import sys; from inferops.core.verdict import guard; sys.exit(guard(lambda: 1)())' >&-"
    )
    assert subprocess.run(["bash", "-c", command], timeout=60, check=False).returncode == 1


def test_an_ascii_locale_is_no_crash() -> None:
    done = run("print('é')", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout) == (0, "\\xe9\n")


def test_guard_puts_the_signal_handler_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert guard(lambda: 0)() == 0
    assert signal.getsignal(signal.SIGTERM) == before


def test_error_classes_carry_their_codes() -> None:
    assert [kind("x").exit for kind in (InferopsError, UsageError, BlindError, Refused)] == [3, 2, 3, 4]
    assert (str(UsageError("what", "next")), UsageError("what", "next").hint) == ("what", "next")
