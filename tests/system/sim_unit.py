"""The simulator as a unit of a box: ninfer.service on 8080, its stats on 8081, its request log and its faults."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.engine.engine import EngineError
from tests.engine.running import Server
from tests.system.box import CHECKOUT, Box
from tests.system.sentinel_unit import SentinelUnit, short

UNIT = "ninfer.service"
LOG = "/var/log/ninfer/requests.jsonl"
LIVE = {"unit": UNIT, "request_log": LOG}
INFEROPS = [sys.executable, str(CHECKOUT / "tools")]

UNIT_TEXT = """\
[Unit]
Description=simulated NInfer
[Service]
ExecStart={command}
Environment=PYTHONDONTWRITEBYTECODE=1
LogsDirectory=ninfer
Restart={restart}
RestartSec=1
TimeoutStopSec=10
"""


class Sim(Server):
    """The simulator in a box; `options` are of `inferops sim serve`."""

    def __init__(self, box: Box, *options: str, restart: str = "on-failure") -> None:
        command = [*INFEROPS, "sim", "serve", "--port", "8080", "--stats-port", "8081", "--request-log", LOG, *options]
        super().__init__(box, UNIT, 8080, UNIT_TEXT.format(command=" ".join(command), restart=restart))

    def fault(self, name: str, *options: str) -> str:
        """Asks for a fault; what the command said. Raises EngineError: it was not taken."""
        done = self.box.run([*INFEROPS, "sim", "fault", name, *options], check=False)
        if done.returncode != 0:
            raise EngineError(f"sim fault {name}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout.strip()

    def stats(self) -> dict[str, Any]:
        """The whole /stats document. Raises OSError: no answer within 5 s."""
        found: dict[str, Any] = json.loads(self.get("/stats", 5.0, port=8081)[1])
        return found

    def records(self, event: str) -> list[dict[str, Any]]:
        """The request log's records of one event, oldest first."""
        lines = map(json.loads, self.box.read(LOG).splitlines())
        return [record for record in lines if record["event"] == event]


def watched(box: Box, **sentinel: Any) -> SentinelUnit:
    """A started sentinel for it that has seen it ready; rate lines must come each second (--throughput 1)."""
    watcher = SentinelUnit(box, short("ninfer", 1.0), LIVE, **sentinel).start()
    watcher.wait("READY", 60)
    return watcher


def manifest(box: Box, where: str) -> dict[str, Any]:
    """A capture's manifest."""
    found: dict[str, Any] = json.loads(box.read(str(Path(where) / "manifest.json")))
    return found
