"""Every thread's stack through gdb, bounded, and the target seen to run afterwards.

gdb stops its target while it reads. Killed in mid-attach it left all 201 threads of one stopped in 4 of 120 tries, and
a failed attach exits 0: so frames are counted, and states are read again whatever gdb said.
Blind to: Python frames (only the interpreter's own), stacks in a target of another architecture or mount namespace.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from inferops.core import process
from inferops.core.verdict import escape

FRAMES_MAX = 40  # a thread; an engine's compute threads are 10 to 20 deep
TEXT_MAX_BYTES = 32 << 20
KILL_WAIT_S = 5.0  # for gdb to be gone after SIGKILL
SETTLE_S = 2.0  # for the kernel to let the target go, and again for SIGCONT to take
STEADY_S = 0.3  # it must be seen to run for so long: gdb's pending SIGSTOP can stop it a moment after gdb is gone
LOOK_EVERY_S = 0.05
WORDS_MAX = 200
HELD = frozenset("Tt")

_THREAD = re.compile(r"^Thread \d+ .*?(?:LWP|process) (\d+)", re.M)
_FRAME = re.compile(r"^#\d+ ", re.M)
# gdb's lines that say why, the kernel's own words first
_WHY = re.compile(
    r"^(?:ptrace: .*|Could not attach.*|warning: process \d+ is .*|.*[Nn]o such process.*|gdb: .*)$", re.M
)


class Stacks(msgspec.Struct, frozen=True, kw_only=True):
    """What gdb gave of one process. `why` is empty where each thread has a stack; `continued`: it was found stopped
    afterwards and was sent SIGCONT; `left_stopped`: it is stopped still. Times in seconds."""

    pid: int
    text: str = ""
    threads: int = 0
    frames: int = 0
    why: str = ""
    continued: bool = False
    left_stopped: bool = False
    took_s: float = 0.0


def count(text: str) -> tuple[frozenset[int], int]:
    """(the tids whose stack has a frame, all frames) in gdb's output."""
    tids, frames = set(), 0
    heads = list(_THREAD.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=False):
        found = len(_FRAME.findall(text, head.end(), end))
        frames += found
        if found:
            tids.add(int(head[1]))
    return frozenset(tids), frames


def why_of(said: str) -> str:
    """Why gdb could not, in its own words."""
    found = _WHY.search(said)
    line = (
        found[0] if found else next((line for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
    )
    return escape(line.strip())[:WORDS_MAX]


def left_held(before: Mapping[int, str], now: Mapping[int, str]) -> list[int]:
    """The tids that are stopped now and were not before."""
    return sorted(tid for tid, state in now.items() if state in HELD and before.get(tid, "") not in HELD)


def judge(text: str, said: str, expected: Iterable[int]) -> str:
    """What is wrong with gdb's output; "" if each expected thread (alive before and after) has a stack."""
    tids, frames = count(text)
    wanted = frozenset(expected)
    if not frames:
        return f"gdb gave no frame: {why_of(said)}"
    if missing := sorted(wanted - tids):
        return f"no stack of {len(missing)} of {len(wanted)} threads, first tid {missing[0]}"
    return ""


# --- edge


def forbidden(pid: int) -> str | None:
    """Why gdb is not to be tried on `pid`, in one line with what to do; None if nothing speaks against it."""
    if shutil.which("gdb") is None:
        return "gdb is not installed: apt-get install gdb"
    if not (states := _states(pid)):
        return f"pid {pid} is gone"
    for tid in states:
        status = _status(pid, tid)
        if (tracer := status.get("TracerPid", "0")) != "0":
            return f"pid {tracer} ({escape(_comm(tracer))}) traces tid {tid}: one tracer at a time, end that one first"
    mine, theirs = os.geteuid(), _status(pid, pid).get("Uid", "").split()
    if mine != 0 and theirs and theirs[0] != str(mine):
        return f"pid {pid} is of uid {theirs[0]}, we are {mine}: run as root"
    scope = _yama()
    if scope >= 3 or (scope > 0 and not _may_trace()):
        return f"kernel.yama.ptrace_scope is {scope}: {'nobody may trace' if scope >= 3 else 'run as root'}"
    return None


def take(pid: int, deadline_s: float) -> Stacks:
    """The stacks of every thread of `pid`. gdb is killed after `deadline_s`; the target is seen to run before this
    returns or raises, within 9 s more. Never raises for anything that gdb or the target does."""
    if (reason := forbidden(pid)) is not None:
        return Stacks(pid=pid, why=reason)
    try:
        target = os.pidfd_open(pid)
    except OSError as e:
        return Stacks(pid=pid, why=f"pid {pid}: {e.strerror}")
    before, began = _states(pid), time.monotonic()
    out, err, why, released = b"", b"", "", (False, False)
    try:
        out, err, why = _gdb(pid, deadline_s)
    finally:  # also when we are told to end
        released = _release(pid, target, before)
        os.close(target)
    text, said = (data[:TEXT_MAX_BYTES].decode("utf-8", "backslashreplace") for data in (out, err))
    tids, frames = count(text)
    return Stacks(
        pid=pid, text="\n".join(map(escape, text.splitlines())) + "\n", threads=len(tids), frames=frames,
        why=why or judge(text, f"{said}\n{text}", before.keys() & _states(pid).keys()),
        continued=released[0], left_stopped=released[1], took_s=round(time.monotonic() - began, 3),
    )  # fmt: skip


def _gdb(pid: int, deadline_s: float) -> tuple[bytes, bytes, str]:
    """(stdout, stderr, why it did not end by itself)."""
    # no string argument beyond its first character: they are people's prompts
    argv = ["gdb", "-p", str(pid), "-batch", "-nx"]
    for command in ("pagination off", "width 0", "print elements 1"):
        argv += ["-ex", f"set {command}"]
    argv += ["-ex", f"thread apply all bt {FRAMES_MAX}"]
    plain = {name: value for name, value in os.environ.items() if name in ("PATH", "TMPDIR")}
    gdb = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", start_new_session=True,
        env={**plain, "LC_ALL": "C.UTF-8", "HOME": "/nonexistent"},  # without DEBUGINFOD_URLS: nothing is downloaded
    )  # fmt: skip
    try:
        out, err = gdb.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired as e:
        return e.stdout or b"", e.stderr or b"", f"gdb did not end in {deadline_s:.1f} s and was killed"
    finally:
        if gdb.poll() is None:
            os.killpg(gdb.pid, signal.SIGKILL)
            try:
                gdb.wait(KILL_WAIT_S)
            except subprocess.TimeoutExpired:
                pass  # in D state: the target is looked at all the same
    why = f"gdb died of signal {-gdb.returncode}" if gdb.returncode < 0 else ""
    return out, err, why


def _release(pid: int, target: int, before: Mapping[int, str]) -> tuple[bool, bool]:
    """Sees that no thread is left stopped that was not: (SIGCONT was needed, and was not enough)."""
    if not _wait_released(pid, before):
        try:
            signal.pidfd_send_signal(target, signal.SIGCONT)
        except OSError:
            return False, False  # it ended
        return True, not _wait_released(pid, before)
    return False, False


def _wait_released(pid: int, before: Mapping[int, str]) -> bool:
    """True once it was seen to run for STEADY_S on end; False if SETTLE_S pass without."""
    now = clean = time.monotonic()
    end = now + SETTLE_S
    while now - clean < STEADY_S:
        if now > end:
            return False
        time.sleep(LOOK_EVERY_S)
        held, now = left_held(before, _states(pid)), time.monotonic()
        clean = now if held else clean
    return True


def _states(pid: int) -> dict[int, str]:
    return {thread.tid: thread.state for thread in process.threads(pid, detail=False)}


def _status(pid: int, tid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/task/{tid}/status").read_text(errors="backslashreplace")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def _comm(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="backslashreplace").strip()
    except OSError:
        return "gone"


def _yama() -> int:
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return 0


def _may_trace() -> bool:
    """CAP_SYS_PTRACE, bit 19 of linux/capability.h."""
    return bool(int(_status(os.getpid(), os.getpid()).get("CapEff", "0"), 16) >> 19 & 1)
