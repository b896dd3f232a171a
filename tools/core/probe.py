"""Asks the live server over HTTP how it is: health, stats, and the one canary request.

Each exchange, from the connect to the last byte, has one hard deadline and a bounded body; what a server sends is
data, never an exception. No proxy, no redirect, no connection kept: ours must not look like a client that waits.
Blind to: a server that answers to loopback otherwise than to people, and every port but those it is given.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
import msgspec

from inferops.core import finite
from inferops.core.answers import Fault, Reply, elsewhere, join, read_health, read_stats
from inferops.core.poll import Done, Health, Stats
from inferops.core.profile import Profile, StatsRow
from inferops.core.schema import Live
from inferops.core.settings import read_api_key
from inferops.core.verdict import BlindError, InferopsError, escape

__all__ = ["BODY_MAX_BYTES", "Fault", "Prober", "Reply", "join", "read_health", "read_stats", "stats_bases"]

BODY_MAX_BYTES = 1 << 20  # vLLM's /metrics is 49 kB, llama-server's /slots of 64 slots under 200 kB
WORDS_MAX = 160  # of what an exception or an error event says


def event_of(line: str) -> tuple[str, str]:
    """(field, value) of one line of a server-sent event stream; a comment's field is empty."""
    name, _, value = line.partition(":")
    return name, value.removeprefix(" ")


def stats_bases(live: Live, profile: Profile) -> list[str]:
    """The URLs under which the stats may be, the likeliest first: the setting alone where it is given, else the
    profile's own port on the live server's host and the live server's."""
    if live.stats_url is not None or profile.stats_port is None:
        return [live.stats_url or live.url]
    parts = urlsplit(live.url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return list(dict.fromkeys((f"{parts.scheme}://{host}:{profile.stats_port}", live.url)))


# --- edge


class Prober:
    """Probes one server. Of each kind at most one probe is outstanding: a second call meanwhile is a RuntimeError.
    Cancelling a probe closes its socket. Raises UsageError: the API key can't be read.
    """

    def __init__(self, profile: Profile, live: Live, deadline_s: float) -> None:
        self._profile, self._deadline_s = profile, deadline_s
        self._base = live.url
        self._stats_bases = stats_bases(live, profile)  # the one that answered last comes first
        self._key = read_api_key(live)
        # identity: a compressed body could unpack to any size; close: a kept connection would hold one of its threads
        headers = {"Accept-Encoding": "identity", "Connection": "close", "User-Agent": "inferops"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        https = any(url.startswith("https") for url in (self._base, *self._stats_bases))
        self._client = httpx.AsyncClient(
            headers=headers, trust_env=False, follow_redirects=False, timeout=httpx.Timeout(None), verify=https
        )
        self._outstanding: set[str] = set()
        self.notes: tuple[str, ...] = ()  # what in the last stats the profile does not know, for people

    def __repr__(self) -> str:
        return f"Prober({self._base!r}, {self._profile.name!r})"

    async def health(self) -> Health:
        """The health path, read by the profile's rules."""
        with self._alone("health"):
            return read_health(await self._get(self._base, self._profile.health.path, self._until()), self._profile)

    async def stats(self) -> Stats:
        """Every stats endpoint of the profile at once, merged; of the first port that has them."""
        with self._alone("stats"):
            got = await self._stats_replies()
        sources = self._profile.stats
        rows = [
            [read_stats(one, source, self._profile) for one, source in zip(replies, sources, strict=True)]
            for replies in got.values()
        ]
        self.notes = tuple(row.note for row in rows[0] if isinstance(row, StatsRow) and row.note)
        read = [join(row, sources) for row in rows]
        if len(read) == 1:
            return read[0]
        whys = [f"port {urlsplit(base).port}: {one.why}" for base, one in zip(got, read, strict=True)]
        worst = next((one for one in read if one.answer == "bad"), read[0])
        return msgspec.structs.replace(worst, why="; ".join(whys))

    async def bodies(self) -> tuple[Reply | Fault, ...]:
        """What health and each stats endpoint answer, raw, in the profile's order, health first (for a capture)."""
        with self._alone("bodies"):
            asked = self._get(self._base, self._profile.health.path, self._until())
            health, got = await asyncio.gather(asked, self._stats_replies())
            return (health, *list(got.values())[-1])

    @property
    def stats_port(self) -> int | None:
        """The port whose stats count now."""
        return urlsplit(self._stats_bases[0]).port

    def disown(self, port: int) -> None:
        """The stats of `port` are not the server's: another port, if there is one, is asked first from now on."""
        self._stats_bases.sort(key=lambda base: urlsplit(base).port == port)

    async def _stats_replies(self) -> dict[str, tuple[Reply | Fault, ...]]:
        """Base URL -> what its endpoints answer: the one that has them, or all where none has."""
        until, found = self._until(), dict[str, tuple[Reply | Fault, ...]]()
        for base in self._stats_bases:
            asked = [self._get(base, source.path, until) for source in self._profile.stats]
            found[base] = tuple(await asyncio.gather(*asked))
            if not elsewhere(found[base]):
                self._stats_bases.remove(base)
                self._stats_bases.insert(0, base)
                return {base: found[base]}
        return found

    def _until(self) -> float:
        return asyncio.get_running_loop().time() + self._deadline_s

    async def canary(self, deadline_s: float) -> Done:
        """One bounded request. `token`: content came; `none`: none did within `deadline_s` seconds; `inconclusive`: the
        server said something else, or nothing answers at all; `not-sent`: the profile forbids it."""
        with self._alone("canary"):
            if not self._profile.canary.allowed:
                return _done("not-sent", "the profile allows no canary")
            try:
                async with asyncio.timeout(deadline_s):
                    return _done(*await self._canary())
            except TimeoutError:
                return _done("none", f"no token in {deadline_s:g} s")
            except (httpx.HTTPError, OSError) as e:
                return _done("inconclusive", self._broken(self._profile.canary.path, e, None))
            except InferopsError as e:
                return _done("inconclusive", str(e))

    async def aclose(self) -> None:
        await self._client.aclose()

    @contextmanager
    def _alone(self, kind: str) -> Iterator[None]:
        if kind in self._outstanding:
            raise RuntimeError(f"a {kind} probe is outstanding: two of a kind never are")
        self._outstanding.add(kind)
        try:
            yield
        finally:
            self._outstanding.discard(kind)

    async def _get(self, base: str, path: str, until: float) -> Reply | Fault:
        began, code = time.monotonic(), None

        def fault(kind: Literal["timeout", "refused", "bad"], why: str) -> Fault:
            return Fault(path=path, kind=kind, why=why, latency_s=time.monotonic() - began, code=code)

        try:
            async with asyncio.timeout_at(until), self._client.stream("GET", base + path) as response:
                code = response.status_code
                body = b"".join([part async for part in _parts(response, path)])
        except TimeoutError:
            return fault("timeout", f"{path}: no whole answer in {self._deadline_s:g} s")
        except BlindError as e:
            return fault("bad", str(e))
        except (httpx.HTTPError, OSError) as e:
            return fault("refused" if _refused(e) else "bad", self._broken(path, e, code))
        if self._key is not None:
            body = body.replace(self._key.encode(), b"[api key]")
        kind = response.headers.get("content-type", "")
        return Reply(path=path, code=code, content_type=kind, body=body, latency_s=time.monotonic() - began)

    async def _canary(self) -> tuple[str, str]:
        canary = self._profile.canary
        async with self._client.stream("POST", self._base + canary.path, json=canary.body) as response:
            if response.status_code != 200:
                return "inconclusive", f"{canary.path}: answered {response.status_code}"
            if "text/event-stream" not in response.headers.get("content-type", ""):
                body = b"".join([part async for part in _parts(response, canary.path)])
                said = self._judge(finite.loads(body, canary.path))
                return said or ("inconclusive", f"{canary.path}: no token in its answer")
            async for name, value in _events(response, canary.path):
                if name not in ("data", "error") or value.strip() == "[DONE]":
                    continue
                event = finite.loads(value, canary.path)
                said = self._judge({"error": event} if name == "error" else event)
                if said is not None:
                    return said
        return "inconclusive", f"{canary.path}: the stream ended without a token"

    def _judge(self, event: Any) -> tuple[str, str] | None:
        """What one event decides; None: the next one will tell."""
        path = self._profile.canary.path
        if isinstance(event, dict) and event.get("error") is not None:
            return "inconclusive", f"{path}: an error event: {self._words(str(event['error']))}"
        return ("token", "") if self._profile.canary.has_token(event) else None

    def _broken(self, path: str, error: Exception, code: int | None) -> str:
        if _refused(error):
            return f"{path}: connection refused"
        after = f" after {code}" if code is not None else ""
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return f"{path}: the exchange broke{after}: {self._words(words)}"

    def _words(self, text: str) -> str:
        """A server's own words, or an exception's that may hold them, in one bounded line without our key."""
        return escape(text.replace(self._key, "[api key]") if self._key else text)[:WORDS_MAX]


async def _parts(response: httpx.Response, path: str) -> AsyncIterator[bytes]:
    """The body as it is sent. Raises BlindError: compressed though we asked for it plain, or over BODY_MAX_BYTES."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", ""):
        raise BlindError(f"{path}: expected a plain body, got content-encoding {escape(encoding[:40])}; is it a proxy?")
    size = 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > BODY_MAX_BYTES:
            kind = escape(response.headers.get("content-type", "")[:60])
            hint = "is that port the engine's own?"
            raise BlindError(f"{path}: expected at most {BODY_MAX_BYTES:,} bytes, got more of {kind}; {hint}")
        yield part


async def _events(response: httpx.Response, path: str) -> AsyncIterator[tuple[str, str]]:
    """Each line of an event stream as (field, value)."""
    rest = b""
    async for part in _parts(response, path):
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield event_of(line.decode("utf-8", "replace"))


def _refused(error: BaseException) -> bool:
    """Whether somewhere down the chain the kernel said ECONNREFUSED (a name with two addresses gives a group)."""
    todo: list[BaseException | None] = [error]
    for one in todo:
        if isinstance(one, ConnectionRefusedError):
            return True
        if one is not None:
            todo += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
    return False


def _done(result: str, why: str) -> Done:
    return Done(kind="canary", result=result, t=time.clock_gettime(time.CLOCK_BOOTTIME), why=why)
