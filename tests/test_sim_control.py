"""Whose server is broken, and who may: the fault socket, two on one port, and what the commands say."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inferops.cli import SIM_COMMANDS
from inferops.core.verdict import Refused
from inferops.sim import control
from inferops.sim.fault import listing
from inferops.sim.faults import FAULTS
from tests.sim_server import ROOT, Sim, free_ports, inferops, until


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Sim]:
    made = Sim(tmp_path)
    yield made
    made.kill()


def serve(port: int, stats_port: int, *words: str) -> tuple[int, str]:
    """The exit code and the one line of a server that is to be refused."""
    done = inferops("sim", "serve", "--port", str(port), "--stats-port", str(stats_port), *words)
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == ""
    return done.returncode, done.stderr


def serve_anywhere(*words: str) -> tuple[int, str]:
    port, stats_port = free_ports(2)
    return serve(port, stats_port, *words)


def ask(*words: str) -> tuple[int, str]:
    done = inferops("sim", "fault", *words)
    assert done.stderr.count("\n") == 1, done.stderr
    return done.returncode, done.stderr


def test_only_its_user_reaches_the_socket(sim: Sim) -> None:
    sim.start()
    path = control.path_of(sim.port)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    sim.fault("slow-load")
    assert path.with_suffix(".next").stat().st_mode & 0o777 == 0o600
    assert sim.stop() == 0
    assert not path.exists()


def test_two_on_one_port_are_refused_and_the_first_is_named(sim: Sim) -> None:
    sim.start()
    free, other = free_ports(2)
    code, said = serve(sim.port, free)
    assert code == 4
    assert f"pid {sim.pid()}" in said
    code, said = serve(other, sim.stats_port)
    assert code == 4
    assert f"the stats port {sim.stats_port} is held by pid {sim.pid()}" in said
    code, said = serve(other, other)
    assert code == 2
    assert "another port than --port" in said
    assert f"taken by pid {sim.pid()}" in sim.fault("clear").stdout


def test_a_port_that_a_stranger_holds(sim: Sim) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        code, said = serve(held.getsockname()[1], sim.stats_port)
    assert code == 4
    assert f"is held by pid {os.getpid()}" in said


def test_a_socket_of_a_dead_server_is_replaced(sim: Sim) -> None:
    sim.start()
    sim.kill()
    code, said = ask("queue-wedge", "--port", str(sim.port))
    assert code == 3
    assert f"no simulator on port {sim.port}: it left" in said
    sim.start()
    assert f"taken by pid {sim.pid()}" in sim.fault("queue-wedge").stdout


@pytest.mark.parametrize("what", ["file", "link", "directory"])
def test_what_is_not_our_socket_is_refused_and_left_alone(what: str, tmp_path: Path) -> None:
    port, stats_port = free_ports(2)
    path, real = control.path_of(port), tmp_path / "another.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(real))
        listening.listen()
        if what == "file":
            path.write_text("mine")
        elif what == "link":
            path.symlink_to(real)
        else:
            path.mkdir()
        before = path.lstat()
        for code, said in (serve(port, stats_port), ask("abort", "--port", str(port))):
            assert code == 4
            assert str(path) in said
        assert path.lstat().st_ino == before.st_ino


def test_an_open_directory_is_no_place_for_a_socket(private_state: Path) -> None:
    port, stats_port = free_ports(2)
    control.path_of(port).parent.chmod(0o777)
    code, said = serve(port, stats_port)
    assert code == 4
    assert str(private_state / "run" / "sim") in said


def test_too_long_a_path_for_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFEROPS_RUN_DIR", str(tmp_path / ("x" * 100)))
    for code, said in (serve_anywhere(), ask("abort")):
        assert code == 2
        assert "at most 107 bytes" in said


@pytest.mark.parametrize(
    ("name", "why"),
    [("missing/log", "No such file or directory"), ("", "Is a directory"), ("fifo", ""), ("link", "symbolic links")],
)
def test_a_request_log_that_cannot_be_opened(tmp_path: Path, name: str, why: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    code, said = serve_anywhere("--request-log", str(tmp_path / name))
    assert code == 3
    assert f"request log {tmp_path / name}".rstrip("/") in said
    assert why in said
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["queue-wegde"], "did you mean `queue-wedge`?"),
        (["stats-held", "second=3"], "did you mean `seconds`?"),
        (["stats-held", "seconds=long"], "expected NAME=NUMBER"),
        (["stats-held", "seconds=-1"], "expected 0.1 to 1e9, got -1"),
        (["stats-held", "seconds=nan"], "expected 0.1 to 1e9, got nan"),
        (["long-prefill", "seconds=0"], "expected 0.1 to 1e9, got 0"),
        (["http-500-burst", "count=0"], "expected 1 to 1e9, got 0"),
        (["crash-loop", "times=0"], "expected 1 to 1e9, got 0"),
        (["clear", "x=1"], "clear: it takes no argument"),
        (["abort", "seconds=1"], "it takes no argument"),
    ],
)
def test_a_fault_that_there_is_not(words: list[str], why: str) -> None:
    code, said = ask(*words)
    assert code == 2
    assert why in said


def test_no_server_there() -> None:
    (port,) = free_ports(1)
    code, said = ask("abort", "--port", str(port))
    assert code == 3
    assert f"no simulator on port {port}" in said


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"nonsense\n", b"[]\n", b'{"fault": 3}\n', b'{"fault":"oom","args":[1]}\n', b"x" * 100_000]
)
def test_nonsense_on_the_socket_breaks_nothing(sim: Sim, line: bytes) -> None:
    sim.start()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(control.path_of(sim.port)))
        try:
            client.sendall(line)
            client.shutdown(socket.SHUT_WR)
            answer = client.recv(4096)
        except OSError:
            answer = b""
    assert not answer or "error" in json.loads(answer)
    assert sim.health() == 200
    assert f"taken by pid {sim.pid()}" in sim.fault("clear").stdout
    assert "Traceback" not in sim.stderr()


@pytest.fixture
def foreign() -> Iterator[Callable[[bytes], int]]:
    """Makes a socket of ours that is no simulator and answers once with these bytes; its port."""
    with contextlib.ExitStack() as stack:

        def make(answer: bytes) -> int:
            (port,) = free_ports(1)
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(str(control.path_of(port)))
            listening.listen()

            def talk() -> None:
                with contextlib.suppress(OSError):
                    client, _ = listening.accept()
                    with client:
                        client.recv(4096)
                        client.sendall(answer)

            threading.Thread(target=talk, daemon=True).start()
            return port

        yield make


@pytest.mark.parametrize(
    "answer",
    ["5", "null", "[1]", "[]", "{}", '"ok"', "", "<html>", '{"ok": true}', '{"ok": "abort"}',
     '{"ok": "abort", "pid": "7"}', '{"ok": "oom", "pid": 7}', '{"ok": "clear", "pid": 7}', '{"pid": 7}'],
)  # fmt: skip
def test_an_answer_that_is_no_simulators(foreign: Callable[[bytes], int], answer: str) -> None:
    code, said = ask("abort", "--port", str(foreign(answer.encode() + b"\n")))
    assert code == 3
    assert "no answer that makes sense" in said
    assert said.endswith("is it a simulator of this version?\n")


def test_the_answer_to_what_was_asked_is_taken(foreign: Callable[[bytes], int]) -> None:
    answer = {"ok": "abort", "pid": 7, "kind": "DEAD", "next_start": False}
    assert control.ask(foreign(json.dumps(answer).encode() + b"\n"), {"fault": "abort", "args": {}}) == answer


def test_a_server_of_another_user_is_asked_nothing(
    foreign: Callable[[bytes], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = foreign(b'{"ok": "clear", "pid": 7}\n')
    stranger = struct.pack("3i", 7, os.geteuid() + 1, os.getegid())
    monkeypatch.setattr(socket.socket, "getsockopt", lambda *_: stranger)
    with pytest.raises(Refused, match=f"its server runs as uid {os.geteuid() + 1}, not as us"):
        control.ask(port, {"clear": True})


def test_a_state_file_of_nonsense_is_no_fault(sim: Sim) -> None:
    control.path_of(sim.port).with_suffix(".next").write_text('{"slow-load": {"seconds": "x"}, "abort": [], "no": {}}')
    sim.start()
    assert sim.health() == 200


def test_ctrl_c_is_130(sim: Sim) -> None:
    sim.start()
    os.kill(sim.pid(), signal.SIGINT)
    assert sim.ended() == 130


def test_the_answer_in_json(sim: Sim) -> None:
    sim.start()
    report = json.loads(sim.fault("phantom", "running=7", "--output", "json").stdout)
    assert report["findings"][0]["evidence"] == {
        "ok": "phantom",
        "pid": sim.pid(),
        "kind": "healthy",
        "next_start": False,
    }
    until(lambda: sim.gauges() == {"running": 7, "decode_ready": 7, "waiting": 15}, "the gauges asked for")


def test_the_list_of_faults() -> None:
    text, rows = inferops("sim", "faults"), json.loads(inferops("sim", "faults", "--output", "json").stdout)
    assert (text.returncode, text.stdout.splitlines()) == (0, listing())
    assert [row["fault"] for row in rows] == list(FAULTS)
    assert all(len(line) < 100 for line in listing())
    assert {"serve", "fault", "faults"} == set(SIM_COMMANDS)


def test_the_table_in_the_page_is_the_code() -> None:
    page = (ROOT / "docs" / "sim.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| (\S+) \| (.*?) \| (.*?) \|$", page, re.M)
    assert rows == [
        (
            name,
            fault.kind,
            ("at its next start: " if fault.next_start else "") + fault.imitates,
            ", ".join(f"{arg}={value:g}" for arg, value in fault.args.items()),
        )
        for name, fault in FAULTS.items()
    ]


@pytest.mark.parametrize("option", ["--load", "--stop", "--speed", "--throughput"])
def test_nan_is_no_number_of_an_option(option: str) -> None:
    code, said = serve_anywhere(option, "nan")
    assert code == 2
    assert "got nan" in said


@pytest.mark.parametrize("common", ["both", "stats"])
def test_two_that_start_together_on_one_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sim: Sim, common: str
) -> None:
    """Two sockets that do not listen yet can be bound to one port: the second to listen is told."""
    (tmp_path / "other").mkdir()
    other = Sim(tmp_path / "other")
    other.stats_port = sim.stats_port
    if common == "both":
        other.port = sim.port
    kept = '{"crash-loop":{"times":2.0}}'
    nexts = []
    for n, one in enumerate((sim, other)):
        monkeypatch.setenv("INFEROPS_RUN_DIR", str(tmp_path / f"run{n}"))
        nexts.append(control.path_of(one.port).with_suffix(".next"))
    nexts[1].write_text(kept)
    try:
        monkeypatch.setenv("INFEROPS_RUN_DIR", str(tmp_path / "run1"))
        starting = threading.Thread(target=other.start, kwargs={"load": "3"})
        starting.start()
        until(lambda: other.process is not None, "it has its environment")
        monkeypatch.setenv("INFEROPS_RUN_DIR", str(tmp_path / "run0"))
        until(lambda: "1.0" in nexts[1].read_text(), "the first one loads, and holds its ports")
        sim.start()
        starting.join()
        assert other.code() == 4
        assert f"is held by pid {sim.pid()}" in other.stderr()
        assert other.stderr().count("\n") == 1
        assert nexts[1].read_text() == kept, "as it was: nothing of it was shown"
        assert sim.health() == 200
    finally:
        other.kill()


def test_a_start_that_is_refused_keeps_the_faults_of_the_next(sim: Sim) -> None:
    path = control.path_of(sim.port)
    kept = '{"crash-loop":{"times":2.0},"slow-load":{"seconds":0.2}}'
    path.with_suffix(".next").write_text(kept)
    path.write_text("somebody's")
    assert serve(sim.port, sim.stats_port)[0] == 4
    assert path.with_suffix(".next").read_text() == kept
    path.unlink()
    with socket.create_server(("127.0.0.1", sim.stats_port)):
        assert serve(sim.port, sim.stats_port)[0] == 4
    assert path.with_suffix(".next").read_text() == kept
    sim.start()
    assert json.loads(path.with_suffix(".next").read_text()) == {"crash-loop": {"times": 1}}
