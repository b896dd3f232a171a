"""What a reader of the simulator found, in the cases that its other tests do not reach."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from inferops.sim import driver as driving
from inferops.sim.driver import Driver
from inferops.sim.model import SESSIONS_MAX, Config, Model, Request
from tests.sim_server import SOON_S, until

THEIRS = b'{"theirs": 1}\n'


@pytest.mark.parametrize(
    ("rooms", "left"),
    [
        ([5, 3], b'{"our' + THEIRS),  # the piece behind theirs goes, the one before it can't
        ([11, 5], b'{"our": 22}' + THEIRS + b"\n"),  # the end of its line stands behind theirs
        ([12, 5], b'{"our": 22}\n' + THEIRS),
        ([5], b'{"our' + THEIRS),
    ],
)
def test_another_writer_between_two_parts_of_ours_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rooms: list[int], left: bytes
) -> None:
    """The disk takes so many bytes at a time, then none; another server appends right after the first."""
    path, real, writes = tmp_path / "log", os.write, 0
    path.touch()
    log, other = (os.open(path, os.O_WRONLY | os.O_APPEND) for _ in range(2))

    def write(fd: int, data: bytes) -> int:
        nonlocal writes
        writes += 1
        if writes > len(rooms):
            raise OSError(errno.ENOSPC, "No space left on device")
        took = real(fd, data[: rooms[writes - 1]])
        if writes == 1:
            real(other, THEIRS)
        return took

    try:
        monkeypatch.setattr(os, "write", write)
        Driver(Model(), log)._append(log, b'{"our": 22}\n{"our": 33}\n')
        monkeypatch.undo()
    finally:
        os.close(log)
        os.close(other)
    assert path.read_bytes() == left


@pytest.mark.parametrize("name", ["decode-wedge", "mutex-wedge", "prefill-wedge", "silent"])
def test_a_death_whose_time_comes_after_the_freeze(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash loop whose engine froze while it loaded: nothing but the standing thread looks at the clock."""
    died, how = threading.Event(), []

    def die(*as_: object) -> None:
        how.append(as_)
        died.set()

    monkeypatch.setattr(driving, "_die", die)
    driver = Driver(Model(Config(load_s=0.0), now=time.monotonic()), None)
    driver.start()
    try:
        driver.fault(name, {})
        if name == "prefill-wedge":
            driver.submit(Request(prompt_tokens=10, max_tokens=5))
        until(lambda: driver.model.broken.frozen and driver.mutex.locked(), "it stands")
        with driver.at() as (model, now):
            model.broken.crashes = True
            model.listen(now)
        assert died.wait(SOON_S)
        assert how[0] == ("abort", 6)
    finally:
        driver._ending.set()
        driver.clear()
        driver._thread.join(SOON_S)


def test_a_conversation_that_goes_on_is_not_the_oldest() -> None:
    t, cached = 0.0, {}
    model = Model(Config(load_s=0.0, prefill_tok_s=1e6), now=t)
    for session in [*range(SESSIONS_MAX), 0, SESSIONS_MAX]:  # the first one speaks again, then one too many comes
        model.submit(Request(prompt_tokens=100, max_tokens=2, session=f"s{session}"), t)
        t += 1.0
        model.advance(t)
    for session in (0, 1, 2):
        id = model.submit(Request(prompt_tokens=200, max_tokens=2, session=f"s{session}"), t)
        cached[session] = model.request(id).cached
    assert cached == {0: 102, 1: 0, 2: 102}
