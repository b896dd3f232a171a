"""A server that runs as a unit of a box: started, asked, loaded; and a llama-server there, broken."""

from __future__ import annotations

import http.client
import json
import threading
import time
from typing import Any, Self

from tests.engine import engine
from tests.system.box import Box

_READY_S = 120.0  # 1.2 s when the machine is quiet


class Stream(threading.Thread):
    """One streaming chat request, in a thread of its own; a daemon, so a wedged server can't hold a test's end up.

    `times`: CLOCK_BOOTTIME seconds of each non-empty content; `finish`: the reason it ended for, None if it has none;
    `usage` and `timings` as the server said them; `error`: what went wrong, in words.
    """

    def __init__(self, box: Box, port: int, prompt: str, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self.times: list[float] = []
        self.text, self.error, self.sent = "", "", 0.0
        self.finish: str | None = None
        self.usage: dict[str, Any] = {}
        self.timings: dict[str, Any] = {}
        self._first = threading.Event()
        self._socket = box.connect(port, timeout=600.0)
        self._body = {
            "model": "test",
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "seed": 1,
        }

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1")
        connection.sock = self._socket
        self.sent = time.clock_gettime(time.CLOCK_BOOTTIME)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps(self._body), headers)
            response = connection.getresponse()
            if response.status != 200:
                self.error = f"{response.status} {response.read(2000)!r}"
            for line in response:
                self._take(line.decode().strip())
            if not self.error and self.finish is None:
                self.error = "it ended without a finish_reason"
        except (OSError, http.client.HTTPException, ValueError) as e:
            self.error = self.error or repr(e)
        finally:
            self._first.set()
            connection.close()

    def _take(self, line: str) -> None:
        if line.startswith(("error:", 'data: {"error"')):
            self.error = line
        elif line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            self.usage = event.get("usage") or self.usage
            self.timings = event.get("timings") or self.timings
            for choice in event["choices"]:
                self.finish = choice["finish_reason"] or self.finish
                if content := choice["delta"].get("content"):
                    self.times.append(time.clock_gettime(time.CLOCK_BOOTTIME))
                    self.text += content
                    self._first.set()

    def first(self, timeout: float = 120.0) -> float:
        """Waits for the first content; seconds since it was sent. Raises EngineError: none came."""
        self._first.wait(timeout)
        if not self.times:
            raise engine.EngineError(f"no content within {timeout} s: {self.error or 'nothing came'}")
        return self.times[0] - self.sent

    def end(self, timeout: float = 120.0) -> Stream:
        """Waits until it has ended, well or not. Raises EngineError: still open after `timeout` seconds."""
        self.join(timeout)
        if self.is_alive():
            raise engine.EngineError(f"a request is still open after {timeout} s, {len(self.times)} contents came")
        return self

    def drop(self) -> None:
        """Leaves as a client does that has lost patience."""
        self._socket.shutdown(2)


class Server:
    """A server that runs as a unit of a box, written there by who makes this."""

    def __init__(self, box: Box, unit: str, port: int, text: str) -> None:
        self.box, self.port, self.unit = box, port, unit
        box.write(f"/etc/systemd/system/{unit}", text)
        box.run(["systemctl", "daemon-reload"])

    def start(self, wait: bool = True) -> Self:
        self.box.run(["systemctl", "start", self.unit])
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, timeout: float = _READY_S) -> None:
        """Until /health says 200. Raises EngineError with the journal's last lines."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            try:
                if self.get("/health", 2.0)[0] == 200:
                    return
            except OSError:
                pass  # it does not listen yet
            time.sleep(0.05)
        raise engine.EngineError(f"{self.unit} is not ready after {timeout} s:\n{self.box.journal(self.unit, '-n20')}")

    def pid(self) -> int:
        """The unit's main process, as a pid inside the box; 0 when there is none."""
        return int(self.show("MainPID"))

    def show(self, key: str) -> str:
        """One property of the unit."""
        return self.box.run(["systemctl", "show", self.unit, f"--property={key}", "--value"]).stdout.strip()

    def get(self, path: str, timeout: float = 10.0, port: int | None = None) -> tuple[int, str]:
        """Code and body of a GET from outside the box. Raises OSError: refused, or nothing within `timeout` seconds."""
        connection = http.client.HTTPConnection("127.0.0.1")
        connection.sock = self.box.connect(port or self.port, timeout)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except http.client.HTTPException as e:
            raise ConnectionError(repr(e)) from e
        finally:
            connection.close()

    def stream(self, prompt: str, max_tokens: int = 32) -> Stream:
        """Sends a streaming chat request from outside the box; it goes on in the background."""
        stream = Stream(self.box, self.port, prompt, max_tokens)
        stream.start()
        return stream

    def signal(self, name: str) -> None:
        """Sends the main process a signal: "STOP", "CONT", "KILL"."""
        self.box.run(["kill", f"-{name}", str(self.pid())])

    def journal(self) -> str:
        """The unit's own lines and systemd's about it, messages alone."""
        return self.box.journal(self.unit, "-o", "cat")


class Engine(Server):
    """The unit of engine.unit_text in a box; `options` are that function's."""

    def __init__(
        self, box: Box, *, port: int = 8080, unit: str = engine.UNIT, shim: bool = True, **options: Any
    ) -> None:
        library = engine.build_shim() if shim else None
        super().__init__(box, unit, port, engine.unit_text(port, engine.locate(), shim=library, **options))

    def fault(self, line: str) -> None:
        """Leaves a fault for the next decode, see wedge.c: "futex 60", "spin 60", "abort", "exit 0", "slow 200"."""
        new = engine.FAULT_FILE + ".new"
        self.box.write(new, line + "\n")
        self.box.run(["mv", new, engine.FAULT_FILE])

    def faulted(self, timeout: float = 60.0) -> None:
        """Waits until the fault has begun. Raises EngineError: no decode came."""
        end = time.monotonic() + timeout
        while self.box.run(["test", "-e", engine.FAULT_FILE], check=False).returncode == 0:
            if time.monotonic() > end:
                raise engine.EngineError(f"no decode took the fault within {timeout} s")
            time.sleep(0.05)

    def cure(self) -> None:
        """Takes back a fault that has not begun, or a `slow`."""
        self.box.run(["rm", "-f", engine.FAULT_FILE])
