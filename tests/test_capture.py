"""What a capture reads and what one call of it does; no systemd and no gdb."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from inferops.core import captures, process, readers, stacks
from inferops.core.captures import Part
from inferops.core.journal import Entry
from inferops.core.poll import Health, Stats
from inferops.core.stacks import Stacks
from inferops.core.verdict import BlindError
from inferops.ops import capture

# --- what is read


MASKED = {
    "server --api-key s3cret -m x": "server --api-key [masked] -m x",
    "server --api-key=s3cret": "server --api-key=[masked]",
    "server --api-key-file /etc/key --ssl-key-file k": "server --api-key-file /etc/key --ssl-key-file k",
    "server -hft s3cret --hf-token s3cret": "server -hft [masked] --hf-token [masked]",
    "server --max-tokens 5 --tokenizer t": "server --max-tokens 5 --tokenizer t",
    "x --password -p4ss --auth_token=a=b y": "x --password [masked] --auth_token=[masked] y",
    "env HF_TOKEN=s3cret OPENAI_API_KEY=s3cret x": "env HF_TOKEN=[masked] OPENAI_API_KEY=[masked] x",
    "x --url https://me:s3cret@host/x": "x --url https://[masked]@host/x",
    "x --secret": "x --secret",
    "x --api-key --api-key y": "x --api-key [masked] y",
    "": "",
}


@pytest.mark.parametrize("argv", MASKED)
def test_secrets_of_a_command_line_are_masked(argv: str) -> None:
    assert " ".join(readers.mask(argv.split(" "))) == MASKED[argv]


def test_journal_text_is_a_line_an_entry_whatever_is_in_it() -> None:
    entry = Entry(cursor="", t=1.0, wall=1_700_000_000.25, message="a\nb\x1b[2J" + "x" * 9999, pid=5, priority=6,
                  unit="x.service", by_systemd=False, message_id="", invocation="")  # fmt: skip
    text = readers.journal_text([entry, msgspec.structs.replace(entry, message="Started", by_systemd=True, pid=1)])
    first, second = text.splitlines()
    assert first.startswith("2023-11-14T22:13:20.250000+00:00 x[5]: a\\nb\\x1b[2Jxxx")
    assert len(first) < readers.LINE_MAX_CHARS + 100
    assert second.endswith(" systemd[1]: Started")


def test_a_tape_keeps_its_header_and_its_last_whole_lines() -> None:
    data = b"head\n" + b"".join(b"line %d\n" % i for i in range(100)) + b"half a li"
    assert readers.tape_part(data) == data.removesuffix(b"half a li")
    kept = readers.tape_part(data, 40).splitlines()
    assert kept[0] == b"head"
    assert kept[1:] == [b"line %d" % i for i in range(100 - len(kept) + 1, 100)]
    assert 0 < len(kept[1:]) <= 4


def test_a_reader_that_hangs_is_left_behind(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    began = time.monotonic()
    with pytest.raises(BlindError, match="processes: no end in sight"):
        readers.Job("processes", (tmp_path / "fifo").read_bytes).result(0.3)  # nobody ever writes
    assert time.monotonic() - began < 5.0
    with pytest.raises(BlindError, match="expected a regular file"):
        readers.tape(tmp_path / "fifo")
    with pytest.raises(BlindError, match="journal: ZeroDivisionError"):
        readers.Job("journal", lambda: 1 // 0).result(5.0)


@pytest.mark.parametrize(
    ("stats", "level", "said"),
    [
        (Stats(answer="ok", active=1, queued=0), "ok", "health ready (200); stats ok, active 1, queued 0"),
        (
            Stats(answer="timeout", why="/slots: no whole answer in 5 s"),
            "ok",
            "stats timeout; /slots: no whole answer in 5 s",
        ),
        (Stats(answer="bad", why="/slots: HTML"), "blind", "stats bad; /slots: HTML"),
    ],
)
def test_no_answer_is_an_answer_and_a_bad_one_is_blind(stats: Stats, level: str, said: str) -> None:
    part = readers.stats_part(Health(answer="ready", code=200), stats)
    assert part.level == level
    assert said in part.why


# --- gdb's output


BT = """[New LWP 12]
Thread 2 (Thread 0x7f (LWP 12) "llama-server"):
#0  0x00007f in ?? () from /lib/libgomp.so.1
#1  0x00007f in start_thread (arg=<optimized out>) at ./nptl/pthread_create.c:442

Thread 1 (Thread 0x7f (LWP 11) "x (LWP 99) y"):
#0  syscall () at x.S:38
"""


@pytest.mark.parametrize(
    ("text", "tids", "frames"),
    [
        (BT, {11, 12}, 3),
        ('Thread 1 (process 5 "x"):\n#0  x () at y.c:1\n', {5}, 1),
        ('Thread 2 (LWP 6 "x"):\n\nThread 1 (LWP 5 "x"):\n#0  x ()\n', {5}, 1),
        ("ptrace: Operation not permitted.\n", set(), 0),
        ("", set(), 0),
    ],
)
def test_frames_are_counted(text: str, tids: set[int], frames: int) -> None:
    assert stacks.count(text) == (frozenset(tids), frames)


@pytest.mark.parametrize(
    ("text", "said", "expected", "why"),
    [
        (BT, "", {11, 12}, ""),
        (BT, "", {11, 12, 13}, "no stack of 1 of 3 threads, first tid 13"),
        ("", "warning: x\nptrace: Not permitted.\nNo stack.\n", {11}, "gdb gave no frame: ptrace: Not permitted."),
        ("", "", {11}, "gdb gave no frame: it said nothing"),
        ("", "No \x1b[2Jthing.\n", {11}, "gdb gave no frame: No \\x1b[2Jthing."),
    ],
)
def test_a_failed_attach_is_told_by_its_frames(text: str, said: str, expected: set[int], why: str) -> None:
    assert stacks.judge(text, said, expected) == why


def test_only_what_was_running_before_is_left_stopped() -> None:
    assert stacks.left_held({1: "S", 2: "T", 3: "R"}, {1: "T", 2: "T", 3: "t", 4: "T", 5: "S"}) == [1, 3, 4]


AGAIN = "import os, signal, time\nsignal.signal(signal.SIGCONT, lambda *_: os.kill(os.getpid(), signal.SIGSTOP))\n"


@pytest.mark.parametrize(
    ("script", "before", "released", "state"),
    [
        ("", "S", (True, False), "S"),  # gdb left it stopped: SIGCONT
        ("", "T", (False, False), "T"),  # somebody else had stopped it: left alone
        (AGAIN, "S", (True, True), "T"),  # it can't be helped, and that is said
    ],
)
def test_a_target_is_seen_to_run_afterwards(
    script: str, before: str, released: tuple[bool, bool], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "SETTLE_S", 0.5)
    code = f"{script}print(flush=True)\nimport time\nwhile True: time.sleep(1)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        target = os.pidfd_open(child.pid)
        try:
            child.send_signal(signal.SIGSTOP)
            while process.threads(child.pid, detail=False)[0].state != "T":
                time.sleep(0.01)
            assert stacks._release(child.pid, target, {child.pid: before}) == released
            time.sleep(0.1)
            assert process.threads(child.pid, detail=False)[0].state == state
        finally:
            os.close(target)
            child.kill()


def test_a_target_left_stopped_is_said_first() -> None:
    part = capture.stacks_part([Stacks(pid=1, why="late"), Stacks(pid=2, continued=True, left_stopped=True)])
    assert (part.level, part.why) == ("blind", "pid 2 IS LEFT STOPPED: kill -CONT 2; late")
    part = capture.stacks_part([Stacks(pid=1, threads=2, frames=9, took_s=0.5, continued=True)])
    assert (part.level, part.why) == ("ok", "9 frames of 2 threads in 0.5 s; pid 1 had to be continued")
    assert capture.stacks_part([]).level == "blind"


# --- what a call does


@pytest.mark.parametrize(
    ("passive", "flag", "set_", "exists", "do"),
    [
        (False, None, True, False, ("passive", "stacks")),
        (False, None, False, False, ("passive",)),
        (False, False, False, False, ("passive",)),
        (True, None, True, False, ("passive",)),
        (True, True, True, True, ("passive", "stacks")),
        (False, True, True, True, ("stacks",)),
        (False, True, True, False, ("passive", "stacks")),
        (False, None, True, True, ("passive", "stacks")),
    ],
)
def test_steps(passive: bool, flag: bool | None, set_: bool, exists: bool, do: tuple[str, ...]) -> None:
    assert capture.steps(passive=passive, stacks_flag=flag, stacks_set=set_, exists=exists) == do


@pytest.mark.parametrize(
    ("parts", "state"),
    [
        ([Part("passive", "ok", "")], "passive"),
        ([Part("passive", "ok", ""), Part("stacks", "ok", "")], "whole"),
        ([Part("passive", "ok", ""), Part("stacks", "blind", "")], "partial"),
        ([Part("passive", "ok", ""), Part("x", "note", "")], "passive"),
    ],
)
def test_how_far_a_capture_is(parts: list[Part], state: str) -> None:
    assert capture.state_of(parts) == state


# --- the command, where no systemd runs the server


@pytest.mark.parametrize(
    ("args", "code", "word"),
    [
        (["--unit", "x", "--resumed", "y"], 2, "--into"),
        (["--unit", "x", "--passive", "--nonsense"], 2, "--nonsense"),
        ([], 2, "live.unit: required"),
        (["--unit", "x", "--into", "/nowhere/at/all", "--resumed", "y"], 4, "/nowhere/at/all"),
    ],
)
def test_a_wrong_call_is_one_line(args: list[str], code: int, word: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "inferops", "capture", *args],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    assert done.stdout == ""
    assert word in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
    assert "Traceback" not in done.stderr


def test_threads_of_this_very_process_are_seen() -> None:
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    try:
        found = {one.tid for one in readers.look([os.getpid()]).threads}
        assert {os.getpid(), other.native_id} <= found
        assert process.start_ticks(os.getpid()) == captures.me().start_ticks
    finally:
        stop.set()
        other.join()
