"""Where inferops keeps what outlives it, and how it writes there: private directories, whole files or none."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from pathlib import Path

from inferops.core.verdict import BlindError, Refused, UsageError

PRIVATE = 0o700
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
OTHERS_ANY = stat.S_IRWXG | stat.S_IRWXO


def state_dir(kind: str = "") -> Path:
    """The directory for state of one kind ("captures", "budget"), made 0700 if it is not there.

    INFEROPS_STATE_DIR, else /var/lib/inferops as root, else $XDG_STATE_HOME/inferops or ~/.local/state/inferops.
    Raises Refused where it is a symlink, another user's, or writable by others; BlindError where it can't be made.
    """
    base = _from("INFEROPS_STATE_DIR")
    if base is None and os.geteuid() == 0:
        base = Path("/var/lib/inferops")
    if base is None:
        base = (_from("XDG_STATE_HOME") or _home() / ".local/state") / "inferops"
    return _inside(base, kind)


def run_dir() -> Path:
    """The directory for what a reboot may forget (locks), made 0700 if it is not there.

    INFEROPS_RUN_DIR, else /run/inferops as root, else $XDG_RUNTIME_DIR/inferops, else `run` in the state directory.
    Raises as `state_dir` does.
    """
    named = _from("INFEROPS_RUN_DIR")
    if named is None and os.geteuid() == 0:
        named = Path("/run/inferops")
    if named is None and (runtime := _from("XDG_RUNTIME_DIR")):
        named = runtime / "inferops"
    return private_dir(named) if named else state_dir("run")


def private_dir(path: Path) -> Path:
    """`path`, a directory that is ours and that nobody else can write to; made 0700, with its parents, if missing.

    An existing one keeps its mode: INFEROPS_STATE_DIR=/tmp as root must not close /tmp. Raises as `state_dir` does.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=PRIVATE)
        seen = path.lstat()
    except OSError as error:
        raise BlindError(f"{path}: cannot make this directory: {error.strerror}", _ELSEWHERE) from None
    if stat.S_ISLNK(seen.st_mode):
        raise Refused(f"{path}: expected a directory, got a symbolic link to {os.readlink(path)}", _ELSEWHERE)
    if not stat.S_ISDIR(seen.st_mode):
        raise Refused(f"{path}: expected a directory, got another kind of file", _ELSEWHERE)
    if seen.st_uid != os.geteuid():
        raise Refused(f"{path}: expected a directory of uid {os.geteuid()}, got one of uid {seen.st_uid}", _ELSEWHERE)
    if seen.st_mode & OTHERS_WRITE:
        raise Refused(f"{path}: others can write to it (mode {stat.S_IMODE(seen.st_mode):04o})", f"chmod go-w {path}")
    return path


def write_atomic(path: Path, data: bytes) -> None:
    """`path` becomes `data`, mode 0600, whole or not at all, on the disk when this returns (file and directory synced).

    Raises BlindError where it can't be written; what was there before is then still there.
    """
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mkstemp's mode is 0600
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = ""
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise BlindError(f"{path}: cannot write it: {error.strerror}", "free or grant the space it needs") from None
    finally:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def stamp() -> str:
    """Now, as a file name that sorts by time: 20260131T235959.123Z (UTC)."""
    now = time.time()
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"


_ELSEWHERE = "put it right, or name another place in INFEROPS_STATE_DIR or INFEROPS_RUN_DIR"


def _inside(base: Path, kind: str) -> Path:
    private_dir(base)
    if not kind:
        return base
    if Path(kind).name != kind or kind == "..":
        raise ValueError(f"a kind of state is one name, got {kind!r}")
    path = private_dir(base / kind)
    if path.lstat().st_mode & OTHERS_ANY:
        path.chmod(PRIVATE)  # captures hold people's prompts
    return path


def _from(variable: str) -> Path | None:
    value = os.environ.get(variable)
    if not value:
        return None
    if os.path.isabs(value):
        return Path(value)
    if variable.startswith("XDG_"):
        return None  # the XDG specification: a relative path is to be ignored
    raise UsageError(f"{variable}: expected an absolute path, got {value!r}", f"set {variable} to one, or unset it")


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise UsageError("no home directory is known for this user", "set INFEROPS_STATE_DIR") from None
