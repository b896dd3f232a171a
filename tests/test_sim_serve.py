"""The simulator as a process: its APIs, its streams, its files, and what its faults do to it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from inferops.sim import control
from inferops.sim.driver import Driver
from inferops.sim.model import Config, Model, Request
from tests.sim_server import HOST, INFEROPS, SOON_S, Sim, chat, inferops, until

GRACE_S = 1.0  # what does not happen within it, does not happen


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Sim]:
    made = Sim(tmp_path)
    yield made
    made.kill()


def events(answer: httpx.Response) -> list[dict[str, object]]:
    found = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(data) for data in found if data != "[DONE]"]


# --- the APIs


def test_the_three_apis_answer_with_words_of_the_session(sim: Sim) -> None:
    sim.start()
    whole = sim.post(chat("hello there", 3)).json()
    said = whole["choices"][0]["message"]["content"]
    marker = said.partition(".")[0]
    assert said == f"{marker}.0 {marker}.1 {marker}.2 "
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 3
    timings = whole["timings"]
    assert (timings["cache_n"] + timings["prompt_n"], timings["predicted_n"]) == (whole["usage"]["prompt_tokens"], 3)
    other = sim.post(chat("somebody else", 3)).json()["choices"][0]["message"]["content"]
    assert marker not in other

    parts = events(sim.post(chat("hello there", 3, stream=True)))
    choices = [choice for part in parts for choice in part["choices"]]  # type: ignore[attr-defined]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == said
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    assert [part["timings"] for part in parts if "timings" in part][0]["predicted_n"] == 3  # type: ignore[index]  # noqa: RUF015

    message = sim.post(chat("hello there", 3), "/v1/messages").json()
    assert (message["content"][0]["text"], message["stop_reason"]) == (said, "max_tokens")
    parts = events(sim.post(chat("hello there", 3, stream=True), "/v1/messages"))
    names = [part["type"] for part in parts]
    assert (names[0], names[-1]) == ("message_start", "message_stop")
    assert "".join(part["delta"]["text"] for part in parts if part["type"] == "content_block_delta") == said  # type: ignore[index]

    asked = {"input": "hello there", "max_output_tokens": 3}
    response = sim.post(asked, "/v1/responses").json()
    assert (response["status"], response["output"][0]["content"][0]["text"]) == ("completed", said)
    parts = events(sim.post(asked | {"stream": True}, "/v1/responses"))
    assert "".join(str(part["delta"]) for part in parts if part["type"] == "response.output_text.delta") == said
    assert parts[-1]["response"]["output"] == response["output"]  # type: ignore[index]

    assert httpx.get(sim.url + "/v1/models").json()["data"][0]["id"] == "sim"
    assert httpx.get(sim.url + "/stats").status_code == 404


def test_what_is_not_taken_is_told(sim: Sim) -> None:
    sim.start()
    bodies: list[Any] = [[1], {"messages": []}, {"messages": [1]}, chat("x", 0), chat("x", 1) | {"max_tokens": "many"}]
    for body in bodies:
        refused = sim.post(body)
        assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    assert httpx.post(sim.url + "/v1/messages", content=b"{nothing").status_code == 400
    long = sim.post(chat("w " * 262_144, 1))
    assert (long.status_code, long.json()["error"]["type"]) == (400, "context_length_exceeded")
    with socket.create_connection((HOST, sim.port)) as half:
        half.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
    assert sim.post(chat("still here", 1)).status_code == 200
    assert sim.stderr() == ""


def test_a_full_queue_is_429_and_no_unavailability(sim: Sim) -> None:
    sim.start("--lanes", "1")
    sim.fault("queue-wedge")
    codes: list[int] = []

    def ask() -> None:
        try:
            codes.append(sim.post(chat("me too", 1), timeout=5).status_code)
        except httpx.TimeoutException:
            codes.append(0)

    threads = [threading.Thread(target=ask) for _ in range(35)]
    for thread in threads:
        thread.start()
    until(lambda: codes.count(429) == 3, "three that found no place")
    assert sim.gauges() == {"waiting": 32}
    assert sim.health() == 200
    for thread in threads:
        thread.join()
    assert sorted(codes) == [0] * 32 + [429] * 3
    until(lambda: sim.gauges() == {}, "those that left are out of the queue")


def test_a_stream_without_a_token_is_kept_alive_by_comments(sim: Sim) -> None:
    sim.start()
    sim.fault("long-prefill", "seconds=6")
    with sim.stream("slow", 2) as answer:  # the role came already
        lines = [line for line in answer if line]
    assert lines[0] == ": keep-alive", "before the first word"
    assert lines.count(": keep-alive") == 1
    assert lines[-1] == "data: [DONE]"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_its_request(sim: Sim, stream: bool) -> None:
    sim.start()
    body = json.dumps(chat("x", 5000, stream=stream)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection((HOST, sim.port)) as client:
        client.sendall(head + body)
        until(lambda: sim.gauges() == {"running": 1, "decode_ready": 1}, "it is answered")
    until(lambda: sim.gauges() == {}, "it is cancelled")
    with socket.create_connection((HOST, sim.port)) as client:
        client.sendall(head + body)  # and leaves at once
    until(lambda: len(sim.records("request_error")) == 2, "the end of both")
    assert {record["error"]["type"] for record in sim.records("request_error")} == {"client_disconnected"}
    assert sim.gauges() == {}
    assert sim.stdout().count(" cancelled | ") == 2


def test_inferops_load_is_answered_well(sim: Sim) -> None:
    sim.start()
    line = ["load", "--url", sim.url, "--requests", "12", "--concurrency", "4", "--max-tokens", "8"]
    done = inferops(*line)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 of 12 requests ended well" in done.stdout


# --- its files


@pytest.mark.parametrize("generation", ["1", "2"])
def test_the_journal_and_the_request_log(sim: Sim, generation: str) -> None:
    sim.log.write_text('{"event":"server_start","server_instance_id":"another"}\n')
    sim.start("--generation", generation)
    assert sim.post(chat("w " * 2500, 60)).status_code == 200
    assert sim.post(chat("w " * 262_144, 1)).status_code == 400
    sim.fault("http-500-burst", "count=1")
    assert sim.post(chat("bad luck", 5)).status_code == 500
    until(lambda: sim.stats()["counters"]["active_captures_completed"] == 1, "one done")
    instance = sim.stats()["server_instance_id"]
    until(lambda: len(sim.records("throughput")) >= 1, "a rate")
    assert sim.stop() == 0
    first, *own = sim.records()
    assert first["server_instance_id"] == "another", "what was there stays"
    assert {record["server_instance_id"] for record in own} == {instance}
    assert {record["event"] for record in own} == {
        "server_start", "request_start", "request_done", "request_rejected", "request_error", "throughput"}  # fmt: skip
    assert all(abs(record["timestamp_unix_ms"] / 1000 - time.time()) < 600 for record in own)
    assert sim.log.stat().st_mode & 0o777 == 0o644  # the file that was there
    lines = sim.stdout().splitlines()
    assert lines[0] == f"listening on {sim.url}"
    rates = [line for line in lines if "throughput" in line]
    assert rates
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  INFO  "
    pattern = r"throughput interval 1\.0s prefill=" if generation == "1" else rf"{stamp}throughput \| 1\.0s \| "
    assert all(re.match(pattern, line) for line in rates), rates
    assert re.search(rf"(?m)^{stamp}req#1 done \| openai \| prompt 2,508 \| output 60 \| ", sim.stdout())
    assert re.search(r"(?m)^\S+ \S+  ERROR req#2 failed during generation \| openai \| HTTP 500 \| ", sim.stdout())
    assert sim.stderr() == ""


def test_a_stop_fails_the_work_says_what_is_left_and_exits_0(sim: Sim) -> None:
    sim.start("--stop", "0.5")
    with sim.stream("endless", 5000) as answer:
        os.kill(sim.pid(), signal.SIGTERM)
        rest = [line for line in answer if line]
    assert '"error"' in rest[-1]
    assert sim.ended() == 0
    assert sim.stdout().splitlines()[-2].startswith("[engine] fail-all cleanup: ")
    assert "post-recovery residual (fail-all): main_kv_pages=0 " in sim.stdout().splitlines()[-1]
    assert [record["error"]["status"] for record in sim.records("request_error")] == [503]


def test_it_stops_while_it_loads(sim: Sim) -> None:
    sim.start(load="0")
    sim.fault("slow-load", "seconds=100")
    assert sim.stop() == 0
    starting = threading.Thread(target=sim.start)
    starting.start()
    until(lambda: sim.process is not None and sim.code() is None and _refuses(sim), "it holds the port and loads")
    assert sim.process is not None
    time.sleep(GRACE_S)
    assert sim.stop() in (0, -signal.SIGTERM)
    starting.join()


def _refuses(sim: Sim) -> bool:
    with socket.socket() as one:
        return one.connect_ex((HOST, sim.port)) != 0


# --- its faults, as far as they are the process's


def test_a_frozen_engine_stands_in_a_lock_and_does_not_stop(sim: Sim) -> None:
    sim.start()
    with sim.stream("in mid-answer", 5000):
        until(lambda: sim.gauges() == {"running": 1, "decode_ready": 1}, "it is answered")
        sim.fault("decode-wedge")
        before = sim.stats()["counters"]
        time.sleep(GRACE_S)
        assert sim.stats()["counters"] == before
        assert sim.gauges() == {"running": 1, "decode_ready": 1}
        assert sim.health() == 200
        os.kill(sim.pid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        assert sim.code() is None, "a stop needs what the engine holds"
        sim.fault("clear")
        assert sim.ended() == 0


def test_the_engine_thread_itself_is_blocked() -> None:
    driver = Driver(Model(Config(load_s=0.0), now=time.monotonic()), None)
    driver.start()
    job = driver.model.request(driver.submit(Request(prompt_tokens=10, max_tokens=5000)))
    until(lambda: job.tokens_out > 0, "a token")
    driver.fault("mutex-wedge", {})
    until(lambda: driver.mutex.locked() and driver.model.broken.frozen, "it is frozen")
    time.sleep(GRACE_S)
    made = job.tokens_out
    assert not driver.mutex.acquire(timeout=GRACE_S), "it stands in it"
    assert job.tokens_out == made
    driver.clear()
    until(lambda: job.tokens_out > made, "it goes on")
    driver.stop()


def test_held_endpoints_answer_late_and_the_others_do_not(sim: Sim) -> None:
    sim.start()
    sim.fault("mutex-wedge")
    with pytest.raises(httpx.ReadTimeout):
        sim.stats(GRACE_S)
    assert sim.health() == 200
    sim.fault("clear")
    assert sim.gauges() == {}
    sim.fault("health-held", "seconds=3")
    with pytest.raises(httpx.ReadTimeout):
        sim.health(GRACE_S)
    assert sim.post(chat("works", 2)).status_code == 200
    assert sim.health() == 200


def test_a_silent_server_answers_nothing_and_writes_nothing(sim: Sim) -> None:
    sim.start()
    with sim.stream("under way", 5000):
        sim.fault("silent")
        before = sim.stdout(), sim.log.read_text()
        for path in ("/health", "/v1/models"):
            with pytest.raises(httpx.ReadTimeout):
                httpx.get(sim.url + path, timeout=GRACE_S)
        for stream in (False, True):
            with pytest.raises(httpx.ReadTimeout):
                sim.post(chat("anybody", 1, stream=stream), timeout=GRACE_S)
        with pytest.raises(httpx.ReadTimeout):
            sim.stats(GRACE_S)
    time.sleep(GRACE_S)
    assert (sim.stdout(), sim.log.read_text()) == before
    sim.fault("clear")
    assert sim.post(chat("back", 1)).status_code == 200
    until(lambda: sim.gauges() == {}, "those that left meanwhile are gone")
    assert sim.stderr() == ""


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(("name", "code"), [("abort", -signal.SIGABRT), ("exit-0", 0)])
def test_it_dies_as_asked_and_says_so_first(sim: Sim, name: str, code: int, frozen: bool) -> None:
    sim.start()
    if frozen:
        sim.fault("decode-wedge")
    done = sim.fault(name)
    assert f"taken by pid {sim.pid()}" in done.stdout
    assert sim.ended() == code
    assert "fail-all" not in sim.stdout()
    sim.start()  # the socket that it left behind is replaced
    assert f"taken by pid {sim.pid()}" in sim.fault("clear").stdout


def test_faults_of_the_next_start_wait_for_it_and_are_used_up(sim: Sim) -> None:
    sim.start()
    sim.fault("slow-load", "seconds=2")
    sim.fault("crash-loop", "times=2")
    assert sim.post(chat("not yet", 1)).status_code == 200
    assert sim.stop() == 0
    start = time.monotonic()
    sim.start()
    assert time.monotonic() - start > 2
    assert sim.health() == 200
    assert sim.ended() == -signal.SIGABRT
    sim.start()
    assert sim.ended() == -signal.SIGABRT
    sim.start()
    time.sleep(2 * GRACE_S)
    assert sim.code() is None
    sim.fault("crash-loop", "times=2")
    sim.fault("clear")
    assert sim.stop() == 0
    sim.start()
    time.sleep(2 * GRACE_S)
    assert sim.code() is None, "clear takes those of the next start back, too"


def test_a_frozen_engine_dies_in_its_time_all_the_same(sim: Sim) -> None:
    sim.start()
    sim.fault("crash-loop", "times=1")
    assert sim.stop() == 0
    sim.start()
    sim.fault("decode-wedge")
    assert sim.ended() == -signal.SIGABRT


def asked_in_vain(sim: Sim, url: str, answers: list[int]) -> threading.Thread:
    """A thread that asks for it, POST or GET, and puts the status code into `answers`; 0 where none came."""

    def ask() -> None:
        try:
            if url.startswith("/v1"):
                answers.append(sim.post(chat("what is held", 2), url).status_code)
            else:
                answers.append(
                    httpx.get(sim.stats_url if url == "/stats" else sim.url + url, timeout=SOON_S).status_code
                )
        except httpx.TransportError:
            answers.append(0)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("fault", "url", "code"),
    [
        ("stats-held", "/stats", 200),
        ("health-held", "/health", 503),
        ("idle-wedge", "/v1/chat/completions", 503),
        ("queue-wedge", "/v1/messages", 503),
    ],
)
def test_whoever_is_held_is_answered_at_a_stop(sim: Sim, fault: str, url: str, code: int) -> None:
    sim.start()
    sim.fault(fault)
    answers: list[int] = []
    asking = asked_in_vain(sim, url, answers)
    time.sleep(GRACE_S)
    assert answers == []
    assert sim.stop() == 0
    asking.join()
    assert answers == [code]
    assert sim.stderr() == ""


def test_half_a_body_does_not_hold_a_stop(sim: Sim) -> None:
    sim.start()
    with socket.create_connection((HOST, sim.port)) as half:
        half.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        time.sleep(GRACE_S)
        assert sim.stop() == 0
    assert "Traceback" not in sim.stderr()


def test_a_stop_under_load_takes_nothing_more(sim: Sim) -> None:
    sim.start("--stop", "0.5")
    ends = threading.Event()
    codes: set[int] = set()

    def work() -> None:
        while not ends.is_set():
            try:
                codes.add(sim.post(chat("again and again", 3)).status_code)
            except httpx.TransportError:
                codes.add(0)

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: 200 in codes, "work")
        assert sim.stop() == 0
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    assert sim.stdout().splitlines()[-1].startswith("[engine] post-recovery residual (fail-all): ")
    assert sim.stderr() == ""
    assert {record["error"]["status"] for record in sim.records("request_error")} <= {503}


def test_a_frozen_engine_does_not_stop_from_the_first_moment_on(sim: Sim) -> None:
    """Right after the answer of the fault socket, and right after the prefill that freezes it."""
    for name in ("decode-wedge", "prefill-wedge"):
        sim.start()
        sim.fault("clear")
        ask = socket.socket(socket.AF_UNIX)
        with ask:
            ask.connect(str(control.path_of(sim.port)))
            ask.sendall(json.dumps({"fault": name}).encode() + b"\n")
            assert b"ok" in ask.recv(4096)
        if name == "prefill-wedge":
            asking = asked_in_vain(sim, "/v1/messages", [])
            until(lambda: sim.gauges().get("prefilling"), "frozen in it")
        os.kill(sim.pid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        assert sim.code() is None
        sim.fault("clear")
        assert sim.ended() == 0
    asking.join()


@pytest.mark.parametrize("moment", range(20))
def test_a_fault_that_freezes_is_answered_once_the_thread_stands(moment: int) -> None:
    driver = Driver(Model(Config(load_s=0.0), now=time.monotonic()), None)
    driver.start()
    time.sleep(moment / 1000)
    for _ in range(3):
        driver.fault("decode-wedge", {})
        assert not driver.mutex.acquire(blocking=False), "it stands in it"
        driver.clear()
    driver.stop()


def test_a_full_disk_loses_records_and_tears_none(sim: Sim) -> None:
    sim.log.write_text(json.dumps({"event": "old", "filler": "x" * 20_000}) + "\n")
    sim.start()
    until(lambda: sim.records("server_start"), "its first record, written after its line")
    hard = resource.prlimit(sim.pid(), resource.RLIMIT_FSIZE)[1]
    for _ in range(2):
        limit = sim.log.stat().st_size + 30
        resource.prlimit(sim.pid(), resource.RLIMIT_FSIZE, (limit, hard))
        assert sim.post(chat("lost", 3)).status_code == 200
        assert sim.post(chat("lost, too", 3)).status_code == 200
        assert sim.log.stat().st_size == limit - 30
        resource.prlimit(sim.pid(), resource.RLIMIT_FSIZE, (hard, hard))
        assert sim.post(chat("kept", 3)).status_code == 200
        until(lambda: sim.records()[-1]["event"] in ("request_done", "throughput"), "its record")
    events = [record["event"] for record in sim.records() if record["event"] != "throughput"]
    assert events == ["old", "server_start", *["request_start", "request_done"] * 2]
    assert sim.stderr() == "inferops sim: the request log takes no record: File too large\n" * 2, "once each time"


def full_after(room: int) -> Callable[[int, bytes], int]:
    """An os.write to a disk that has room for so many bytes more."""
    real, left = os.write, [room]

    def write(fd: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        took = real(fd, data[: left[0]])
        left[0] -= took
        return took

    return write


@pytest.mark.parametrize("before", ["", '{"ours": 1}\n'])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("room", [0, 5, 11, 15])
def test_a_full_disk_takes_no_record_of_another_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, behind: bool, room: int
) -> None:
    """Another server appends to the same log: what it wrote before ours, or behind it, stays."""
    path, others = tmp_path / "log", '{"theirs": 1}\n'
    path.write_text(others)
    data, real = b'{"our": 22}\n{"our": 33}\n', os.write
    log, other = (os.open(path, os.O_WRONLY | os.O_APPEND) for _ in range(2))
    try:
        driver = Driver(Model(), log)
        if before:
            driver._append(log, before.encode())
        os.write(other, others.encode())
        cut = full_after(room)

        def write(fd: int, left: bytes) -> int:
            try:
                return cut(fd, left)
            except OSError:
                if behind:
                    real(other, others.encode())
                raise

        monkeypatch.setattr(os, "write", write)
        driver._append(log, data)
        monkeypatch.undo()
    finally:
        os.close(log)
        os.close(other)
    whole = data[:room].decode() if behind else '{"our": 22}\n' if room > 11 else ""
    assert path.read_text() == others + before + others + whole + (others if behind else "")


def test_a_journal_that_nobody_reads_ends_it(sim: Sim) -> None:
    line = [*INFEROPS, "sim", "serve", "--port", str(sim.port), "--stats-port", str(sim.stats_port), "--load", "0.1"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("listening on")
        process.stdout.close()
        with contextlib.suppress(httpx.TransportError):
            sim.post(chat("a line", 3))
        assert process.wait(SOON_S) == 141
        assert process.stderr.read() == "inferops sim: stdout takes no line: Broken pipe; it ends\n"


def test_slow_load_under_way_is_mended_and_crash_loop_waits_for_it(sim: Sim) -> None:
    sim.start()
    sim.fault("crash-loop", "times=1")
    sim.fault("slow-load", "seconds=3")
    assert sim.stop() == 0
    sim.start()
    assert sim.health() == 200, "it was ready first"
    assert sim.ended() == -signal.SIGABRT
    sim.start()
    sim.fault("slow-load", "seconds=300")
    assert sim.stop() == 0
    starting = threading.Thread(target=sim.start)
    starting.start()
    until(lambda: sim.code() is None and control.path_of(sim.port).exists(), "it loads")
    time.sleep(GRACE_S)
    assert _refuses(sim)
    sim.fault("clear")
    starting.join()
    assert sim.health() == 200


# --- what is asked


def session(sim: Sim, body: dict[str, Any], path: str = "/v1/chat/completions") -> tuple[str, int]:
    """The session of an answer's words, and the tokens of its prompt."""
    got = sim.post({"max_tokens": 1, "max_output_tokens": 1} | body, path).json()
    text = re.search(r"\b([0-9a-f]{8})\.0 ", json.dumps(got))
    assert text
    return text[1], got["usage"].get("prompt_tokens") or got["usage"]["input_tokens"]


def test_a_conversation_is_its_system_prompt_and_its_first_user_message(sim: Sim) -> None:
    sim.start()

    def turns(*pairs: tuple[str, str]) -> dict[str, Any]:
        return {"messages": [{"role": role, "content": text} for role, text in pairs]}

    be, hi = ("system", "be brief"), ("user", "hello there")
    base = session(sim, turns(be, hi))
    assert base[1] == 8 + 4
    assert session(sim, turns(be, ("user", "something else")))[0] != base[0]
    assert session(sim, turns(("system", "be long"), hi))[0] != base[0]
    assert session(sim, turns(("developer", "be brief"), hi)) == base
    assert session(sim, turns(be, hi, ("assistant", "hi"), ("user", "and now")))[0] == base[0]
    assert session(sim, turns(hi) | {"system": "be brief"}, "/v1/messages") == base
    assert session(sim, {"input": "hello there", "instructions": "be brief"}, "/v1/responses") == base
    assert session(sim, {"input": "hello there"}, "/v1/responses")[0] != base[0]
    assert session(sim, turns(be))[1] == 8 + 2, "no user at all"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_too_large_a_body_is_413(sim: Sim, path: str) -> None:
    sim.start()
    body = json.dumps(chat("w" * (8 << 20), 1)).encode()
    refused = httpx.post(sim.url + path, content=body, timeout=SOON_S)
    assert refused.status_code == 413
    error = refused.json()
    assert error.get("type") == ("error" if path == "/v1/messages" else None)
    assert error["error"]["type"] == "request_too_large"
    assert "8,388,608 bytes" in error["error"]["message"]
    fits = json.dumps(chat("w" * ((8 << 20) - 200), 1) | {"input": "x"}).encode()
    assert httpx.post(sim.url + path, content=fits, timeout=SOON_S).status_code == 200


def test_stats_goes_on_while_a_body_is_parsed(sim: Sim) -> None:
    sim.start()
    body = b'{"messages":[{"content":"x"}],"max_tokens":1,"x":[' + b"0," * 3_000_000 + b"0]}"
    codes: list[int] = []
    asking = threading.Thread(
        target=lambda: codes.append(httpx.post(sim.url + "/v1/messages", content=body, timeout=60).status_code)
    )
    asking.start()
    looks = 0
    while not codes:
        sim.stats()
        looks += 1
        assert looks < 100_000
    asking.join()
    assert codes == [200]
    assert looks >= 10, "a few seconds' worth"


def test_without_its_libraries_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['uvicorn'] = None; from inferops.cli import main; sys.exit(main(['sim', 'serve']))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=SOON_S, check=False, env=os.environ
    )
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "pip install 'inferops[sim]'" in done.stderr
