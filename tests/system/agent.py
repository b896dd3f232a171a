"""A Python inside a box that keeps what it holds: the eyes run there, a test tells it what to look at."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import inferops
from tests.system.box import Box

PACKAGE = Path(inferops.__file__).parents[1]  # a box that an agent looks around in has to keep it

# One JSON object a line: {"do": statements} or {"ask": expression}; the answer is {"is": …} or {"raised": [type, …]}.
LOOP = """
import json, sys, msgspec
space = {}
for line in sys.stdin:
    what = json.loads(line)
    try:
        if "do" in what:
            exec(what["do"], space)
        said = {"is": msgspec.to_builtins(eval(what.get("ask", "None"), space))}
    except Exception as e:
        said = {"raised": [type(e).__name__, str(e), getattr(e, "hint", "")]}
    print(json.dumps(said), flush=True)
"""


class Raised(Exception):
    """An exception inside the box: `kind` is its type's name, `hint` the hint of an InferopsError."""

    def __init__(self, kind: str, message: str, hint: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message, self.hint = kind, message, hint


class Agent:
    """`with Agent(box) as agent: agent.do("x = 1"); agent.ask("x + 1") == 2`. `wrap` is a command in front of it."""

    def __init__(self, box: Box, *wrap: str, env: Mapping[str, str] | None = None) -> None:
        self._process = box.popen(
            [*wrap, sys.executable, "-c", LOOP], env={"PYTHONPATH": str(PACKAGE)} | dict(env or {}), stdin=-1
        )

    def do(self, statements: str) -> None:
        """Runs statements. Raises Raised."""
        self._say({"do": statements})

    def ask(self, expression: str) -> Any:
        """The value of an expression, as JSON has it. Raises Raised."""
        return self._say({"ask": expression})

    def become(self, uid: int, group: str) -> None:
        """Drops root. After the imports: this user may not be able to read the package or its Python."""
        self.do(f"import grp, os; os.setgroups([]); os.setgid(grp.getgrnam({group!r}).gr_gid); os.setuid({uid})")

    def _say(self, what: Mapping[str, str]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(what), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the agent is gone: {self._process.communicate()[1]}")
        said = json.loads(line)
        if "raised" in said:
            raise Raised(*said["raised"])
        return said["is"]

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()


def service(box: Box, name: str, *lines: str, start: bool = True) -> None:
    """Writes a unit with these lines of [Service], and starts it."""
    box.write(f"/etc/systemd/system/{name}", "\n".join(["[Service]", *lines, ""]))
    box.run(["systemctl", "daemon-reload"])
    if start:
        box.run(["systemctl", "start", "--", name])


def eventually(look: Callable[[], Any], timeout: float = 30.0) -> Any:
    """The first true value of `look`; fails after `timeout` seconds with the last one."""
    end = time.monotonic() + timeout
    while not (value := look()):
        assert time.monotonic() < end, f"still {value!r} after {timeout:g} s"
        time.sleep(0.05)
    return value
