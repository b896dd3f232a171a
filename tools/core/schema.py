"""The settings there are: one Struct a table, each key with its type, unit, default and help. Files, INFEROPS_*
variables and flags are all read against this."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import msgspec.inspect as mi
from msgspec import Meta

# A pause or a bound of more than 30 days is a slip of the unit (milliseconds), not a wish.
_MAX_S = 30 * 86_400.0


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of each table: immutable, unknown keys refused."""


Text = Annotated[str, Meta(min_length=1, max_length=4096)]


class Live(_Table, frozen=True, kw_only=True):
    """The live server: the unit that serves people, and how to ask it."""

    unit: Annotated[str, Meta(min_length=1, max_length=255, description="the systemd unit that serves people")]
    engine: Annotated[Text, Meta(description="engine profile: a built-in name, or the path of a .toml")] = "llama-cpp"
    url: Annotated[Text, Meta(description="its base URL, with the port")] = "http://127.0.0.1:8080"
    stats_url: Annotated[
        Text | None, Meta(description="base URL of its stats, elsewhere [the profile's port, then the url]")
    ] = None
    request_log: Annotated[Text | None, Meta(description="the engine's request log, JSON Lines, if it writes one")] = (
        None
    )
    api_key_file: Annotated[Text | None, Meta(description="file that holds the API key, not readable by others")] = None


class Sentinel(_Table, frozen=True, kw_only=True):
    """How patient the sentinel is, and what it may do. All times in seconds."""

    action: Annotated[Literal["alert", "restart"], Meta(description="what a wedge leads to")] = "alert"
    poll_s: Annotated[float, Meta(ge=0.2, le=_MAX_S, description="seconds between two polls")] = 10.0
    probe_deadline_s: Annotated[
        float, Meta(ge=0.05, le=_MAX_S, description="seconds one probe may take, under the poll's")
    ] = 5.0
    stall_s: Annotated[float, Meta(gt=0, le=_MAX_S, description="seconds of work without progress before a wedge")] = (
        150.0
    )
    load_max_s: Annotated[float, Meta(gt=0, le=_MAX_S, description="seconds a process may take until it is ready")] = (
        900.0
    )
    cpu_only_max_s: Annotated[
        float, Meta(gt=0, le=_MAX_S, description="seconds for which hot threads alone count as progress")
    ] = 3600.0
    relief_max_s: Annotated[
        float, Meta(gt=0, le=_MAX_S, description="seconds for which lines of a worked queue alone count as progress")
    ] = 600.0
    request_max_s: Annotated[
        float, Meta(gt=0, le=_MAX_S, description="age in seconds at which a request is told as starved")
    ] = 900.0
    idle_canary_s: Annotated[
        Annotated[float, Meta(ge=60, le=_MAX_S)] | None,
        Meta(description="seconds between two canaries on an idle-looking server [off]"),
    ] = None
    look_polls: Annotated[int, Meta(ge=1, le=100, description="polls to look again before the next step")] = 2
    canary: Annotated[
        bool, Meta(description="send one bounded request before a restart, where the profile allows it")
    ] = True
    canary_deadline_s: Annotated[
        Annotated[float, Meta(gt=0, le=_MAX_S)] | None,
        Meta(description="seconds for the canary's token [the profile's]"),
    ] = None
    stacks: Annotated[bool, Meta(description="take stacks with gdb before a restart")] = True
    stacks_deadline_s: Annotated[float, Meta(gt=0, le=3600.0, description="seconds gdb may hold the server")] = 20.0
    kill_after_s: Annotated[
        Annotated[float, Meta(gt=0, le=_MAX_S)] | None,
        Meta(description="seconds a wedged unit may take to stop until it gets SIGKILL [its TimeoutStopSec]"),
    ] = None
    capture_gap_s: Annotated[
        float, Meta(ge=0, le=3600.0, description="seconds between a capture's two looks at /proc")
    ] = 5.0


class Captures(_Table, frozen=True, kw_only=True):
    """What is kept of captures; whichever bound is met first."""

    dir: Annotated[Text | None, Meta(description="directory of captures [captures under the state directory]")] = None
    max_count: Annotated[int, Meta(ge=1, le=10_000, description="captures kept")] = 20
    max_bytes: Annotated[int, Meta(ge=1_000_000, le=10**15, description="bytes kept in all captures")] = 2_000_000_000
    max_days: Annotated[int, Meta(ge=1, le=36_500, description="days a capture is kept")] = 30


class Settings(_Table, frozen=True, kw_only=True):
    live: Live
    sentinel: Sentinel = Sentinel()
    captures: Captures = Captures()


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One setting, found from the Structs: "sentinel.stall_s", its plain type, its help and its default."""

    dotted: str
    type: type[str] | type[float] | type[int] | type[bool]
    choices: tuple[str, ...]
    help: str
    default: Any  # msgspec.NODEFAULT where it is required

    @property
    def env(self) -> str:
        return "INFEROPS_" + self.dotted.replace(".", "_").upper()

    @property
    def flag(self) -> str:
        """--stall of sentinel.stall_s: the name without its unit; captures keep their table: `dir` says little."""
        table, name = self.dotted.split(".")
        words = name.removesuffix("_s").replace("_", "-")
        return f"--captures-{words}" if table == "captures" else f"--{words}"


def _keys() -> dict[str, Key]:
    found = {}
    tables = mi.type_info(Settings)
    assert isinstance(tables, mi.StructType)
    for table in tables.fields:
        assert isinstance(table.type, mi.StructType)
        for field in table.type.fields:
            kind, text = _plain(field.type)
            choices = tuple(map(str, kind.values)) if isinstance(kind, mi.LiteralType) else ()
            plain: dict[type[mi.Type], Any] = {mi.FloatType: float, mi.IntType: int, mi.BoolType: bool}
            name = f"{table.encode_name}.{field.encode_name}"
            found[name] = Key(
                dotted=name, type=plain.get(type(kind), str), choices=choices, help=text, default=field.default
            )
    return found


def _plain(kind: mi.Type) -> tuple[mi.Type, str]:
    """The type without `| None`, and the description that stands beside it."""
    text = ""
    while isinstance(kind, mi.Metadata | mi.UnionType):
        if isinstance(kind, mi.Metadata):
            text = text or (kind.extra_json_schema or {}).get("description", "")
            kind = kind.type
        else:
            kind = next(member for member in kind.types if not isinstance(member, mi.NoneType))
    return kind, text


KEYS: dict[str, Key] = _keys()
TABLES: tuple[str, ...] = tuple(dict.fromkeys(key.split(".")[0] for key in KEYS))
