"""A simulator as a process on ports of its own, and how it is asked and broken."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[1]
INFEROPS = [sys.executable, str(ROOT / "tools")]
SOON_S = 30.0  # generous: whatever must happen happens long before, on a slow machine too
HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Ports that nobody had a moment ago."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in held]


def inferops(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*INFEROPS, *words], capture_output=True, text=True, timeout=60, check=False)


def until(what: Callable[[], object], why: str) -> None:
    end = time.monotonic() + SOON_S
    while not what():
        assert time.monotonic() < end, f"not within {SOON_S:.0f} s: {why}"
        time.sleep(0.02)


class Sim:
    """`inferops sim serve` with a rate line each second; `stdout` has its journal."""

    def __init__(self, directory: Path) -> None:
        self.port, self.stats_port = free_ports(2)
        self.log, self._out, self._err = (directory / name for name in ("requests.jsonl", "stdout", "stderr"))
        self.url, self.stats_url = f"http://{HOST}:{self.port}", f"http://{HOST}:{self.stats_port}/stats"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str, load: str = "0.1") -> Sim:
        """Starts it and waits until it is ready."""
        said = self.stdout().count("listening on")
        line = [*INFEROPS, "sim", "serve", "--port", str(self.port), "--stats-port", str(self.stats_port)]
        line += ["--request-log", str(self.log), "--load", load, "--stop", "0", "--throughput", "1", *options]
        with self._out.open("ab") as out, self._err.open("ab") as err:
            self.process = subprocess.Popen(line, stdout=out, stderr=err)
        until(lambda: self.stdout().count("listening on") > said or self.code() is not None, "ready")
        return self

    def code(self) -> int | None:
        return self.process.poll() if self.process else None

    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def ended(self) -> int:
        """Its exit code, once it has ended by itself."""
        assert self.process is not None
        return self.process.wait(SOON_S)

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.ended()

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(SOON_S)

    def stdout(self) -> str:
        return self._out.read_text() if self._out.exists() else ""

    def stderr(self) -> str:
        return self._err.read_text()

    def fault(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Asks for a fault that is to be taken."""
        done = inferops("sim", "fault", *words, "--port", str(self.port))
        assert done.returncode == 0, done.stderr
        return done

    def post(self, body: Any, path: str = "/v1/chat/completions", timeout: float = SOON_S) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=timeout)

    def health(self, timeout: float = SOON_S) -> int:
        return httpx.get(self.url + "/health", timeout=timeout).status_code

    def stats(self, timeout: float = SOON_S) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(self.stats_url, timeout=timeout).json()
        return found

    def gauges(self) -> dict[str, int]:
        """The scheduler's gauges that are not zero."""
        return {name: value for name, value in self.stats()["scheduler"].items() if value}

    def records(self, event: str = "") -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [record for record in found if event in ("", record["event"])]

    @contextlib.contextmanager
    def stream(self, text: str, tokens: int) -> Iterator[Iterator[str]]:
        """The lines of a streamed chat answer that has begun; leaving the block leaves the server."""
        asked = chat(text, tokens, stream=True)
        with httpx.stream("POST", self.url + "/v1/chat/completions", json=asked, timeout=SOON_S) as answer:
            lines = answer.iter_lines()
            next(lines)
            yield lines


def chat(text: str, tokens: int, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": tokens} | more
