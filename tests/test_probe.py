"""The probes against real sockets: every way in which a server can answer wrongly, slowly or not at all."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferops.core.poll import Health, Stats
from inferops.core.probe import BODY_MAX_BYTES, Fault, Prober, Reply, join, read_health
from inferops.core.profile import StatsRow
from inferops.core.schema import Live
from inferops.core.verdict import UsageError
from tests.answering import (
    ENDS_S,
    HTML,
    PLAIN,
    PROFILE,
    Answer,
    Server,
    closed_port,
    endless,
    head,
    http,
    probe,
    reset,
    silent,
    sse,
    trickle,
)

KEY = "sk-super-secret-0123456789"
METRICS = b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\nllamacpp:n_decode_total 7\n"
SLOTS = (
    b'[{"id":0,"is_processing":true,"n_prompt_tokens_processed":13,"next_token":[{"n_decoded":5}]},'
    b'{"id":1,"is_processing":false}]'
)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


# --- health


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (http(200, b'{"status":"ok"}'), ("ready", 200)),
        (http(503, b'{"error":{"message":"Loading model"}}'), ("loading", 503)),
        (http(503, b'{"error":{"message":"no slot available"}}'), ("busy", 503)),
        (http(503, b"something else"), ("unavailable", 503)),
        (http(500, b""), ("unavailable", 500)),
        (http(404, b""), ("odd", 404)),
        (http(302, b"", more="Location: /elsewhere\r\n"), ("odd", 302)),
        (reset, ("odd", None)),
        (lambda s: s.sendall(b"\x00\x01 not http at all\r\n\r\n"), ("odd", None)),
        (lambda s: s.sendall(head(200, "text/plain", "Content-Length: 100\r\n") + b"ok"), ("odd", 200)),
        (http(200, gzip.compress(b"ok"), more="Content-Encoding: gzip\r\n"), ("odd", 200)),
        (endless(head(200, "text/plain")), ("odd", 200)),
    ],
)
def test_health_is_read_by_the_rules_and_nothing_else(
    server: Server, answer: Answer, expected: tuple[str, int]
) -> None:
    server.answers["/health"] = answer
    got = probe(server.url, Prober.health)
    assert (got.answer, got.code) == expected
    assert got.latency_s is not None
    assert 0 <= got.latency_s < ENDS_S


def test_a_redirect_is_not_followed(server: Server) -> None:
    server.answers["/health"] = http(302, b"", more=f"Location: {server.url}/elsewhere\r\n")
    server.answers["/elsewhere"] = http(200, b"{}")
    assert probe(server.url, Prober.health).answer == "odd"
    assert [path for path, _ in server.requests] == ["/health"]


def test_refused_is_not_a_timeout() -> None:
    for host in ("127.0.0.1", "localhost"):
        assert probe(f"http://{host}:{closed_port()}", Prober.health).answer == "refused"


def test_refused_by_each_address_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    port = closed_port()
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{i}", port)) for i in (1, 2)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert probe(f"http://two-addresses.invalid:{port}", Prober.health).answer == "refused"


def test_a_name_that_does_not_resolve_is_neither() -> None:
    assert probe("http://no-such-host.invalid:80", Prober.health).answer == "odd"


@pytest.mark.parametrize(
    "answer",
    [
        silent,
        trickle(b""),
        trickle(b"HTTP/1.1 200 OK\r\nX: "),
        trickle(head(200, "application/json", "Content-Length: 100000\r\n")),
        trickle(head(200, "application/json")),
    ],
    ids=["silent", "trickled status line", "trickled header", "trickled body", "trickled body without an end"],
)
def test_the_deadline_is_over_the_whole_exchange_and_the_socket_is_closed(server: Server, answer: Answer) -> None:
    server.answers["/health"] = answer
    began = time.monotonic()
    got = probe(server.url, Prober.health, deadline_s=0.5)
    assert got.answer == "timeout"
    assert 0.5 <= time.monotonic() - began < 5.0
    assert server.left.wait(5.0), "the server's end of the connection stayed open"


def test_a_full_listen_queue_is_a_timeout() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for one in fillers:
            one.setblocking(False)
            one.connect_ex(s.getsockname())
        time.sleep(0.2)
        got = probe(f"http://127.0.0.1:{s.getsockname()[1]}", Prober.health, deadline_s=0.5)
        for one in fillers:
            one.close()
    assert got.answer == "timeout"


# --- stats


def both(server: Server, metrics: Answer, slots: Answer) -> Stats:
    server.answers |= {"/metrics": metrics, "/slots": slots}
    return probe(server.url, Prober.stats)


def test_two_endpoints_are_asked_and_merged_the_first_wins(server: Server) -> None:
    got = both(server, http(200, METRICS, "text/plain; version=0.0.4"), http(200, SLOTS))
    assert got == Stats(
        answer="ok", active=1, queued=2, free_slots=1,
        counters={"n_decode_total": 7.0, "slot0.prompt": 13.0, "slot0.decoded": 5.0},
    )  # fmt: skip
    assert sorted(path for path, _ in server.requests) == ["/metrics", "/slots"]


BAD: dict[str, tuple[Answer, tuple[str, ...]]] = {
    "html": (http(200, HTML, "text/html; charset=utf-8"), ("text/html", "<!doctype html>", "live.stats_url")),
    "html that says it is text": (http(200, b"  " + HTML, PLAIN), (PLAIN, "<!doctype", "live.stats_url")),
    "half a JSON": (http(200, SLOTS[:60]), ("application/json", '[{"id":0', "curl")),
    "10 MB": (endless(head(200, PLAIN)), (f"at most {BODY_MAX_BYTES:,} bytes", PLAIN)),
    "10 MB announced": (
        lambda s: s.sendall(head(200, PLAIN, "Content-Length: 10000000\r\n") + b"# x\n" * 2_500_000),
        (f"at most {BODY_MAX_BYTES:,} bytes",),
    ),
    "nothing": (http(200, b""), ("empty",)),
    "another JSON": (http(200, b'{"status":"ok"}'), ("{", "application/json")),
    "a number": (http(200, b"42"), ("42",)),
    "switched off": (http(501, b'{"error":{"code":501}}'), ("501", "start llama-server with")),
    "unauthorized": (http(401, b"{}"), ("401", "live.api_key_file")),
    "redirect": (http(307, b"", more="Location: http://127.0.0.1:1/\r\n"), ("307",)),
    "gzip": (http(200, gzip.compress(b"0" * 10**7), more="Content-Encoding: gzip\r\n"), ("content-encoding gzip",)),
    "closed in the middle": (
        lambda s: s.sendall(head(200, PLAIN, "Content-Length: 500\r\n") + METRICS), ("broke after 200",)),
    "reset": (reset, ("broke",)),
    "binary": (http(200, bytes(range(128, 256)) * 4, "application/octet-stream"), ("octet-stream",)),
    "terminal codes": (http(200, b"\x1b]0;owned\x07\x1b[2J\n", "text/\x1bplain"[:5] + PLAIN), ("\\x1b",)),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_is_one_clear_line(server: Server, name: str) -> None:
    answer, words = BAD[name]
    got = both(server, answer, answer)
    assert (got.answer, got.active, got.queued, got.counters) == ("bad", None, None, {})
    for path in ("/metrics", "/slots"):
        assert path in got.why
    for word in words:
        assert word in got.why, got.why
    assert got.why.isprintable()
    assert len(got.why) < 1000


@pytest.mark.parametrize(
    ("metrics", "slots", "word"),
    [
        (b"llamacpp:requests_processing NaN\nllamacpp:n_decode_total 1\n", b"[NaN]", "NaN"),
        (b"llamacpp:requests_processing +Inf\n", b'[{"is_processing":true,"id":1e999}]', "infinite"),
        (
            b"llamacpp:requests_processing -1\n",
            b'{"a":-1}',
            "`int` >= 0 - at `$.active` in 32 bytes of text/plain starting 'llamacpp",
        ),
        (b"llamacpp:requests_processing 0.5\n", b'"x"', "int"),
        (b"llamacpp:n_decode_total\n", b"[[[[", "/metrics"),
    ],
)
def test_a_number_that_is_none_is_bad(server: Server, metrics: bytes, slots: bytes, word: str) -> None:
    got = both(server, http(200, metrics, PLAIN), http(200, slots))
    assert (got.answer, got.active, got.counters) == ("bad", None, {})
    assert word in got.why, got.why


def test_one_bad_endpoint_is_named_beside_a_good_one(server: Server) -> None:
    got = both(server, http(200, HTML, "text/html"), http(200, SLOTS))
    assert (got.answer, got.active, got.queued, got.free_slots) == ("ok", 1, None, 1)
    assert got.why.startswith("/metrics: expected Prometheus text, got 58 bytes of text/html starting '<!doctype html>")
    assert "/slots" not in got.why


def test_an_endpoint_that_may_be_switched_off_is_not_named(server: Server) -> None:
    got = both(server, http(200, METRICS, PLAIN), http(501, b"{}"))
    assert (got.answer, got.active, got.why) == ("ok", 1, "")
    got = both(server, http(501, b"{}"), http(200, SLOTS))
    assert (got.answer, got.active) == ("ok", 1)
    assert "start llama-server with --metrics" in got.why


def test_loading_timeout_and_refused_are_told_apart(server: Server) -> None:
    load = http(503, b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}')
    assert both(server, load, load).answer == "loading"
    server.answers |= {"/metrics": silent, "/slots": trickle(head(200, PLAIN))}
    got = probe(server.url, Prober.stats, deadline_s=0.5)
    assert (got.answer, got.why) == ("timeout", "/metrics: no whole answer in 0.5 s; /slots: no whole answer in 0.5 s")
    got = probe(f"http://127.0.0.1:{closed_port()}", Prober.stats)
    assert (got.answer, got.why) == ("refused", "/metrics: connection refused; /slots: connection refused")


def test_stats_may_have_a_port_of_their_own(server: Server) -> None:
    server.answers |= {"/metrics": http(200, METRICS, PLAIN), "/slots": http(200, SLOTS)}
    got = probe(f"http://127.0.0.1:{closed_port()}", Prober.stats, stats_url=server.url)
    assert got.answer == "ok"


ROW = StatsRow(active=3, counters={"a": 1.0})


@pytest.mark.parametrize(
    ("found", "answer", "active", "why"),
    [
        ([ROW, StatsRow(active=9, queued=1, counters={"a": 5.0})], "ok", 3, ""),
        ([Stats(answer="timeout", why="one"), ROW], "ok", 3, "one"),
        (
            [Stats(answer="timeout", why="one"), StatsRow(active=3, counters={"a": 1.0}, note="two")],
            "ok",
            3,
            "one; two",
        ),
        ([Stats(answer="bad", why="one"), Stats(answer="timeout", why="two")], "timeout", None, "one; two"),
        ([Stats(answer="refused", why="one"), Stats(answer="bad", why="two")], "bad", None, "one; two"),
        ([Stats(answer="timeout", why="one"), Stats(answer="loading", why="two")], "loading", None, "one; two"),
        ([Stats(answer="refused", why="one"), Stats(answer="refused", why="one")], "refused", None, "one"),
    ],
)
def test_join(found: list[StatsRow | Stats], answer: str, active: int | None, why: str) -> None:
    got = join(found, PROFILE.stats)
    assert (got.answer, got.active, got.why) == (answer, active, why)
    if active is not None:
        assert got.counters["a"] == 1.0


# --- what leaves this machine, and what does not


def test_a_proxy_in_the_environment_is_not_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Server()
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.url)
    server.answers["/health"] = http(200, b"{}")
    assert probe(server.url, Prober.health).answer == "ready"
    assert proxy.requests == []
    proxy.close()


def test_the_key_is_sent_and_never_said(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("default login me password netrc-secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    file.chmod(0o600)
    echo = http(401, f"invalid key {KEY}".encode(), PLAIN)
    error = sse(f'data: {{"error":{{"message":"key {KEY} is over its limit"}}}}')
    server.answers |= {"/health": http(200, b"{}"), "/metrics": echo, "/slots": http(200, f'{{"{KEY}":1}}'.encode())}
    server.answers["/completion"] = error
    said: list[object] = []

    async def all_of(prober: Prober) -> None:
        said.extend([prober, prober.__dict__["_client"].headers])
        said.extend([await prober.health(), await prober.stats(), await prober.bodies(), await prober.canary(2.0)])

    probe(server.url, all_of, api_key_file=str(file))
    assert {f"authorization: bearer {KEY}" in text.lower() for _, text in server.requests} == {True}
    assert KEY not in repr(said)
    assert KEY.encode() not in b"".join(one.body for one in said[4] if isinstance(one, Reply))  # type: ignore[attr-defined]
    assert "[api key]" in repr(said)


@pytest.mark.parametrize("content", [b"two\nlines\n", b"", b"caf\xc3\xa9\n", b"with space\n"])
def test_a_key_that_no_header_can_carry_is_refused_unsaid(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(UsageError) as caught:
        Prober(PROFILE, Live(unit="x", api_key_file=str(file)), 1.0)
    assert content.strip().decode() not in str(caught.value) or not content.strip()


def test_no_connection_is_kept_and_no_compression_asked_for(server: Server) -> None:
    def keeps(s: socket.socket) -> None:
        s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nKeep-Alive: timeout=60\r\n\r\n{}")
        silent(s)

    server.answers["/health"] = keeps

    async def twice(prober: Prober) -> list[str]:
        answers: list[str] = [(await prober.health()).answer, (await prober.health()).answer]
        assert await asyncio.to_thread(server.left.wait, 5.0), "the connection was kept"
        return answers

    assert probe(server.url, twice) == ["ready", "ready"]
    for _, text in server.requests:
        assert "connection: close" in text.lower()
        assert "accept-encoding: identity" in text.lower()


def test_nothing_stays_open_after_many_timeouts(server: Server) -> None:
    server.answers["/health"] = silent

    async def many(prober: Prober) -> int:
        await prober.health()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            assert (await prober.health()).answer == "timeout"
        return len(os.listdir("/proc/self/fd")) - before

    # the server's ends are in this very process: give its threads a moment to see that theirs are closed
    assert probe(server.url, many, deadline_s=0.05) <= 2


# --- one at a time


def test_two_of_a_kind_are_never_outstanding(server: Server) -> None:
    server.answers |= {"/health": silent, "/completion": silent}

    async def twice(prober: Prober) -> None:
        for kind in (prober.health, lambda: prober.canary(ENDS_S)):
            first = asyncio.ensure_future(kind())
            await asyncio.sleep(0.2)
            with pytest.raises(RuntimeError, match="outstanding"):
                await kind()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
        server.answers["/health"] = http(200, b"{}")
        assert (await prober.health()).answer == "ready"  # free again

    probe(server.url, twice, deadline_s=ENDS_S)
    assert server.left.wait(5.0), "cancelling left the socket open"


# --- pure


def test_a_capture_gets_the_raw_answers(server: Server) -> None:
    server.answers |= {"/health": http(200, b"{}"), "/metrics": silent, "/slots": http(200, SLOTS)}
    health, metrics, slots = probe(server.url, Prober.bodies, deadline_s=0.5)
    assert isinstance(health, Reply)
    assert health.body == b"{}"
    assert isinstance(metrics, Fault)
    assert metrics.kind == "timeout"
    assert isinstance(slots, Reply)
    assert (slots.body, slots.code, slots.content_type) == (SLOTS, 200, "application/json")


@pytest.mark.parametrize(("kind", "answer"), [("bad", "odd"), ("timeout", "timeout"), ("refused", "refused")])
def test_a_fault_is_never_ready(kind: Any, answer: str) -> None:
    fault = Fault(path="/health", kind=kind, why="", latency_s=1.0, code=200)
    assert read_health(fault, PROFILE) == Health(answer=answer, code=200, latency_s=1.0)  # type: ignore[arg-type]
