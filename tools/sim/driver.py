"""Runs a Model in real time: a thread that is its engine, the journal lines on stdout, the request log in its file.

The engine's thread works inside a mutex of its own. A fault that freezes the engine blocks that thread for real, in a
lock, so that a capture of the process shows what it would show of a real one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import orjson

from inferops.sim.faults import FAULTS
from inferops.sim.model import Model, Request

STEP_S = 0.02  # some 50 engine steps a second
STANDS_WITHIN_S = 2.0  # from a fault that freezes the engine: a step, and a busy machine's share of it
DIES_WITHIN_S = 0.5  # from the moment when a frozen one is to die
LAST_WORDS_S = 0.2  # from a fault that ends the process to its end: whoever asked for it is answered
PLAIN = ("[", "listening", "terminate", "throughput interval")  # lines that carry no time and no level of their own


def stamped(text: str, wall: float) -> str:
    """A journal line as it is printed: the newer ones with a time (local) and a level in front."""
    if text.startswith(PLAIN):
        return text
    level = "ERROR" if " failed " in text else "INFO "
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall)) + f".{int(wall * 1000) % 1000:03d}"
    return f"{stamp}  {level} {text}"


# --- edge


class Driver:
    """One model under way. Times of the model are CLOCK_MONOTONIC s. `log`: file descriptor of the request log, or
    None. All of it may be called from any thread."""

    def __init__(self, model: Model, log: int | None) -> None:
        self.model, self._log = model, log
        self.mutex, self._lock = threading.Lock(), threading.RLock()
        self._moves, self._stands, self._ending = threading.Event(), threading.Event(), threading.Event()
        self._loses = False  # the last record did not go into the log
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    def start(self) -> None:
        """Loads for `load_s`, then serves: returns at once."""
        self._thread.start()

    @contextmanager
    def at(self) -> Iterator[tuple[Model, float]]:
        """The model, alone, and its present; what it wrote meanwhile is written out."""
        with self._lock:
            yield self.model, time.monotonic()
            self._write()

    def submit(self, request: Request) -> int:
        """As Model.submit."""
        with self.at() as (model, now):
            return model.submit(request, now)

    def cancel(self, id: int) -> None:
        """As Model.cancel."""
        with self.at() as (model, now):
            model.cancel(id, now)

    def fault(self, name: str, args: dict[str, float]) -> None:
        """As Model.fault; returns once a frozen engine's thread stands. One for the next start the caller keeps."""
        with self.at() as (model, now):
            if not FAULTS[name].next_start:
                model.fault(name, now, **args)
            stands = model.broken.frozen and not self._ending.is_set()
        if stands:
            self._stands.wait(STANDS_WITHIN_S)
        if self.model.dead is not None:  # the engine's own thread may stand
            threading.Timer(LAST_WORDS_S, _die, self.model.dead).start()

    def clear(self) -> None:
        """As Model.clear; a frozen engine goes on."""
        with self.at() as (model, now):
            model.clear(now)
            self._stands.clear()
            self._moves.set()

    def stop(self) -> float:
        """A clean stop's lines; how long it takes until the process may go, seconds. A frozen engine stops never: the
        stop needs the mutex that it holds."""
        while True:
            with self.mutex, self.at() as (model, now):
                model.advance(now)
                if not model.broken.frozen:
                    self._ending.set()
                    model.shutdown(now)
                    return model.config.stop_s if model.broken.stop_s is None else model.broken.stop_s
            time.sleep(STEP_S)  # its thread has yet to take the mutex and to stand in it

    def _work(self) -> None:
        while not self._ending.is_set():
            with self.mutex:
                with self.at() as (model, now):
                    model.advance(now)
                    if frozen := model.broken.frozen:
                        self._moves.clear()
                        self._stands.set()
                while frozen and self.model.dead is None and not self._moves.wait(DIES_WITHIN_S):
                    with self.at() as (model, now):  # it stands, and may die all the same
                        model.advance(now)
            if self.model.dead is not None:
                time.sleep(LAST_WORDS_S)
                _die(*self.model.dead)
            time.sleep(STEP_S)

    def _write(self) -> None:
        """Lines and records, each at its own time, the model's kept in step with the wall clock."""
        try:
            for t, text in self.model.take_lines():
                print(stamped(text, self.model.epoch + t), flush=True)
        except OSError as e:
            _unheard(e)
        records = self.model.take_records()
        if self._log is not None and records:
            self._append(self._log, b"".join(orjson.dumps(record) + b"\n" for record in records))

    def _append(self, log: int, data: bytes) -> None:
        """Whole records: of one that a full disk took in part, the part is cut off, or the next is glued to it. Only
        our own part goes, and only while nobody has written behind it."""
        left, piece = data, 0  # piece: bytes of ours that stand together, up to where our last write ended
        try:
            while left:
                before = os.lseek(log, 0, os.SEEK_CUR)  # where our last write ended: O_APPEND moves it there
                took = os.write(log, left)
                left = left[took:]
                piece = took + (piece if os.lseek(log, 0, os.SEEK_CUR) == before + took else 0)
        except OSError as e:
            done = len(data) - len(left)
            torn = min(piece, done - (data.rfind(b"\n", 0, done) + 1))
            with contextlib.suppress(OSError):
                end = os.lseek(log, 0, os.SEEK_CUR)
                if torn and os.fstat(log).st_size == end:
                    os.ftruncate(log, end - torn)
            if not self._loses:
                print(f"inferops sim: the request log takes no record: {e.strerror}", file=sys.stderr, flush=True)
        self._loses = bool(left)


def _unheard(e: OSError) -> NoReturn:
    """A server whose journal nobody can read is none to try anything on: it ends, from whichever thread wrote."""
    with contextlib.suppress(OSError):
        print(f"inferops sim: stdout takes no line: {e.strerror}; it ends", file=sys.stderr, flush=True)
    os._exit(141 if isinstance(e, BrokenPipeError) else 3)


def _die(how: str, code: int) -> None:
    """Ends the process as the fault wants it, with nothing tidied up."""
    if how == "abort":
        os.abort()
    os._exit(code)
