"""Captures of real processes of a real systemd: wedged, stopped, spinning, traced, gone; no room, no rights, no gdb."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.running import Engine
from tests.system.box import CHECKOUT, Box

pytestmark = pytest.mark.box

UNIT = "server.service"
ROOT = "/var/lib/inferops/captures"
# A stand-in for a server, where the fault is not an engine's: `spin N` heats N threads, `child` forks, `hang` answers
# nothing; its stats say that one request is in work.
SERVER = """
import http.server, os, sys, threading, time
mode, count = sys.argv[1], int(sys.argv[2])
METRICS = b"llamacpp:requests_processing 1\\nllamacpp:requests_deferred 0\\nllamacpp:n_decode_total 7\\n"

class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if mode == "hang":
            time.sleep(600)
        body = {"/metrics": METRICS, "/slots": b"[]"}.get(self.path, b"{}")
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass

def spin():
    while True:
        pass

if mode == "child" and os.fork() == 0:
    threading.Thread(target=time.sleep, args=(600,)).start()
    time.sleep(600)
if mode == "spin":
    for _ in range(count):
        if os.fork() == 0:
            spin()
print("a line \\x1b[2J of the server's", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", 8080), Answers).serve_forever()
"""
# Holds thread 1 of its argument as a debugger would, without stopping it.
TRACER = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
assert libc.ptrace(0x4206, int(sys.argv[1]), None, None) == 0, ctypes.get_errno()  # PTRACE_SEIZE
print("seized", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Box]:
    """One box for the tests that only need a unit; each begins with no unit running and no captures."""
    with Box() as box:
        box.write("/run/server.py", SERVER)
        box.write("/run/tracer.py", TRACER)
        yield box


@pytest.fixture
def box(shared: Box) -> Iterator[Box]:
    yield shared
    shared.run(["sh", "-c", f"systemctl kill -s CONT {UNIT}; systemctl stop {UNIT}; umount -q {ROOT}; rm -rf {ROOT}"],
               check=False)  # fmt: skip


def serve(box: Box, mode: str = "idle", count: int = 0, *args: str) -> int:
    """Starts the unit; its main pid, once it listens."""
    line = " ".join([sys.executable, "/run/server.py", mode, str(count), *args])
    box.write(f"/etc/systemd/system/{UNIT}", f"[Service]\nExecStart={line}\nTimeoutStopSec=5\n")
    box.run(["systemctl", "daemon-reload"])
    box.run(["systemctl", "restart", UNIT])
    end = time.monotonic() + 30.0
    while time.monotonic() < end:
        try:
            box.connect(8080).close()
            return int(box.run(["systemctl", "show", UNIT, "--property=MainPID", "--value"]).stdout)
        except OSError:
            time.sleep(0.05)
    raise AssertionError(box.journal(UNIT))


def command(*args: str) -> list[str]:
    return [sys.executable, str(CHECKOUT / "tools"), "capture", "--unit", UNIT, *args]


def capture(box: Box, *args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A capture with short times, as JSON unless it is asked for otherwise."""
    quick = ["--capture-gap", "0.5", "--probe-deadline", "1"]
    return box.run(command(*quick, "--output", "json", *args), check=False, env=env)


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    assert done.stdout, done.stderr
    return {one["id"]: one for one in json.loads(done.stdout)["findings"]}


def where(done: subprocess.CompletedProcess[str]) -> str:
    return str(findings(done)["passive"]["evidence"]["dir"])


def manifest(box: Box, directory: str) -> dict[str, Any]:
    """The manifest; every file in the directory is in it with its sum, and is private."""
    found: dict[str, Any] = json.loads(box.read(f"{directory}/manifest.json"))
    sums = box.run(["sh", "-c", f"cd {directory} && stat -c '%n %a' * && sha256sum *"]).stdout.splitlines()
    modes = {line.split()[0]: line.split()[1] for line in sums if re.fullmatch(r"\S+ \d+", line)}
    shas = {line.split()[1]: line.split()[0] for line in sums if re.match(r"[0-9a-f]{64} ", line)}
    assert set(modes.values()) == {"600"}
    assert shas.keys() - {"manifest.json"} == {one["name"] for one in found["files"]}
    assert all(shas[one["name"]] == one["sha256"] for one in found["files"])
    assert box.run(["stat", "-c", "%a", directory]).stdout == "700\n"
    return found


def states(box: Box, pid: int) -> set[str]:
    text = box.run(["sh", "-c", f"cat /proc/{pid}/task/*/stat"]).stdout
    return {line.rpartition(")")[2].split()[0] for line in text.splitlines()}


def living(box: Box) -> dict[str, str]:
    """The names and states of every process in the box that has not ended; a zombie waits for its parent only."""
    text = box.run(["sh", "-c", "cat /proc/[0-9]*/stat"], check=False).stdout
    found = re.findall(r"^\d+ \((.*)\) (\S)", text, re.M)
    return {name: state for name, state in found if state not in "ZX"}


# --- a real engine


@pytest.mark.engine
def test_a_futex_wedge_of_a_real_engine_is_read_as_one(shared: Box) -> None:
    with Box() as box:
        engine = Engine(box).start()
        engine.fault("futex 300")
        stream = engine.stream("hello there", 64)
        engine.faulted()
        time.sleep(1.0)
        done = box.run([sys.executable, str(CHECKOUT / "tools"), "capture", "--unit", engine.unit], check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        *_, denominators, last = done.stdout.splitlines()
        assert denominators == "capture llama.service: 6 of 6 checks held"
        directory = last.removeprefix("capture: ")
        found = manifest(box, directory)
        assert found["state"] == "whole"
        assert (found["pid"], found["pids"]) == (engine.pid(), [engine.pid()])
        assert re.fullmatch(
            r"all \d+ threads of pid \d+ waited \(\d+ in futex, 1 in accept\) and used 0\.0\d s of CPU in 5\.\d s: "
            r"its stats don't answer either: a blocked wedge; read stacks.txt for who waits for whom",
            found["reading"],
        )
        stacks = box.read(f"{directory}/stacks.txt")
        assert "inferops_fault_futex" in stacks
        assert stacks.count("\nThread ") == int(re.findall(r"all (\d+) threads", found["reading"])[0])
        assert "llama-server" in box.read(f"{directory}/threads.txt")
        assert "n_slots = 2" in box.read(f"{directory}/journal.txt")
        assert states(box, engine.pid()) == {"S"}
        stream.drop()


@pytest.mark.engine
def test_a_long_prefill_is_read_as_healthy_and_goes_on(shared: Box) -> None:
    with Box() as box:
        engine = Engine(box).start()
        stream = engine.stream("tell me about " + "water and stone and light " * 900, 8)
        time.sleep(1.5)
        done = box.run([sys.executable, str(CHECKOUT / "tools"), "capture", "--unit", engine.unit, "--capture-gap", "2",
                        "--probe-deadline", "1", "--output", "json"], check=False)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "compute threads hot" in findings(done)["reading"]["message"]
        assert "looks like a healthy prefill" in findings(done)["reading"]["message"]
        assert findings(done)["stacks"]["level"] == "ok"
        assert stream.first() > 0
        stream.end()
        assert stream.error == ""


# --- what the threads did


def test_a_blocked_server_with_work_and_an_idle_one(box: Box) -> None:
    serve(box)
    done = capture(box)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a blocked wedge" in findings(done)["reading"]["message"]  # its stats say that a request is in work
    found = manifest(box, where(done))
    assert found["state"] == "whole"
    assert {one["name"] for one in found["files"]} == {
        "threads.json", "threads.txt", "stats.json", "body-health.txt", "body-metrics.txt", "body-slots.txt",
        "journal.txt", "sockets.txt", "processes.txt", "stacks.txt",
    }  # fmt: skip
    assert "\\x1b[2J" in box.read(f"{where(done)}/journal.txt")
    assert box.read(f"{where(done)}/sockets.txt").startswith("port 8080 is held by unit\nlistener 127.0.0.1 ipv4")
    assert found["exe"].startswith("/")
    assert "gdb" in found["versions"]["gdb"].lower()


def test_a_server_that_answers_nothing(box: Box) -> None:
    serve(box, "hang")
    done = capture(box, "--passive")
    assert done.returncode == 0
    assert findings(done)["stats"]["message"].startswith(
        "health timeout; stats timeout; /metrics: no whole answer in 1 s"
    )
    assert "its stats don't answer either: a blocked wedge" in findings(done)["reading"]["message"]
    assert json.loads(box.read(f"{where(done)}/stats.json"))["health"]["answer"] == "timeout"


def test_one_hot_thread_is_a_spin(box: Box) -> None:
    serve(box, "spin", 1)
    done = capture(box, "--passive")
    assert "one thread, tid " in findings(done)["reading"]["message"]
    assert "a spin, unless" in findings(done)["reading"]["message"]


def test_a_stopped_process_is_read_so_and_stays_stopped(box: Box) -> None:
    pid = serve(box)
    box.run(["kill", "-STOP", str(pid)])
    done = capture(box)
    assert done.returncode == 0, done.stdout
    assert f"pid {pid} is stopped (T), by a signal" in findings(done)["reading"]["message"]
    assert states(box, pid) == {"T"}, "gdb let go on what somebody had stopped"


def test_every_process_of_the_unit_is_looked_at(box: Box) -> None:
    main = serve(box, "child", 0, "--api-key", "s3cret-value")
    done = capture(box)
    found = manifest(box, where(done))
    assert len(found["pids"]) == 2
    assert found["pid"] == main
    threads = json.loads(box.read(f"{where(done)}/threads.json"))["threads"]
    assert {one["pid"] for one in threads} == set(found["pids"])
    assert sum(one["pid"] != main for one in threads) == 2
    stacks = box.read(f"{where(done)}/stacks.txt")
    assert stacks.startswith(f"== pid {main}: every thread\n")
    assert len(re.findall(r"^== pid \d+: every thread", stacks, re.M)) == 2
    assert box.run(["grep", "-rl", "s3cret-value", ROOT], check=False).stdout == ""
    assert "[masked]" in box.read(f"{where(done)}/processes.txt")


# --- gdb


def test_passive_stops_nothing_and_the_stacks_come_later(box: Box) -> None:
    serve(box)
    first = capture(box, "--passive", "--reason", "class C", "--tape", "/run/server.py")
    assert first.returncode == 0
    found = manifest(box, where(first))
    assert (found["state"], found["reason"]) == ("passive", "class C")
    assert {one["name"] for one in found["files"]} >= {"tape.jsonl"}
    assert "stacks.txt" not in {one["name"] for one in found["files"]}
    second = capture(box, "--into", where(first), "--stacks")
    assert second.returncode == 0
    assert list(findings(second)) == ["stacks", "reading"]
    assert manifest(box, where(first))["state"] == "whole"
    third = capture(box, "--into", where(first), "--resumed", "n_decode_total +3")
    assert third.returncode == 0
    reading = manifest(box, where(first))["reading"]
    assert reading.startswith("of a healthy engine, progress was seen: n_decode_total +3; before: all ")
    assert capture(box, "--into", where(first)).returncode == 4  # its looks are not taken twice


def test_stacks_of_another_process_are_not_put_into_it(box: Box) -> None:
    pid = serve(box)
    directory = where(capture(box, "--passive"))
    new = serve(box)
    done = capture(box, "--into", directory, "--stacks")
    assert done.returncode == 3
    assert findings(done)["stacks"]["message"] == f"pid {pid} is gone, the unit's is {new} now"
    assert manifest(box, directory)["state"] == "partial"


def test_a_gdb_that_overruns_is_killed_and_the_server_goes_on(box: Box) -> None:
    pid = serve(box, "child")
    outcomes = []
    for deadline in ("0.02", "0.05", "0.08", "0.12", "0.16", "0.2", "0.25", "0.3"):
        directory = where(capture(box, "--passive"))
        done = capture(box, "--into", directory, "--stacks", "--stacks-deadline", deadline)
        outcomes.append((done.returncode, findings(done)["stacks"]["message"]))
        assert states(box, pid) == {"S"}, outcomes
        assert "gdb" not in living(box)
    assert "did not end in" in outcomes[0][1]
    assert outcomes[0][0] == 3


def test_a_gdb_that_hangs_with_the_server_stopped(box: Box) -> None:
    """What a gdb killed in mid-attach leaves behind in 4 of 120 tries, made certain by a program of that name."""
    pid = serve(box)
    script = '[ "$1" = --version ] && echo slow && exit\nkill -STOP "$2"\nsleep 1000 &\nsleep 1000\n'
    box.write("/run/slow/gdb", f"#!/bin/sh\n{script}", 0o755)
    began = time.monotonic()
    done = capture(box, "--stacks-deadline", "1", env={"PATH": f"/run/slow:{os.environ['PATH']}"})
    assert time.monotonic() - began < 30.0
    assert done.returncode == 3
    assert (
        findings(done)["stacks"]["message"] == f"gdb did not end in 1.0 s and was killed; pid {pid} had to be continued"
    )
    assert states(box, pid) == {"S"}
    assert "sleep" not in living(box)


def test_a_capture_told_to_end_lets_go_of_the_server(box: Box) -> None:
    pid = serve(box)
    directory = where(capture(box, "--passive"))
    codes = []
    for delay in (0.0, 0.05, 0.1, 0.2):
        process = box.popen(command("--into", directory, "--stacks"))
        while process.poll() is None and "gdb" not in living(box):
            time.sleep(0.01)
        time.sleep(delay)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        codes.append(process.returncode)
        assert states(box, pid) == {"S"}
        assert "gdb" not in living(box)
    assert set(codes) <= {0, 143}
    assert 143 in codes, "none was told to end before it was done"


def test_another_tracer_is_named(box: Box) -> None:
    pid = serve(box)
    tracer = box.popen([sys.executable, "/run/tracer.py", str(pid)])
    assert tracer.stdout is not None
    assert tracer.stdout.readline() == "seized\n"
    done = capture(box)
    tracer.kill()
    tracer.communicate()
    assert done.returncode == 3
    message = findings(done)["stacks"]["message"]
    assert re.fullmatch(rf"pid \d+ \(python\S*\) traces tid {pid}: one tracer at a time, end that one first", message)
    assert findings(done)["passive"]["level"] == "ok"


def test_without_gdb_it_says_what_to_install(box: Box) -> None:
    serve(box)
    systemctl = box.run(["sh", "-c", "command -v systemctl"]).stdout.strip()
    box.run(["sh", "-c", f"mkdir -p /run/few && ln -sf {systemctl} /run/few/"])
    done = capture(box, env={"PATH": "/run/few"})
    assert done.returncode == 3
    assert findings(done)["stacks"]["message"] == "gdb is not installed: apt-get install gdb"
    assert manifest(box, where(done))["state"] == "partial"
    assert capture(box, "--no-stacks", env={"PATH": "/run/few"}).returncode == 0


def test_another_user_gets_what_there_is_and_says_what_there_is_not(box: Box) -> None:
    serve(box)
    box.run(["install", "-d", "-o", "65534", "/run/nobody"])
    done = box.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command("--output", "json")],
        env={"INFEROPS_STATE_DIR": "/run/nobody/state"}, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    found = findings(done)
    assert (found["passive"]["level"], found["stats"]["level"]) == ("ok", "ok")
    assert found["journal"]["level"] == "blind"
    assert re.fullmatch(r"pid \d+ is of uid 0, we are 65534: run as root", found["stacks"]["message"])


# --- the disk


def test_a_full_disk_is_one_clear_line_and_no_half_file(box: Box) -> None:
    serve(box)
    codes = []
    for kib in (4, 8, 12, 16, 24, 32, 48, 64):
        box.run(["mkdir", "-p", "-m", "700", ROOT])
        box.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k,mode=700", "tmpfs", ROOT])
        done = capture(box)
        codes.append(done.returncode)
        if done.returncode == 3:
            said = done.stderr if not done.stdout else findings(done)["disk"]["message"]
            assert "No space left on device" in said
            assert len(said.strip().splitlines()) <= 2
            for name in box.run(["sh", "-c", f"ls -A {ROOT}"]).stdout.split():
                check_no_half_file(box, f"{ROOT}/{name}")
        box.run(["umount", ROOT])
    assert codes[:4] == [3] * 4
    assert set(codes) <= {0, 3}


def check_no_half_file(box: Box, directory: str) -> None:
    """Not one temporary file; the manifest is whole; what it doesn't list is not taken for whole by anybody."""
    names = box.run(["ls", "-A", directory]).stdout.split()
    assert "manifest.json" in names
    assert not [name for name in names if name.startswith(".")]
    found = json.loads(box.read(f"{directory}/manifest.json"))
    assert found["state"] in ("partial", "in progress")
    for one in found["files"]:
        data = box.run(["sha256sum", f"{directory}/{one['name']}"]).stdout
        assert data.startswith(one["sha256"])


@pytest.mark.parametrize(
    ("options", "word"), [("ro", "Read-only file system"), ("nr_inodes=2", "No space left on device")]
)
def test_a_disk_that_takes_nothing_at_all_keeps_nothing(box: Box, options: str, word: str) -> None:
    serve(box)
    box.run(["mkdir", "-p", "-m", "700", ROOT])
    box.run(["mount", "-t", "tmpfs", "-o", f"{options},mode=700", "tmpfs", ROOT])
    done = capture(box)
    assert done.returncode == 3
    assert word in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert box.run(["ls", "-A", ROOT]).stdout == ""


def test_a_killed_capture_is_recognisable(box: Box) -> None:
    serve(box)
    process = box.popen(command("--capture-gap", "60", "--passive"))
    end = time.monotonic() + 20.0
    while not (name := box.run(["sh", "-c", f"ls {ROOT} 2>/dev/null"], check=False).stdout.strip()):
        assert time.monotonic() < end
        time.sleep(0.1)
    time.sleep(0.3)
    directory = f"{ROOT}/{name}"
    assert capture(box, "--into", directory, "--stacks").returncode == 4, "two at once into one directory"
    process.kill()
    process.communicate()
    found = json.loads(box.read(f"{directory}/manifest.json"))
    assert (found["state"], found["reading"]) == ("in progress", "not finished: nothing here has been judged yet")
    end = time.monotonic() + 10.0
    while box.run(["test", "-e", f"/proc/{found['by']['pid']}"], check=False).returncode == 0:
        assert time.monotonic() < end
        time.sleep(0.1)
    # nobody writes it any more: what is known can still be added
    assert capture(box, "--into", directory, "--stacks").returncode == 0


def test_retention_leaves_what_is_not_ours(box: Box) -> None:
    serve(box)
    box.run(["mkdir", "-p", "-m", "700", ROOT])
    box.run(["sh", "-c", f"mkdir {ROOT}/foreign && echo x >{ROOT}/foreign/x && ln -s /etc {ROOT}/link"])
    made = [where(capture(box, "--passive", "--captures-max-count", "2")) for _ in range(4)]
    left = box.run(["ls", ROOT]).stdout.split()
    assert sorted(left) == sorted(["foreign", "link", *(Path(one).name for one in made[2:])])


@pytest.mark.parametrize("kind", ["symlink", "foreign", "file", "other unit", "other user"])
def test_a_directory_that_is_not_a_capture_of_this_unit_is_refused(box: Box, kind: str) -> None:
    serve(box)
    real = where(capture(box, "--passive"))
    box.run(["rm", "-rf", "/run/target"])
    if kind == "symlink":
        box.run(["ln", "-s", real, "/run/target"])
    elif kind == "foreign":
        box.run(["mkdir", "-m", "700", "/run/target"])
    elif kind == "file":
        box.write("/run/target", "x")
    else:
        box.run(["cp", "-a", real, "/run/target"])
        change = {"other unit": ["sed", "-i", "s/server.service/other.service/", "/run/target/manifest.json"]}
        box.run(change.get(kind, ["chown", "65534", "/run/target"]))
    before = box.run(["ls", "-lA", "/run/target/"], check=False).stdout
    for args in (["--stacks"], ["--passive"], ["--resumed", "x"]):
        done = capture(box, "--into", "/run/target", *args)
        assert done.returncode == 4, done.stdout + done.stderr
        assert "/run/target" in done.stderr
    assert box.run(["ls", "-lA", "/run/target/"], check=False).stdout == before
    box.run(["rm", "-rf", "/run/target"])


# --- the unit


def test_a_unit_that_does_not_exist_or_run(box: Box) -> None:
    serve(box)
    done = box.run(command("--unit", "servr"), check=False)
    assert done.returncode == 2
    assert "did you mean server" in done.stderr
    box.run(["systemctl", "stop", UNIT])
    done = capture(box)
    assert done.returncode == 3
    assert f"{UNIT}: nothing runs (inactive, dead)" in done.stderr
    assert box.run(["ls", "-A", ROOT], check=False).stdout == ""


def test_a_systemd_that_does_not_answer_is_blind_in_bounded_time(shared: Box) -> None:
    with Box() as box:
        os.kill(box.pid, signal.SIGSTOP)
        try:
            done = box.run(command(), check=False, timeout=40.0)
        finally:
            os.kill(box.pid, signal.SIGCONT)
        assert done.returncode == 3
        assert "systemctl show: no answer in 5 s" in done.stderr


def test_the_sums_are_of_what_was_written(box: Box) -> None:
    serve(box)
    directory = where(capture(box, "--passive"))
    body = box.read(f"{directory}/body-metrics.txt")
    (one,) = [one for one in manifest(box, directory)["files"] if one["name"] == "body-metrics.txt"]
    assert one["sha256"] == hashlib.sha256(body.encode()).hexdigest()
    assert one["bytes"] == len(body)
