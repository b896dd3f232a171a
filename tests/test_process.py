"""Threads of real processes: spinning, asleep, in D state, zombies, with hostile names."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferops.core import process
from inferops.core.process import HOT_SHARE, CpuWatch, Stat, Thread, parse_schedstat, parse_stat

Script = Callable[[str], int]

# One thread spins, one sleeps; the line on stdout says that both run.
SPIN = """
import threading, time, sys
sys.setswitchinterval(1.0)
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("up", flush=True)
while True:
    pass
"""
SLEEP = "import time; print('up', flush=True); time.sleep(600)"
# clone(CLONE_VFORK) with memory of its own: the kernel holds the parent in D state until the child ends.
D_STATE = """
import ctypes, os, platform, signal, sys, time
CLONE_VFORK, number = 0x4000, {"x86_64": 56, "aarch64": 220}[platform.machine()]
parent = os.getpid()
print("up", flush=True)
if ctypes.PyDLL(None).syscall(number, CLONE_VFORK | signal.SIGCHLD, 0, 0, 0, 0) == 0:
    while os.getppid() == parent:
        time.sleep(0.05)
    os._exit(0)
"""


@pytest.fixture
def script() -> Iterator[Script]:
    """Runs a Python script that prints "up"; each is ended after the test."""
    running: list[subprocess.Popen[str]] = []

    def run(code: str) -> int:
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        running.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        return child.pid

    yield run
    for child in running:
        child.kill()
        child.communicate()


def wait_for(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, "did not come true in 30 s"
        time.sleep(0.01)


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def thread(**changes: object) -> Thread:
    usual: dict[str, object] = {
        "pid": 1, "tid": 1, "comm": "x", "state": "S", "start_ticks": 7, "utime_s": 0.0, "stime_s": 0.0,
    }  # fmt: skip
    return Thread(**(usual | changes))  # type: ignore[arg-type]


@given(st.binary(max_size=15).filter(lambda name: b"\n" not in name), st.sampled_from("RSDTZI"), st.integers(0, 2**62))
def test_a_name_cannot_forge_the_fields_after_it(name: bytes, state: str, start: int) -> None:
    rest = [state.encode(), b"1", *[b"0"] * 9, b"11", b"22", *[b"0"] * 6, str(start).encode(), b"0"]
    stat = parse_stat(b"42 (" + name + b") " + b" ".join(rest))
    assert (stat.state, stat.utime, stat.stime, stat.start) == (state, 11, 22, start)


@pytest.mark.parametrize("line", [b"", b"42 (x", b"42 (x) R 1 2", b"42 )x( R"])
def test_what_is_no_stat_line(line: bytes) -> None:
    with pytest.raises(ValueError, match="not a stat line"):
        parse_stat(line)


def test_a_real_d_state_line() -> None:
    line = (
        b"812 (kworker) R (u8:1) D 1 812 812 0 -1 4194560 90 0 0 0 250 75 0 0 20 0 3 0 98765 11460608 1234"
        b" 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0"
    )
    assert parse_stat(line) == Stat("kworker) R (u8:1", "D", 250, 75, 98765)


@pytest.mark.parametrize(
    ("line", "times"),
    [
        (b"1500000000 250000000 12\n", (1.5, 0.25)),
        (b"0 0 0\n", None),  # a kernel that keeps none
        (b"0 85415 1\n", (0.0, 0.000085415)),
        (b"", None),
    ],
)
def test_schedstat(line: bytes, times: tuple[float, float] | None) -> None:
    assert parse_schedstat(line) == times


def test_a_spinning_thread_is_hot_and_a_sleeping_one_is_not(script: Script) -> None:
    pid, watch = script(SPIN), CpuWatch()
    wait_for(lambda: len(process.threads(pid, detail=False)) == 2)
    assert watch.sample([pid], boottime()).hot is None
    time.sleep(1.0)
    seen = watch.sample([pid], boottime())
    assert seen.hot == 1
    assert seen.cpu_s is not None
    assert seen.cpu_s > 0
    assert seen.d_tids == ()


def test_many_processes_on_few_cores_are_hot_all_the_same(script: Script) -> None:
    pids, watch = [script(SPIN) for _ in range(2 * (os.cpu_count() or 1))], CpuWatch()
    watch.sample(pids, boottime())
    time.sleep(2.0)
    assert watch.sample(pids, boottime()).hot == len(pids)


def test_a_new_process_is_not_hot_before_its_second_sample(script: Script) -> None:
    first, watch = script(SLEEP), CpuWatch()
    watch.sample([first], boottime())
    second = script(SPIN)
    time.sleep(0.5)
    assert watch.sample([first, second], boottime()).hot == 0
    assert watch.sample([], boottime()).hot is None
    assert watch.sample([second], boottime()).hot is None  # nothing to compare with: not zero


def test_threads_are_told_apart_by_their_start(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = iter([
        (thread(run_s=1.0, wait_s=0.0),),
        (thread(run_s=9.0, wait_s=0.0, start_ticks=8), thread(tid=2, run_s=5.0, wait_s=0.0)),
        (thread(run_s=12.0, wait_s=5.0, start_ticks=8), thread(tid=2, run_s=5.0, wait_s=0.0)),
    ])  # fmt: skip
    monkeypatch.setattr(process, "threads", lambda pid, detail: next(samples))
    watch = CpuWatch()
    assert watch.sample([1], 100.0).hot is None
    assert watch.sample([1], 110.0).hot is None  # the tid came back as another thread
    seen = watch.sample([1], 120.0)
    assert (seen.hot, seen.cpu_s) == (1, 3.0)  # 3 s of running and 5 s of waiting in 10 s


@pytest.mark.parametrize(
    ("before", "after", "hot"),
    [
        ({"run_s": 0.0, "wait_s": 0.0}, {"run_s": 8.0, "wait_s": 0.0}, 1),
        ({"run_s": 0.0, "wait_s": 0.0}, {"run_s": 4.0, "wait_s": 4.0}, 1),
        ({"run_s": 0.0, "wait_s": 0.0}, {"run_s": 7.9, "wait_s": 0.0}, 0),
        ({"utime_s": 1.0, "stime_s": 1.0}, {"utime_s": 8.0, "stime_s": 2.0}, 1),  # no schedstat
        ({"utime_s": 1.0}, {"utime_s": 9.0, "run_s": 9.0, "wait_s": 0.0}, 0),  # two sources: no difference
    ],
)
def test_the_bound(
    monkeypatch: pytest.MonkeyPatch, before: dict[str, float], after: dict[str, float], hot: int
) -> None:
    assert HOT_SHARE == 0.8
    samples = iter([(thread(**before),), (thread(**after),)])
    monkeypatch.setattr(process, "threads", lambda pid, detail: next(samples))
    watch = CpuWatch()
    watch.sample([1], 0.0)
    assert watch.sample([1], 10.0).hot == hot


def test_no_time_between_two_samples_says_nothing(script: Script) -> None:
    pid, watch, t = script(SPIN), CpuWatch(), boottime()
    watch.sample([pid], t)
    assert watch.sample([pid], t).hot is None
    assert watch.sample([pid], t - 5.0).hot is None


def test_a_thread_in_d_state_is_named(script: Script) -> None:
    pid = script(D_STATE)
    wait_for(lambda: CpuWatch().sample([pid], boottime()).d_tids == (pid,))
    (one,) = process.threads(pid, detail=True)
    assert one.state == "D"


def test_where_a_sleeping_thread_sleeps(script: Script) -> None:
    pid = script(SLEEP)
    wait_for(lambda: process.threads(pid, detail=True)[0].wchan != "")  # "S" comes a moment before it has left the CPU
    (one,) = process.threads(pid, detail=True)
    assert (one.pid, one.tid, one.comm) == (pid, pid, Path(f"/proc/{pid}/comm").read_text().strip())
    assert one.wchan
    assert one.wchan != "0"
    assert one.syscall.split()[0].isdigit()
    assert process.threads(pid, detail=False)[0].wchan == ""


def test_a_hostile_name_of_a_real_process(script: Script) -> None:
    name = "a) R 1 (b\n\x1b[c"
    pid = script(f"open('/proc/self/comm', 'w').write({name!r}); {SLEEP}")
    (one,) = process.threads(pid, detail=False)
    assert one.comm == name
    assert one.state in "RS"


def test_who_is_gone_is_nobody(script: Script) -> None:
    pid = script(SLEEP)
    ticks = process.start_ticks(pid)
    assert ticks is not None
    assert process.alive(pid, ticks)
    assert not process.alive(pid, ticks - 1)  # the pid of somebody else
    os.kill(pid, 9)
    wait_for(lambda: process.threads(pid, detail=False)[0].state == "Z")
    assert process.start_ticks(pid) == ticks
    assert not process.alive(pid, ticks)
    assert CpuWatch().sample([pid], boottime()).d_tids == ()
    os.waitpid(pid, 0)
    assert process.threads(pid, detail=True) == ()
    assert process.start_ticks(pid) is None
    assert not process.alive(pid, ticks)
    assert process.gpu_open([pid]) is None


def test_an_open_gpu_device_is_seen(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "renderD128").touch()
    plain = script(SLEEP)
    user = script(f"device = open({str(tmp_path / 'renderD128')!r}); {SLEEP}")
    assert process.gpu_open([plain, user]) is False
    monkeypatch.setattr(process, "GPU_PREFIXES", (f"{tmp_path}/renderD",))
    assert process.gpu_open([plain]) is False
    assert process.gpu_open([plain, user]) is True
    assert CpuWatch().sample([plain, user], boottime()).gpu is True
    assert process.gpu_open([]) is None


@pytest.mark.parametrize(
    "device",
    ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/dri/renderD128", "/dev/kfd", "/dev/accel/accel0"],
)
def test_gpu_devices(device: str) -> None:
    assert device.startswith(process.GPU_PREFIXES)
    assert not "/dev/null".startswith(process.GPU_PREFIXES)


def test_what_was_read_from_disk_is_the_kernels_account(script: Script) -> None:
    def account() -> int:
        return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["read_bytes"])

    before, read = account(), process.read_bytes(os.getpid())
    assert read is not None
    assert before <= read <= account()
    pid = script("print('up', flush=True)")
    wait_for(lambda: process.threads(pid, detail=False)[0].state == "Z")
    assert process.read_bytes(pid) in (None, 0)
    assert process.read_bytes(2**22 + 1) is None


@pytest.mark.parametrize(("hidden", "read_mb"), [(False, 3.0), (True, None)])
def test_a_process_whose_io_is_hidden_makes_the_sum_unknown(
    hidden: bool, read_mb: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = {os.getpid(): 5_000_000, 1: 9_000_000}
    monkeypatch.setattr(process, "read_bytes", lambda pid: None if hidden and pid == 1 else account[pid])
    watch = CpuWatch()
    watch.sample([os.getpid(), 1], boottime())
    account[os.getpid()] += 3_000_000
    assert watch.sample([os.getpid(), 1], boottime()).read_mb == read_mb


def test_a_new_processes_whole_past_is_no_news(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "read_bytes", lambda pid: 7_000_000)
    watch = CpuWatch()
    assert watch.sample([os.getpid()], boottime()).read_mb is None
    assert watch.sample([os.getpid(), script(SLEEP)], boottime()).read_mb == 0.0


def test_pages_moved_is_the_kernels_counter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = Path("/proc/vmstat").read_text()
    assert (process.pages_moved() is None) == ("\npgmigrate_success " not in real)
    monkeypatch.setattr(process, "PROC", tmp_path)
    vmstat, watch = tmp_path / "vmstat", CpuWatch()
    vmstat.write_text("compact_stall 9\npgmigrate_success 1000\npgmigrate_fail 3\n")
    assert watch.sample([], 1.0).compacted is None
    vmstat.write_text("compact_stall 9\npgmigrate_success 1250\npgmigrate_fail 7\n")
    assert watch.sample([], 2.0).compacted == 250
    vmstat.write_text("compact_stall 9\n")
    assert watch.sample([], 3.0).compacted is None


def test_another_users_open_files_are_not_taken_for_none() -> None:
    code = "import os, sys; from inferops.core import process\nif os.geteuid() == 0: os.setuid(65534)\n"
    code += "print(process.gpu_open([os.getpid(), 1]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "None\n"
