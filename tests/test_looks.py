"""The sentence that decides how to read a capture, and the table of what threads did; no systemd and no gdb."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest

from inferops.core import looks, readers
from inferops.core.process import Thread

# --- the sentence


def thread(
    tid: int, state: str = "S", busy: float = 0.0, *, wait: float = 0.0, wchan: str = "futex_do_wait", **more: Any
) -> Thread:
    given = {"pid": 7, "comm": "llama-server", "start_ticks": 1, "utime_s": 0.0, "stime_s": 0.0}
    return Thread(**{**given, "tid": tid, "state": state, "run_s": busy - wait, "wait_s": wait, "wchan": wchan, **more})


def looked(*now: Thread, before: tuple[Thread, ...] | None = None) -> tuple[looks.Pair, ...]:
    """Pairs whose first look had the same states and no CPU yet."""
    first = before if before is not None else tuple(msgspec.structs.replace(one, run_s=0.0, wait_s=0.0) for one in now)
    return looks.pair(first, now)


FLAT = (*(thread(tid) for tid in range(1, 12)), thread(12, wchan="inet_csk_accept"))
SPUN = (*FLAT, thread(13, "R", busy=4.95))
WORK: dict[str, Any] = {"outstanding": 1}
READINGS: dict[str, tuple[tuple[looks.Pair, ...], dict[str, Any], str]] = {
    "blocked": (
        looked(*FLAT),
        WORK,
        "all 12 threads of pid 7 waited (11 in futex, 1 in accept) and used 0.00 s of CPU in 5.0 s: a blocked wedge;"
        " read stacks.txt for who waits for whom",
    ),
    "blocked, stats silent": (
        looked(*FLAT),
        {"silent": True},
        "its stats don't answer either: a blocked wedge; read st",
    ),
    "blocked, nothing known": (looked(*FLAT), {}, "blocked if work was outstanding (an idle server looks the same)"),
    "idle": (looked(*FLAT), {"outstanding": 0}, "and its own stats show no work: idle"),
    # what our own probing costs a blocked server: one tick of 10 ms
    "blocked and probed": (looked(*FLAT, thread(13, busy=0.01)), WORK, "used 0.01 s of CPU in 5.0 s: a blocked wedge"),
    "a little more": (looked(*FLAT, thread(13, busy=0.09)), WORK, "used 0.09 s of CPU in 5.0 s, none of them hot"),
    "slow": (looked(*FLAT, thread(13, busy=0.2)), WORK, "none of them hot: slow work, or a wait with some life in it"),
    "spin": (
        looked(*SPUN),
        WORK,
        "one thread, tid 13 (llama-server), ran hot (99 % of 5.0 s) while 12 did not: a spin, unless the engine"
        " computes on one thread; read stacks.txt for where",
    ),
    "spin beside a GPU": (looked(*SPUN), {"gpu": True}, "; a GPU is open, so a hot thread may only be polling it"),
    "spin, GPU unknown": (looked(*SPUN), {"gpu": None}, "; whether a GPU is open could not be told"),
    "prefill": (
        looked(*FLAT, thread(13, "R", busy=5.0), thread(14, "R", busy=4.1)),
        WORK,
        "compute threads hot (2 of 14 threads, first tid 13 (llama-server)): looks like a healthy prefill",
    ),
    # half the machine is taken by another program: waiting for a CPU is wanting one
    "prefill, contended": (
        looked(*FLAT, *(thread(tid, "R", busy=4.9, wait=2.4) for tid in (13, 14))),
        {},
        "compute threads hot (2 of 14",
    ),
    "starved": (
        looked(*FLAT, *(thread(tid, "R", busy=4.9, wait=4.7) for tid in (13, 14))),
        {},
        "2 of 14 threads wanted a CPU all the 5.0 s and had one for 0.40 s: starved by other programs, not wedged",
    ),
    "stopped": (
        looked(*(thread(tid, "T", wchan="do_signal_stop") for tid in (7, 8))),
        WORK,
        "pid 7 is stopped (T), by a signal: no fault of the engine's; kill -CONT 7 lets it go on",
    ),
    "traced": (looked(thread(7, "t"), thread(8)), {}, "a tracer holds 1 of 2 threads of pid 7"),
    "in D": (
        looked(*FLAT, thread(13, "D", wchan="folio_wait_bit_common")),
        WORK,
        "tid 13 (llama-server) in folio_wait_bit_common sat in D in both looks: the kernel or a device holds it, a kill"
        " may not end it",
    ),
    # as a loading model that reads its file
    "in D once": (looked(thread(7, "D"), before=(thread(7, "S"),)), WORK, "waited (1 in futex)"),
    "two processes": (looked(thread(7, "S"), thread(8, "S", pid=8)), WORK, "all 2 threads of 2 processes waited"),
    "ended": (looked(before=(thread(7),)), {}, "the process ended between the two looks"),
    "nothing": ((), {}, "no thread could be read"),
    "a reused tid": (
        looked(thread(7, start_ticks=2), before=(thread(7),)),
        {},
        "the process ended between the two looks",
    ),
    "a hostile name": (looked(thread(7, comm="\x1b[2Jx", busy=4.9)), {}, "tid 7 (\\x1b[2Jx)"),
}


@pytest.mark.parametrize("name", READINGS)
def test_the_sentence_that_decides_how_to_read_it(name: str) -> None:
    pairs, seen, sentence = READINGS[name]
    given: dict[str, Any] = {"gpu": False, "outstanding": None, "silent": False, **seen}
    said = looks.reading(pairs, wall_s=5.0, **given)
    assert sentence in said
    assert said.isprintable()


def test_without_schedstat_the_ticks_count() -> None:
    a, b = (thread(7, run_s=None, wait_s=None, utime_s=t) for t in (1.0, 5.9))
    assert "ran hot (98 %" in looks.reading(looks.pair([a], [b]), wall_s=5.0, gpu=False, outstanding=1, silent=False)
    assert looks.pair([a], [thread(7, busy=5.0)])[0].busy_s is None  # of two sources: not comparable


def test_the_table_lines_up_and_shows_what_changed() -> None:
    first = (thread(7), thread(8, wchan="do_epoll_wait", syscall="281 0x5"), thread(9))
    ran = thread(8, "R", busy=4.5, wait=0.5, wchan="", syscall="running")
    lines = looks.table(looks.pair(first, (thread(7), ran, thread(10, comm="new\nline"))), 5.0).splitlines()
    assert lines[0] == "pid 7: 4 threads, two looks 5.00 s apart"
    heads = ["TID", "NAME", "STATE", "RAN s", "QUEUED s", "BUSY", "SYSCALL", "SLEEPS IN", "CHANGED"]
    assert lines[1].split() == " ".join(heads).split()
    cells = "8 llama-server S > R 4.000 0.500 90% epoll_pwait > running do_epoll_wait > - yes"
    assert lines[2].split() == cells.split()
    assert [line.split()[-1] for line in lines[3:6]] == ["futex_do_wait", "went", "came"]
    assert "new\\nline" in lines[5]
    assert max(map(len, lines)) < 120


@pytest.mark.parametrize(
    ("syscall", "machine", "name"),
    [
        ("202 0x1 0x2", "x86_64", "futex"),
        ("98 0x1", "aarch64", "futex"),
        ("running", "x86_64", "running"),
        ("-1 0x0", "x86_64", "-"),
        ("9999", "x86_64", "9999"),
        ("202", "riscv64", "202"),
        ("", "x86_64", ""),
    ],
)
def test_system_calls_by_name(syscall: str, machine: str, name: str) -> None:
    assert looks.syscall_of(thread(1, syscall=syscall), machine) == name


def test_the_rows_for_machines_hold_both_looks_and_the_difference() -> None:
    row = looks.rows(looked(thread(7, busy=4.5, wait=0.5)), 5.0)[0]
    assert (row["first"]["run_s"], row["second"]["run_s"], row["cpu_s"], row["busy_s"], row["hot"]) == (
        0.0,
        4.0,
        4.0,
        4.5,
        True,
    )


def test_a_real_process_is_read_twice() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        time.sleep(0.3)
        first, second = readers.look([child.pid]), readers.look([child.pid])
        said = looks.reading(
            looks.pair(first.threads, second.threads), wall_s=1.0, gpu=second.gpu, outstanding=1, silent=False
        )
        assert f"all 1 threads of pid {child.pid} waited" in said
        assert first.exe == os.readlink(f"/proc/{child.pid}/exe")
        assert second.gpu is False
    finally:
        child.kill()
        child.wait()
