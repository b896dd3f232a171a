"""The simulator's HTTP: the API port, and the stats port with its one thread. Starlette over a Driver."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Asked
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from inferops.core import finite
from inferops.core.verdict import BlindError
from inferops.sim.driver import Driver
from inferops.sim.jobs import ENDED, Job, Rejected, Request
from inferops.sim.protocols import PROTOCOLS, BadRequest, Protocol, event, request_of, words

TICK_S = 0.02
BODY_MAX_BYTES = 8 << 20  # the context in words is 2 MiB; 20 MB once took 1.5 GB and 8 s
KEEP_ALIVE_S = 5.0  # of a stream without a token, then a comment
HELD_S = 0.05  # how often a handler that waits for the engine looks again


def apps(driver: Driver) -> tuple[Starlette, Starlette]:
    """The application of the API port and that of the stats port."""

    async def held(by: Callable[[float], bool]) -> None:
        # What it waits for is a time, a stop, or never
        while by(time.monotonic()) and not driver.model.stopping:  # noqa: ASYNC110
            await asyncio.sleep(HELD_S)

    async def health(_: Asked) -> Response:
        await held(driver.model.holds_health)
        with driver.at() as (model, now):
            code, body = model.health(now)
        return JSONResponse(body, code)

    one_at_a_time = asyncio.Lock()

    async def stats(_: Asked) -> Response:
        async with one_at_a_time:
            await held(driver.model.holds_stats)
            with driver.at() as (model, now):
                return JSONResponse(model.stats(now))

    async def models(_: Asked) -> Response:
        await held(lambda _: driver.model.silent())
        return JSONResponse({"object": "list", "data": [{"id": "sim", "object": "model", "owned_by": "inferops"}]})

    def asked(protocol: Protocol) -> Callable[[Asked], Any]:
        async def answer(got: Asked) -> Response:
            try:
                body = await _body(got)
            except (ClientDisconnect, asyncio.CancelledError):  # the server stops, and half of it is all there is
                return Response(status_code=499)
            await held(lambda _: driver.model.silent())
            if body is None:
                why = f"expected a body of at most {BODY_MAX_BYTES:,} bytes"
                return JSONResponse(protocol.error(413, "request_too_large", why), 413)
            return await _answer(driver, protocol, got, body)

        return answer

    posts = [Route(path, asked(protocol), methods=["POST"]) for path, protocol in PROTOCOLS.items()]
    main = Starlette(routes=[Route("/health", health), Route("/v1/models", models), *posts])
    return main, Starlette(routes=[Route("/stats", stats)])


async def _body(got: Asked) -> bytes | None:
    """What was sent; None if that is too much, and read to its end all the same: who still sends reads no answer."""
    body, size = bytearray(), 0
    async for part in got.stream():
        size += len(part)
        if size <= BODY_MAX_BYTES:
            body += part
    return bytes(body) if size <= BODY_MAX_BYTES else None


def _parsed(body: bytes, protocol: str) -> Request:
    return request_of(finite.loads(body, "the body"), protocol)


async def _answer(driver: Driver, protocol: Protocol, got: Asked, body: bytes) -> Response:
    try:
        request = await asyncio.to_thread(_parsed, body, protocol.name)  # /stats goes on meanwhile
        id = driver.submit(request)
    except (BadRequest, BlindError) as e:
        return JSONResponse(protocol.error(400, "invalid_request_error", str(e)), 400)
    except Rejected as e:
        return JSONResponse(protocol.error(e.status, e.kind, e.message), e.status)
    if request.stream:
        return StreamingResponse(_stream(driver, protocol, id), media_type="text/event-stream")
    job = driver.model.request(id)
    try:
        while job.state not in ENDED:
            if await got.is_disconnected():
                break
            await asyncio.sleep(TICK_S)
    finally:
        driver.cancel(id)
    if job.state == "done":
        return JSONResponse(protocol.whole(job, words(job, 0, job.tokens_out)))
    return JSONResponse(protocol.error(job.status, _kind(job), job.error), job.status or 500)


async def _stream(driver: Driver, protocol: Protocol, id: int) -> AsyncIterator[bytes]:
    """The events of one answer; a client that leaves cancels it."""
    job, sent, last = driver.model.request(id), 0, time.monotonic()
    try:
        for data in protocol.begin(job):
            yield data
        while True:
            ended, made = job.state in ENDED, job.tokens_out
            if made > sent:
                yield protocol.piece(job, words(job, sent, made))
                sent, last = made, time.monotonic()
            if ended:
                break
            if time.monotonic() - last >= KEEP_ALIVE_S and not driver.model.silent():
                yield b": keep-alive\n\n"
                last = time.monotonic()
            await asyncio.sleep(TICK_S)
        if job.state != "done":
            yield event(protocol.error(job.status, _kind(job), job.error), "error" if protocol.name != "openai" else "")
            return
        for data in protocol.end(job):
            yield data
    finally:
        driver.cancel(id)


def _kind(job: Job) -> str:
    return "request_queue_timeout" if job.status == 408 else "internal_error"
