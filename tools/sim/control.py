"""The socket over which faults are asked for: 0600, in a private directory, its owner checked on both ends.

One JSON object a line each way: {"fault": NAME, "args": {…}} or {"clear": true} -> {"ok": …} or {"error": …}.
Faults for the next start are kept in a file beside it, and used up by that start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Any

import orjson

from inferops.core import finite
from inferops.core.state import private_dir, run_dir, write_atomic
from inferops.core.typed import near
from inferops.core.verdict import BlindError, InferopsError, Refused, UsageError, escape
from inferops.sim.driver import Driver
from inferops.sim.faults import FAULTS

LINE_MAX_BYTES = 64_000
ANSWER_S = 5.0
LEAST = {"seconds": 0.1, "every": 0.1, "count": 1.0, "times": 1.0, "running": 0.0, "waiting": 0.0}  # of each argument
SOCKET_PATH_MAX_BYTES = 107  # unix(7): sun_path is 108 with its end


def checked(name: str, args: dict[str, float]) -> None:
    """Raises UsageError: no such fault or argument, with the nearest name; a value that makes no sense."""
    if name not in FAULTS:
        raise UsageError(f"no such fault: {escape(name)}{near(name, tuple(FAULTS))}", "inferops sim faults lists them")
    for arg, value in args.items():
        known = FAULTS[name].args
        if arg not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes no argument"
            raise UsageError(f"{name}: no argument {escape(arg)}{near(arg, tuple(known))}", takes)
        if not LEAST[arg] <= value < 1e9:
            raise UsageError(f"{name}: {arg}: expected {LEAST[arg]:g} to 1e9, got {value:g}", f"for example {arg}=60")


def path_of(port: int) -> Path:
    """Where the server on that port has its socket. Raises UsageError: no socket can have so long a path."""
    path = private_dir(run_dir() / "sim") / f"{port}.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_MAX_BYTES:
        raise UsageError(
            f"{path}: expected at most {SOCKET_PATH_MAX_BYTES} bytes, got {len(os.fsencode(path))}",
            "set INFEROPS_RUN_DIR to a short one",
        )
    return path


# --- edge


def pending(path: Path) -> dict[str, dict[str, float]]:
    """The faults kept for the next start; {} where there are none or the file says anything else."""
    try:
        found = finite.loads(path.read_bytes(), str(path))
        kept = {str(name): {str(k): float(v) for k, v in args.items()} for name, args in found.items()}
        for name, args in kept.items():
            checked(name, args)
    except (OSError, InferopsError, AttributeError, TypeError, ValueError):
        return {}
    return kept if all(FAULTS[name].next_start for name in kept) else {}


def keep(path: Path, faults: dict[str, dict[str, float]]) -> None:
    """Keeps them for the next start, beside those that are there already."""
    write_atomic(path, orjson.dumps(pending(path) | faults))


def used_up(path: Path) -> dict[str, dict[str, float]]:
    """What this start is to show. A crash loop counts down, all else is forgotten."""
    now = pending(path)
    later = {}
    if (times := now.get("crash-loop", {}).get("times", 0.0)) > 1:
        later["crash-loop"] = {"times": times - 1}
    if now:
        write_atomic(path, orjson.dumps(later))
    return now


def _clear_the_place(path: Path) -> None:
    """Removes an old socket: its server is gone, or the lock on the port would be held. Raises Refused."""
    with contextlib.suppress(FileNotFoundError):
        seen = path.lstat()
        if not stat.S_ISSOCK(seen.st_mode) or seen.st_uid != os.geteuid():
            raise Refused(f"{path}: expected our own socket or nothing, got something else", f"ls -l {path}")
        path.unlink()


async def serve(path: Path, driver: Driver) -> asyncio.Server:
    """Listens on `path`. Raises Refused: what stands there is no socket of ours."""
    _clear_the_place(path)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError):
            line = await asyncio.wait_for(reader.readline(), ANSWER_S)
            writer.write(orjson.dumps(_done(driver, path, line)) + b"\n")
            await writer.drain()
        writer.close()

    mask = os.umask(0o177)
    try:
        return await asyncio.start_unix_server(talk, path=str(path), limit=LINE_MAX_BYTES)
    finally:
        os.umask(mask)


def _done(driver: Driver, path: Path, line: bytes) -> dict[str, Any]:
    try:
        asked = finite.loads(line, "the request")
        if not isinstance(asked, dict):
            raise UsageError("expected a JSON object", "use inferops sim fault")
        if asked.get("clear"):
            driver.clear()
            write_atomic(path.with_suffix(".next"), b"{}")
            return {"ok": "clear", "pid": os.getpid()}
        name, args = str(asked.get("fault")), {str(k): float(v) for k, v in dict(asked.get("args") or {}).items()}
        checked(name, args)
        if FAULTS[name].next_start:
            keep(path.with_suffix(".next"), {name: dict(FAULTS[name].args) | args})
        driver.fault(name, args)
        return {"ok": name, "pid": os.getpid(), "kind": FAULTS[name].kind, "next_start": FAULTS[name].next_start}
    except InferopsError as e:
        return {"error": str(e), "hint": e.hint}
    except (TypeError, ValueError) as e:
        return {"error": f"not a request of this socket: {e}", "hint": "use inferops sim fault"}


def ask(port: int, request: dict[str, Any]) -> dict[str, Any]:
    """Sends one request to the server on `port`; its answer. Raises Refused: the socket is not ours; BlindError: no
    server there, or no answer; UsageError: what the server refused."""
    path = path_of(port)
    hint = "start one: inferops sim serve; another port: --port"
    try:
        seen = path.lstat()
    except FileNotFoundError:
        raise BlindError(f"no simulator on port {port}: {path} is not there", hint) from None
    if not stat.S_ISSOCK(seen.st_mode) or seen.st_uid not in (0, os.geteuid()):
        raise Refused(
            f"{path}: expected a simulator's socket of uid {os.geteuid()}, got something else", f"ls -l {path}"
        )
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(ANSWER_S)
        try:
            sock.connect(str(path))
            _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid not in (0, os.geteuid()):
                raise Refused(f"{path}: its server runs as uid {uid}, not as us", "run it as that user")
            sock.sendall(orjson.dumps(request) + b"\n")
            answer = sock.makefile("rb").readline(LINE_MAX_BYTES)
        except ConnectionRefusedError:
            raise BlindError(f"no simulator on port {port}: it left {path} behind", hint) from None
        except OSError as e:
            raise BlindError(f"{path}: {e.strerror or 'no answer'}", hint) from None
    try:
        said = finite.loads(answer, "the answer")
    except InferopsError:
        said = None
    if isinstance(said, dict) and "error" in said:
        raise UsageError(escape(str(said["error"])), escape(str(said.get("hint", ""))))
    wanted = request.get("fault", "clear")
    if not isinstance(said, dict) or said.get("ok") != wanted or type(said.get("pid")) is not int:
        raise BlindError(f"{path}: no answer that makes sense", "is it a simulator of this version?")
    return said
