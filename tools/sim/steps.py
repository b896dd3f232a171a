"""How time passes in the simulated engine: from one event to the next, exact whatever the distance. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from inferops.sim import said
from inferops.sim.jobs import Job

if TYPE_CHECKING:
    from inferops.sim.model import Model

DECODE_BESIDE_PREFILL = 0.5  # of the rate: a prefill takes its share of each step
SOON_S = 1e-6  # is now: a clock of 1.8e9 s (Unix time) has steps of 2.4e-7 s, and no event may fall between two

ROUNDS_TOKENS = 0.01  # less than that short of a token is a token: a step of that clock is 6e-4 of them


def one(m: Model, now: float) -> bool:
    """The next step towards `now`; False once it is reached."""
    _admit(m)
    then = min(now, max(m.t, min(_events(m))))
    _run(m, then - m.t)
    m.t = max(m.t, then)
    _happen(m)
    return then < now


def _admit(m: Model) -> None:
    """Takes the head of the queue towards a lane, unless something that is broken keeps it there."""
    b = m.broken
    blocked = b.frozen or b.no_admission or m.t < b.relief_until
    lanes = 1 if b.runaway else m.config.lanes
    if blocked or m.between is not None or not m.queue or len(m.running) >= lanes:
        return
    m.between = job = m.queue.popleft()
    job.state, job.t_admit = "materializing", m.t


def _head(m: Model) -> Job | None:
    """The one request whose prompt is being read."""
    return next((job for job in m.running if job.state == "prefilling"), None)


def _decode_tok_s(m: Model) -> float:
    return m.config.decode_tok_s * (DECODE_BESIDE_PREFILL if _head(m) is not None else 1.0)


def _expires(m: Model) -> bool:
    """Whether the engine gives up on what waits too long: only where it still looks at its queue."""
    return bool(m.queue) and not (m.broken.no_admission or m.broken.stuck) and m.t >= m.broken.relief_until


def _deadline(m: Model) -> float:
    """When the head of the queue has waited too long; while pages were freed for it, the engine was at it."""
    return max(m.queue[0].t_submit, m.broken.relief_until) + m.config.queue_deadline_s


def _events(m: Model) -> Iterator[float]:
    """When something happens next by itself."""
    b = m.broken
    yield b.dies_t
    if b.frozen:
        return
    yield m.tick_t
    if m.queue and m.t < b.relief_until:
        yield min(b.relief_t, b.relief_until)
    if _expires(m):
        yield _deadline(m)
    if m.between is not None and not b.stuck:
        yield (m.between.t_admit or 0.0) + m.config.materialize_s
    if (head := _head(m)) is not None:
        yield m.t + head.left / head.speed
    each = _decode_tok_s(m)
    yield from (m.t + (job.wants - job.made) / each for job in m.running if job.state == "decoding")


def _run(m: Model, dt: float) -> None:
    """`dt` seconds of work in which nothing begins or ends."""
    if dt <= 0 or m.broken.frozen:
        return
    each = _decode_tok_s(m)
    if (head := _head(m)) is not None:
        head.left -= dt * head.speed
        m.work[0] += dt * head.speed
    decoding = [job for job in m.running if job.state == "decoding"]
    for job in decoding:
        made = min(dt * each, job.wants - job.made)
        job.made += made
        m.work[1] += made
        m.counters["committed_decode_tokens"] += made
    if decoding:
        m.work[2] += dt * each
        m.counters["decode_rounds"] += dt * each
        m.counters["decode_row_rounds"] += dt * each * len(decoding)


def _happen(m: Model) -> None:
    """What begins or ends at this moment."""
    b = m.broken
    if m.t >= b.dies_t:
        m.dead = b.dies_as
        return
    if b.frozen:
        return
    if m.queue and b.relief_t <= m.t < b.relief_until:
        free = int(m.t) % 997
        m.say(f"[relief-kv] released 32 pages, free {free}, wanted {free + 640}")
        m.say(f"[admission] queued KV block head={m.queue[0].id} free={free}")
        b.relief_t = m.t + b.relief_every_s
    if m.between is not None and not b.stuck and m.t >= (m.between.t_admit or 0.0) + m.config.materialize_s - SOON_S:
        _place(m, m.between)
    while _expires(m) and m.t >= _deadline(m) - SOON_S:
        m.end(m.queue[0], "failed", status=408, error="request_queue_timeout")
    if (head := _head(m)) is not None and head.left <= SOON_S * head.speed:
        m.work[0] += head.left
        m.counters["computed_prefill_tokens"] += head.request.prompt_tokens - head.cached
        head.state = "decoding"
        if b.failing < 1:
            m.counters["committed_decode_tokens"] += 1
            head.t_first, head.made = m.t, 1.0
            b.stale = None  # the first token of a request makes the gauges anew
    for job in [job for job in m.running if job.state == "decoding"]:
        if b.failing >= 1:
            b.failing -= 1
            m.end(job, "failed", status=500, error="internal error")
        elif (job.wants - job.made) <= SOON_S * m.config.decode_tok_s:
            rest = max(0.0, job.wants - job.made)
            job.made += rest
            m.counters["committed_decode_tokens"] += rest
            m.end(job, "done")
    if m.t >= m.tick_t - SOON_S:
        _report(m)


def _place(m: Model, job: Job) -> None:
    """From materialization into a lane."""
    b = m.broken
    if b.sticks:
        b.stuck = True
        return
    m.between = None
    m.reused += job.cached
    job.state, job.left = "prefilling", float(max(1, job.request.prompt_tokens - job.cached))
    job.speed = m.config.prefill_tok_s
    if b.slow_prefill_s:
        job.speed, b.slow_prefill_s = job.left / b.slow_prefill_s, 0.0
    if b.runaway and not any(one.endless for one in m.running):
        job.endless = True
    if b.mixes:
        others = (one for one in (*(one.marker for one in m.running), m.spoke) if one and one != job.marker)
        job.marker = next(others, job.marker)
    m.running.append(job)
    if b.freezes_prefill:
        b.frozen = True


def _report(m: Model) -> None:
    """The rate line of the interval that ends now, in the journal and in the request log; none for an idle one."""
    seconds, (prefilled, decoded, rounds) = m.t - m.since_t, m.work
    busy = bool(m.running or m.queue or m.between)
    prefilled = float(int(prefilled + ROUNDS_TOKENS))  # the rest is the next line's: they add up to the prompt
    m.since_t, m.work = m.t, [m.work[0] - prefilled, 0.0, 0.0]
    m.tick_t = m.t + m.config.throughput_s if busy else math.inf
    if busy or prefilled or decoded:
        m.say(said.throughput(m.config.generation, seconds, prefilled, decoded, rounds, m.gauges()))
        m.log("throughput", prefill_tok_s=round(prefilled / seconds, 1), decode_tok_s=round(decoded / seconds, 1))
