"""Engine profiles: how to read one engine. A profile is a TOML file that carries its own samples; an engine is added by
adding a file, no code.

Loading refuses a pattern without a sample, a sample that is read otherwise than it says, a jq program that does not
compile, and a key that does not exist, each with file, line and key.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from inferops.core import finite, jq
from inferops.core.reading import (
    KINDS,
    Canary,
    Health,
    HealthRule,
    Journal,
    LineKind,
    Pattern,
    Profile,
    RequestRow,
    Requests,
    RequestSample,
    StatsRow,
    StatsSample,
    StatsSource,
    merge,
    regex,
    without_colour,
)
from inferops.core.typed import Keys, convert, dotted, locator, near, parse, read
from inferops.core.verdict import InferopsError, UsageError, escape

__all__ = [
    "KINDS",
    "Canary",
    "Health",
    "HealthRule",
    "Journal",
    "LineKind",
    "Pattern",
    "Profile",
    "RequestRow",
    "RequestSample",
    "Requests",
    "StatsRow",
    "StatsSample",
    "StatsSource",
    "builtin",
    "is_path",
    "load",
    "loads",
    "merge",
]

Where = Callable[[Keys], str]

# Repetition of a group that itself repeats, or two of them in a row over the same characters, backtracks without bound
# on a hostile line: (a+)+, (a|b*)*, .*.*
_NESTED = re.compile(r"[*+}]\??[^()\[\]]*\)\??(?:[*+]|\{\d*,)|\.[*+]\??(?:\(\??:?)?\.[*+]")


def is_path(name: str) -> bool:
    """True for the path of a profile, False for the name of a built-in one."""
    return "/" in name or name.endswith(".toml")


def builtin() -> tuple[str, ...]:
    """The names of the profiles that come with inferops."""
    files = resources.files("inferops").joinpath("profiles")
    return tuple(sorted(item.name.removesuffix(".toml") for item in files.iterdir() if item.name.endswith(".toml")))


def load(name_or_path: str) -> Profile:
    """A profile by built-in name or by path. Raises UsageError naming file, line, key and the sample that is read
    wrongly."""
    if is_path(name_or_path):
        return loads(read(Path(name_or_path), "the engine profile"), escape(name_or_path))
    if name_or_path not in builtin():
        raise UsageError(
            f"engine profile {escape(repr(name_or_path))}: no such built-in profile{near(name_or_path, builtin())}",
            f"built in: {', '.join(builtin())}; a file is named with a slash or .toml",
        )
    return loads(_builtin_text(name_or_path), f"{name_or_path}.toml")


@functools.lru_cache(maxsize=16)
def loads(text: str, name: str) -> Profile:
    """A profile from TOML text; `name` goes into errors. `extends = NAME` takes every top-level key that the text does
    not have from a built-in profile."""
    data = parse(text, name)
    where = locator(text, name)
    if "extends" in data:
        data, where = _extended(data, where)
    profile = convert(data, Profile, where)
    _check_health(profile, where)
    for kind in KINDS:
        for index, item in enumerate(profile.journal.of(kind)):
            _check_pattern(profile, kind, index, item, where)
    for index, source in enumerate(profile.stats):
        _check_source(source, index, where)
    _check_busy(profile, where)
    if profile.requests is not None:
        _check_requests(profile.requests, where)
    _check_canary(profile.canary, where)
    return profile


def _extended(data: dict[str, Any], where: Where) -> tuple[dict[str, Any], Where]:
    base = data.pop("extends")
    if base not in builtin():
        raise UsageError(
            f"{where(('extends',))}: extends: no built-in profile {escape(repr(base))}{near(str(base), builtin())}",
            f"built in: {', '.join(builtin())}",
        )
    text = _builtin_text(base)
    there = locator(text, f"{base}.toml")
    return parse(text, base) | data, lambda keys: where(keys) if not keys or keys[0] in data else there(keys)


def _builtin_text(name: str) -> str:
    return resources.files("inferops").joinpath("profiles", f"{name}.toml").read_text(encoding="utf-8")


def _refusal(where: Where, keys: Keys, said: str) -> UsageError:
    return UsageError(f"{where(keys)}: {dotted(keys)}: {said}", "correct the profile; its samples must hold")


def _check_health(profile: Profile, where: Where) -> None:
    for i, rule in enumerate(profile.health.rules):
        if (rule.code is None) == (rule.klass is None):
            raise _refusal(where, ("health", "rules", i), "expected exactly one of `code` and `class`")
        for j, earlier in enumerate(profile.health.rules[:i]):
            covers = earlier.code == rule.code if rule.code else earlier.klass == rule.klass
            covers = covers or (rule.code is not None and earlier.klass == rule.code // 100)
            if covers and (earlier.contains is None or earlier.contains == rule.contains):
                raise _refusal(where, ("health", "rules", i), f"never reached: rules[{j}] takes all of it")


def _check_pattern(profile: Profile, kind: LineKind, index: int, item: Pattern, where: Where) -> None:
    keys: Keys = ("journal", kind, index)
    if not item.pattern.startswith("^"):
        raise _refusal(
            where, (*keys, "pattern"), "expected it to begin with ^: words in a user's prompt must not be found"
        )
    if _NESTED.search(item.pattern):
        raise _refusal(
            where, (*keys, "pattern"), "repeats what already repeats: a hostile line could hold it up for ever"
        )
    try:
        compiled = regex(item.pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise _refusal(where, (*keys, "pattern"), f"no regex: {escape(str(error))}") from None
    for i, line in enumerate(item.hits):
        if compiled.search(without_colour(line)) is None:
            raise _refusal(where, (*keys, "hits", i), f"the pattern does not find it: {escape(repr(line))[:120]}")
        if (found := profile.journal_kind(line)) != kind:
            raise _refusal(where, (*keys, "hits", i), f"is read as {found}, not as {kind}: {escape(repr(line))[:120]}")
    for i, line in enumerate(item.misses):
        if compiled.search(without_colour(line)) is not None:
            raise _refusal(where, (*keys, "misses", i), f"the pattern finds it: {escape(repr(line))[:120]}")


def _check_source(source: StatsSource, index: int, where: Where) -> None:
    keys: Keys = ("stats", index)
    jq.compile(source.jq, f"{where((*keys, 'jq'))}: {dotted((*keys, 'jq'))}")
    for i, sample in enumerate(source.samples):
        try:
            row = source.read(sample.body, "sample")
        except InferopsError as error:
            raise _refusal(where, (*keys, "samples", i), str(error)) from None
        if (gives := plainly(row)) != sample.gives:
            raise _refusal(where, (*keys, "samples", i), f"expected {sample.gives}, got {gives}")


def _check_busy(profile: Profile, where: Where) -> None:
    known = {name for source in profile.stats for sample in source.samples for name in sample.gives.get("counters", {})}
    if profile.busy_counter and profile.busy_counter not in known:
        meant = near(profile.busy_counter, tuple(sorted(known)))
        said = f"no sample gives a counter {escape(repr(profile.busy_counter))}{meant}"
        raise _refusal(where, ("busy_counter",), said)


def _check_requests(requests: Requests, where: Where) -> None:
    jq.compile(requests.jq, f"{where(('requests', 'jq'))}: requests.jq")
    for i, sample in enumerate(requests.samples):
        keys: Keys = ("requests", "samples", i)
        try:
            row = requests.read(finite.loads(sample.record, "sample"))
        except InferopsError as error:
            raise _refusal(where, keys, str(error)) from None
        gives = {} if row is None else plainly(row)
        if gives != sample.gives:
            raise _refusal(where, keys, f"expected {sample.gives}, got {gives}")


def plainly(row: StatsRow | RequestRow) -> dict[str, Any]:
    """Keys and values of a row, without those of which it says nothing; as in TOML."""
    pairs = {key: value for key, value in msgspec.to_builtins(row).items() if value not in (None, {}, ())}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in pairs.items()}


def _check_canary(canary: Canary, where: Where) -> None:
    jq.compile(canary.token, f"{where(('canary', 'token'))}: canary.token")
    for key, samples, wanted in (("token_hits", canary.token_hits, True), ("token_misses", canary.token_misses, False)):
        for i, sample in enumerate(samples):
            keys: Keys = ("canary", key, i)
            try:
                said = canary.has_token(finite.loads(sample, "sample"))
            except InferopsError as error:
                raise _refusal(where, keys, str(error)) from None
            if said is not wanted:
                raise _refusal(
                    where, keys, f"canary.token says {said}, expected {wanted}: {escape(repr(sample))[:120]}"
                )
