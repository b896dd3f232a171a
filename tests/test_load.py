"""The driver against raw bytes on a real socket: what counts as an answer, what does not, and the arithmetic."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from socket import create_server, socket

import pytest

from inferops.core.verdict import Refused, UsageError
from inferops.load.drive import Outcome, Plan, percentile, prompt, run, verdict

OK = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
ROLE = 'data: {"choices":[{"delta":{"role":"assistant","content":null},"finish_reason":null}]}\n\n'
WORD = 'data: {"choices":[{"delta":{"content":" a"},"finish_reason":null}]}\n\n'
STOP = 'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\n'
USAGE = 'data: {"choices":[],"usage":{"prompt_tokens":31,"completion_tokens":7}}\n\n'
DONE = "data: [DONE]\n\n"
WHOLE = ROLE + WORD + WORD + STOP + USAGE + DONE


def plain(text: str) -> bytes:
    return f"{OK}\r\n{text}".encode()


def chunked(text: str, size: int = 17, end: bytes = b"0\r\n\r\n") -> bytes:
    data = text.encode()
    parts = [data[i : i + size] for i in range(0, len(data), size)]
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return f"{OK}Transfer-Encoding: chunked\r\n\r\n".encode() + body + end


class Server:
    """Answers every connection with the same bytes, after it has read a whole request; keeps the requests."""

    def __init__(self, answer: bytes, hold_s: float = 0.0) -> None:
        self.answer, self.hold_s = answer, hold_s
        self.bodies: list[dict[str, object]] = []
        self.open = self.most = 0
        self.lock = threading.Lock()
        self.listener = create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        with contextlib.suppress(OSError):  # closed by the test's end
            while True:
                threading.Thread(target=self.handle, args=(self.listener.accept()[0],), daemon=True).start()

    def handle(self, connection: socket) -> None:
        with connection, connection.makefile("rb") as stream, contextlib.suppress(OSError):
            length = 0
            while (line := stream.readline().strip()) != b"":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            body = json.loads(stream.read(length))
            with self.lock:
                self.bodies.append(body)
                self.open += 1
                self.most = max(self.most, self.open)
            time.sleep(self.hold_s)
            with self.lock:
                self.open -= 1  # before the answer: its reader may have sent the next request while we come back
            connection.sendall(self.answer)


@contextlib.contextmanager
def serving(answer: bytes, hold_s: float = 0.0) -> Iterator[Server]:
    server = Server(answer, hold_s)
    try:
        yield server
    finally:
        server.listener.close()


def drive(url: object, **more: object) -> list[Outcome]:
    given = {"requests": 1, "concurrency": 1, "deadline_s": 30.0, **more}
    return asyncio.run(run(Plan(url=str(url), **given)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "answer", [plain(WHOLE), chunked(WHOLE), chunked(WHOLE, 1), chunked(WHOLE.replace("\n", "\r\n"))]
)
def test_a_whole_answer_counts(answer: bytes) -> None:
    with serving(answer) as server:
        (outcome,) = drive(server.url)
    assert outcome.why == ""
    assert outcome.contents == 2
    assert (outcome.prompt_tokens, outcome.completion_tokens) == (31, 7)
    assert outcome.ttft_s is not None
    assert 0 < outcome.ttft_s <= outcome.total_s


BAD = {
    "error in the middle": (
        chunked(WORD + 'data: {"error":{"code":500,"message":"x"}}\n\n' + DONE),
        "error in the stream",
    ),
    "error beside choices": (plain('data: {"choices":[],"error":{"code":500}}\n\n' + WHOLE), "error in the stream"),
    "llama.cpp's error line": (plain('error: {"code":500}\n\n'), "error in the stream"),
    "error, then an abrupt end": (chunked('data: {"error":{"code":500}}\n\n', end=b""), "error in the stream"),
    "no finish_reason": (chunked(ROLE + WORD + DONE), "without a finish_reason"),
    "no [DONE]": (chunked(ROLE + WORD + STOP), "without [DONE]"),
    "only [DONE]": (plain(DONE), "without a finish_reason"),
    "no content": (chunked(ROLE + STOP + DONE), "no content, finish_reason length"),
    "cut between chunks": (chunked(WHOLE, end=b""), "closed before the end"),
    "cut within a chunk": (chunked(WHOLE, 4000)[:-30], "closed before the end"),
    "cut within a chunk's size": (chunked(WHOLE, end=b"1"), "closed before the end"),
    "shorter than announced": (f"{OK}Content-Length: 5000\r\n\r\n{WHOLE}".encode(), "bytes of the answer are missing"),
    "half a JSON": (plain('data: {"choices":[{"delta"\n\n' + WHOLE), "an event of the stream"),
    "NaN": (plain('data: {"choices":[],"usage":{"prompt_tokens":NaN}}\n\n' + WHOLE), "an event of the stream"),
    "JSON of another shape": (plain("data: [1,2]\n\n" + WHOLE), "an event of the stream"),
    "HTML": (plain("<html>hello</html>"), "without a finish_reason"),
    "503": (b"HTTP/1.1 503 Unavailable\r\nContent-Length: 7\r\n\r\nLoading", "HTTP/1.1 503 Unavailable Loading"),
    "404, no body": (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "404 Not Found"),
    "nothing": (b"", "closed without an answer"),
    "no HTTP": (b"SSH-2.0-OpenSSH\r\n", "SSH-2.0-OpenSSH"),
    "bad chunk size": (f"{OK}Transfer-Encoding: chunked\r\n\r\nzz\r\n".encode(), "invalid literal"),
    "an endless line": (plain("data: " + "x" * 3_000_000), "longer than"),
    "terminal escapes": (b"HTTP/1.1 500 \x1b[2J\r\n\r\n\x1b]0;x\x07", r"\x1b[2J \x1b]0;x\x07"),
}


@pytest.mark.parametrize(("answer", "why"), BAD.values(), ids=BAD)
def test_anything_less_is_a_failure_that_says_why(answer: bytes, why: str) -> None:
    with serving(answer) as server:
        (outcome,) = drive(server.url)
    assert why in outcome.why
    assert outcome.why.isprintable()
    assert len(outcome.why) < 250
    assert outcome.reached
    assert verdict(Plan(url=server.url), [outcome], 1.0).exit == 1


def test_a_request_ends_at_its_deadline() -> None:
    with serving(chunked(WHOLE), hold_s=20) as server:
        start = time.monotonic()
        (outcome,) = drive(server.url, deadline_s=0.5)
    assert outcome.why == "not ended within 0.5 s, 0 contents came"
    assert time.monotonic() - start < 15


def test_it_is_a_closed_loop_of_so_many_and_no_more() -> None:
    with serving(chunked(WHOLE), hold_s=0.1) as server:
        outcomes = drive(server.url, requests=11, concurrency=3)
    assert [outcome.index for outcome in outcomes] == list(range(11))
    assert all(outcome.why == "" for outcome in outcomes)
    assert server.most == 3
    assert len({json.dumps(body["messages"]) for body in server.bodies}) == 11
    assert all(body["max_tokens"] == 64 and body["stream"] is True for body in server.bodies)


def test_a_duration_ends_it_and_what_is_open_is_waited_for() -> None:
    with serving(chunked(WHOLE), hold_s=0.3) as server:
        outcomes = drive(server.url, requests=None, duration_s=1.0, concurrency=2)
    assert 2 <= len(outcomes) <= 8
    assert all(outcome.why == "" for outcome in outcomes)


def test_a_server_that_is_away_is_unreached_and_blind() -> None:
    with create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    start = time.monotonic()
    outcomes = drive(url, requests=2)
    assert time.monotonic() - start > 0.9  # a pause after each
    assert [outcome.reached for outcome in outcomes] == [False, False]
    assert outcomes[0].why.startswith("no connection: ")
    assert outcomes[0].total_s < 5
    result = verdict(Plan(url=url), outcomes, 1.0)
    assert (result.verdict, result.exit) == ("blind", 3)


def test_prompts_are_seeded_unique_and_of_their_size() -> None:
    assert prompt(50, 1, 0) == prompt(50, 1, 0)
    starts = {" ".join(prompt(50, seed, index).split()[:8]) for seed in range(3) for index in range(200)}
    assert len(starts) == 600
    assert len(prompt(777, 5, 2).split()) == 777


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, None),
        ([3.0], 0.99, 3.0),
        ([4.0, 1.0, 2.0, 3.0], 0.5, 2.0),
        ([float(i) for i in range(1, 201)], 0.99, 198.0),
    ],
)
def test_percentiles_are_of_what_was_measured(values: list[float], share: float, expected: float | None) -> None:
    assert percentile(values, share) == expected


def test_the_report_counts_what_ended_well_and_nothing_else() -> None:
    outcomes = [
        Outcome(index=0, ttft_s=0.2, contents=3, completion_tokens=5, prompt_tokens=10),
        Outcome(index=1, ttft_s=0.4, contents=3),
        Outcome(index=2, ttft_s=9.0, contents=3, why="the stream ended without [DONE]"),
        Outcome(index=3, why="the stream ended without [DONE]"),
        Outcome(index=4, why="no connection: x", reached=False),
    ]
    result = verdict(Plan(url="http://127.0.0.1:1", seed=3), outcomes, 2.0)
    assert result.exit == 1
    assert result.findings[0].evidence == {
        "attempted": 5,
        "ok": 2,
        "failed": 3,
        "ttft_p50_s": 0.2,
        "ttft_p99_s": 0.4,
        "completion_tokens": 8,
        "prompt_tokens": 10,
        "wall_s": 2.0,
        "seed": 3,
        "concurrency": 2,
    }
    assert [finding.message for finding in result.findings[2:]] == [
        "2 x the stream ended without [DONE]",
        "1 x no connection: x",
    ]
    assert verdict(Plan(url="x"), outcomes[2:4], 1.0).findings[0].evidence["ttft_p50_s"] is None
    assert verdict(Plan(url="x"), [], 1.0).exit == 3
    assert verdict(Plan(url="x"), outcomes[:2], 1.0).exit == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"requests": None}, "--requests, --duration: expected at least one"),
        ({"requests": 0}, "--requests: expected 1 or more, got 0"),
        ({"concurrency": 0}, "--concurrency: expected 1 or more, got 0"),
        ({"duration_s": float("inf")}, "--duration: expected seconds over 0, got inf"),
        ({"deadline_s": float("nan")}, "--deadline: expected seconds over 0, got nan"),
        ({"url": "https://127.0.0.1"}, "--url: expected http://HOST:PORT"),
        ({"url": "127.0.0.1:80"}, "--url: expected http://HOST:PORT"),
        ({"url": "http://127.0.0.1:99999"}, "--url: expected http://HOST:PORT"),
    ],
)
def test_a_plan_without_an_end_or_a_sense_is_refused(more: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        drive(**{"url": "http://127.0.0.1:1", **more})


@pytest.mark.parametrize("host", ["10.0.0.1", "example.com", "[2001:db8::1]", "127.0.0.1.example.com"])
def test_another_machine_is_not_loaded(host: str) -> None:
    with pytest.raises(Refused, match="expected a server on this machine"):
        drive(f"http://{host}:80")


def command(*words: str) -> subprocess.CompletedProcess[str]:
    tools = Path(__file__).resolve().parents[1] / "tools"
    line = [sys.executable, str(tools), "load", *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_reports_and_exits_by_the_contract() -> None:
    with serving(chunked(WHOLE)) as server:
        done = command("--url", server.url, "--requests", "4", "--output", "json")
        assert done.returncode == 0
        report = json.loads(done.stdout)
        assert report["schema"] == "inferops.verdict/1"
        assert report["findings"][0]["evidence"]["attempted"] == 4
        text = command("--url", server.url)
        assert text.returncode == 0
        assert "20 of 20 requests ended well" in text.stdout
        assert text.stderr == ""
    with serving(chunked(ROLE + WORD + DONE)) as server:
        bad = command("--url", server.url, "--requests", "2", "--output", "json")
        assert bad.returncode == 1
        assert json.loads(bad.stdout)["findings"][0]["evidence"]["ttft_p50_s"] is None
    assert command("--url", "http://10.0.0.1").returncode == 4
    assert command("--requests", "0").returncode == 2
    assert command("--requests", "many").returncode == 2
