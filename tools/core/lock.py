"""One at a time, with the holder named. flock: the kernel lets go when the holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import time
from pathlib import Path
from typing import Self

import msgspec

from inferops.core.process import start_ticks
from inferops.core.state import private_dir
from inferops.core.verdict import BlindError, Refused

READ_BYTES = 4096  # a holder's JSON is some 150 bytes
NAME_WAIT_S = 0.2  # a holder that has just locked writes its name within this
OPEN_TRIES = 10  # somebody is removing the lock file again and again: give up and say so


class Holder(msgspec.Struct, frozen=True):
    """Who holds a lock. A pid is only itself together with its start (clock ticks since boot, /proc/PID/stat field 22);
    `since` is wall time, seconds since 1970."""

    pid: int
    start_ticks: int
    what: str
    cmd: str
    since: float

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"pid {self.pid} ({self.cmd}: {self.what}) since {since}"


class Lock:
    """`with Lock(path, "sentinel restart"):` takes the lock or raises Refused at once, naming the holder.

    The file stays when the lock is let go (removing it would let two in); a dead holder's lock is simply free. Raises
    Refused for a lock file that is a symlink, another user's or hard-linked, BlindError where it can't be opened.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        if self._descriptor is not None:
            raise RuntimeError(f"{self.path} is held by this very object")
        private_dir(self.path.parent)
        for _ in range(OPEN_TRIES):
            descriptor = _open(self.path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _still_named(descriptor, self.path):
                    _write_holder(descriptor, self.what)
                    self._descriptor = descriptor
                    return self
            except BlockingIOError:
                os.close(descriptor)
                raise self._busy() from None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
        raise BlindError(f"{self.path}: this lock file vanished {OPEN_TRIES} times while it was being locked")

    def __exit__(self, *_: object) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            try:
                os.ftruncate(descriptor, 0)
                # close alone leaves it to a child just spawned: a moment after its exec it still has the descriptor
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            finally:
                os.close(descriptor)

    def _busy(self) -> Refused:
        deadline = time.monotonic() + NAME_WAIT_S
        while (found := holder(self.path)) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        by = str(found) if found else "a process that left no name (a child of a holder that is gone, perhaps)"
        return Refused(f"{self.what}: the lock {self.path} is held by {by}", "wait for it to end, then run this again")


def holder(path: Path) -> Holder | None:
    """The living process that holds the lock at `path` by its own account; None where nobody does. Takes no lock, so
    it never makes somebody else's attempt fail."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = msgspec.json.decode(os.read(descriptor, READ_BYTES), type=Holder)
    except (OSError, msgspec.DecodeError):
        return None
    finally:
        os.close(descriptor)
    return found if start_ticks(found.pid) == found.start_ticks else None


def _open(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if path.is_symlink():
            raise Refused(f"{path}: expected a lock file, got a symbolic link", f"remove {path}") from None
        raise BlindError(f"{path}: cannot open this lock file: {error.strerror}") from None
    seen = os.fstat(descriptor)
    if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_nlink > 1:
        os.close(descriptor)
        raise Refused(f"{path}: expected a plain file of uid {os.geteuid()} with one name", f"remove {path}")
    return descriptor


def _still_named(descriptor: int, path: Path) -> bool:
    """A lock on a file that was removed meanwhile excludes nobody."""
    try:
        named = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


def _write_holder(descriptor: int, what: str) -> None:
    me = Holder(os.getpid(), start_ticks(os.getpid()) or 0, what, Path(sys.argv[0]).name or "python", time.time())
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, msgspec.json.encode(me), 0)
    except OSError:
        pass  # a full disk: the lock holds all the same, only its holder goes unnamed
