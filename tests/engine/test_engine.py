"""The engine of the tests is a real one, and each planted fault does what it says: the tests above stand on that."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.engine import engine as installed
from tests.engine.running import Engine
from tests.system.box import CHECKOUT, Box

pytestmark = [pytest.mark.box, pytest.mark.engine]


def cpu_s(engine: Engine) -> dict[str, float]:
    """CPU seconds of each thread, by its id inside the box."""
    text = engine.box.run(["sh", "-c", f"cd /proc/{engine.pid()}/task && grep -H '' */schedstat"]).stdout
    return {line.split("/")[0]: int(line.split(":")[1].split()[0]) / 1e9 for line in text.splitlines()}


def busiest(engine: Engine, over_s: float = 2.0) -> float:
    """The share of one CPU that the busiest thread had meanwhile."""
    before, start = cpu_s(engine), time.monotonic()
    time.sleep(over_s)
    after, wall = cpu_s(engine), time.monotonic() - start
    return max((after[tid] - before.get(tid, 0.0)) / wall for tid in after)


def until(what: str, engine: Engine, key: str, timeout: float = 30.0) -> None:
    end = time.monotonic() + timeout
    while (seen := engine.show(key)) != what:
        assert time.monotonic() < end, f"{key} is {seen!r}, not {what!r}"
        time.sleep(0.05)


def test_it_answers_with_tokens(engine: Engine) -> None:
    stream = engine.stream("Say something.", 20).end()
    assert stream.error == ""
    assert stream.finish == "length"
    assert stream.usage["completion_tokens"] == 20
    assert 1 <= len(stream.times) <= 20
    assert stream.times == sorted(stream.times)
    assert "launch_slot_" in engine.journal()


def test_a_futex_wedge_stands_still_and_then_goes_on(engine: Engine) -> None:
    engine.fault("futex 6")
    stream = engine.stream("Say something.", 10)
    engine.faulted()
    assert stream.times == []
    assert busiest(engine) < 0.2
    assert stream.times == []
    assert engine.get("/health")[0] == 200  # which is why a health answer proves nothing
    with pytest.raises(TimeoutError):
        engine.get("/slots", 0.5)
    assert stream.end().finish == "length"
    assert stream.times[0] - stream.sent >= 6


def test_a_spin_wedge_burns_one_thread(engine: Engine) -> None:
    engine.fault("spin 600")
    stream = engine.stream("Say something.", 10)
    engine.faulted()
    assert busiest(engine) > 0.3  # the machine may be shared
    assert stream.times == []
    first = engine.pid()
    engine.box.run(["systemctl", "restart", engine.unit])
    engine.wait_ready()
    assert engine.pid() != first
    assert "State 'stop-sigterm' timed out. Killing." in engine.journal()
    assert stream.end().error != ""
    assert engine.stream("Say something.", 10).end().error == ""  # a fault is taken once


@pytest.mark.parametrize(("fault", "how"), [("abort", "status=6/ABRT"), ("exit 3", "code=exited, status=3")])
def test_a_death_is_systemds_to_tell(engine: Engine, fault: str, how: str) -> None:
    first = engine.pid()
    engine.fault(fault)
    stream = engine.stream("Say something.", 10)
    until("1", engine, "NRestarts")
    engine.wait_ready()
    assert engine.pid() not in (0, first)
    assert how in engine.journal()
    assert stream.end().error != ""


def test_a_quiet_death_with_code_0_is_not_restarted(engine: Engine) -> None:
    engine.fault("exit 0")
    engine.stream("Say something.", 10)
    until("inactive", engine, "ActiveState")
    assert engine.show("Result") == "success"
    assert engine.show("NRestarts") == "0"


def test_slow_stays_until_it_is_cured(engine: Engine) -> None:
    engine.fault("slow 300")
    stream = engine.stream("Say something.", 5).end()
    assert stream.error == ""
    assert stream.times[-1] - stream.sent > 1.5
    engine.cure()
    assert engine.box.run(["test", "-e", installed.FAULT_FILE], check=False).returncode == 1
    assert engine.stream("Say something.", 5).end().finish == "length"


def test_the_load_driver_counts_what_a_real_server_answers(engine: Engine) -> None:
    load = [
        sys.executable,
        str(CHECKOUT / "tools"),
        "load",
        "--requests",
        "4",
        "--prompt-tokens",
        "40",
        "--max-tokens",
        "8",
    ]
    report = json.loads(engine.box.run([*load, "--output", "json"]).stdout)
    seen = report["findings"][0]["evidence"]
    assert (report["exit"], seen["attempted"], seen["ok"], seen["failed"]) == (0, 4, 4, 0)
    assert 4 * 40 <= seen["prompt_tokens"] <= 4 * 80  # the words, and the chat template round them
    assert 4 <= seen["completion_tokens"] <= 4 * 8
    engine.fault("exit 3")
    done = engine.box.run([*load, "--requests", "2", "--output", "json"], check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["findings"][0]["evidence"]["failed"] >= 1


def test_a_slow_load_says_503_loading(box: Box) -> None:
    engine = Engine(box, extra_env={"INFEROPS_LOAD_DELAY_S": "5"}).start(wait=False)
    answers: list[tuple[int, str]] = []
    started, end = time.monotonic(), time.monotonic() + 60
    while (not answers or answers[-1][0] != 200) and time.monotonic() < end:
        try:
            answers.append(engine.get("/health", 5))
        except OSError:
            pass  # it does not listen yet
        time.sleep(0.05)
    assert time.monotonic() - started > 5
    assert answers[0][0] == 503
    assert "Loading model" in answers[0][1]
    assert {code for code, _ in answers} == {503, 200}


def test_the_unit_text_survives_hostile_paths(box: Box) -> None:
    folder = Path("/tmp/a b%n$HOME")
    box.write(folder / "server", '#!/bin/sh\nprintf "%s\\n" "$@" "$LD_LIBRARY_PATH" >/tmp/said\n', mode=0o755)
    model = folder / 'q"uote\\back.gguf'
    odd = installed.Installed(folder / "server", folder, model)
    box.write("/etc/systemd/system/odd.service", installed.unit_text(1234, odd, restart="no") + "Type=oneshot\n")
    box.run(["systemctl", "daemon-reload"])
    box.run(["systemctl", "start", "odd"])
    said = box.read("/tmp/said").splitlines()
    assert said[:6] == ["-m", str(model), "--host", "127.0.0.1", "--port", "1234"]
    assert said[-1] == str(folder)


def test_what_is_missing_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLAMA_SERVER", str(tmp_path / "none"))
    with pytest.raises(installed.EngineError, match=r"^LLAMA_SERVER=.*/none: expected an executable file$"):
        installed.locate()
    monkeypatch.setenv("LLAMA_SERVER", "/bin/true")
    monkeypatch.setenv("MODEL", str(tmp_path))
    with pytest.raises(installed.EngineError, match=r"^MODEL=.*: expected a GGUF file$"):
        installed.locate()
    monkeypatch.delenv("LLAMA_SERVER")
    monkeypatch.setattr(installed, "_SERVER_MODULE", "inferops_no_such_module")
    with pytest.raises(installed.EngineError, match=r"^no llama-server: run make setup"):
        installed.locate()


def test_the_shim_is_made_once_however_many_ask() -> None:
    code = "from tests.engine.engine import build_shim; print(build_shim())"
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT)
        for _ in range(2)
    ]
    said = {process.communicate(timeout=120)[0].strip() for process in both}
    assert len(said) == 1
    assert Path(said.pop()).stat().st_size > 0
