"""Two servers under virtual time, as the wedge policy's eyes see them: a NInfer (the simulator's own engine, read
through the real profile) and a llama-server on CPU (at the level of polls). And the sentinel's loop around the policy.

Time is a number here. Nothing sleeps, nothing is asked; each world knows since when work is outstanding in it and
when a look could last see progress, by rules of its own: what the policy says is checked by these.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import orjson

from inferops.core import armed, budget
from inferops.core.evidence import Patience
from inferops.core.poll import Done, Gate, Health, HostSeen, JournalSeen, Poll, RequestsSeen, Stats, UnitSeen
from inferops.core.profile import load, merge
from inferops.core.requestlog import Tally
from inferops.core.turn import Event, State
from inferops.core.wedge import step
from inferops.sim.jobs import ENDED, Config, Rejected, Request
from inferops.sim.model import Model

NINFER = load("ninfer")
LLAMA = load("llama-cpp")
READY, SILENT, REFUSED = Health(answer="ready", code=200), Health(answer="timeout"), Health(answer="refused")
HANG = Stats(answer="timeout", why="no answer in time")
KEPT = ("10.0.0.9:50001", "10.0.0.9:50002")  # a proxy's kept-alive connections
SAMPLED_S = 1.0  # how closely a world looks at itself between two polls
BOOT = "virtual"


@functools.lru_cache(maxsize=100_000)
def kind_of(line: str) -> str:
    return NINFER.journal_kind(line)


@dataclass
class Eyes:
    """What of a world is hidden or bent in the next polls: by name, until when (s)."""

    until: dict[str, float] = field(default_factory=dict)

    def on(self, name: str, t: float) -> bool:
        return t < self.until.get(name, -math.inf)


class World:
    """What both servers have: a unit with processes, clients, and eyes that may be covered."""

    patience: Patience

    def __init__(self, rng: random.Random, t: float) -> None:
        self.rng, self.t, self.eyes = rng, t, Eyes()
        self.pid, self.started, self.restarts = 100, t, 0
        self.up, self.stopping_t = True, -math.inf
        self.evidence_t = t  # of the last progress that a look could show: by lines and records when, else by the look
        self.strong_t = t  # the same without busy threads
        self.token_t, self._tokens = t, 0.0  # of the last look at which generated tokens had risen
        self._read = dict[str, float]()  # counters at the last look that read them
        self.work_t = math.inf  # since which look each one could see a request outstanding
        self.kept: tuple[str, ...] = KEPT if rng.random() < 0.5 else ()
        self.d_tids: tuple[int, ...] = ()
        self.injected_t = self.failed_t = t  # of what a proof does to it

    def new_process(self, t: float) -> None:
        self.pid, self.started, self.evidence_t, self.work_t, self.up = self.pid + 1, t, t, math.inf, True

    def outstanding(self) -> bool:
        """Whether anybody waits for anything."""
        raise NotImplementedError

    def unit(self) -> UnitSeen:
        if not self.up:
            return UnitSeen(active="inactive", sub="dead", restarts=self.restarts)
        return UnitSeen(active="active", sub="running", main_pid=self.pid, start_t=self.started, restarts=self.restarts)

    def covered(self, poll: Poll) -> Poll:
        """The poll as covered eyes see it; what of it shows progress is noted, by a rule of its own."""
        self.work_t = min(self.work_t, poll.t) if self.outstanding() else math.inf
        if poll.stats is not None and poll.stats.generated is not None:
            self.token_t = poll.t if poll.stats.generated > self._tokens else self.token_t
            self._tokens = poll.stats.generated
        counters = poll.stats.counters if poll.stats is not None and poll.stats.answer == "ok" else self._read
        moved = any(value > self._read.get(name, value) for name, value in counters.items())
        hot = poll.host is not None and poll.host.gpu is False and (poll.host.hot or 0) >= 2
        times = [poll.t] if moved else []
        times += [poll.journal.progress_t] if poll.journal is not None and poll.journal.progress_t is not None else []
        times += [poll.requests.done_t] if poll.requests is not None and poll.requests.done_t is not None else []
        self.strong_t, self._read = max(self.strong_t, *times, self.strong_t), dict(counters)
        self.evidence_t = max(self.evidence_t, self.strong_t, poll.t if hot else -math.inf)
        on = functools.partial(self.eyes.on, t=poll.t)
        if on("checker"):
            return Poll(t=poll.t, wall=poll.wall, checker="OSError: too many open files")
        lost = [
            part for part in ("journal", "clients", "stats", "health", "requests", "owner", "host", "unit") if on(part)
        ]
        if on("stranger"):
            poll = msgspec.structs.replace(
                poll, owner="other", stats=Stats(answer="ok", active=3, counters={"x": poll.t})
            )
        return msgspec.structs.replace(poll, **dict.fromkeys(lost)) if lost else poll


class NInfer(World):
    """The simulator's engine, read as the real one is: /stats by jq, lines by the patterns, and the request log."""

    patience = Patience(
        action="restart", canary_moves_at_most=NINFER.canary.moves_at_most, cpu_is_evidence=False,
        counters_move_in_prefill=False, stats_wait_for_engine=True, slowest_cadence_s=NINFER.slowest_cadence_s,
    )  # fmt: skip

    def __init__(self, rng: random.Random, t: float = 1000.0, logs: bool = True) -> None:
        super().__init__(rng, t)
        self.logs = logs
        self.arrivals_s = math.inf  # mean seconds between two requests
        self.jobs: dict[int, float] = {}
        self.failures: list[float] = []
        self.load_s = 2.0
        self.begin(t)

    def begin(self, t: float) -> None:
        """A process begins to load."""
        generation = self.rng.choice((1, 2))
        self.model = Model(Config(load_s=self.load_s, generation=generation), self.rng.getrandbits(32), now=t)
        self.journal, self.tally, self.listening = JournalSeen(), Tally(), False
        self.jobs.clear()
        self.next_t = t + self.load_s

    def new_process(self, t: float) -> None:
        super().new_process(t)
        self.begin(t)

    def ask(self, prompt: int, most: int) -> None:
        """One client sends a request and waits."""
        session = f"s{self.rng.randrange(20)}"
        try:
            self.jobs[self.model.submit(Request(prompt_tokens=prompt, max_tokens=most, session=session), self.t)] = (
                self.t
            )
        except Rejected:
            return

    def outstanding(self) -> bool:
        return bool(self.jobs)

    def leave(self, share: float) -> None:
        """That share of the clients loses patience."""
        for id in [id for id in self.jobs if self.rng.random() < share]:
            self.model.cancel(id, self.t)
            del self.jobs[id]

    def advance(self, to: float) -> None:
        """The server lives on until `to`, with whoever comes meanwhile."""
        while self.t < to:
            self.t = min(to, self.t + SAMPLED_S, max(self.next_t, self.t + 1e-3))
            self.model.advance(self.t)
            if self.model.dead is not None:
                return
            if not self.listening and self.model.ready(self.t):
                self.model.listen(self.t)
                self.listening = True
            if self.t >= self.next_t:
                self.next_t = (
                    self.t + self.rng.expovariate(1 / self.arrivals_s) if self.arrivals_s < math.inf else math.inf
                )
                if self.arrivals_s < math.inf and self.listening:
                    self.ask(int(self.rng.lognormvariate(6.5, 1.2)) + 10, self.rng.randint(5, 600))
            self._take()
            self.jobs = {id: t for id, t in self.jobs.items() if self.model.request(id).state not in ENDED}

    def _take(self) -> None:
        """What the follower of the journal and the reader of the request log would take in."""
        seen = {
            f"{name}_t": getattr(self.journal, f"{name}_t") for name in ("progress", "working", "ready", "fatal", "any")
        }
        lines = self.model.take_lines()
        for t, text in lines:
            kind = kind_of(text)
            seen["any_t"] = t
            if f"{kind}_t" in seen:
                seen[f"{kind}_t"] = t
        if lines:
            self.journal = JournalSeen(**seen)
        assert NINFER.requests is not None
        for record in self.model.take_records():
            row = NINFER.requests.read(record)
            if row is not None and row.kind is not None:
                if row.kind == "failed":
                    self.failures.append((row.t_ms or 0.0) / 1000)
                self.tally.take(row, (row.t_ms or 0.0) / 1000, count=True)

    def poll(self) -> Poll:
        m, t = self.model, self.t
        ready = self.up and self.listening
        health = READY if ready else REFUSED
        stats = Stats(answer="refused")
        if ready and m.holds_health(t):
            health = SILENT
        elif ready and m.health(t)[0] != 200:
            health = Health(answer="unavailable", code=503)
        if ready:
            stats = HANG if m.holds_stats(t) else merge([NINFER.stats[0].read(orjson.dumps(m.stats(t)), "/stats")])
        requests: RequestsSeen | None = self.tally.seen() if self.logs and self.up else None
        journal = msgspec.structs.replace(self.journal, stopping_t=self.stopping_t if self.stopping_t > 0 else None)
        return self.covered(Poll(
            t=t, wall=t + 1e9, unit=self.unit(), health=health, owner="unit" if ready else "nobody", stats=stats,
            instance=stats.instance, journal=journal, requests=requests, host=self.host(), gate=Gate(),
            clients=tuple(f"10.0.0.7:{40000 + id % 20000}" for id in self.jobs) + (self.kept if ready else ()),
        ))  # fmt: skip

    def host(self) -> HostSeen:
        return HostSeen(hot=self.rng.randrange(9), gpu=True, d_tids=self.d_tids)


class Llama(World):
    """A llama-server on CPU, two slots: one prompt at a time (stats hang meanwhile), then tokens."""

    patience = Patience(
        action="restart", canary_moves_at_most=LLAMA.canary.moves_at_most, cpu_is_evidence=True,
        stats_wait_for_engine=True, slowest_cadence_s=LLAMA.slowest_cadence_s,
    )  # fmt: skip

    def __init__(self, rng: random.Random, t: float = 1000.0, stale: bool = False) -> None:
        super().__init__(rng, t)
        self.stale = stale  # later builds answer /metrics at once, in a wedge with old values
        self.arrivals_s = math.inf
        self.tok_s, self.load_s = 40.0, 2.0
        self.begin(t)

    def begin(self, t: float) -> None:
        self.queue: list[tuple[float, int, bool]] = []  # (prompt seconds, tokens, whether its client waits)
        self.slots: list[list[float]] = []  # [prompt seconds left, tokens left, task, its client waits]
        self.calls, self.tasks, self.next_t = 0.0, 0, t + self.load_s
        self.progress_t: float | None = None
        self.stands = 0  # threads that a wedge keeps busy, -1: none stands
        self.broken = ""
        self.stalls_until = -math.inf
        self.answer = Stats(answer="ok", active=0, queued=0, free_slots=2, counters={"n_decode_total": 0.0})

    def new_process(self, t: float) -> None:
        super().new_process(t)
        self.begin(t)

    def ask(self, prefill_s: float, tokens: int) -> None:
        self.queue.append((prefill_s, tokens, True))

    def advance(self, to: float) -> None:
        while self.t < to:
            dt = min(to - self.t, SAMPLED_S)
            self.t += dt
            if self.t >= self.next_t:
                self.next_t = (
                    self.t + self.rng.expovariate(1 / self.arrivals_s) if self.arrivals_s < math.inf else math.inf
                )
                if self.arrivals_s < math.inf:
                    self.ask(self.rng.choice((0.2, 0.2, 1.0, 5.0, 40.0)), self.rng.randint(5, 400))
            if self.broken or self.t < self.stalls_until or not self.ready():
                continue
            while self.queue and len(self.slots) < 2:
                prefill, tokens, _ = self.queue.pop(0)
                self.tasks += 1
                self.slots.append([prefill, float(tokens), float(self.tasks), 1.0])
            self._work(dt)
            self.answer = self._stats()

    def _work(self, dt: float) -> None:
        prompt = next((slot for slot in self.slots if slot[0] > 0), None)
        if prompt is not None:
            prompt[0] -= dt
            if prompt[0] <= 0:
                self.calls += 1
                self.progress_t = self.t
            return
        for slot in self.slots:
            slot[1] -= dt * self.tok_s
            self.calls += dt * self.tok_s / len(self.slots)
        if any(slot[1] <= 0 for slot in self.slots):
            self.progress_t = self.t
        self.slots = [slot for slot in self.slots if slot[1] > 0]

    def outstanding(self) -> bool:
        return bool(self.slots or self.queue)

    def ready(self) -> bool:
        return self.up and self.t - self.started >= self.load_s

    def _stats(self) -> Stats:
        return Stats(answer="ok", active=len(self.slots), queued=len(self.queue), free_slots=2 - len(self.slots),
                     counters={"n_decode_total": float(int(self.calls))},
                     tasks=tuple(f"{slot[2]:.0f}" for slot in self.slots))  # fmt: skip

    def poll(self) -> Poll:
        t, ready = self.t, self.ready()
        prefill = any(slot[0] > 0 for slot in self.slots)
        standing = bool(self.broken) or t < self.stalls_until
        health = READY if ready else Health(answer="loading", code=503) if self.up else REFUSED
        stats = self.answer if ready else Stats(answer="loading")
        if ready and self.slots and not self.stale and (prefill or standing):
            stats = HANG
        if self.broken == "stopped":
            health, stats = SILENT, HANG
        hot = 0 if standing or not self.slots else 2
        if self.broken:
            hot = self.stands
        t_line = self.progress_t
        journal = JournalSeen(progress_t=t_line, any_t=t_line if t_line is not None else self.started,
                              ready_t=self.started + self.load_s if ready else None,
                              stopping_t=self.stopping_t if self.stopping_t > 0 else None)  # fmt: skip
        waiting = tuple(f"10.0.0.7:{40000 + slot[2]:.0f}" for slot in self.slots if slot[3])
        waiting += tuple(f"10.0.0.8:{30000 + n}" for n, item in enumerate(self.queue) if item[2])
        return self.covered(Poll(
            t=t, wall=t + 1e9, unit=self.unit(), health=health, owner="unit" if self.up else "nobody", stats=stats,
            journal=journal, clients=waiting + (self.kept if ready else ()), gate=Gate(),
            host=HostSeen(hot=hot, gpu=False, d_tids=self.d_tids),
        ))  # fmt: skip


class Watch:
    """The sentinel's loop around the policy, its actions answered by the world: a canary gets a token where a request
    would. A restart restarts the world's process unless `restarts_raise`."""

    def __init__(self, world: NInfer | Llama, patience: Patience | None = None, grid: float = 0.0) -> None:
        self.world, self.patience = world, patience or world.patience
        self.state, self.events, self.ledger = State(), list[Event](), budget.Ledger()
        self.restarts: list[float] = []
        self.actions: list[tuple[float, str]] = []
        self.polls, self._grid, self._pending = 0, world.t + grid, list[Done]()
        self.canary_s = 20.0
        self.token: Callable[[], bool] = lambda: False

    def run(self, until: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Polls on the grid and when a timer is due, as the sentinel does, until then or until `stop` says so."""
        while self.world.t < until and not stop():
            due, grid = armed.due_t(self.state, self.patience) + 0.01, self._next_grid()
            self.one(due if self.world.t < due < grid else grid)

    def _next_grid(self) -> float:
        poll_s = self.patience.poll_s
        return self._grid + (math.floor((self.world.t - self._grid) / poll_s + 1e-9) + 1) * poll_s

    def one(self, t: float) -> None:
        """The world lives on until `t`, then one poll of it is judged."""
        self.world.advance(t)
        ended = tuple(done for done in self._pending if done.t <= t)
        self._pending = [done for done in self._pending if done.t > t]
        poll = msgspec.structs.replace(self.world.poll(), done=ended)
        if poll.checker is None:
            poll = msgspec.structs.replace(poll, gate=Gate(held=budget.held(self.ledger)))
        result = step(self.state, poll, self.patience)
        self.state = result.state
        self.events += result.events
        self.polls += 1
        if result.action is not None:
            self.actions.append((t, result.action))
            self._answer(result.action, t)

    def _answer(self, action: Any, t: float) -> None:
        if action == "restart":
            self.restarts.append(t)
            entry = budget.Entry(boot=BOOT, t=t, wall=t, pid=self.world.pid)
            self.ledger = budget.counted(self.ledger, entry)
            self.world.new_process(t + 1.0)
            self._pending = [Done(kind="restart", result="ok", t=t + 1.0)]
            return
        took = {"capture": 6.0, "stacks": 1.0}.get(action, 1.0 if self.token() else self.canary_s)
        result = {"canary": "token" if self.token() else "none"}.get(action, "ok")
        self._pending = [Done(kind=action, result=result, t=t + took, pid=self.world.pid)]

    def told(self, kind: str, since: float = -math.inf) -> list[Event]:
        return [event for event in self.events if event.kind == kind and event.t >= since]
