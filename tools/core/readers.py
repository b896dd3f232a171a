"""What a capture reads, one reader a thing, each run in a thread of its own: a read of /proc can hang for ever in the
kernel, and then the others still get to the disk.

Secrets stay out: no environment, argv values of key, token and password options masked, our own API key blotted out.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from inferops.core import ports, process
from inferops.core.captures import Part
from inferops.core.journal import Entry, tail
from inferops.core.poll import Health, Stats
from inferops.core.probe import Fault, Prober, Reply, join, read_health, read_stats
from inferops.core.settings import Resolved
from inferops.core.verdict import BlindError, InferopsError, escape

T = TypeVar("T")

JOURNAL_ENTRIES = 500
LINE_MAX_CHARS = 4096
TAPE_MAX_BYTES = 8 << 20
FILE_MAX_BYTES = 64 << 10  # of one /proc file; status and sched are some 1 to 10 kB
PROCESSES_MAX = 64
VERSION_S = 5.0
PROC_FILES = ("status", "limits", "io", "sched", "cgroup", "oom_score")  # no environ, and nothing with addresses
MASK = "[masked]"

# an option is secret by one of its words, unless it names where the secret is kept: --api-key X, --hf-token=X,
# --ssl-key-file PATH is not
_SECRET = {"key", "keys", "apikey", "token", "hft", "password", "passwd", "secret", "credential", "credentials", "auth"}
_PLACE = {"file", "path", "dir"}
_CREDENTIALS = re.compile(r"(://)[^/@\s]*@")


class Read(msgspec.Struct, frozen=True):
    """What a reader found: its part of the capture, and the files to write."""

    part: Part
    files: dict[str, bytes]
    outstanding: int | None = None  # requests in work or queued, by the server's own stats
    silent: bool = False  # its stats gave no answer in time


class Look(msgspec.Struct, frozen=True):
    """Every thread at one moment (`t`, BOOTTIME s). `kernel_stacks`: of threads in D, by tid."""

    t: float
    threads: tuple[process.Thread, ...]
    gpu: bool | None
    exe: str
    kernel_stacks: dict[int, str]


def mask(argv: Sequence[str]) -> list[str]:
    """A command line without the values of its secret options."""
    shown, secret = [], False
    for arg in argv:
        name, equals, _ = arg.partition("=")
        hidden = _is_secret(name) and (bool(equals) or name.startswith("-"))
        if secret:
            shown.append(MASK)
        elif hidden and equals:
            shown.append(f"{name}={MASK}")
        else:
            shown.append(_CREDENTIALS.sub(rf"\1{MASK}@", arg))
        secret = hidden and not equals and not secret
    return shown


def _is_secret(name: str) -> bool:
    words = re.split(r"[^a-z0-9]+", name.lower().strip("-"))
    return bool(_SECRET.intersection(words)) and words[-1] not in _PLACE and len(name) < 80


def journal_text(entries: Iterable[Entry]) -> str:
    """One line an entry: UTC time, who, the message escaped."""
    lines = []
    for entry in entries:
        when = datetime.fromtimestamp(entry.wall, UTC).isoformat(timespec="microseconds")
        who = "systemd" if entry.by_systemd else entry.unit.removesuffix(".service")
        lines.append(f"{when} {escape(who)}[{entry.pid}]: {escape(entry.message[:LINE_MAX_CHARS])}\n")
    return "".join(lines)


def brief(answer: Reply | Fault) -> dict[str, Any]:
    """An answer without its body, for stats.json."""
    said = msgspec.structs.asdict(answer) | {"latency_s": round(answer.latency_s, 4)}
    body = said.pop("body", None)
    return said if body is None else said | {"bytes": len(body)}


def stats_part(health: Health, stats: Stats) -> Part:
    """No answer is an answer: in a wedge some engines give none. One that can't be read is blind."""
    said = f"health {health.answer}" + (f" ({health.code})" if health.code else "") + f"; stats {stats.answer}"
    gauges = (("active", stats.active), ("queued", stats.queued), ("free slots", stats.free_slots))
    said += "".join(f", {name} {value}" for name, value in gauges if value is not None)
    return Part("stats", "blind" if stats.answer == "bad" else "ok", said + (f"; {stats.why}" if stats.why else ""))


def plural(count: int, word: str) -> str:
    """1 process, 2 processes."""
    return f"{count:,} {word}{'' if count == 1 else 'es' if word.endswith('s') else 's'}"


def tape_part(data: bytes, limit: int = TAPE_MAX_BYTES) -> bytes:
    """A tape's first line (its header) and as many of its last whole lines as fit."""
    head, _, rest = data.partition(b"\n")
    rest = rest[: rest.rfind(b"\n") + 1]  # the last line may be half written
    room = limit - len(head) - 1
    if len(rest) > room:
        rest = rest[-room:].partition(b"\n")[2]
    return head + b"\n" + rest


# --- edge


class Job(threading.Thread, Generic[T]):
    """A reader that runs at once, by itself; one that hangs is left behind."""

    def __init__(self, what: str, work: Callable[[], T]) -> None:
        super().__init__(daemon=True, name=what)
        self._work = work
        self._found: list[T] = []
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._found.append(self._work())
        except Exception as e:  # noqa: BLE001 - one reader's fault is one part blind, not the capture's end
            self._error = e

    def result(self, deadline_s: float) -> T:
        """Raises BlindError: not done in `deadline_s` seconds, or what the reader raised, in words."""
        self.join(max(0.0, deadline_s))
        if self.is_alive():
            raise BlindError(
                f"{self.name}: no end in sight: a read hangs in the kernel", "ps -o stat,wchan of the unit"
            )
        if isinstance(self._error, InferopsError):
            raise self._error
        if self._error is not None:
            raise BlindError(f"{self.name}: {type(self._error).__name__}: {escape(str(self._error))[:200]}")
        return self._found[0]


def boottime() -> float:
    """Seconds on CLOCK_BOOTTIME."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def look(pids: Sequence[int]) -> Look:
    """One look at every thread of `pids`, with what is asked of the process as a whole."""
    t = boottime()
    found = tuple(thread for pid in pids for thread in process.threads(pid, detail=True))
    stuck = {
        thread.tid: _text(f"/proc/{thread.pid}/task/{thread.tid}/stack") for thread in found if thread.state == "D"
    }
    return Look(t, found, process.gpu_open(pids), _link(pids[0]) if pids else "", stuck)


def stats(resolved: Resolved) -> Read:
    """What health and each stats endpoint say, raw and read."""

    async def ask() -> tuple[Reply | Fault, ...]:
        prober = Prober(resolved.profile, resolved.settings.live, resolved.settings.sentinel.probe_deadline_s)
        try:
            return await prober.bodies()
        finally:
            await prober.aclose()

    answers, profile = asyncio.run(ask()), resolved.profile
    health = read_health(answers[0], profile)
    pairs = zip(answers[1:], profile.stats, strict=True)
    found = join([read_stats(one, source, profile) for one, source in pairs], profile.stats)
    said = {"health": health, "stats": found, "answers": [brief(one) for one in answers]}
    bodies = {f"body{one.path.replace('/', '-')}"[:100] + ".txt": one.body for one in answers if isinstance(one, Reply)}
    outstanding = None if found.answer != "ok" or found.active is None else found.active + (found.queued or 0)
    files = {"stats.json": msgspec.json.encode(said), **bodies}
    return Read(stats_part(health, found), files, outstanding, found.answer == "timeout")


def journal(name: str) -> Read:
    """The unit's last entries."""
    found = tail([name], JOURNAL_ENTRIES)
    if not found:
        raise BlindError(f"journal: no entry of {name}", "does it log elsewhere (StandardOutput=)?")
    return Read(Part("journal", "ok", f"{len(found)} entries"), {"journal.txt": journal_text(found).encode()})


def sockets(port: int, pids: Sequence[int], control_group: str) -> Read:
    """Who listens on the port and who is connected."""
    whose, detail = ports.owner(port, pids, control_group)
    peers = ports.established(port)
    lines = [f"port {port} is held by {whose}{': ' if detail else ''}{detail}"]
    for one in ports.listeners(port, pids):
        held = ", ".join(map(str, one.pids)) or "none of the unit's"
        lines.append(f"listener {one.addr} {one.family} inode {one.inode} pids {held}")
    lines += [f"established {one}" for one in peers]
    said = f"port {port} is held by {whose}; {plural(len(peers), 'connection')}"
    return Read(Part("sockets", "ok", said), {"sockets.txt": ("\n".join(lines) + "\n").encode()})


def processes(pids: Sequence[int]) -> Read:
    """The /proc files of each process that hold no secret, and its masked command line."""
    lines, seen = [], 0
    for pid in pids[:PROCESSES_MAX]:
        lines.append(f"== pid {pid} exe {escape(_link(pid)) or 'unreadable'} started {process.start_ticks(pid)} ticks")
        for name in PROC_FILES:
            text = _text(f"/proc/{pid}/{name}")
            seen += bool(text)
            lines += [f"-- {name}", *(escape(line.expandtabs()) for line in text.splitlines())]
        argv = _text(f"/proc/{pid}/cmdline").rstrip("\0").split("\0")  # last: this read can hang
        lines += ["-- argv", *(escape(arg) for arg in mask(argv)), ""]
    if not seen:
        raise BlindError(f"processes: nothing to read of {len(pids)} processes", "run as root, or as the server's user")
    said = f"{min(len(pids), PROCESSES_MAX)} of {plural(len(pids), 'process')}"
    return Read(Part("processes", "ok", said), {"processes.txt": "\n".join(lines).encode()})


def tape(path: Path) -> Read:
    """The sentinel's recorded polls; a regular file only (a FIFO would hang)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise BlindError(f"tape {path}: expected a regular file", "name the sentinel's tape")
            data = file.read(16 * TAPE_MAX_BYTES)
    except OSError as e:
        raise BlindError(f"tape {path}: {e.strerror}", "name the sentinel's tape") from None
    kept = tape_part(data)
    said = plural(max(0, kept.count(b"\n") - 1), "poll")
    return Read(Part("tape", "ok", said), {"tape.jsonl": kept})


def versions() -> dict[str, str]:
    """Of the tools that a capture depends on; one that is missing is left out."""
    found = {}
    for name, argv in (("gdb", ["gdb", "--version"]), ("systemd", ["systemctl", "--version"])):
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, timeout=VERSION_S, check=False, errors="replace"
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        found[name] = escape(done.stdout.partition("\n")[0])[:100]
    return found


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(FILE_MAX_BYTES).decode("utf-8", "backslashreplace")
    except OSError:
        return ""


def _link(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""
