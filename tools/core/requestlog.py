"""Follows an engine's request log, JSON Lines that only grow, and tallies the requests of each instance in it.

One file holds every server that ever wrote to it, so a figure belongs to one instance or means nothing.
Blind to: requests that began more than TAIL_BYTES before the end when it was first read; what was written right before
the file was cut short, and a cut that was written over up to the old length between two reads (copytruncate of
logrotate: let it rename instead).
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field

from inferops.core import finite
from inferops.core.poll import RequestsSeen
from inferops.core.reading import Profile, RequestRow
from inferops.core.verdict import BlindError, InferopsError, escape

TAIL_BYTES = 4 << 20  # some 6,000 requests of 700 bytes: more than any engine has under way
READ_BYTES = 8 << 20  # a poll; what is left is read at the next one
READ_LINES = 10_000  # a poll: jq takes 0.1 ms a record, and short lines would make it many
LINE_MAX_BYTES = 1 << 20
TOO_LONG = b"\0"  # stands for such a line; no JSON
CHUNK_BYTES = 1 << 18
INSTANCES_MAX = 16  # the one that wrote longest ago is forgotten first
OPEN_MAX = 10_000  # requests of one instance without an end, the oldest forgotten first: some servers never log it


@dataclass
class Tally:
    """One instance's requests. `open`: id -> BOOTTIME of its start; `starts`: the log says when one starts; `failing`:
    failures since the last end with tokens, the first of them at `failing_t`."""

    counts: dict[str, int] = field(default_factory=dict)
    newest: dict[str, float] = field(default_factory=dict)
    open: dict[str, float] = field(default_factory=dict)
    starts: bool = False
    failing: int = 0
    failing_t: float | None = None

    def take(self, row: RequestRow, t: float, count: bool) -> None:
        """One record of time `t`; without `count` an end only closes what it ends."""
        if row.kind == "start":
            self.starts = True
            if row.id is not None:
                self.open.pop(row.id, None)  # its end was lost: the id is another request's now
                self.open[row.id] = t
            if len(self.open) > OPEN_MAX:
                del self.open[next(iter(self.open))]
        elif row.kind is not None:
            if row.id is not None:
                self.open.pop(row.id, None)
            if count:
                self.counts[row.kind] = self.counts.get(row.kind, 0) + 1
                self.newest[row.kind] = max(t, self.newest.get(row.kind, t))
                if row.kind == "done":
                    self.failing, self.failing_t = 0, None
                elif row.kind == "failed":
                    self.failing, self.failing_t = self.failing + 1, t if self.failing_t is None else self.failing_t

    def seen(self) -> RequestsSeen:
        """The tally as a poll carries it."""
        return RequestsSeen(
            done=self.counts.get("done", 0), failed=self.counts.get("failed", 0), other=self.counts.get("other", 0),
            done_t=self.newest.get("done"), failed_t=self.newest.get("failed"), failing=self.failing,
            failing_t=self.failing_t,
            open=len(self.open) if self.starts else None, oldest_t=min(self.open.values(), default=None),
        )  # fmt: skip


def boottime_of(t_ms: float | None, now: float, wall: float, since: float) -> float:
    """A record's Unix time as BOOTTIME, within [since, now]: between the read before and this one it was written,
    whatever the wall clock did meanwhile. Without a stamp, or with one from before this machine's boot: now."""
    t = now if t_ms is None else now - (wall - t_ms / 1000.0)
    return min(max(t if t >= 0 else now, since), now)


class Lines:
    """Bytes -> whole lines. The beginning of one waits for its end; of one over LINE_MAX_BYTES comes TOO_LONG."""

    def __init__(self, inside: bool) -> None:
        self._rest = b""
        self._skip = inside  # until the next newline: begun in the middle of a line, or in one that is too long

    def feed(self, data: bytes) -> None:
        self._rest += data

    def take(self, most: int) -> list[bytes]:
        """At most `most` lines, in order."""
        out: list[bytes] = []
        at = 0
        while len(out) < most and (end := self._rest.find(b"\n", at)) >= 0:
            if not self._skip:
                out.append(self._rest[at:end] if end - at <= LINE_MAX_BYTES else TOO_LONG)
            self._skip, at = False, end + 1
        self._rest = self._rest[at:]
        if len(out) < most and len(self._rest) > LINE_MAX_BYTES:
            out += [] if self._skip else [TOO_LONG]
            self._rest, self._skip = b"", True
        return out


# --- edge


class RequestLog:
    """Follows one file through rotation by rename and truncation. Raises BlindError: the profile reads no such log."""

    def __init__(self, path: str, profile: Profile) -> None:
        if profile.requests is None:
            raise BlindError(f"profile {profile.name} does not say how to read a request log", "leave it out")
        self._path, self._requests = path, profile.requests
        self._name = f"request log {escape(path)}"
        self._fd: int | None = None
        self._lines = Lines(inside=False)
        self._at = 0
        self._left_out = 0
        self._whole = False  # the last read reached the end
        self._end_t: float | None = None  # when a read last reached the end; None: none did
        self._tallies: dict[str, Tally] = {}

    def read(self, now: float, wall: float) -> list[str]:
        """Reads what came since, at most READ_BYTES and READ_LINES. `now`: BOOTTIME s, `wall`: Unix time s, of this
        very moment. Gives the troubles, each one line; while the log cannot be read there is no tally."""
        try:
            return self._read(now, wall)
        except OSError as e:
            self.close()
            return [f"{self._name}: {e.strerror}"]
        except InferopsError as e:
            self.close()
            return [str(e)]

    def tally(self, instance: str | None) -> RequestsSeen | None:
        """What is known of one instance's requests; None where the log is not read to its end (ends of requests that
        look open may follow) or holds none of its records."""
        found = self._tallies.get(instance) if instance is not None and self._whole else None
        return None if found is None else found.seen()

    def close(self) -> None:
        """Forgets everything: what was written until the log is open again is not known."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._end_t, self._whole = None, None, False
        self._tallies.clear()

    def _read(self, now: float, wall: float) -> list[str]:
        if self._fd is None:
            self._fd, size = self._open()
            self._at = max(0, size - TAIL_BYTES)
            self._lines = Lines(inside=self._at > 0)
        self._whole = False
        before, said = self._left_out, list[str]()
        bytes_left, lines_left = READ_BYTES, READ_LINES
        while bytes_left > 0 and lines_left > 0:
            if lines := self._lines.take(lines_left):
                lines_left -= len(lines)
                for line in lines:
                    self._take(line, now, wall)
                continue
            data = os.pread(self._fd, min(CHUNK_BYTES, bytes_left), self._at)
            self._at += len(data)
            bytes_left -= len(data)
            self._lines.feed(data)
            if data or self._next(said):
                continue
            self._end_t, self._whole = now, True
            break
        if self._left_out > before:
            said.append(f"{self._name}: a line was left out: no record that the profile can read, or an endless one")
        return said

    def _open(self) -> tuple[int, int]:
        """(fd, size). Raises OSError; BlindError: it is no regular file."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as e:
            if e.errno == errno.ELOOP:
                raise BlindError(f"{self._name}: is a symlink, expected a regular file", "name the file") from None
            raise
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            os.close(fd)
            kind = "a directory" if stat.S_ISDIR(about.st_mode) else "a pipe or a device"
            raise BlindError(f"{self._name}: is {kind}, expected a regular file", "name the file")
        return fd, about.st_size

    def _next(self, said: list[str]) -> bool:
        """At the end: whether there is more to read, of a file that was cut short, or of the one now in its place.
        While that one is empty the engine may still write to the old."""
        assert self._fd is not None
        try:
            there = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            said.append(f"{self._name}: is gone from its place; the one that was there is still read")
            return False
        ours = os.fstat(self._fd)
        if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
            if stat.S_ISREG(there.st_mode) and there.st_size == 0:
                return False
            fd, _ = self._open()
            os.close(self._fd)
            self._fd = fd
        elif ours.st_size >= self._at:
            return False
        else:  # cut short: ends that stood there and were not read yet are lost
            for tally in self._tallies.values():
                tally.open.clear()
        self._at, self._lines = 0, Lines(inside=False)
        return True

    def _take(self, line: bytes, now: float, wall: float) -> None:
        if not line.strip():
            return
        try:
            row = self._requests.read(finite.loads(line, "record"))
        except InferopsError:
            self._left_out += 1
            return
        if row is None or row.instance is None:
            return
        tally = self._tallies.pop(row.instance, None) or Tally()
        self._tallies[row.instance] = tally  # the newest last
        if len(self._tallies) > INSTANCES_MAX:
            del self._tallies[next(iter(self._tallies))]
        since = 0.0 if self._end_t is None else self._end_t
        tally.take(row, boottime_of(row.t_ms, now, wall, since), count=self._end_t is not None)
