"""A simulated NInfer: an engine without a GPU to try the instruments on, that can be broken on demand.

Prevents: a watchdog that first meets a wedge on the server that people use.
Answers: what would this instrument do, on a server that behaves like NInfer and breaks in this way?
Blind to: everything of a GPU, real tokens, real speed and real memory; what NInfer does and nobody wrote down.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import resource
import signal
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from inferops.core import ports
from inferops.core.flags import local_option
from inferops.core.lock import Lock
from inferops.core.verdict import BlindError, Refused, UsageError, escape
from inferops.sim import control
from inferops.sim.driver import Driver
from inferops.sim.faults import FAULTS
from inferops.sim.model import Config, Model

try:
    import uvicorn

    from inferops.sim.app import apps
except ImportError as missing:
    raise ImportError(f"the simulator needs starlette and uvicorn ({missing}): pip install 'inferops[sim]'") from None

BACKLOG = 128
LOADS_LOOK_S = 0.1  # how often it looks whether it is loaded: a slow load can be mended


class Server(uvicorn.Server):
    """A uvicorn server that leaves the process's signals alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Float(click.FloatRange):
    """A range that NaN is not in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"expected {self.min:g} to {self.max:g}, got {value}", param, ctx)
        return number


# --- edge


def taken(what: str, port: int) -> Refused:
    """That somebody has the port, and who."""
    who = ", ".join(f"pid {pid}" for one in ports.listeners(port) for pid in one.pids) or "somebody unseen"
    return Refused(f"{what} port {port} is held by {who}", "stop that, or choose another with --port and --stats-port")


def bound(host: str, port: int, what: str) -> socket.socket:
    """A socket that holds the port and refuses everybody until it listens, as a server does that loads.

    Raises Refused: somebody has it, named; UsageError: no such address.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as e:
        sock.close()
        if e.errno == errno.EADDRINUSE:
            raise taken(what, port) from None
        raise UsageError(f"{what} {escape(host)}:{port}: {e.strerror}", "expected an address of this machine") from None
    return sock


def listening(sock: socket.socket, what: str) -> None:
    """Takes connections from here on. Raises Refused: another was bound to the port as well, and has loaded first."""
    try:
        sock.listen(BACKLOG)
    except OSError as e:
        if e.errno != errno.EADDRINUSE:
            raise
        raise taken(what, sock.getsockname()[1]) from None


def opened(path: str | None) -> int | None:
    """The request log, to append to. Raises BlindError: it can't be opened, with why."""
    if path is None:
        return None
    try:
        log = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600
        )
    except OSError as e:
        raise BlindError(
            f"request log {escape(path)}: {e.strerror}", "name a file in a directory that is there"
        ) from None
    if not stat.S_ISREG(os.fstat(log).st_mode):
        raise BlindError(f"request log {escape(path)}: expected a regular file, got something else", "name a file")
    return log


@click.command(name="serve", short_help="serve as NInfer does")
@local_option("--host", default="127.0.0.1", why="where this one listens", help="address to listen on [127.0.0.1]")
@local_option(
    "--port", type=click.IntRange(1, 65535), default=8080, why="where this one listens", help="API port [8080]"
)
@local_option(
    "--stats-port",
    type=click.IntRange(1, 65535),
    default=8081,
    why="where this one listens",
    help="port of /stats [8081]",
)
@local_option(
    "--request-log", default=None, why="this server's own file", help="append request records here (JSON Lines)"
)
@local_option(
    "--generation", type=click.IntRange(1, 2), default=2, why="how this one writes", help="form of the rate lines [2]"
)
@local_option(
    "--lanes", type=click.IntRange(1, 64), default=4, why="this one's size", help="requests that run at once [4]"
)
@local_option("--speed", type=Float(0.01, 1000), default=1.0, why="this one's speed", help="times the token rates [1]")
@local_option(
    "--throughput",
    type=Float(0.1, 600),
    default=5.0,
    why="how this one writes",
    help="seconds between rate lines [5]",
)
@local_option("--load", type=Float(0, 3600), default=2.0, why="this one's speed", help="seconds until it serves [2]")
@local_option("--stop", type=Float(0, 3600), default=1.0, why="this one's speed", help="seconds a clean stop takes [1]")
@local_option("--seed", type=int, default=0, why="this one's chance", help="of the instance id [drawn anew]")
def main(host: str, port: int, stats_port: int, request_log: str | None, generation: int, lanes: int, speed: float,
         throughput: float, load: float, stop: float, seed: int) -> int:  # fmt: skip
    """Serve as NInfer does, until stopped. `inferops sim fault NAME` breaks it."""
    if port == stats_port:
        raise UsageError(
            f"--stats-port {stats_port}: expected another port than --port", "for example --stats-port 8081"
        )
    base = Config()
    shown = f"[{host}]" if ":" in host else host
    config = Config(lanes=lanes, prefill_tok_s=base.prefill_tok_s * speed, decode_tok_s=base.decode_tok_s * speed,
                    load_s=load, stop_s=stop, throughput_s=throughput, generation=generation,
                    address=f"http://{shown}:{port}")  # fmt: skip
    path = control.path_of(port)
    with Lock(path.with_suffix(".lock"), f"sim serve on port {port}"), contextlib.ExitStack() as stack:
        log = opened(request_log)
        if log is not None:
            stack.callback(os.close, log)
        sockets = (
            stack.enter_context(bound(host, port, "the API")),
            stack.enter_context(bound(host, stats_port, "the stats")),
        )
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # an abort on demand leaves no core behind
        now, wall = time.monotonic(), time.time()
        model = Model(config, seed or time.time_ns(), now=now, epoch=wall - now)
        return asyncio.run(_serve(Driver(model, log), sockets, path))


async def _serve(driver: Driver, sockets: tuple[socket.socket, socket.socket], path: Path) -> int:
    got: list[int] = []
    stopped = asyncio.Event()

    def stop(number: int) -> None:
        got.append(number)
        stopped.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    kept = path.with_suffix(".next")
    socket_server = await control.serve(path, driver)
    try:
        shows = control.used_up(kept)  # not before the place is ours: a start that is refused shows nothing
        try:
            for name, args in shows.items():
                FAULTS[name].apply(driver.model, **(dict(FAULTS[name].args) | args))
            driver.start()
            stop_s = await _until_stopped(driver, sockets, stopped)
        except Refused:
            if shows:
                control.keep(kept, shows)
            raise
    finally:
        socket_server.close()
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - one unlink at the very end
    await asyncio.sleep(stop_s)  # the port is closed and the process still there: it unpins its memory
    return 0 if got[0] == signal.SIGTERM else 130


async def _until_stopped(driver: Driver, sockets: tuple[socket.socket, socket.socket], stopped: asyncio.Event) -> float:
    """Loads, then serves until it is to stop; how long that takes once all is closed, seconds."""
    while not (stopped.is_set() or driver.model.ready(time.monotonic())):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), LOADS_LOOK_S)
    quiet: dict[str, Any] = {"log_config": None, "access_log": False, "lifespan": "off"}
    servers = [Server(uvicorn.Config(app, timeout_graceful_shutdown=1, **quiet)) for app in apps(driver)]
    tasks: list[asyncio.Task[None]] = []
    if not stopped.is_set():
        for sock, what in zip(sockets, ("the API", "the stats"), strict=True):
            listening(sock, what)
        tasks = [asyncio.create_task(server.serve([sock])) for server, sock in zip(servers, sockets, strict=True)]
        with driver.at() as (model, now):
            model.listen(now)
        await stopped.wait()
    stop_s = await asyncio.to_thread(driver.stop)
    for server in servers:
        server.should_exit = True
    await asyncio.gather(*tasks)
    return stop_s
