"""What came back from the server's health and stats paths, and what it means. Pure; probe.py asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from inferops.core.poll import Health, Stats
from inferops.core.profile import Profile, StatsRow, StatsSource, merge
from inferops.core.verdict import InferopsError, escape

SHOWN_BYTES = 40  # of what came instead: enough to tell an HTML page from half a JSON
# refused tells less than a wrong answer: it is the same for every path of a port
STATS_ORDER = ("loading", "timeout", "bad", "refused")
DIALECT = {"json": "JSON", "prometheus": "Prometheus text"}


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer; `body` at most probe.BODY_MAX_BYTES, our API key blotted out. `latency_s`: since the connect."""

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
        merged = merge(rows)
        return msgspec.structs.replace(merged, why="; ".join([*said, *filter(None, [merged.why])]))
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


def elsewhere(found: Sequence[Reply | Fault]) -> bool:
    """Whether the stats may be on another port: nothing listens on this one, or it knows none of their paths."""
    return all(one.code == 404 if isinstance(one, Reply) else one.kind == "refused" for one in found)
