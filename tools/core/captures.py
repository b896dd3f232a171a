"""The directory of one capture: private files written whole, a manifest that says how far it got, and retention.

The manifest is there before anything else, as "in progress" with the writer's pid and start: one that still says so
while its writer is gone was killed half-way. Blind to: what somebody with our uid puts into the directory.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from inferops.core import process
from inferops.core.verdict import BlindError, InferopsError, Refused

SCHEMA = "inferops.capture/1"
MANIFEST = "manifest.json"
MANIFEST_MAX_BYTES = 4 << 20
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}
FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC

State = Literal["in progress", "passive", "whole", "partial"]


class NoRoom(BlindError):
    """The disk takes no more: what is there stays, nothing further is tried."""


class Noted(msgspec.Struct, frozen=True):
    """One file of a capture."""

    name: str
    bytes: int
    sha256: str


class Part(msgspec.Struct, frozen=True):
    """One thing that was looked at; `why` says what came of it, or why nothing did."""

    id: str
    level: Literal["ok", "blind", "note"]
    why: str


class Writer(msgspec.Struct, frozen=True):
    pid: int
    start_ticks: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a capture holds and how to read it. `times` and `start_t` are seconds on BOOTTIME, `wall` since 1970; a pid
    is only itself together with `start_ticks` (clock ticks since boot)."""

    schema: str = SCHEMA
    state: State = "in progress"
    unit: str
    pid: int
    start_t: float | None = None
    start_ticks: int | None = None
    pids: tuple[int, ...] = ()
    exe: str = ""
    reason: str = ""
    reading: str = "not finished: nothing here has been judged yet"
    resumed: str | None = None
    wall: float
    made: str
    by: Writer
    parts: tuple[Part, ...] = ()
    files: tuple[Noted, ...] = ()
    times: dict[str, float] = {}
    versions: dict[str, str] = {}


def name(stamp: str, unit: str, pid: int) -> str:
    """A new directory's name: it sorts by time, and two captures of one moment differ."""
    plain = re.sub(r"[^A-Za-z0-9_.@-]", "_", unit.removesuffix(".service"))[:80]
    return f"{stamp}-{plain}-{pid}-{secrets.token_hex(3)}"


def me() -> Writer:
    """This process."""
    return Writer(os.getpid(), process.start_ticks(os.getpid()) or 0)


def written_now(manifest: Manifest) -> bool:
    """Whether a living process is still at it."""
    return manifest.state == "in progress" and process.alive(manifest.by.pid, manifest.by.start_ticks)


# --- edge


class Folder:
    """One capture's directory, held open: a symlink put in its place later is not followed."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.files: dict[str, Noted] = {}
        self._fd = descriptor

    @classmethod
    def make(cls, path: Path, manifest: Manifest) -> Folder:
        """A new directory, 0700, with its manifest. Raises Refused: something is there; NoRoom, BlindError: it can't be
        made, and then nothing is left of it."""
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            raise Refused(f"{path}: expected nothing there yet, something is", "name a new directory") from None
        except OSError as e:
            raise _error(path, e) from None
        folder = cls(path, _open_dir(path))
        try:
            folder.note(manifest)
        except InferopsError:
            folder.close()
            with contextlib.suppress(OSError):
                os.rmdir(path)
            raise
        return folder

    @classmethod
    def existing(cls, path: Path) -> tuple[Folder, Manifest]:
        """A capture made earlier, of ours. Raises Refused: a symlink, another user's, open to others, without our
        manifest, or being written by a living process."""
        descriptor = _open_dir(path)
        folder = cls(path, descriptor)
        try:
            if not folder.ours():
                seen = os.fstat(descriptor)
                mode = f"mode {stat.S_IMODE(seen.st_mode):04o} of uid {seen.st_uid}"
                raise Refused(f"{path}: expected a directory of ours, 0700, got {mode}", "name a capture's directory")
            manifest = folder.manifest()
            if written_now(manifest):
                raise Refused(f"{path}: pid {manifest.by.pid} is writing it", "wait for it to end")
        except BaseException:
            folder.close()
            raise
        folder.files = {one.name: one for one in manifest.files}
        return folder, manifest

    def ours(self) -> bool:
        """Whether it is our user's and closed to everybody else."""
        seen = os.fstat(self._fd)
        return seen.st_uid == os.geteuid() and not seen.st_mode & (stat.S_IRWXG | stat.S_IRWXO)

    def manifest(self) -> Manifest:
        """Raises Refused: there is none of ours."""
        try:
            data = self._read(MANIFEST)
            found = msgspec.json.decode(data, type=Manifest)
        except (OSError, msgspec.DecodeError) as e:
            why = e.strerror if isinstance(e, OSError) else e
            raise Refused(f"{self.path}: expected our {MANIFEST}: {why}", "name a capture's directory") from None
        if found.schema != SCHEMA:
            raise Refused(
                f"{self.path}: {MANIFEST}: expected schema {SCHEMA}, got {found.schema}", "use its own version"
            )
        return found

    def write(self, name: str, data: bytes) -> None:
        """A file, 0600, whole or not there. Raises NoRoom, BlindError."""
        self._put(name, data)
        self.files[name] = Noted(name, len(data), hashlib.sha256(data).hexdigest())

    def note(self, manifest: Manifest) -> Manifest:
        """Writes the manifest, with the files there are."""
        manifest = msgspec.structs.replace(manifest, files=tuple(self.files[key] for key in sorted(self.files)))
        self._put(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        return manifest

    def remove(self) -> int:
        """Deletes the capture, its manifest last, so that what is left of a broken-off removal is still ours to see.
        Bytes freed. Raises OSError, also where a directory lies in it."""
        freed = 0
        names = [entry.name for entry in os.scandir(self._fd) if entry.name != MANIFEST]
        for name in [*names, MANIFEST]:
            freed += os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_size
            os.unlink(name, dir_fd=self._fd)
        os.rmdir(self.path)
        return freed

    def size(self) -> int:
        """Bytes of all files in it."""
        return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(self._fd))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _put(self, name: str, data: bytes) -> None:
        temporary = f".{name}.{secrets.token_hex(4)}"
        made = False
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | FLAGS, 0o600, dir_fd=self._fd)
            made = True
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            made = False
            os.fsync(self._fd)
        except OSError as e:
            raise _error(self.path / name, e) from None
        finally:
            if made:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=self._fd)

    def _read(self, name: str) -> bytes:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | FLAGS, dir_fd=self._fd)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            return file.read(MANIFEST_MAX_BYTES)


def prune(root: Path, keep: Path, *, max_count: int, max_bytes: int, max_days: int, now: float) -> list[str]:
    """Removes the oldest captures in `root` until the bounds hold; `now` is wall time. What was removed, and what could
    not be, a line each. Only directories of ours with our manifest, never `keep`, the newest, or one being written."""
    found = sorted(_ours(root), key=lambda one: (one[1].wall, one[0].name), reverse=True)
    said, count, total = [], 0, 0
    for index, (path, manifest, size) in enumerate(found):
        over = count + 1 > max_count or total + size > max_bytes or now - manifest.wall > max_days * 86_400
        if over and index > 0 and path.name != keep.name and not written_now(manifest):
            try:
                said.append(f"removed {path.name} ({_remove(path):,} bytes)")
                continue
            except (OSError, InferopsError) as e:
                said.append(f"could not remove {path.name}: {e}")
        count, total = count + 1, total + size
    return said


def _ours(root: Path) -> Iterator[tuple[Path, Manifest, int]]:
    """(path, manifest, bytes) of each capture of ours."""
    for name in os.listdir(root):
        try:
            folder = Folder(root / name, _open_dir(root / name))
        except InferopsError:  # no directory, or a symlink
            continue
        try:
            if folder.ours():
                yield folder.path, folder.manifest(), folder.size()
        except Refused:  # without our manifest
            continue
        finally:
            folder.close()


def _remove(path: Path) -> int:
    folder, _ = Folder.existing(path)
    try:
        return folder.remove()
    finally:
        folder.close()


def _open_dir(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | FLAGS)
    except OSError as e:
        if path.is_symlink():
            raise Refused(f"{path}: expected a directory, got a symbolic link", "name the directory itself") from None
        if e.errno in (errno.ENOTDIR, errno.ENOENT):
            raise Refused(f"{path}: expected a capture's directory: {e.strerror}", "name one that exists") from None
        raise _error(path, e) from None


def _error(path: Path, e: OSError) -> BlindError:
    if e.errno in NO_ROOM:
        return NoRoom(
            f"{path}: cannot be written: {e.strerror}", "free space there, or name another place: --captures-dir"
        )
    return BlindError(f"{path}: cannot be written: {e.strerror}", "run as root, or name another place: --captures-dir")
