"""How a command ends: the errors a person can cause, the exit codes, and the guard round every entry point.

| exit | meaning |
|---|---|
| 0 | looked, and it holds |
| 1 | looked, and found something wrong |
| 2 | usage or settings error |
| 3 | could not look (blind) |
| 4 | refused: a safety condition does not hold |
| 130, 141, 143 | interrupted: Ctrl-C, the reader of stdout left, SIGTERM |

Standard library only: `inferops --help` pays for what is imported here. Everybody else imports these from verdict.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, ParamSpec

P = ParamSpec("P")

FULL = (errno.ENOSPC, errno.EDQUOT)
ROOM = "give it a place to write and run it again"
TRACEBACKS_KEPT = 20  # a crash loop must not fill the disk


class InferopsError(Exception):
    """An error that a person can cause. `str(e)` is one line: what, where, expected, got; `hint` is what to do next.

    `command` is filled in by the command line, for the prefix of the line.
    """

    exit: int = 3

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.command = ""


class UsageError(InferopsError):
    """A wrong argument or a wrong setting."""

    exit = 2


class BlindError(InferopsError):
    """Could not look: nothing is known to be wrong, something was not checked."""

    exit = 3


class Refused(InferopsError):
    """A safety condition does not hold: a port is held, a lock is taken, a live server would be hit."""

    exit = 4


def escape(text: str) -> str:
    """Hostile text made printable: control characters, ESC, newlines, bidi overrides, lone surrogates become visible
    escapes. A journal line or a server's answer goes through this before a terminal sees it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


# --- edge


def guard(main: Callable[P, int | None]) -> Callable[P, int]:
    """An entry point that keeps the exit contract: the returned function never raises and returns the exit code.

    An InferopsError becomes one line on stderr. SIGTERM unwinds the stack (finally blocks run) and is 143; where `main`
    sets a handler of its own, that one counts. Anything unexpected is exit 3 with the traceback in a file.
    """

    @functools.wraps(main)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> int:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # LC_ALL=C and a unit named in Greek is no crash
        before = _on_sigterm(_raise_terminated)
        try:
            return _flushed(_code(main(*args, **kwargs)))
        except InferopsError as error:
            _say(error.command, str(error), error.hint)
            return _flushed(error.exit)
        except KeyboardInterrupt:
            _say("", "interrupted")
            return _flushed(130)
        except SystemExit as stop:
            return _flushed(_code(stop.code))
        except BaseException as error:  # noqa: BLE001 - the last line of defence
            if isinstance(error, BrokenPipeError) and _reader_left():
                _drop_stdout()
                return 141  # as a shell reports SIGPIPE
            if isinstance(error, OSError) and error.errno in FULL:
                _say("", f"cannot write {error.filename or 'the report'}: {error.strerror}", ROOM)
            else:
                _crashed(error)
            return _flushed(3, quiet=True)
        finally:
            if before is not None:
                _on_sigterm(before)

    return guarded


def _code(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise TypeError(f"an entry point returned {type(value).__name__}, expected an exit code")


def _raise_terminated(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


def _on_sigterm(handler: Any) -> Any:
    """Sets the handler, returns the one before; None where this thread may not."""
    try:
        return signal.signal(signal.SIGTERM, handler)
    except ValueError:
        return None


def _flushed(code: int, quiet: bool = False) -> int:
    """Flushes stdout while an error can still be told: at interpreter exit it would be a traceback and code 120."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
        return 141
    except (OSError, ValueError) as error:
        _drop_stdout()
        if not quiet:
            _say("", f"cannot write the report: {getattr(error, 'strerror', error)}", ROOM)
        return 3
    return code


def _reader_left() -> bool:
    """Whether it is stdout whose other end is closed: a broken pipe can also be a server's or a child's."""
    poll = select.poll()
    poll.register(1, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _drop_stdout() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _say(command: str, message: str, hint: str = "") -> None:
    line = f"{escape(command or Path(sys.argv[0]).name or 'inferops')}: {escape(message)}"
    try:
        print(line + (f"  -> {escape(hint)}" if hint else ""), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass  # stderr is gone: the exit code is all that is left to say it with


def _crashed(error: BaseException) -> None:
    """Only the type and the place go to stderr: an exception's text can hold a header with an API key in it."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    what = f"internal error {type(error).__name__}{place}"
    try:
        _say("", what, f"this is a bug: report it with {_save_traceback(error)}")
    except (OSError, InferopsError) as unsaved:
        _say("", f"{what}; its traceback could not be saved: {unsaved}")


def _save_traceback(error: BaseException) -> Path:
    import traceback

    from inferops.core import state  # which raises this module's errors

    directory = state.state_dir("tracebacks")
    for old in sorted(directory.glob("*.txt"))[: -(TRACEBACKS_KEPT - 1)]:
        old.unlink(missing_ok=True)
    path = directory / f"{state.stamp()}-{os.getpid()}.txt"
    state.write_atomic(path, "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace"))
    return path
