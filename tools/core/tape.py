"""Tapes: recorded polls, JSON Lines, versioned, replayable; kept in a ring of files of bounded size.

The first line is the header (schema, what it is of, the settings it holds under), each further line one Poll.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from inferops.core.poll import Poll
from inferops.core.verdict import BlindError, UsageError, escape

SCHEMA = "inferops.tape/1"
FILE_BYTES = 8_000_000
FILES = 8  # 64 MB in all: weeks of a quiet server at a poll in 10 s, a day of a scary one
LINE_BYTES_MAX = 1_000_000


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`patience` holds the settings (names of evidence.Patience) that were in force; `notes` is for people."""

    schema: str = SCHEMA
    subject: str = ""
    engine: str = ""
    recorded: str = ""
    patience: dict[str, float | bool | str] = {}
    notes: tuple[str, ...] = ()


def read(path: Path) -> tuple[Header, Iterator[Poll]]:
    """The header and the polls of a tape. A half-written last line ends it quietly (its writer was killed).

    Raises UsageError with file, line, what was expected and got; BlindError where there is no poll at all.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as e:
        raise UsageError(
            f"tape {path}: {e.strerror}", hint="name a tape file: one JSON object a line, the first its header"
        ) from e
    header = _decode(path, 1, lines[0], Header)
    if header.schema != SCHEMA:
        raise UsageError(
            f"{path}:1: schema {escape(header.schema)}, expected {SCHEMA}", hint="this is no tape of this version"
        )
    if not any(line.strip() for line in lines[1:]):
        raise BlindError(f"tape {path} holds no poll", hint="nothing was recorded, so nothing can be said")
    return header, _polls(path, lines)


def _polls(path: Path, lines: list[bytes]) -> Iterator[Poll]:
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        try:
            yield _decode(path, number, line, Poll)
        except UsageError:
            if number == len(lines):  # no newline behind it: cut off in mid-write
                return
            raise


def _decode(path: Path, number: int, line: bytes, kind: type[Any]) -> Any:
    if len(line) > LINE_BYTES_MAX:
        raise UsageError(
            f"{path}:{number}: a line of {len(line)} bytes, expected at most {LINE_BYTES_MAX}", hint="not a tape"
        )
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        want = "the header" if kind is Header else "a poll"
        raise UsageError(f"{path}:{number}: expected {want}, got {escape(line[:60].decode(errors='replace'))!r}: {e}",
                         hint="a tape is written by the sentinel; do not edit it by hand") from e  # fmt: skip


# --- edge


class Writer:
    """Appends polls to `dir`/tape.jsonl and rotates to tape.1.jsonl … within FILES files of FILE_BYTES."""

    def __init__(self, directory: Path, header: Header, file_bytes: int = FILE_BYTES, files: int = FILES) -> None:
        self._dir, self._header, self._max, self._files = directory, header, file_bytes, files
        self._file: IO[bytes] | None = None

    @property
    def path(self) -> Path:
        return self._dir / "tape.jsonl"

    def write(self, poll: Poll) -> None:
        """Appends one poll, flushed. Raises OSError (a full disk): the caller goes on without a tape and says so."""
        if self._file is None:
            self._open()
        assert self._file is not None
        try:
            self._file.write(msgspec.json.encode(poll) + b"\n")
            self._file.flush()
            if self._file.tell() > self._max:
                self.close()
                self._rotate()
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with contextlib.suppress(OSError):  # a full disk again: what was flushed before is there
                file.close()

    def _open(self) -> None:
        head = msgspec.json.encode(self._header) + b"\n"
        if self.path.exists() and not self._continues(head):
            self._rotate()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.fdopen(os.open(self.path, flags, 0o600), "ab")
        if self._file.tell() == 0:
            self._file.write(head)

    def _continues(self, head: bytes) -> bool:
        """True where the newest file has our header and ends whole: a restarted sentinel goes on in it."""
        with self.path.open("rb") as file:
            if file.readline(LINE_BYTES_MAX) != head:
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n" and file.tell() <= self._max

    def _rotate(self) -> None:
        for n in range(self._files - 1, 0, -1):
            older = self._dir / f"tape.{n}.jsonl"
            newer = self.path if n == 1 else self._dir / f"tape.{n - 1}.jsonl"
            if newer.exists():
                newer.replace(older)
