"""Tapes: recorded polls, JSON Lines, versioned, replayable; kept in a ring of files of bounded size.

The first line is the header (schema, what it is of, the settings it holds under), each further line one Poll.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from inferops.core.poll import Poll
from inferops.core.typed import without_waiting
from inferops.core.verdict import BlindError, UsageError, escape

SCHEMA = "inferops.tape/1"
FILE_BYTES = 8_000_000
FILES = 8  # 64 MB in all: weeks of a quiet server at a poll in 10 s, a day of a scary one
LINE_BYTES_MAX = 1_000_000
TAPE_BYTES_MAX = 1_000_000_000  # far over any ring file: a model that was named by mistake

_WHAT = "name a tape file: one JSON object a line, the first its header"
T = TypeVar("T")


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`patience` holds the settings (names of evidence.Patience) that were in force; `notes` is for people."""

    schema: str = SCHEMA
    subject: str = ""
    engine: str = ""
    recorded: str = ""
    patience: dict[str, float | bool | str] = {}
    notes: tuple[str, ...] = ()


class _Versioned(msgspec.Struct):
    """The one key that every version of a header has."""

    schema: str


def read(path: Path) -> tuple[Header, list[Poll]]:
    """The header and the polls of a tape. A half-written last line ends it quietly (its writer was killed).

    Raises UsageError with file, line, what was expected and got; BlindError where there is no whole poll at all.
    """
    name = escape(str(path))
    try:
        with open(path, "rb", opener=without_waiting) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise UsageError(f"tape {name}: not a regular file", hint=_WHAT)
            if about.st_size > TAPE_BYTES_MAX:
                raise UsageError(f"tape {name}: {about.st_size} bytes, at most {TAPE_BYTES_MAX} are read", hint=_WHAT)
            first = file.readline(LINE_BYTES_MAX + 1)
            schema = _decode(name, 1, first, _Versioned).schema
            if schema != SCHEMA:
                raise UsageError(
                    f"{name}:1: schema {escape(schema)}, expected {SCHEMA}", hint="this is no tape of this version"
                )
            header, polls = _decode(name, 1, first, Header), list(_polls(name, file))
    except OSError as e:
        raise UsageError(f"tape {name}: {e.strerror}", hint=_WHAT) from e
    if not polls:
        raise BlindError(f"tape {name} holds no whole poll", hint="nothing was recorded, so nothing can be said")
    return header, polls


def _polls(name: str, file: IO[bytes]) -> Iterator[Poll]:
    for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES_MAX + 1), b""), 2):
        if not line.strip():
            continue
        try:
            yield _decode(name, number, line, Poll)
        except UsageError:
            if len(line) > LINE_BYTES_MAX or line.endswith(b"\n"):
                raise
            return  # no newline behind it: cut off in mid-write


def _decode(name: str, number: int, line: bytes, kind: type[T]) -> T:
    if len(line) > LINE_BYTES_MAX:
        raise UsageError(f"{name}:{number}: a line of more than {LINE_BYTES_MAX} bytes", hint="not a tape")
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        want = "a poll" if kind is Poll else "the header"
        raise UsageError(f"{name}:{number}: expected {want}, got {escape(line[:60].decode(errors='replace'))!r}: {e}",
                         hint="a tape is written by the sentinel; do not edit it by hand") from e  # fmt: skip


# --- edge


class Writer:
    """Appends polls to `dir`/tape.jsonl and rotates to tape.1.jsonl … within FILES files of FILE_BYTES."""

    def __init__(self, directory: Path, header: Header, file_bytes: int = FILE_BYTES, files: int = FILES) -> None:
        self._dir, self._max, self._files = directory, file_bytes, files
        self._head = msgspec.json.encode(header) + b"\n"
        self._file: IO[bytes] | None = None

    @property
    def path(self) -> Path:
        return self._dir / "tape.jsonl"

    def write(self, poll: Poll) -> None:
        """Appends one poll. Raises OSError (a full disk): the caller goes on without a tape and says so; what a failed
        write leaves behind is taken off before the next one, in the same file."""
        line = msgspec.json.encode(poll) + b"\n"
        try:
            if self._file is None:
                self._file = self._open()
            left = memoryview(line if self._file.tell() else self._head + line)
            while left:
                left = left[self._file.write(left) :]
            if self._file.tell() > self._max:
                self.close()
                self._rotate()
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with contextlib.suppress(OSError):
                file.close()

    def _open(self) -> IO[bytes]:
        """The newest file, at its end, which is the end of a whole line. One with our header goes on, another with a
        poll in it is rotated away, and what holds no poll is no tape worth an older one's place."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.fdopen(os.open(self.path, flags, 0o600), "a+b", buffering=0)
        try:
            file.seek(0)
            seen = file.read()
            ours, whole = seen.startswith(self._head), seen.rfind(b"\n") + 1
            if seen.count(b"\n") > 1 and not (ours and whole <= self._max):
                file.close()
                self._rotate()
                return self._open()
            file.truncate(whole if ours else 0)
            file.seek(0, os.SEEK_END)
        except BaseException:
            file.close()
            raise
        return file

    def _rotate(self) -> None:
        for n in range(self._files - 1, 0, -1):
            older = self._dir / f"tape.{n}.jsonl"
            newer = self.path if n == 1 else self._dir / f"tape.{n - 1}.jsonl"
            if newer.exists():
                newer.replace(older)
