"""What the threads of a process do, from /proc: state, where they sleep, CPU and run-queue time, open GPU devices;
beside it what it read from disk, and what the kernel moved to compact memory.

A process or thread that vanishes while it is read is left out. CpuWatch turns two samples into what a poll carries.
Blind to: work done for a process elsewhere (a GPU, a kernel thread), and a thread that lived between two samples.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from inferops.core.poll import HostSeen

# (run + wait) / wall of one thread over one poll. A prefill on CPU keeps every compute thread at it even when another
# program wants the cores too (its waiting counts), a spinning wedge heats exactly one, a futex wedge none
# (llama-server b10068, -t 2).
HOT_SHARE = 0.8

# Device nodes whose open file means that a GPU or accelerator is used: NVIDIA, DRM render (AMD, Intel), AMD compute,
# the kernel's accel class, and the paravirtual one of WSL. Then a busy thread may only be polling the device.
GPU_PREFIXES = ("/dev/nvidia", "/dev/dri/renderD", "/dev/kfd", "/dev/accel", "/dev/dxg")

PROC = Path("/proc")
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_DEAD = "ZXx"
VMSTAT_BYTES = 65_536  # /proc/vmstat is some 5,000


class Thread(msgspec.Struct, frozen=True, kw_only=True):
    """One thread at one moment; times in seconds since its start. `run_s` (on a CPU) and `wait_s` (runnable, waiting
    for one) are None where the kernel keeps no schedstat; `wchan` and `syscall` are "" where not asked for, not asleep
    or not permitted (both need ptrace rights over the process)."""

    pid: int
    tid: int
    comm: str
    state: str
    start_ticks: int
    utime_s: float
    stime_s: float
    run_s: float | None = None
    wait_s: float | None = None
    wchan: str = ""
    syscall: str = ""

    @property
    def busy_s(self) -> float:
        """Seconds in which it wanted a CPU; without schedstat those in which it had one, to 10 ms."""
        if self.run_s is None or self.wait_s is None:
            return self.utime_s + self.stime_s
        return self.run_s + self.wait_s

    @property
    def cpu_s(self) -> float:
        """Seconds in which it had a CPU."""
        return self.utime_s + self.stime_s if self.run_s is None else self.run_s


class Stat(msgspec.Struct, frozen=True):
    """The fields of /proc/…/stat that are used here; times in clock ticks, the start since boot (BOOTTIME)."""

    comm: str
    state: str
    utime: int
    stime: int
    start: int


def parse_stat(line: bytes) -> Stat:
    """One stat line. The name may hold spaces, parentheses and newlines: it ends at the last `)`. ValueError: none."""
    left, right = line.find(b"("), line.rfind(b")")
    fields = line[right + 1 :].split()
    if left < 0 or right < left or len(fields) < 20:
        raise ValueError(f"not a stat line: {line[:80]!r}")
    comm = line[left + 1 : right].decode("utf-8", "backslashreplace")
    return Stat(comm, fields[0].decode("ascii"), int(fields[11]), int(fields[12]), int(fields[19]))


def parse_schedstat(line: bytes) -> tuple[float, float] | None:
    """(run, wait) in seconds; None where the kernel keeps none: it then prints zeros, also for the number of runs."""
    fields = line.split()
    if len(fields) != 3 or fields[2] == b"0":
        return None
    return int(fields[0]) / 1e9, int(fields[1]) / 1e9


class CpuWatch:
    """Keeps the sample before, so that each one says what the threads did since."""

    def __init__(self) -> None:
        self._t = 0.0
        self._before: dict[tuple[int, int], Thread] = {}
        self._read: dict[tuple[int, int], int] = {}
        self._moved: int | None = None

    def sample(self, pids: Iterable[int], t: float) -> HostSeen:
        """What the threads of `pids` did since the sample before; `t` is now, seconds on BOOTTIME: the moment of this
        very call, or a share of its lateness goes into every thread's.

        `hot` counts threads with (run + wait)/wall >= HOT_SHARE; one that is new (by tid and start) is not counted.
        `hot` and `cpu_s` are None where no thread was seen before or no time passed; `read_mb` (1e6 bytes) where a
        process's I/O is not ours to read or none was seen before; `compacted` at the first sample.
        """
        pids = tuple(pids)
        found = [thread for pid in pids for thread in threads(pid, detail=False)]
        now = {(thread.tid, thread.start_ticks): thread for thread in found}
        wall, before = t - self._t, self._before
        self._t, self._before = t, now
        pairs = [(thread, before[key]) for key, thread in now.items() if key in before]
        d_tids = tuple(sorted(thread.tid for thread in found if thread.state == "D"))
        gpu = gpu_open(pids)
        read_mb, compacted = self._disk(pids), self._compacted()
        if not pairs or wall <= 0:
            return HostSeen(d_tids=d_tids, gpu=gpu, read_mb=read_mb, compacted=compacted)
        hot = sum(comparable(a, b) and b.busy_s - a.busy_s >= HOT_SHARE * wall for b, a in pairs)
        cpu_s = sum(max(0.0, b.cpu_s - a.cpu_s) for b, a in pairs if comparable(a, b))
        cpu_s += sum(thread.cpu_s for key, thread in now.items() if key not in before)
        return HostSeen(hot=hot, cpu_s=round(cpu_s, 3), d_tids=d_tids, gpu=gpu, read_mb=read_mb, compacted=compacted)

    def _disk(self, pids: Iterable[int]) -> float | None:
        now = {(pid, start): read_bytes(pid) for pid in pids if (start := start_ticks(pid)) is not None}
        before, self._read = self._read, {key: value for key, value in now.items() if value is not None}
        deltas = [value - before[key] for key, value in self._read.items() if key in before]
        return round(sum(deltas) / 1e6, 3) if deltas and None not in now.values() else None

    def _compacted(self) -> int | None:
        before, self._moved = self._moved, pages_moved()
        return None if before is None or self._moved is None else self._moved - before


def comparable(a: Thread, b: Thread) -> bool:
    """Whether both were read from the same source, so that their difference means something."""
    return (a.run_s is None) == (b.run_s is None)


# --- edge


def threads(pid: int, detail: bool) -> tuple[Thread, ...]:
    """Every thread of `pid`, by tid; empty if it is gone. Without `detail` only stat and schedstat are read."""
    try:
        tids = sorted(int(name) for name in os.listdir(PROC / str(pid) / "task"))
    except OSError:
        return ()
    return tuple(thread for tid in tids if (thread := _thread(pid, tid, detail)) is not None)


def _thread(pid: int, tid: int, detail: bool) -> Thread | None:
    base = f"{PROC}/{pid}/task/{tid}/"
    line = _read(base + "stat")
    if not line:
        return None
    stat = parse_stat(line)
    run, wait = parse_schedstat(_read(base + "schedstat") or b"") or (None, None)
    wchan = (_read(base + "wchan") or b"").decode("ascii", "replace").strip() if detail else ""
    syscall = (_read(base + "syscall") or b"").decode("ascii", "replace").strip() if detail else ""
    return Thread(
        pid=pid, tid=tid, comm=stat.comm, state=stat.state, start_ticks=stat.start,
        utime_s=stat.utime * _TICK_S, stime_s=stat.stime * _TICK_S, run_s=run, wait_s=wait,
        wchan="" if wchan == "0" else wchan, syscall=syscall,
    )  # fmt: skip


def gpu_open(pids: Iterable[int]) -> bool | None:
    """True if one of `pids` has a GPU or accelerator device open; None if that cannot be told: the open files of one
    could not be read (another user's process), or every one of them is gone."""
    seen, hidden = False, False
    for pid in pids:
        try:
            for target in open_files(pid):
                seen = True
                if target.startswith(GPU_PREFIXES):
                    return True
        except PermissionError:
            hidden = True
    return None if hidden or not seen else False


def open_files(pid: int | str) -> Iterator[str]:
    """What the open files of a process are, as /proc says; nothing if it is gone. Raises PermissionError."""
    folder = f"{PROC}/{pid}/fd"
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError):
        return
    for name in names:
        try:
            yield os.readlink(f"{folder}/{name}")
        except (FileNotFoundError, ProcessLookupError):
            continue  # closed meanwhile


def read_bytes(pid: int) -> int | None:
    """Bytes that `pid` had fetched from a disk so far (page cache hits are none); None: gone, or not ours to read."""
    found = re.search(rb"^read_bytes: (\d+)$", _read(f"{PROC}/{pid}/io") or b"", re.M)
    return int(found[1]) if found else None


def pages_moved() -> int | None:
    """Pages that the kernel migrated since boot (pgmigrate_success): compaction's, and where there are several memory
    nodes those of their balancing too. None where it keeps no such counter."""
    found = re.search(rb"^pgmigrate_success (\d+)$", _read(f"{PROC}/vmstat", VMSTAT_BYTES) or b"", re.M)
    return int(found[1]) if found else None


def start_ticks(pid: int) -> int | None:
    """When `pid` started, in clock ticks since boot; None if there is no such process. A pid is itself only with it."""
    line = _read(f"{PROC}/{pid}/stat")
    return parse_stat(line).start if line else None


def start_t(pid: int) -> float | None:
    """When `pid` started, seconds on BOOTTIME, to 10 ms and rounded down; None if there is no such process."""
    ticks = start_ticks(pid)
    return None if ticks is None else round(ticks * _TICK_S, 6)


def alive(pid: int, ticks: int) -> bool:
    """Whether the process that started at `ticks` still runs; a zombie has ended, a reused pid is somebody else."""
    line = _read(f"{PROC}/{pid}/stat")
    if not line:
        return False
    stat = parse_stat(line)
    return stat.start == ticks and stat.state not in _DEAD


def _read(path: str, most: int = 4096) -> bytes | None:
    """One /proc file, its first `most` bytes; None if it is gone, or not ours to read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, most)
    except OSError:
        return None
    finally:
        os.close(fd)
