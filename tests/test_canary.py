"""The canary against real sockets: only a token is a token, and every other end is told apart."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import msgspec
import pytest

from inferops.core.probe import BODY_MAX_BYTES, event_of
from tests.answering import (
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


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


EVENT = 'data: {"index":0,"content":" the","tokens":[506],"stop":false,"tokens_predicted":1}'
PING = ": ping"


def canary(server: Server, answer: Answer, deadline_s: float = 2.0) -> tuple[str, str]:
    server.answers["/completion"] = answer
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    done = probe(server.url, lambda prober: prober.canary(deadline_s))
    assert done.kind == "canary"
    assert before <= done.t <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert done.why.isprintable()
    return done.result, done.why


def split(s: socket.socket) -> None:
    """A token's event in pieces, with CRLF."""
    s.sendall(head(200, "text/event-stream"))
    data = f"{PING}\r\n\r\n{EVENT}\r\n\r\n".encode()
    for i in range(0, len(data), 20):
        s.sendall(data[i : i + 20])
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("answer", "result", "why"),
    [
        (sse(PING, EVENT, then=silent), "token", ""),
        (split, "token", ""),
        (http(200, b'{"content":"x","tokens_predicted":1}'), "token", ""),
        (sse('data: {"content":"","tokens_predicted":0}', "data: [DONE]"), "inconclusive", "ended without a token"),
        (http(200, b'{"content":"","tokens_predicted":0}'), "inconclusive", "no token"),
        (sse('data: {"error":{"code":500,"message":"decode failed"}}'), "inconclusive", "decode failed"),
        (sse('error: {"code":500,"message":"old style"}'), "inconclusive", "old style"),
        (sse('event: error\ndata: {"error":"boom\\u001b[2J"}'), "inconclusive", "boom\\x1b"),
        (sse("data: {half"), "inconclusive", "expected JSON"),
        (sse(PING), "inconclusive", "ended without a token"),
        (reset, "inconclusive", "broke"),
        (http(200, HTML, "text/html"), "inconclusive", "expected JSON"),
        (http(302, b"", more="Location: /health\r\n"), "inconclusive", "answered 302"),
        (endless(head(200, "text/event-stream")), "inconclusive", f"at most {BODY_MAX_BYTES:,} bytes"),
        *((http(code, b"{}"), "inconclusive", f"answered {code}") for code in (400, 401, 404, 408, 429, 500, 503)),
    ],
)
def test_canary(server: Server, answer: Answer, result: str, why: str) -> None:
    got = canary(server, answer)
    assert got[0] == result, got
    assert why in got[1]
    assert bool(got[1]) is (result != "token")


@pytest.mark.parametrize(
    "answer",
    [
        silent,
        trickle(head(200, "text/event-stream") + f"{PING}\n\n".encode()),
        trickle(b"HTTP/1.1 200 OK\r\nX: "),
        sse('data: {"content":"","tokens_predicted":0}', then=silent),
    ],
    ids=["no headers", "pings", "trickled headers", "an empty event"],
)
def test_no_token_by_the_deadline_is_none_and_the_request_is_dropped(server: Server, answer: Answer) -> None:
    assert canary(server, answer, 0.5) == ("none", "no token in 0.5 s")
    assert server.left.wait(5.0), "the canary's connection stayed open"


def test_a_code_that_came_before_the_deadline_counts_though_its_body_never_ends(server: Server) -> None:
    assert canary(server, trickle(head(503, PLAIN)), 1.0)[0] == "inconclusive"


def test_nothing_that_listens_is_inconclusive() -> None:
    done = probe(f"http://127.0.0.1:{closed_port()}", lambda prober: prober.canary(1.0))
    assert (done.result, done.why) == ("inconclusive", "/completion: connection refused")


def test_the_profile_may_forbid_it(server: Server) -> None:
    never = msgspec.structs.replace(PROFILE, canary=msgspec.structs.replace(PROFILE.canary, allowed=False))
    assert probe(server.url, lambda prober: prober.canary(1.0), profile=never).result == "not-sent"
    assert server.requests == []


def test_the_profiles_body_is_what_is_sent(server: Server) -> None:
    canary(server, sse(EVENT))
    path, text = server.requests[0]
    assert path == "/completion"
    assert text.startswith("POST ")
    assert json.loads(text.partition("\r\n\r\n")[2]) == PROFILE.canary.body


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("data: x", ("data", "x")),
        ("data:x", ("data", "x")),
        (": ping", ("", "ping")),
        ("", ("", "")),
        ("data", ("data", "")),
    ],
)
def test_event_lines(line: str, field: tuple[str, str]) -> None:
    assert event_of(line) == field
