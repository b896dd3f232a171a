"""Where the stats are asked: the profile's own port, then the server's, in one deadline, on real sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import msgspec
import pytest

from inferops.core import profile as profiles
from inferops.core.probe import Prober, Reply, stats_bases
from inferops.core.profile import Profile
from inferops.core.schema import Live
from tests.answering import PROFILE, Answer, Server, closed_port, http, probe, reset, silent

NINFER = profiles.load("ninfer")
NSTATS = b'{"scheduler":{"running":1,"waiting":2},"server_instance_id":"i"}'


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def other() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def on_port(port: int) -> Profile:
    return msgspec.structs.replace(NINFER, stats_port=port)


def test_stats_are_asked_on_the_port_of_the_profile(server: Server, other: Server) -> None:
    server.answers["/stats"] = other.answers["/stats"] = http(200, NSTATS)
    got = probe(f"{server.url}/prefix", Prober.stats, profile=on_port(other.port))
    assert (got.answer, got.active, got.instance, got.why) == ("ok", 1, "i", "")
    assert (len(server.requests), len(other.requests)) == (0, 1)


@pytest.mark.parametrize("refuses", [True, False])
def test_where_that_port_has_none_the_servers_own_is_asked(server: Server, other: Server, refuses: bool) -> None:
    server.answers["/stats"] = http(200, NSTATS)

    async def thrice(prober: Prober) -> list[tuple[str, int | None]]:
        return [((await prober.stats()).answer, prober.stats_port) for _ in range(3)]

    port = closed_port() if refuses else other.port
    assert probe(server.url, thrice, profile=on_port(port)) == [("ok", server.port)] * 3
    assert len(server.requests) == 3
    assert len(other.requests) == (0 if refuses else 1), "what answered last is asked first"


def test_the_port_of_the_profile_is_asked_again_when_the_other_has_no_stats_any_more(
    server: Server, other: Server
) -> None:
    server.answers["/stats"] = http(200, NSTATS)

    async def moved(prober: Prober) -> list[tuple[str, int | None]]:
        said = [((await prober.stats()).answer, prober.stats_port)]
        other.answers["/stats"] = server.answers.pop("/stats")
        return [*said, ((await prober.stats()).answer, prober.stats_port)]

    got = probe(server.url, moved, profile=on_port(other.port))
    assert got == [("ok", server.port), ("ok", other.port)]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (silent, "timeout"),
        (http(503, b"{}"), "bad"),
        (http(200, b"<html>", "text/html"), "bad"),
        (reset, "bad"),
    ],
)
def test_a_port_that_answers_otherwise_is_not_passed_over(
    server: Server, other: Server, answer: Answer, said: str
) -> None:
    server.answers["/stats"] = http(200, NSTATS)
    other.answers["/stats"] = answer
    got = probe(server.url, Prober.stats, profile=on_port(other.port), deadline_s=0.5)
    assert got.answer == said
    assert server.requests == []


def test_both_ports_share_one_deadline(server: Server, other: Server) -> None:
    def late_404(s: socket.socket) -> None:
        time.sleep(1.0)
        http(404, b"")(s)

    server.answers["/stats"] = silent
    other.answers["/stats"] = late_404
    began = time.monotonic()
    got = probe(server.url, Prober.stats, profile=on_port(other.port), deadline_s=2.0)
    assert got.answer == "timeout"
    assert len(server.requests) == 1
    assert time.monotonic() - began < 2.9, "each with a deadline of its own would take 3 s"


def test_no_stats_on_either_port_says_both_and_what_to_do(server: Server) -> None:
    port = closed_port()
    got = probe(server.url, Prober.stats, profile=on_port(port))
    assert got.answer == "bad"
    assert got.why.startswith(f"port {port}: /stats: connection refused; port {server.port}: /stats: expected 200 with")
    assert "start ninfer-serve with --stats-port 8081" in got.why
    two = f"http://127.0.0.1:{closed_port()}"
    assert probe(two, Prober.stats, profile=on_port(port)).answer == "refused"


def test_a_stats_url_is_the_only_place_then(server: Server, other: Server) -> None:
    server.answers["/stats"] = http(200, NSTATS)
    got = probe(server.url, Prober.stats, profile=on_port(server.port), stats_url=other.url)
    assert got.answer == "bad"
    assert server.requests == []


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("http://127.0.0.1:8080", ["http://127.0.0.1:8081", "http://127.0.0.1:8080"]),
        ("http://[::1]:8080/x", ["http://[::1]:8081", "http://[::1]:8080/x"]),
        ("https://llm.lan:8080", ["https://llm.lan:8081", "https://llm.lan:8080"]),
        ("http://127.0.0.1:8081", ["http://127.0.0.1:8081"]),
    ],
)
def test_where_stats_may_be(url: str, wanted: list[str]) -> None:
    assert stats_bases(Live(unit="x", url=url), NINFER) == wanted
    assert stats_bases(Live(unit="x", url=url, stats_url="http://h:1"), NINFER) == ["http://h:1"]
    assert stats_bases(Live(unit="x", url=url), PROFILE) == [url]


def test_a_capture_gets_the_body_of_the_port_that_has_it(server: Server, other: Server) -> None:
    other.answers["/stats"] = http(200, NSTATS)
    _, stats = probe(server.url, Prober.bodies, profile=on_port(other.port))
    assert isinstance(stats, Reply)
    assert stats.body == NSTATS


def test_what_the_profile_does_not_know_is_kept_for_people(server: Server) -> None:
    odd = b'{"scheduler":{"running":1,"parked":1}}'

    def first_odd(s: socket.socket) -> None:
        http(200, odd if len(server.requests) == 1 else NSTATS)(s)

    server.answers["/stats"] = first_odd

    async def twice(prober: Prober) -> list[tuple[str, tuple[str, ...]]]:
        return [((await prober.stats()).why, prober.notes) for _ in range(2)]

    note = "scheduler has gauges this profile does not know: parked"
    got = probe(server.url, twice, profile=on_port(server.port))
    assert got == [(note, (note,)), ("", ())]
