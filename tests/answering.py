"""A server on a real socket that answers as a test says, and one probe at it."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from inferops.core import profile as profiles
from inferops.core.probe import Prober
from inferops.core.profile import Profile
from inferops.core.schema import Live

T = TypeVar("T")
Answer = Callable[[socket.socket], None]
ENDS_S = 10.0  # far over every deadline used here: a probe that hangs runs into it, a slow machine does not
PROFILE = profiles.load("llama-cpp")
PLAIN = "text/plain"
HTML = b"<!doctype html><html><body>Welcome to nginx!</body></html>"


class Server:
    """A TCP server that answers each path by a function on the raw socket; the unknown ones with 404."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.requests: list[tuple[str, str]] = []  # path, whole head and body
        self.left = threading.Event()  # a client closed its end while an answer was going on
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection:
            data = b""
            try:
                while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < length(data):
                    part = connection.recv(65536)
                    if not part:
                        return
                    data += part
                path = data.split(b" ", 2)[1].decode()
                self.requests.append((path, data.decode()))
                self.answers.get(path, http(404, b"nothing here", "text/plain"))(connection)
            except OSError:
                self.left.set()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def length(data: bytes) -> int:
    for line in data.partition(b"\r\n\r\n")[0].split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


def head(code: int, kind: str, more: str = "") -> bytes:
    return f"HTTP/1.1 {code} X\r\nContent-Type: {kind}\r\n{more}Connection: close\r\n\r\n".encode()


def http(code: int, body: bytes, kind: str = "application/json", more: str = "") -> Answer:
    return lambda s: s.sendall(head(code, kind, f"Content-Length: {len(body)}\r\n{more}") + body)


def sse(*lines: str, then: Answer | None = None) -> Answer:
    def answer(s: socket.socket) -> None:
        s.sendall(head(200, "text/event-stream") + "".join(f"{line}\n\n" for line in lines).encode())
        if then:
            then(s)

    return answer


def silent(s: socket.socket) -> None:
    while s.recv(65536):
        pass
    raise OSError("the client left")


def trickle(first: bytes) -> Answer:
    """`first`, then a byte every 50 ms, until the client leaves."""

    def answer(s: socket.socket) -> None:
        s.sendall(first)
        while True:
            s.sendall(b"x")
            time.sleep(0.05)

    return answer


def reset(s: socket.socket) -> None:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def endless(first: bytes) -> Answer:
    def answer(s: socket.socket) -> None:
        s.sendall(first)
        while True:
            s.sendall(b"# a comment line of a metrics page that never ends\n" * 500)

    return answer


def run(work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(work, ENDS_S)

    return asyncio.run(bounded())


def probe(
    url: str,
    do: Callable[[Prober], Coroutine[Any, Any, T]],
    *,
    deadline_s: float = 2.0,
    profile: Profile = PROFILE,
    **live: Any,
) -> T:
    """What `do` gives with a prober of its own; `live` are further settings of that table."""

    async def work() -> T:
        prober = Prober(profile, Live(unit="x", url=url, **live), deadline_s)
        try:
            return await do(prober)
        finally:
            await prober.aclose()

    return run(work())


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as s:
        port: int = s.getsockname()[1]
    return port
