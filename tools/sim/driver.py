"""Runs a Model in real time: a thread that is its engine, the journal lines on stdout, the request log in its file.

The engine's thread works inside a mutex of its own. A fault that freezes the engine blocks that thread for real, in a
lock, so that a capture of the process shows what it would show of a real one.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson

from inferops.sim.faults import FAULTS
from inferops.sim.model import Model, Request

STEP_S = 0.02  # some 50 engine steps a second
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
        self._moves, self._ending = threading.Event(), threading.Event()
        self._moves.set()
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
        """As Model.fault; one for the next start is kept by the caller."""
        with self.at() as (model, now):
            if not FAULTS[name].next_start:
                model.fault(name, now, **args)
        if self.model.dead is not None:  # the engine's own thread may stand
            threading.Timer(LAST_WORDS_S, _die, self.model.dead).start()

    def clear(self) -> None:
        """As Model.clear; a frozen engine goes on."""
        with self.at() as (model, now):
            model.clear(now)
        self._moves.set()

    def stop(self) -> float:
        """A clean stop's lines; how long it takes until the process may go, seconds. A frozen engine stops never: the
        stop needs the mutex that it holds."""
        with self.mutex:
            self._ending.set()
            with self.at() as (model, now):
                model.shutdown(now)
                return model.config.stop_s if model.broken.stop_s is None else model.broken.stop_s

    def _work(self) -> None:
        while not self._ending.is_set():
            with self.mutex:
                self._moves.wait()
                with self.at() as (model, now):
                    model.advance(now)
                    if model.broken.frozen:
                        self._moves.clear()
            if self.model.dead is not None:
                time.sleep(LAST_WORDS_S)
                _die(*self.model.dead)
            time.sleep(STEP_S)

    def _write(self) -> None:
        """Lines and records, each at its own time, the model's kept in step with the wall clock."""
        for t, text in self.model.take_lines():
            print(stamped(text, self.model.epoch + t), flush=True)
        records: list[dict[str, Any]] = self.model.take_records()
        if self._log is not None and records:
            data = b"".join(orjson.dumps(record) + b"\n" for record in records)
            try:
                os.write(self._log, data)
            except OSError as e:
                print(f"inferops sim: the request log takes no record: {e.strerror}", file=sys.stderr, flush=True)


def _die(how: str, code: int) -> None:
    """Ends the process as the fault wants it, with nothing tidied up."""
    sys.stdout.flush()
    if how == "abort":
        os.abort()
    os._exit(code)
