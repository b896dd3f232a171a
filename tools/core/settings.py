"""inferops.toml + INFEROPS_* variables + flags -> one typed Settings, with where each value came from.

A flag beats a variable, a variable beats the file, the file beats the default. Nothing that is given is dropped: an
unknown key, variable or flag is an error with the near one. The keys are in schema.py, the flags in flags.py.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from inferops.core import profile as profiles
from inferops.core.flags import ROUTES, config_option, local_option, option, output_option, routed, routed_options
from inferops.core.profile import Profile
from inferops.core.schema import KEYS, TABLES, Captures, Live, Sentinel, Settings
from inferops.core.typed import convert, dotted, known_only, locator, near, parse, read, without_waiting
from inferops.core.verdict import UsageError, escape

__all__ = [
    "ROUTES",
    "Captures",
    "Live",
    "Resolved",
    "Sentinel",
    "Settings",
    "config_option",
    "load",
    "local_option",
    "option",
    "output_option",
    "read_api_key",
    "routed",
    "routed_options",
]

FILE_NAME = "inferops.toml"
SYSTEM_FILE = Path("/etc") / FILE_NAME
# Variables that are no setting of a table; a new one that looks like one is named here, or `load` refuses it.
OTHER_VARIABLES = ("INFEROPS_CONFIG", "INFEROPS_STATE_DIR", "INFEROPS_RUN_DIR")
# INFEROPS_SENTINAL_STALL_S is 0.96 of its right name; INFEROPS_UNIT, a journal field, is 0.84 of INFEROPS_LIVE_UNIT.
NEAR = 0.9
MAX_API_KEY_BYTES = 16_384

Origin = dict[str, str]


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in force. `origin` has for each dotted key: "default", "FILE:LINE", the variable or the flag."""

    settings: Settings
    origin: Origin
    profile: Profile
    path: Path | None


def load(
    *, config: Path | None = None, flags: Mapping[str, object] | None = None, environ: Mapping[str, str], cwd: Path
) -> Resolved:
    """Resolve everything. `flags`: {dotted key: value}, None for not given (flags.routed makes it).

    Raises UsageError, one line: where (FILE:LINE, variable or flag), key, expected, got, the near key.
    """
    path = _find(config, environ, cwd)
    tables: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
    origin: Origin = dict.fromkeys(KEYS, "default")
    if path is not None:
        _take_file(path, tables, origin)
    _take_environ(environ, tables, origin)
    _take_flags(flags or {}, tables, origin)
    if origin["live.unit"] == "default":
        seen = (
            f"{escape(str(path))} does not set it"
            if path
            else f"no {FILE_NAME} from {escape(str(cwd))} upward or in /etc"
        )
        raise UsageError(
            f"live.unit: required, but not set: {seen}", "give --unit, INFEROPS_LIVE_UNIT, or unit = … under [live]"
        )
    settings = convert(tables, Settings, lambda keys: origin.get(dotted(keys), "settings"))
    settings = _absolute(settings, origin, path, cwd)
    profile = _profile(settings.live.engine, origin["live.engine"])
    _check(settings, profile, origin)
    return Resolved(settings=settings, origin=origin, profile=profile, path=path)


def read_api_key(live: Live) -> str | None:
    """The key in live.api_key_file, None where none is set. No error of this function holds any part of the key.

    Raises UsageError where the file is missing, readable by others, or not one line of printable ASCII.
    """
    if live.api_key_file is None:
        return None
    name = f"live.api_key_file: {escape(live.api_key_file)}"
    try:
        with open(live.api_key_file, "rb", opener=without_waiting) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise UsageError(f"{name}: expected a regular file", "name the file that holds the key")
            if about.st_mode & stat.S_IROTH:
                raise UsageError(
                    f"{name}: mode {stat.S_IMODE(about.st_mode):04o} lets everyone read the key, expected 0600 or 0640",
                    "chmod o= on it, and change the key if others had access",
                )
            data = file.read(MAX_API_KEY_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{name}: cannot be read: {error.strerror}", "check the path and its rights") from None
    if not re.fullmatch(rb"[!-~]{1,%d}\r?\n?" % (MAX_API_KEY_BYTES - 2), data):
        raise UsageError(f"{name}: expected one line of printable ASCII without spaces ({len(data)} bytes read)", "")
    return data.decode("ascii").rstrip("\r\n")


def _find(config: Path | None, environ: Mapping[str, str], cwd: Path) -> Path | None:
    if config is not None:
        return cwd / config
    if named := environ.get("INFEROPS_CONFIG"):
        return cwd / named
    for directory in (cwd, *cwd.parents):
        # lexists: a dangling link or a loop of links is an error to be told, not a file to be passed over
        if os.path.lexists(path := directory / FILE_NAME):
            _trusted(path, environ)
            return path
    return SYSTEM_FILE if os.path.lexists(SYSTEM_FILE) else None


def _trusted(path: Path, environ: Mapping[str, str]) -> None:
    """A file that was merely found (in /tmp, say) must be ours: it names the unit that gets restarted."""
    try:
        about = path.stat()
    except OSError:
        return  # reading it says why
    owners = {0, os.geteuid()} | {int(uid) for uid in (environ.get("SUDO_UID", ""),) if uid.isdecimal()}
    if about.st_uid not in owners or about.st_mode & stat.S_IWOTH:
        why = "belongs to another user" if about.st_uid not in owners else "is writable by everyone"
        raise UsageError(
            f"{escape(str(path))}: {why}, so it is not taken unasked", f"name it: --config {escape(str(path))}"
        )


def _take_file(path: Path, tables: dict[str, dict[str, Any]], origin: Origin) -> None:
    name = escape(str(path))
    text = read(path, "the settings file")
    data = parse(text, name)
    where = locator(text, name)
    known_only(data, Settings, where)
    for table, pairs in data.items():
        if not isinstance(pairs, dict):
            raise UsageError(
                f"{where((table,))}: {table}: expected a table, [{table}]", "put its keys under that header"
            )
        for key, value in pairs.items():
            tables[table][key] = value
            origin[f"{table}.{key}"] = where((table, key))


def _take_environ(environ: Mapping[str, str], tables: dict[str, dict[str, Any]], origin: Origin) -> None:
    names = {key.env: key for key in KEYS.values()}
    known = (*names, *OTHER_VARIABLES)
    tables_of = tuple(f"INFEROPS_{table.upper()}_" for table in TABLES)
    for variable, text in sorted(environ.items()):
        if not variable.startswith("INFEROPS_") or variable in OTHER_VARIABLES:
            continue
        key = names.get(variable)
        if key is None and not variable.startswith(tables_of) and not get_close_matches(variable, known, 1, NEAR):
            continue  # not meant for us, as far as can be told
        if key is None:
            raise UsageError(f"{escape(variable)}: unknown variable{near(variable, known)}", "unset it")
        table, name = key.dotted.split(".")
        tables[table][name] = _typed(text, key.type, variable, key.dotted)
        origin[key.dotted] = variable


def _typed(text: str, kind: type[str] | type[float] | type[int] | type[bool], variable: str, key: str) -> object:
    if kind is str:
        return text
    wanted = {float: "a finite number", int: "a whole number", bool: "true or false"}[kind]
    try:
        if kind is bool:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.strip().lower()]
        value: float = float(text) if kind is float else int(text)
        if math.isfinite(value):
            return value
    except (ValueError, KeyError, OverflowError):
        pass
    raise UsageError(f"{variable}: {key}: expected {wanted}, got {escape(repr(text))[:60]}", "")


def _take_flags(flags: Mapping[str, object], tables: dict[str, dict[str, Any]], origin: Origin) -> None:
    by_key = {key: flag for flag, key in ROUTES.items()}
    for key, value in flags.items():
        if key not in KEYS:
            raise UsageError(f"flag for {escape(key)}: no such setting{near(key, tuple(KEYS))}", "")
        if value is None:
            continue
        flag = by_key[key] if value is not False else f"--no-{by_key[key].removeprefix('--')}"
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{flag}: {key}: expected a finite number, got {value}", "")
        table, name = key.split(".")
        tables[table][name] = value
        origin[key] = flag


def _absolute(settings: Settings, origin: Origin, path: Path | None, cwd: Path) -> Settings:
    """Relative paths of the file count from the file, all others from `cwd`; the unit gets its .service."""

    def place(key: str, value: str | None) -> str | None:
        base = path.parent if path is not None and origin[key].startswith(f"{escape(str(path))}:") else cwd
        return None if value is None else str(base / value)

    live = settings.live
    unit = live.unit if "." in live.unit else f"{live.unit}.service"
    if not re.fullmatch(r"[A-Za-z0-9_:][A-Za-z0-9_:.@\\-]*\.service", unit):  # a leading dash would be an option
        raise UsageError(f"{origin['live.unit']}: live.unit: expected NAME.service, got {escape(repr(live.unit))}", "")
    engine = place("live.engine", live.engine) if profiles.is_path(live.engine) else live.engine
    live = msgspec.structs.replace(
        live, unit=unit, engine=engine, api_key_file=place("live.api_key_file", live.api_key_file),
        request_log=place("live.request_log", live.request_log),
        url=_url(live.url, "live.url", origin), stats_url=_url(live.stats_url, "live.stats_url", origin),
    )  # fmt: skip
    captures = msgspec.structs.replace(settings.captures, dir=place("captures.dir", settings.captures.dir))
    return msgspec.structs.replace(settings, live=live, captures=captures)


def _url(url: str | None, key: str, origin: Origin) -> str | None:
    """http(s)://HOST:PORT[/PREFIX] without a trailing slash. What stood before an @ is in no message."""
    if url is None:
        return None
    where = f"{origin[key]}: {key}"
    if "@" in url:  # before anything else looks at it: its errors would quote a piece of the password
        raise UsageError(f"{where}: credentials in a URL end up in logs", "use live.api_key_file")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{where}: expected a URL like http://127.0.0.1:8080: {escape(str(error))[:60]}", "") from None
    clean = re.fullmatch(r"[!-~]+", url) is not None and not parts.query and not parts.fragment
    if parts.scheme not in ("http", "https") or not parts.hostname or not port or not clean:
        raise UsageError(
            f"{where}: expected http(s)://HOST:PORT like http://127.0.0.1:8080, got {escape(repr(url))[:100]}", ""
        )
    return url.rstrip("/")


def _profile(engine: str, origin: str) -> Profile:
    try:
        return profiles.load(engine)
    except UsageError as error:
        raise UsageError(f"{origin}: live.engine: {error}", error.hint) from None


def _check(settings: Settings, profile: Profile, origin: Origin) -> None:
    """What one key alone cannot tell."""
    sentinel = settings.sentinel

    def said(key: str, value: float) -> str:
        return f"{key} = {value:g} ({origin[key]})"

    if sentinel.probe_deadline_s >= sentinel.poll_s:
        raise UsageError(
            f"{said('sentinel.probe_deadline_s', sentinel.probe_deadline_s)}: expected less than "
            f"{said('sentinel.poll_s', sentinel.poll_s)}: a probe must end before the next poll",
            "shorten the deadline or poll less often",
        )
    if settings.live.request_log is not None and profile.requests is None:
        raise UsageError(
            f"{origin['live.request_log']}: live.request_log: profile {profile.name} does not say how to read one",
            "leave it out, or add [requests] to a profile of your own",
        )
    if sentinel.stall_s < profile.stall_min_s:
        raise UsageError(
            f"{said('sentinel.stall_s', sentinel.stall_s)}: expected at least {profile.stall_min_s:g}, the stall_min_s "
            f"of profile {profile.name}: {profile.stall_why}; a shorter stall would restart a healthy server",
            "raise it, or for a demo name a profile with a smaller stall_min_s in live.engine",
        )
