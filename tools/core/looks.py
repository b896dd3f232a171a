"""What threads did between two looks at /proc: paired, as a table for people, and the one sentence that decides how to
read a capture. Pure.

The same poll can be a wedge or a long prefill; what the threads did in a few seconds mostly tells them apart.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from inferops.core.process import HOT_SHARE, Thread, comparable
from inferops.core.verdict import columns, escape

# All threads together, of one CPU, may use this much and are still taken to wait. Polling moved a blocked llama-server
# (b10068, 11 threads) by one 10 ms tick in 3.2 s, 0.3 %; the capture's own probes, once each, cost it 11 ms. One token
# of a 270M model takes 30 ms, so one a second 3 %.
FLAT_SHARE = 0.01
PROBED_S = 0.03
STARVED_SHARE = 0.2  # of a hot thread's time on a CPU: the rest it stood in the run queue

# where the kernel says that a thread sleeps, by the beginning of the name; the names moved between kernel versions
WAITS = (
    ("futex", "futex"), ("do_epoll", "epoll"), ("ep_poll", "epoll"), ("do_poll", "poll"), ("do_sys_poll", "poll"),
    ("poll_schedule", "poll"), ("do_select", "select"), ("inet_csk_accept", "accept"), ("wait_woken", "socket"),
    ("sk_wait", "socket"), ("unix_stream", "socket"), ("hrtimer_nanosleep", "sleep"), ("do_nanosleep", "sleep"),
    ("pipe_", "pipe"), ("anon_pipe", "pipe"), ("do_wait", "a child"), ("do_sigtimedwait", "a signal"),
    ("ptrace_stop", "a tracer"), ("do_signal_stop", "a stop"), ("eventfd", "eventfd"),
)  # fmt: skip
# asm/unistd.h: the calls that a server's threads sleep in
SYSCALLS = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 16: "ioctl", 17: "pread64", 23: "select", 24: "sched_yield", 35: "nanosleep",
        43: "accept", 45: "recvfrom", 47: "recvmsg", 61: "wait4", 128: "rt_sigtimedwait", 202: "futex",
        230: "clock_nanosleep", 232: "epoll_wait", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4",
        449: "futex_waitv",
    },
    "aarch64": {
        22: "epoll_pwait", 29: "ioctl", 63: "read", 64: "write", 67: "pread64", 72: "pselect6", 73: "ppoll",
        98: "futex", 101: "nanosleep", 115: "clock_nanosleep", 124: "sched_yield", 137: "rt_sigtimedwait",
        202: "accept", 207: "recvfrom", 212: "recvmsg", 242: "accept4", 260: "wait4", 449: "futex_waitv",
    },
}  # fmt: skip


class Pair(msgspec.Struct, frozen=True):
    """One thread in both looks; None in the first: it came between them, in the second: it went."""

    before: Thread | None
    after: Thread | None

    @property
    def thread(self) -> Thread:
        thread = self.after or self.before
        assert thread is not None
        return thread

    @property
    def busy_s(self) -> float | None:
        """Seconds in which it wanted a CPU between the looks; None where they can't be compared."""
        return self._rise("busy_s")

    @property
    def cpu_s(self) -> float | None:
        """Seconds in which it had a CPU between the looks."""
        return self._rise("cpu_s")

    def _rise(self, name: str) -> float | None:
        if self.before is None or self.after is None or not comparable(self.before, self.after):
            return None
        return max(0.0, float(getattr(self.after, name)) - float(getattr(self.before, name)))

    def hot(self, wall_s: float) -> bool:
        return self.busy_s is not None and wall_s > 0 and self.busy_s >= HOT_SHARE * wall_s


def pair(first: Iterable[Thread], second: Iterable[Thread]) -> tuple[Pair, ...]:
    """The looks side by side, by process and thread; a reused tid (another start) is another thread."""
    one = {(thread.pid, thread.tid, thread.start_ticks): thread for thread in first}
    two = {(thread.pid, thread.tid, thread.start_ticks): thread for thread in second}
    return tuple(Pair(one.get(key), two.get(key)) for key in sorted(one.keys() | two.keys()))


def reading(pairs: Sequence[Pair], *, wall_s: float, gpu: bool | None, outstanding: int | None, silent: bool) -> str:
    """The sentence that decides how to read a capture. `wall_s`: seconds between the looks; `gpu`: whether a GPU device
    is open; `outstanding`: requests in work or queued by the server's own stats, None if it did not say; `silent`: its
    stats gave no answer in time."""
    both = [one for one in pairs if one.before is not None and one.after is not None]
    if not both:
        gone = "the process ended between the two looks" if pairs else "no thread could be read"
        return f"{gone}: nothing here says what it did"
    who, pids = f"all {len(both)} threads", sorted({one.thread.pid for one in both})
    of = f"pid {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes"
    traced = [one for one in both if one.thread.state == "t"]
    if traced:
        return f"a tracer holds {len(traced)} of {len(both)} threads of {of}: no fault of the engine's; see TracerPid"
    if stopped := sorted({one.thread.pid for one in both if one.thread.state == "T"}):
        which = " and ".join(f"pid {pid}" for pid in stopped)
        cont = " ".join(map(str, stopped))
        return f"{which} is stopped (T), by a signal: no fault of the engine's; kill -CONT {cont} lets it go on"
    if stuck := [
        one for one in both if one.before and one.before.state == "D" == one.thread.state and _flat(one, wall_s)
    ]:
        where = f"{_name(stuck[0])} in {escape(stuck[0].thread.wchan) or 'the kernel'}"
        many = f"{len(stuck)} threads, first " if len(stuck) > 1 else ""
        return f"{many}{where} sat in D in both looks: the kernel or a device holds it, a kill may not end it"
    hot = sorted((one for one in both if one.hot(wall_s)), key=lambda one: -(one.busy_s or 0.0))
    if hot:
        return _hot(hot, len(both), wall_s) + _gpu(gpu)
    used = sum(one.busy_s or 0.0 for one in both)
    waits = ", ".join(f"{count} in {kind}" for kind, count in Counter(map(wait_of, both)).most_common(3))
    did = f"{used:.2f} s of CPU in {wall_s:.1f} s"
    if used > FLAT_SHARE * wall_s + PROBED_S:
        return f"{who} of {of} used {did}, none of them hot: slow work, or a wait with some life in it; look again"
    if outstanding == 0:
        return f"{who} of {of} waited ({waits}) and used {did}, and its own stats show no work: idle"
    blocked = "blocked if work was outstanding (an idle server looks the same)"
    if outstanding or silent:
        blocked = "a blocked wedge" if outstanding else "its stats don't answer either: a blocked wedge"
    return f"{who} of {of} waited ({waits}) and used {did}: {blocked}; read stacks.txt for who waits for whom"


def _flat(one: Pair, wall_s: float) -> bool:
    return (one.busy_s or 0.0) <= FLAT_SHARE * wall_s


def _hot(hot: Sequence[Pair], count: int, wall_s: float) -> str:
    cpu = sum(one.cpu_s or 0.0 for one in hot)
    if cpu < STARVED_SHARE * wall_s * len(hot):
        return (
            f"{len(hot)} of {count} threads wanted a CPU all the {wall_s:.1f} s and had one for {cpu:.2f} s: starved by"
            " other programs, not wedged"
        )
    if len(hot) == 1:
        return (
            f"one thread, {_name(hot[0])}, ran hot ({100 * (hot[0].busy_s or 0.0) / wall_s:.0f} % of {wall_s:.1f} s)"
            f" while {count - 1} did not: a spin, unless the engine computes on one thread; read stacks.txt for where"
        )
    return (
        f"compute threads hot ({len(hot)} of {count} threads, first {_name(hot[0])}): looks like a healthy prefill or"
        " decode on CPU; take it for a wedge only with another source"
    )


def _gpu(gpu: bool | None) -> str:
    if gpu is None:
        return "; whether a GPU is open could not be told"
    return "; a GPU is open, so a hot thread may only be polling it" if gpu else ""


def _name(one: Pair) -> str:
    return f"tid {one.thread.tid} ({escape(one.thread.comm)})"


def wait_of(one: Pair) -> str:
    """What a thread sleeps in, in a word: by the kernel's own name of the place, else the system call."""
    thread = one.thread
    for start, word in WAITS:
        if thread.wchan.startswith(start):
            return word
    return escape(thread.wchan) or syscall_of(thread) or "an unknown wait"


def syscall_of(thread: Thread, machine: str = platform.machine()) -> str:
    """The system call it is in, by name where known; "" where it was not readable, "-" outside of one."""
    number = thread.syscall.split(" ", 1)[0]
    if number in ("", "running"):
        return number
    if number == "-1":
        return "-"
    return SYSCALLS.get(machine, {}).get(int(number), number) if number.isdecimal() else escape(number)


def report(pairs: Sequence[Pair], wall_s: float, sentence: str, kernel_stacks: Mapping[int, str]) -> str:
    """threads.txt: the sentence, the table, and where the kernel holds threads in D."""
    lines = [sentence, "", table(pairs, wall_s)]
    for tid, text in kernel_stacks.items():
        lines += [f"tid {tid} in D, its kernel stack:", *(f"  {escape(line)}" for line in text.splitlines()), ""]
    return "\n".join(lines)


def table(pairs: Sequence[Pair], wall_s: float) -> str:
    """The looks as text, per process, the busiest thread first; `>` stands between what the two looks saw."""
    lines = []
    for pid in sorted({one.thread.pid for one in pairs}):
        mine = sorted(
            (one for one in pairs if one.thread.pid == pid), key=lambda one: (-(one.busy_s or 0.0), one.thread.tid)
        )
        rows: list[tuple[str, ...]] = [
            ("TID", "NAME", "STATE", "RAN s", "QUEUED s", "BUSY", "SYSCALL", "SLEEPS IN", "CHANGED")
        ]
        rows += [_row(one, wall_s) for one in mine]
        wide = [max(columns(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines.append(f"pid {pid}: {len(mine)} threads, two looks {wall_s:.2f} s apart")
        for row in rows:
            cells = [
                cell.rjust(wide[i] - columns(cell) + len(cell))
                if i in (0, 3, 4, 5)
                else cell + " " * (wide[i] - columns(cell))
                for i, cell in enumerate(row)
            ]
            lines.append("  " + "  ".join(cells).rstrip())
        lines.append("")
    return "\n".join(lines)


def _row(one: Pair, wall_s: float) -> tuple[str, ...]:
    a, b = one.before, one.after
    busy, cpu = one.busy_s, one.cpu_s
    share = f"{100 * busy / wall_s:.0f}%" if busy is not None and wall_s > 0 else "-"
    queued = f"{max(0.0, busy - cpu):.3f}" if busy is not None and cpu is not None else "-"
    changed = "came" if a is None else "went" if b is None else "yes" if _seen(a) != _seen(b) else ""
    return (
        str(one.thread.tid),
        escape(one.thread.comm),
        _both([thread.state for thread in (a, b) if thread]),
        "-" if cpu is None else f"{cpu:.3f}",
        queued,
        share,
        _both([syscall_of(thread) for thread in (a, b) if thread]),
        _both([escape(thread.wchan) for thread in (a, b) if thread]),
        changed,
    )


def _seen(thread: Thread) -> tuple[str, str, str]:
    return thread.state, thread.wchan, thread.syscall


def _both(seen: Sequence[str]) -> str:
    return " > ".join(dict.fromkeys(text or "-" for text in seen))


def rows(pairs: Sequence[Pair], wall_s: float) -> list[dict[str, Any]]:
    """The same for machines: both looks whole, and the differences in seconds."""
    return [
        {
            "pid": one.thread.pid,
            "tid": one.thread.tid,
            "comm": one.thread.comm,
            "first": one.before and msgspec.to_builtins(one.before),
            "second": one.after and msgspec.to_builtins(one.after),
            "busy_s": one.busy_s and round(one.busy_s, 6),
            "cpu_s": one.cpu_s and round(one.cpu_s, 6),
            "hot": one.hot(wall_s),
        }
        for one in pairs
    ]
