"""The simulated engine: queue, lanes, prefill, decode, prefix reuse, a queue deadline. Pure: time is an argument.

`advance(now)` goes from event to event (a prefill that ends, a request that has its tokens, a rate line that is due:
steps.py), so an idle hour costs as little as an idle second. What is broken in it is in faults.py, what it writes in
said.py.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict, deque
from dataclasses import replace
from typing import Any, Literal

from inferops.sim import said, steps
from inferops.sim.faults import CRASH_AFTER_S, FAULTS, Broken
from inferops.sim.jobs import ENDED, Config, Job, JobState, Rejected, Request

__all__ = ["Config", "Job", "Model", "Rejected", "Request"]

KEPT_ENDED = 256  # ended requests that can still be asked for
SESSIONS_MAX = 64


class Model:
    """One server process. `instance` is drawn from `seed` unless given; `epoch` is the Unix time of the model's 0."""

    def __init__(
        self, config: Config | None = None, seed: int = 0, instance: str = "", now: float = 0.0, epoch: float = 0.0
    ) -> None:
        self.config, self.rng = config or Config(), random.Random(seed)  # noqa: S311 - a seed is to be repeated
        self.instance = instance or f"{self.rng.getrandbits(64):016x}"
        self.t = self.born = now
        self.epoch, self.broken, self.load_s = epoch, Broken(), self.config.load_s
        self.queue: deque[Job] = deque()
        self.between: Job | None = None
        self.running: list[Job] = []
        self.counters = dict.fromkeys(
            ("active_captures_aborted", "active_captures_completed", "committed_decode_tokens",
             "computed_prefill_tokens", "decode_rounds", "decode_row_rounds"), 0.0)  # fmt: skip
        self.reused, self.spoke = 0, ""  # prompt tokens found in the cache; the session that was answered last
        self.stopping = False
        self.dead: tuple[Literal["abort", "exit"], int] | None = None
        self._jobs: dict[int, Job] = {}
        self._ended: deque[int] = deque()
        self._sessions: OrderedDict[str, int] = OrderedDict()
        self._lines: list[tuple[float, str]] = []
        self._records: list[dict[str, Any]] = []
        self._next_id, self.tick_t, self.since_t = 1, math.inf, now
        self.work = [0.0, 0.0, 0.0]  # since the last rate line: tokens prefilled, decoded, rounds of decoding

    # --- what people and instruments ask

    def submit(self, request: Request, now: float) -> int:
        """Takes a request; its id. Raises Rejected: too long (400), queue full (429), not serving (503)."""
        self.advance(now)
        asked, most = request.prompt_tokens, self.config.max_context
        if not self.ready(now):
            self._refuse(503, "unavailable", "the model is loading")
        if self.stopping:
            self._refuse(503, "unavailable", "the server stops")
        if self.broken.unavailable:
            self._refuse(503, "unavailable", "the engine is not available")
        if asked >= most:
            self._refuse(400, "context_length_exceeded", f"a prompt of {asked} tokens, the context has {most}")
        if len(self.queue) >= self.config.queue_max:
            self._refuse(429, "queue_full", f"{len(self.queue)} requests wait already")
        request = replace(request, max_tokens=min(request.max_tokens, most - asked))
        job = Job(self._next_id, request, now, request.session or f"s{self._next_id}")
        self._next_id += 1
        self._jobs[job.id] = job
        if self.broken.loses or self.broken.silent:
            job.state = "lost"
            return job.id
        known = self._sessions.get(request.session, 0)
        job.cached = known if request.session and known < request.prompt_tokens else 0
        self.queue.append(job)
        self.say(said.started(job))
        self.log("request_start", job)
        self.wake()
        self.advance(now)
        return job.id

    def cancel(self, id: int, now: float) -> None:
        """The client left. What stands hears of it when it goes on; the queue works without the engine."""
        self.advance(now)
        job = self._jobs.get(id)
        if job is None or job.state in ENDED:
            return
        b = self.broken
        stands = (b.frozen and job.state != "queued") or (b.sticks and job.state == "materializing")
        if b.silent or stands:
            job.gone = True
        else:
            self.end(job, "cancelled", status=499, error="client disconnected")

    def request(self, id: int) -> Job:
        """The request of that id, KEPT_ENDED long after its end. Raises KeyError."""
        return self._jobs[id]

    def ready(self, now: float) -> bool:
        return now - self.born >= self.load_s

    def listen(self, now: float) -> None:
        """It is loaded and takes requests from here on: its line, its record."""
        self.advance(now)
        if self.broken.crashes:
            self.broken.dies_t = now + CRASH_AFTER_S
        self.log("server_start")
        self.say(f"listening on {self.config.address}")

    def health(self, now: float) -> tuple[int, dict[str, str]]:
        """Code and body of GET /health."""
        self.advance(now)
        down = self.broken.unavailable or self.stopping
        return (503, {"status": "unavailable"}) if down else (200, {"status": "ok"})

    def holds_stats(self, now: float) -> bool:
        """True while the handler of /stats waits for the engine."""
        return now < self.broken.stats_until or (self.broken.frozen and self.broken.mutex)

    def holds_health(self, now: float) -> bool:
        return now < self.broken.health_until

    def silent(self) -> bool:
        """True while nothing whatever is answered."""
        return self.broken.silent

    def gauges(self) -> dict[str, int]:
        """The scheduler's gauges as /stats has them: stale ones while that is what is broken."""
        if self.broken.stale is not None:
            return dict(self.broken.stale)
        prefilling = sum(job.state == "prefilling" for job in self.running)
        return {
            "running": len(self.running), "prefilling": prefilling, "decode_ready": len(self.running) - prefilling,
            "waiting": len(self.queue), "materializing": int(self.between is not None), "capture_pending": 0,
            "terminal_pending": 0,
        }  # fmt: skip

    def stats(self, now: float) -> dict[str, Any]:
        """The /stats document."""
        self.advance(now)
        return said.stats(self)

    def take_lines(self) -> list[tuple[float, str]]:
        """The journal lines since this was last asked: time, text (without a time stamp)."""
        lines, self._lines = self._lines, []
        return lines

    def take_records(self) -> list[dict[str, Any]]:
        """The records of the request log since this was last asked."""
        records, self._records = self._records, []
        return records

    def fault(self, name: str, now: float, **args: float) -> None:
        """Breaks it. Raises KeyError: no such fault or argument (faults.FAULTS)."""
        self.advance(now)
        FAULTS[name].apply(self, **({arg: FAULTS[name].args[arg] for arg in FAULTS[name].args} | args))
        self.advance(now)

    def clear(self, now: float) -> None:
        """Mends it: what stood goes on, what had no end gets one, what loads is loaded, what was lost stays lost."""
        self.advance(now)
        if not self.ready(now):
            self.load_s = max(self.config.load_s, now - self.born)
        self.broken = Broken()
        for job in self.under_way():
            job.endless = False
            if job.gone:
                self.end(job, "cancelled", status=499, error="client disconnected")
        self.wake()

    def shutdown(self, now: float) -> None:
        """The lines of a clean stop, and the last ones; what was under way fails, nothing more is taken."""
        self.advance(now)
        self.stopping, self.tick_t = True, math.inf
        self.fail_all("the server stops", 503)
        for job in [job for job in self._jobs.values() if job.state == "lost"]:
            self.end(job, "failed", status=503, error="the server stops")
        self.say(said.cleanup())
        self.say(said.residual("fail-all", 0, 0, 0))

    # --- what its steps and its faults use

    def say(self, text: str) -> None:
        """A line of the journal."""
        self._lines.append((self.t, text))

    def log(self, event: str, job: Job | None = None, **more: Any) -> None:
        """A record of the request log."""
        self._records.append(said.record(self, event, job, **more))

    def end(self, job: Job, state: JobState, *, status: int = 0, error: str = "") -> None:
        """A request ends: out of wherever it is, into the journal and the log."""
        job.failed_in, job.state, job.t_end, job.status, job.error = job.state, state, self.t, status, error
        if job in self.queue:
            self.queue.remove(job)
        self.running = [one for one in self.running if one is not job]
        if self.between is job:
            self.between = None
        self._ended.append(job.id)
        if len(self._ended) > KEPT_ENDED:
            self._jobs.pop(self._ended.popleft(), None)
        if job.failed_in == "lost":
            return
        if state == "done":
            job.finish = job.finish or "length"
            self.counters["active_captures_completed"] += 1
            self.spoke = job.marker
            self._remember(job)
            self.say(said.done(job))
            self.log("request_done", job)
            return
        self.say(f"req#{job.id} cancelled | {job.request.protocol}" if state == "cancelled" else said.failed(job))
        kind = {"error": {"type": "client_disconnected", "status": status}} if state == "cancelled" else {}
        self.log("request_error", job, **kind)

    def fail_all(self, error: str, status: int = 500) -> int:
        """Everything under way fails; how many that were."""
        jobs = self.under_way()
        for job in jobs:
            self.end(job, "failed", status=status, error=error)
        return len(jobs)

    def under_way(self) -> list[Job]:
        """Every request that was taken up or waits."""
        return [*self.running, *([self.between] if self.between else []), *self.queue]

    def advance(self, now: float) -> None:
        """Runs up to `now`; never back."""
        while self.dead is None and steps.one(self, now):
            pass

    def wake(self) -> None:
        """The rate line is due an interval after work came to an idle server."""
        if self.tick_t == math.inf:
            self.tick_t, self.since_t, self.work = self.t + self.config.throughput_s, self.t, [0.0, 0.0, 0.0]

    def _refuse(self, status: int, kind: str, message: str) -> None:
        self.log("request_rejected", status=status, reason=kind)
        raise Rejected(status, kind, message)

    def _remember(self, job: Job) -> None:
        """The tokens that the next turn of this conversation finds in the cache."""
        if job.request.session:
            self._sessions[job.request.session] = job.request.prompt_tokens + job.tokens_out
            self._sessions.move_to_end(job.request.session)
            if len(self._sessions) > SESSIONS_MAX:
                self._sessions.popitem(last=False)
