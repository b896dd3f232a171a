"""What a look makes of journal lines, of the request log and of stats from another port: real sockets, real files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferops.core import lookout as under_test
from inferops.core import profile as profiles
from inferops.core import unit
from inferops.core.journal import Batch, Entry, Follower
from inferops.core.lookout import Lookout, boottime, other_port, owned, seen_in, with_failed
from inferops.core.poll import JournalSeen, Poll, RequestsSeen, Stats
from inferops.core.schema import Live
from inferops.core.settings import Resolved, load
from inferops.core.unit import UnitState
from tests.answering import Server, http, run
from tests.test_requestlog import WALL, A, B, done, record, start

NINFER = profiles.load("ninfer")
STATS = b'{"scheduler":{"running":1,"waiting":0,"parked":1},"server_instance_id":"a1b2"}'
FAILED = "req#5 failed during generation | anthropic | HTTP 500 | internal error"


def entry(t: float | None, message: str, by_systemd: bool = False) -> Entry:
    return Entry(cursor="c", t=t, wall=0.0, message=message, pid=7, priority=6, unit="ninfer.service",
                 by_systemd=by_systemd, message_id="", invocation="")  # fmt: skip


# --- pure


def test_a_line_of_a_worked_queue_has_a_time_of_its_own_and_a_failed_request_is_any_line() -> None:
    failed: list[tuple[float, bool]] = []
    lines = [entry(1.0, "[relief-kv] demoted 2 owners"), entry(3.0, "[admission] queued KV block head=1"),
             entry(2.0, "[relief-kv] demoted 1 owner"), entry(5.0, FAILED), entry(None, FAILED),
             entry(6.0, FAILED, by_systemd=True)]  # fmt: skip
    assert seen_in(lines, JournalSeen(), NINFER, failed) == JournalSeen(working_t=3.0, any_t=5.0)
    assert failed == [(5.0, True)]
    assert seen_in(lines, JournalSeen(progress_t=9.0), NINFER) == JournalSeen(progress_t=9.0, working_t=3.0, any_t=5.0)


def test_failed_requests_of_this_process_are_counted() -> None:
    one = with_failed(RequestsSeen(), [(4.0, True), (12.0, True), (11.0, True)], since=10.0)
    assert one == RequestsSeen(failed=2, failed_t=12.0, failing=2, failing_t=11.0)
    two = with_failed(one, [(11.5, True)], since=10.0)
    assert two == RequestsSeen(failed=3, failed_t=12.0, failing=3, failing_t=11.0)
    assert with_failed(RequestsSeen(), [(4.0, True)], since=10.0) == RequestsSeen()


def test_progress_ends_a_run_of_failed_requests() -> None:
    run = with_failed(RequestsSeen(), [(1.0, True), (2.0, False), (3.0, True)], since=0.0)
    assert run == RequestsSeen(failed=2, failed_t=3.0, failing=1, failing_t=3.0)
    assert with_failed(run, [(4.0, False)], since=0.0) == RequestsSeen(failed=2, failed_t=3.0)


OK = Stats(answer="ok", active=1)


@pytest.mark.parametrize(
    ("stats", "holder", "wanted"),
    [
        (OK, None, OK),
        (OK, "pid 5 (x) of root in /", "bad"),
        (OK, "nobody", "bad"),
        (Stats(answer="timeout"), "pid 5 (x) of root in /", "bad"),
        (Stats(answer="loading"), "pid 5 (x) of root in /", "bad"),
        (Stats(answer="refused", why="w"), "nobody", Stats(answer="refused", why="w")),
        (Stats(answer="bad", why="w"), "pid 5", Stats(answer="bad", why="w")),
    ],
)
def test_stats_of_a_strangers_port_are_none(stats: Stats, holder: str | None, wanted: Stats | str) -> None:
    got = owned(stats, 8081, holder)
    if isinstance(wanted, Stats):
        assert got == wanted
    else:
        assert got == Stats(answer="bad", why=f"port 8081 is held by {holder}, not by the unit; set live.stats_url")


@pytest.mark.parametrize(
    ("url", "stats_url", "wanted"),
    [
        ("http://127.0.0.1:8080", None, 8081),
        ("http://127.0.0.1:8081", None, None),
        ("http://127.0.0.1:8080", "http://localhost:9", 9),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/x", None),
        ("http://127.0.0.1:8080", "http://metrics.lan:9", None),
        ("http://llm.lan:8080", "http://llm.lan:9", 9),
    ],
)
def test_which_port_must_be_the_units_too(url: str, stats_url: str | None, wanted: int | None) -> None:
    assert other_port(Live(unit="x", url=url, stats_url=stats_url), NINFER) == wanted


# --- edge: a look at two servers in this process, whose systemd answer is ours


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    both = Server(), Server()
    yield both
    for one in both:
        one.close()


class Quiet(Follower):
    """A journal with the lines that a test puts in."""

    def __init__(self) -> None:
        self.lines: list[Entry] = []

    def drain(self, limit: int = 0) -> Batch:
        lines, self.lines = self.lines, []
        return Batch(entries=tuple(lines), gap=None, suppressed=0, truncated=False)

    def close(self) -> None: ...


class Watched:
    """Lookout of the process `pid` that serves on `main`, its stats on `stats`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, main: int, stats: int, **live: Any) -> None:
        flags = {"live.unit": "ninfer", "live.engine": "ninfer", "live.url": f"http://127.0.0.1:{main}"}
        resolved: Resolved = load(flags=flags | live, environ={}, cwd=Path("/"))
        profile = msgspec.structs.replace(resolved.profile, stats_port=stats)
        self.pids: tuple[int, ...] = (os.getpid(),)
        self.start_t = 1.0
        self.lookout = Lookout(msgspec.structs.replace(resolved, profile=profile))
        self.journal = self.lookout._follower = Quiet()
        monkeypatch.setattr(unit, "pids", lambda group: self.pids)
        monkeypatch.setattr(unit, "show", self.show)

    def show(self, name: str) -> UnitState:
        return UnitState(name=name, load="loaded", active="active", sub="running", result="success",
                         main_pid=self.pids[0], start_t=self.start_t, restarts=0, control_group="/no/such",
                         invocation_id="", need_daemon_reload=False, timeout_start_s=None, timeout_stop_s=None,
                         restart="no", unit_type="simple")  # fmt: skip

    def polls(self, count: int = 1) -> list[Poll]:
        async def look() -> list[Poll]:
            return [await self.lookout.poll() for _ in range(count)]

        return run(look())


def test_stats_of_the_units_own_other_port_count_with_instance_and_note(
    servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    main, stats = servers
    main.answers["/health"] = http(200, b"{}")
    stats.answers["/stats"] = http(200, STATS)
    watched = Watched(monkeypatch, main.port, stats.port)
    [poll] = watched.polls()
    assert poll.stats is not None
    assert (poll.stats.answer, poll.stats.active, poll.owner) == ("ok", 1, "unit")
    assert poll.instance == "a1b2"
    assert watched.lookout.troubles == ["scheduler has gauges this profile does not know: parked"]


STRANGER = """
import http.server, sys
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.argv[1].encode())
    def log_message(self, *args): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Page)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_a_stranger_on_the_stats_port_is_named_and_the_servers_own_port_is_tried_next(
    servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    main, _ = servers
    main.answers["/stats"] = http(200, STATS)
    argv = [sys.executable, "-c", STRANGER, STATS.decode().replace("a1b2", "of-a-stranger")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as stranger:
        try:
            assert stranger.stdout is not None
            port = int(stranger.stdout.readline())
            first, second = Watched(monkeypatch, main.port, port).polls(2)
        finally:
            stranger.kill()
    assert first.stats is not None
    assert (first.stats.answer, first.stats.active, first.instance) == ("bad", None, None)
    assert first.stats.why.startswith(f"port {port} is held by pid {stranger.pid} (python")
    assert first.stats.why.endswith("not by the unit; set live.stats_url")
    assert second.stats is not None
    assert (second.stats.answer, second.instance) == ("ok", "a1b2")


def test_the_log_speaks_for_the_instance_that_answers_and_still_does_while_stats_hang(
    servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    main, stats = servers
    stats.answers["/stats"] = http(200, STATS)
    log = tmp_path / "r.jsonl"
    log.write_text(record("server_start", 0.0) + start(1, time.time() - 60.0 - WALL) + start(9, 1.0, B))
    watched = Watched(monkeypatch, main.port, stats.port, **{"live.request_log": str(log)})
    watched.start_t = boottime() - 50.0
    [poll] = watched.polls()
    assert poll.requests == RequestsSeen(open=1, oldest_t=watched.start_t), "a stamp before the process began is none"
    with log.open("a") as file:
        file.write(done(1, 2.0) + done(9, 2.0, instance=B))
    stats.answers["/stats"] = http(500, b"")
    before = boottime()
    [poll] = watched.polls()
    assert poll.stats is not None
    assert (poll.stats.answer, poll.instance) == ("bad", None)
    assert poll.requests is not None
    assert (poll.requests.done, poll.requests.open) == (1, 0)
    assert poll.requests.done_t is not None
    assert before - 60.0 < poll.requests.done_t <= boottime()
    watched.start_t = boottime()  # another process: whose requests these are is not known yet
    [poll] = watched.polls()
    assert poll.requests is None


def test_a_log_that_is_missing_is_a_trouble_and_no_zero(
    servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    main, stats = servers
    stats.answers["/stats"] = http(200, STATS)
    watched = Watched(monkeypatch, main.port, stats.port, **{"live.request_log": str(tmp_path / "none")})
    watched.journal.lines = [entry(5.0, FAILED)]
    [poll] = watched.polls()
    assert poll.requests is None
    assert f"request log {tmp_path}/none: No such file or directory" in watched.lookout.troubles


def test_without_a_log_the_journal_tells_what_failed_in_this_process(
    servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    main, stats = servers
    watched = Watched(monkeypatch, main.port, stats.port)
    watched.start_t = 10.0
    assert watched.polls()[0].requests is None, "a journal without a line says nothing"
    watched.journal.lines = [entry(5.0, FAILED), entry(11.0, FAILED), entry(12.0, "[relief-kv] demoted 2 owners")]
    [poll] = watched.polls()
    assert poll.requests == RequestsSeen(failed=1, failed_t=11.0, failing=1, failing_t=11.0)
    assert poll.journal == JournalSeen(working_t=12.0, any_t=12.0)
    watched.start_t = 20.0
    assert watched.polls()[0].requests == RequestsSeen(), "it restarted"


def test_the_clock_of_these_tests_is_the_records() -> None:
    assert under_test.boottime() > 0
    assert WALL > 1e9
    assert A in STATS.decode()
