"""Asks the live server over HTTP how it is: health, stats, and the one canary request.

Each exchange, from the connect to the last byte, has one hard deadline and a bounded body; what a server sends is
data, never an exception. No proxy, no redirect, no connection kept: ours must not look like a client that waits.
Blind to: a server that answers to loopback otherwise than to people, and every port but the one it is given.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import httpx
import msgspec

from inferops.core import finite
from inferops.core.poll import Done, Health, Stats
from inferops.core.profile import Profile, StatsRow, StatsSource, merge
from inferops.core.schema import Live
from inferops.core.settings import read_api_key
from inferops.core.verdict import BlindError, InferopsError, escape

BODY_MAX_BYTES = 1 << 20  # vLLM's /metrics is 49 kB, llama-server's /slots of 64 slots under 200 kB
SHOWN_BYTES = 40  # of what came instead: enough to tell an HTML page from half a JSON
WORDS_MAX = 160  # of what an exception or an error event says
# refused tells less than a wrong answer: it is the same for every path of a port
STATS_ORDER = ("loading", "timeout", "bad", "refused")
DIALECT = {"json": "JSON", "prometheus": "Prometheus text"}


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer; `body` at most BODY_MAX_BYTES, our API key blotted out. `latency_s`: since the connect."""

    path: str
    code: int
    content_type: str
    body: bytes
    latency_s: float


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """No whole answer came. `code` where at least a status line did."""

    path: str
    kind: Literal["timeout", "refused", "bad"]
    why: str
    latency_s: float
    code: int | None = None


def read_health(got: Reply | Fault, profile: Profile) -> Health:
    """The health answer as the profile means it; refused, timeout and everything that is no whole answer are apart."""
    latency = round(got.latency_s, 4)
    if isinstance(got, Fault):
        answer: Any = "odd" if got.kind == "bad" else got.kind
        return Health(answer=answer, code=got.code, latency_s=latency)
    means = profile.health.means(got.code, got.body.decode("utf-8", "replace"))
    return Health(answer=means, code=got.code, latency_s=latency)


def read_stats(got: Reply | Fault, source: StatsSource, profile: Profile) -> StatsRow | Stats:
    """One endpoint's row, or why there is none: a Stats with one clear line."""
    if isinstance(got, Fault):
        return Stats(answer=got.kind, why=got.why)
    body, wanted = got.body, DIALECT[source.format]
    if got.code != 200:
        if profile.health.means(got.code, body.decode("utf-8", "replace")) == "loading":
            return Stats(answer="loading", why=f"{got.path}: the model is loading")
        hints = {404: source.missing, 501: source.missing, 401: "set live.api_key_file", 403: "set live.api_key_file"}
        hint = hints.get(got.code, "look at it with curl")
        return Stats(
            answer="bad", why=f"{got.path}: expected 200 with {wanted}, got {got.code} with {_came(got)}; {hint}"
        )
    if "html" in got.content_type.lower() or body.lstrip()[:1] == b"<":
        hint = "is live.stats_url (or live.url) the engine's own port?"
        return Stats(answer="bad", why=f"{got.path}: expected {wanted}, got {_came(got)}; {hint}")
    try:
        return source.read(body, got.path)
    except InferopsError as e:
        hint = e.hint or "look at it with curl: is it this engine, and the profile for it?"
        came = f"({_kind(got)})" if ", got " in str(e) else f"in {_came(got)}"
        return Stats(answer="bad", why=f"{e} {came}; {hint}")


def join(found: Sequence[StatsRow | Stats], sources: Sequence[StatsSource]) -> Stats:
    """All endpoints of one poll as one answer. Any row makes it ok, with what is bad beside it in `why`; an endpoint
    that the profile can do without and the server has switched off is not bad."""
    rows = [one for one in found if isinstance(one, StatsRow)]
    poor = [(one, source) for one, source in zip(found, sources, strict=True) if isinstance(one, Stats)]
    if rows:
        said = [one.why for one, source in poor if source.required or source.missing not in one.why]
        return msgspec.structs.replace(merge(rows), why="; ".join(said))
    if not poor:
        return Stats(answer="bad", why="the profile names no stats endpoint")
    answer = next(kind for kind in STATS_ORDER if any(one.answer == kind for one, _ in poor))
    return Stats(answer=answer, why="; ".join(dict.fromkeys(one.why for one, _ in poor)))  # type: ignore[arg-type]


def _came(got: Reply) -> str:
    if not got.body:
        return f"an empty body ({_kind(got)})"
    start = escape(repr(got.body[:SHOWN_BYTES].decode("utf-8", "replace")))
    return f"{len(got.body):,} bytes of {_kind(got)} starting {start}"


def _kind(got: Reply) -> str:
    return escape(got.content_type[:60]) or "no content type"


def event_of(line: str) -> tuple[str, str]:
    """(field, value) of one line of a server-sent event stream; a comment's field is empty."""
    name, _, value = line.partition(":")
    return name, value.removeprefix(" ")


# --- edge


class Prober:
    """Probes one server. Of each kind at most one probe is outstanding: a second call meanwhile is a RuntimeError.
    Cancelling a probe closes its socket. Raises UsageError: the API key can't be read.
    """

    def __init__(self, profile: Profile, live: Live, deadline_s: float) -> None:
        self._profile, self._deadline_s = profile, deadline_s
        self._base, self._stats_base = live.url, live.stats_url or live.url
        self._key = read_api_key(live)
        # identity: a compressed body could unpack to any size; close: a kept connection would hold one of its threads
        headers = {"Accept-Encoding": "identity", "Connection": "close", "User-Agent": "inferops"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        https = any(url.startswith("https") for url in (self._base, self._stats_base))
        self._client = httpx.AsyncClient(
            headers=headers, trust_env=False, follow_redirects=False, timeout=httpx.Timeout(None), verify=https
        )
        self._outstanding: set[str] = set()

    def __repr__(self) -> str:
        return f"Prober({self._base!r}, {self._profile.name!r})"

    async def health(self) -> Health:
        """The health path, read by the profile's rules."""
        with self._alone("health"):
            return read_health(await self._get(self._base, self._profile.health.path), self._profile)

    async def stats(self) -> Stats:
        """Every stats endpoint of the profile at once, merged."""
        with self._alone("stats"):
            sources = self._profile.stats
            got = await asyncio.gather(*(self._get(self._stats_base, source.path) for source in sources))
            read = [read_stats(one, source, self._profile) for one, source in zip(got, sources, strict=True)]
            return join(read, sources)

    async def bodies(self) -> tuple[Reply | Fault, ...]:
        """What health and each stats endpoint answer, raw, in the profile's order, health first (for a capture)."""
        with self._alone("bodies"):
            asked = [(self._base, self._profile.health.path)]
            asked += [(self._stats_base, source.path) for source in self._profile.stats]
            return tuple(await asyncio.gather(*(self._get(base, path) for base, path in asked)))

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

    async def _get(self, base: str, path: str) -> Reply | Fault:
        began, code = time.monotonic(), None

        def fault(kind: Literal["timeout", "refused", "bad"], why: str) -> Fault:
            return Fault(path=path, kind=kind, why=why, latency_s=time.monotonic() - began, code=code)

        try:
            async with asyncio.timeout(self._deadline_s), self._client.stream("GET", base + path) as response:
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
