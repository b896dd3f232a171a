"""What an engine profile holds, and how an answer, a stats body, a log line or a request-log record is read by it. The
files are read and checked in profile.py."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from inferops.core import finite, jq, promtext
from inferops.core.poll import HealthAnswer, Stats
from inferops.core.verdict import BlindError, escape

LineKind = Literal["progress", "working", "ready", "fatal", "failed", "own", "other"]
# the order in which a line is asked
KINDS: tuple[LineKind, ...] = ("own", "fatal", "failed", "progress", "working", "ready")
EndKind = Literal["start", "done", "failed", "other"]
MAX_LINE_CHARS = 4096  # of a log line; what tells its kind stands at its start
MAX_NOTE_CHARS = 200  # of what a stats program says to people: names that the server chose

_SGR = re.compile(r"\x1b\[[0-9;]{0,16}m")  # llama-server --log-colors on puts them around the time and the level


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of each table: immutable, unknown keys refused."""


Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Count = Annotated[int, Meta(ge=0)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
UrlPath = Annotated[str, Meta(pattern=r"^/[!-~]{0,200}$")]


class HealthRule(_Part, frozen=True, kw_only=True):
    """One answer of the health path: an exact `code` or a `class` (5 for 5xx), and what it `means`. The first match
    counts."""

    code: Annotated[int, Meta(ge=100, le=599)] | None = None
    klass: Annotated[int, Meta(ge=1, le=5)] | None = msgspec.field(default=None, name="class")
    contains: Annotated[str, Meta(min_length=1)] | None = None
    means: Literal["ready", "loading", "busy", "unavailable", "odd"]


class Health(_Part, frozen=True, kw_only=True):
    path: UrlPath
    rules: Annotated[tuple[HealthRule, ...], Meta(min_length=1)]

    def means(self, code: int, body: str) -> HealthAnswer:
        """What an answer says; "odd" where no rule knows it. Also tells a stats path that says the model is loading."""
        for rule in self.rules:
            if (rule.code == code or rule.klass == code // 100) and (rule.contains is None or rule.contains in body):
                return rule.means
        return "odd"


class StatsSample(_Part, frozen=True, kw_only=True):
    """A body of the endpoint, and what the program makes of it: keys and values of a StatsRow."""

    body: str
    gives: dict[str, Any]


class StatsRow(_Part, frozen=True, kw_only=True):
    """What one endpoint said, in the words of poll.Stats. None: it says nothing about that. Counters move up only when
    the engine works. `note`: for people, what in the answer this profile does not know."""

    active: Count | None = None
    queued: Count | None = None
    stuck: Count | None = None
    free_slots: Count | None = None
    counters: dict[str, float | None] = {}
    open: Count | None = None
    ended: Count | None = None
    generated: Annotated[float, Meta(ge=0)] | None = None
    tasks: tuple[str, ...] = ()
    instance: Name | None = None
    note: str | None = None


GAUGES = ("active", "queued", "stuck", "free_slots", "open", "ended", "generated")


class StatsSource(_Part, frozen=True, kw_only=True):
    """A stats endpoint. `jq` maps its document (JSON, or promtext's JSON of Prometheus text) to a StatsRow object.

    `waits_for_engine`: the endpoint answers only between two engine steps: it times out in a long step as in a wedge.
    `required`: without it the stats are not usable; `missing` says what to do where the server answers 404 or 501."""

    path: UrlPath
    format: Literal["prometheus", "json"]
    jq: str
    waits_for_engine: bool
    required: bool = True
    missing: str
    samples: Annotated[tuple[StatsSample, ...], Meta(min_length=1)]

    def read(self, body: bytes | str, what: str) -> StatsRow:
        """The row of a 200 body. Raises BlindError, one clear line, for HTML, half a JSON, NaN, or a wrong shape."""
        text = body if isinstance(body, str) else body.decode("utf-8", "replace")
        if self.format == "json":
            document, odd = finite.loads(text, what), frozenset[str]()
        else:
            document, odd = promtext.to_json(text, what)
        if said := sorted(name for name in odd if name in self.jq):
            raise BlindError(f"{what}: {escape(', '.join(said))} is NaN or infinite, expected a finite number")
        row = jq.compile(self.jq, f"{what}: jq").first(document)
        try:
            found = msgspec.convert(row, StatsRow)
        except msgspec.ValidationError as error:
            raise BlindError(f"{what}: not the stats this profile expects: {escape(str(error))}") from None
        counters = {name: value for name, value in found.counters.items() if value is not None}
        if not counters and all(getattr(found, name) is None for name in GAUGES):
            raise BlindError(f"{what}: nothing in it that this profile knows", "is it the stats path of this engine?")
        note = None if found.note is None else escape(found.note)[:MAX_NOTE_CHARS]
        return msgspec.structs.replace(found, counters=counters, note=note)


class Pattern(_Part, frozen=True, kw_only=True):
    """A regex for one kind of log line, `why` it is that, lines that it finds and lines that it must not."""

    pattern: Annotated[str, Meta(min_length=2, max_length=500)]
    why: Annotated[str, Meta(min_length=1)]
    hits: Annotated[tuple[str, ...], Meta(min_length=1)]
    misses: Annotated[tuple[str, ...], Meta(min_length=1)]


class Journal(_Part, frozen=True, kw_only=True):
    """Lines by kind. `working`: a queue is being worked though no token moves (an arrival is none); `failed`: a request
    ended in a server's error, a 5xx (a client's error is none)."""

    progress: Annotated[tuple[Pattern, ...], Meta(min_length=1)]
    working: tuple[Pattern, ...] = ()
    ready: tuple[Pattern, ...] = ()
    fatal: tuple[Pattern, ...] = ()
    failed: tuple[Pattern, ...] = ()
    own: tuple[Pattern, ...] = ()

    def of(self, kind: LineKind) -> tuple[Pattern, ...]:
        """The patterns of one kind; other lines have none."""
        found: tuple[Pattern, ...] = () if kind == "other" else getattr(self, kind)
        return found


class RequestRow(_Part, frozen=True, kw_only=True):
    """What one record of the request log says. `kind` None: nothing of a request, only that its `instance` writes;
    `t_ms`: Unix time in ms."""

    instance: Name | None = None
    id: Name | None = None
    kind: EndKind | None = None
    tokens: Count | None = None
    t_ms: float | None = None


class RequestSample(_Part, frozen=True, kw_only=True):
    """A record of the log, and what it is read as: keys and values of a RequestRow; none where it is passed over."""

    record: str
    gives: dict[str, Any]


class Requests(_Part, frozen=True, kw_only=True):
    """How to read the engine's request log, JSON Lines: `jq` maps a record to a RequestRow object, {} or null to pass
    it over."""

    jq: str
    samples: Annotated[tuple[RequestSample, ...], Meta(min_length=1)]

    def read(self, record: object) -> RequestRow | None:
        """One record, None where it is passed over. An end without a token is no `done`. Raises BlindError, one clear
        line, where the program fails on it or gives another shape."""
        row = jq.compile(self.jq, "requests.jq").first(record)
        if row is None or row == {}:
            return None
        try:
            found = msgspec.convert(row, RequestRow)
        except msgspec.ValidationError as error:
            raise BlindError(f"not a record that this profile expects: {escape(str(error))}") from None
        return msgspec.structs.replace(found, kind="other") if found.kind == "done" and not found.tokens else found


class Canary(_Part, frozen=True, kw_only=True):
    """The one bounded request. `token`: jq over one SSE data object (or a whole JSON body), true once content came."""

    allowed: bool
    path: UrlPath
    body: dict[str, Any]
    token: str
    token_hits: Annotated[tuple[str, ...], Meta(min_length=1)]
    token_misses: Annotated[tuple[str, ...], Meta(min_length=1)]
    deadline_s: Seconds
    moves_at_most: Annotated[float, Meta(ge=0)]  # by how much any one counter may rise through it

    def has_token(self, event: object) -> bool:
        """True where this event (a parsed JSON object) carries generated content. Raises BlindError where jq fails."""
        return jq.compile(self.token, "canary.token").first(event) is True


class Profile(_Part, frozen=True, kw_only=True):
    """One engine. Times in seconds; `stall_why` and the whys are for people. `counters_move_in_prefill`: in any healthy
    work, however long, `busy_counter` moves, or one counter at least where none is named; `counter_digits`: they are
    printed with so many digits; `stats_port`: where the stats are if no setting says."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]{0,40}$")]
    stall_min_s: Seconds
    stall_why: Annotated[str, Meta(min_length=1)]
    slowest_cadence_s: Seconds
    cpu_is_evidence: bool
    counters_move_in_prefill: bool
    busy_counter: str = ""
    counter_digits: Annotated[int, Meta(ge=0, le=17)] = 0
    health: Health
    stats_port: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    stats: tuple[StatsSource, ...]
    journal: Journal
    requests: Requests | None = None
    canary: Canary

    def journal_kind(self, line: str) -> LineKind:
        """Which kind of line this message is: own (our probing causes it) | fatal | … | other, the first of KINDS."""
        text = without_colour(line)
        for kind in KINDS:
            if any(regex(item.pattern).search(text) for item in self.journal.of(kind)):
                return kind
        return "other"


def merge(rows: Sequence[StatsRow]) -> Stats:
    """The rows of all endpoints of one poll as one Stats, their notes as its `why`; where two say the same thing, the
    first counts."""

    def first(name: str) -> Any:
        return next((value for row in rows if (value := getattr(row, name)) not in (None, ())), None)

    counters = {key: value for row in reversed(rows) for key, value in row.counters.items() if value is not None}
    return Stats(
        answer="ok", counters=counters, tasks=first("tasks") or (), instance=first("instance"),
        why="; ".join(row.note for row in rows if row.note), **{name: first(name) for name in GAUGES},
    )  # fmt: skip


def without_colour(line: str) -> str:
    """The beginning of a log line, without terminal colours."""
    return _SGR.sub("", line[:MAX_LINE_CHARS])


@functools.lru_cache(maxsize=256)
def regex(pattern: str) -> re.Pattern[str]:
    """The compiled pattern; it must match from the start of the line on."""
    return re.compile(pattern, re.ASCII)
