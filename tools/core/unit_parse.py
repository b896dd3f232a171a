"""What systemctl says of a unit, as data: names, properties, time spans, starts, cgroup hierarchies. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from inferops.core.verdict import BlindError, UsageError, escape

# systemd.unit(5): what a unit's name is made of. Anything else systemctl would escape or take as a glob or an option.
_NAME = re.compile(r"[A-Za-z0-9:_.\\][A-Za-z0-9:_.\\@-]*")
_NAME_MAX = 255
_OTHER_TYPES = ("socket", "target", "timer", "mount", "automount", "swap", "path", "slice", "scope", "device")

PROPERTIES = (
    "Id", "LoadState", "ActiveState", "SubState", "Result", "MainPID", "ExecMainStartTimestampMonotonic", "NRestarts",
    "ControlGroup", "InvocationID", "NeedDaemonReload", "TimeoutStartUSec", "TimeoutStopUSec", "Restart", "Type",
)  # fmt: skip

# systemd.time(7), as systemctl prints it: "1min 30s", "1.500s"; a month is 30.44 days, a year 365.25
_SPAN_S = {
    "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0,
    "month": 2629800.0, "y": 31557600.0,
}  # fmt: skip
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|min|h|d|w|month|y)")

TICK_S = 0.01  # the kernel tells a process's start in ticks of USER_HZ, 100 on every architecture now
SUSPENDED_S = 1.0  # systemd notes a start within milliseconds of the fork: where it seems later, a suspend was since
WORDS_MAX = 200  # of what systemctl said, in one line


class UnitState(msgspec.Struct, frozen=True, kw_only=True):
    """systemd's view at one moment. `name` is the unit's own, also where an alias was asked for. `start_t`: the main
    process's start (the last one's, where none runs), seconds on BOOTTIME, the same at every look; None if none ever
    started. A timeout of None is infinity."""

    name: str
    load: str
    active: str
    sub: str
    result: str
    main_pid: int
    start_t: float | None
    restarts: int
    control_group: str
    invocation_id: str
    need_daemon_reload: bool
    timeout_start_s: float | None
    timeout_stop_s: float | None
    restart: str
    unit_type: str


def full_name(name: str) -> str:
    """`name` with `.service` where it has no unit suffix. Raises UsageError: not a name of one service unit."""
    if not _NAME.fullmatch(name) or len(name) > _NAME_MAX:
        what = "empty" if not name else f"{escape(name[:80])!r}"
        raise UsageError(f"unit name {what}: expected a systemd service such as llama.service", "systemctl list-units")
    stem, _, suffix = name.rpartition(".")
    if stem and suffix in _OTHER_TYPES:
        raise UsageError(f"unit {name}: expected a .service, got a .{suffix}", "name the service that runs the server")
    name = name if stem and suffix == "service" else f"{name}.service"
    if name.removesuffix(".service").endswith("@"):
        raise UsageError(f"unit {name}: a template runs nothing", f"name an instance, as {name.replace('@', '@NAME')}")
    return name


def parse(text: str, wanted: Iterable[str]) -> dict[str, str]:
    """The properties of one `systemctl show`. A value may hold `=` and newlines: a line that begins with no wanted
    name goes on with the value before. Raises BlindError: one is missing or there twice (then a value forged it)."""
    names = frozenset(wanted)
    found: dict[str, str] = {}
    last = ""
    for line in text.removesuffix("\n").split("\n"):
        name, equals, value = line.partition("=")
        if not equals or name not in names:
            if last:
                found[last] += f"\n{line}"
            continue
        if name in found:
            raise BlindError(f"systemctl show: {name} is there twice, expected once", "look at `systemctl show` of it")
        found[name], last = value, name
    missing = sorted(names - found.keys())
    if missing:
        raise BlindError(f"systemctl show: no {', '.join(missing)} in its answer", "systemd 250 or newer is needed")
    return found


def span_s(text: str) -> float | None:
    """Seconds of a time span as systemctl prints it; None for infinity. Raises BlindError: not a time span."""
    if text == "infinity":
        return None
    total = 0.0
    for word in text.split():
        match = _SPAN.fullmatch(word)
        if match is None and word != "0":
            raise BlindError(f"systemctl show: {escape(text[:40])!r}, expected a time span such as 1min 30s")
        total += float(match[1]) * _SPAN_S[match[2]] if match else 0.0
    return round(total, 6)


def started_t(started_s: float, offset_s: float, born_t: float | None) -> float:
    """A main process's start on BOOTTIME: systemd's time of it (MONOTONIC s), to the microsecond, so that "Stopping" of
    the run before lies before it. Where a suspend came since, what the kernel says of the process (`born_t`, to 10 ms).
    """
    converted = started_s + offset_s
    return converted if born_t is None or born_t > converted - SUSPENDED_S else born_t + TICK_S


def state(values: dict[str, str], start_t: float | None) -> UnitState:
    """A UnitState from the properties."""
    return UnitState(
        name=values["Id"], load=values["LoadState"], active=values["ActiveState"], sub=values["SubState"],
        result=values["Result"], main_pid=number(values, "MainPID"), start_t=start_t,
        restarts=number(values, "NRestarts"), control_group=values["ControlGroup"],
        invocation_id=values["InvocationID"], need_daemon_reload=values["NeedDaemonReload"] == "yes",
        timeout_start_s=span_s(values["TimeoutStartUSec"]), timeout_stop_s=span_s(values["TimeoutStopUSec"]),
        restart=values["Restart"], unit_type=values["Type"],
    )  # fmt: skip


def number(values: dict[str, str], name: str) -> int:
    """A property as a number. Raises BlindError: it is none."""
    if not values[name].isdecimal():
        raise BlindError(f"systemctl show: {name}={escape(values[name][:40])}, expected a number")
    return int(values[name])


def hierarchies(mountinfo: str) -> list[tuple[str, str]]:
    """(mount point, the cgroup it shows) of where systemd keeps its units: v2, alone or beside v1, then v1's own."""
    unified, legacy = [], []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        root, mount = (re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), field) for field in left.split(" ")[3:5])
        if kind == "cgroup2":
            unified.append((mount, root))
        elif kind == "cgroup" and "name=systemd" in options.split(","):
            legacy.append((mount, root))
    return unified + legacy


def words(text: str) -> str:
    """What systemctl said, in one printable line of at most 200 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("See ")]
    line = escape("; ".join(lines[:2])) or "no reason given"
    return line if len(line) <= WORDS_MAX else line[: WORDS_MAX - 1] + "…"
