"""A TOML file -> a msgspec Struct; each error says file, line, key, expected, got, and the near key."""

from __future__ import annotations

import difflib
import math
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import msgspec.inspect as mi

from inferops.core.toml_lines import locate
from inferops.core.verdict import UsageError, escape

MAX_BYTES = 1 << 20  # a settings file or a profile is a few KB; a wrong file named by mistake may be a model
_RIGHTS = "check the path and its rights"
_WRONG = "is it the file that you meant?"

_PLAIN = (  # msgspec's words -> ours; a quoted type may carry a bound, `float >= 0.2`
    ("`float", "a number"),
    ("`int", "a whole number"),
    ("`str", "text"),
    ("`bool", "true or false"),
    ("`object", "a table"),
    ("`array", "an array"),
    (" | null", ""),
    ("`", ""),
)

T = TypeVar("T")
Keys = tuple[str | int, ...]


def read(path: Path, what: str) -> str:
    """The text of a regular UTF-8 file of at most MAX_BYTES. Raises UsageError with one line on everything else."""
    name = escape(str(path))
    try:
        with open(path, "rb", opener=without_waiting) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise UsageError(f"{name}: {what} is not a regular file, expected a TOML file", "name the file itself")
            if about.st_size > MAX_BYTES:
                raise UsageError(f"{name}: {what} has {about.st_size:,} bytes, at most {MAX_BYTES:,} are read", _WRONG)
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{name}: {what} cannot be read: {error.strerror}", _RIGHTS) from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name}: {what} grew over {MAX_BYTES:,} bytes while it was read", _WRONG)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{name}:{line}: {what} is not UTF-8: byte {data[error.start]:#04x} at offset {error.start}",
            "save it as UTF-8",
        ) from None


def without_waiting(path: str, flags: int) -> int:
    """An opener for open() that a FIFO does not hold up."""
    return os.open(path, flags | os.O_NONBLOCK)


def parse(text: str, name: str) -> dict[str, Any]:
    """TOML text -> data; NaN and infinity are refused. `name` (a path) goes into errors."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"^(.*?) \(at (?:line (\d+), column (\d+)|end of document)\)$", str(error), re.DOTALL)
        said, line = (found[1], found[2]) if found else (str(error), None)
        line = line or str(text.count("\n") + 1)
        raise UsageError(f"{name}:{line}: not TOML: {escape(said)}", "correct that line") from None
    except (RecursionError, ValueError) as error:
        raise UsageError(f"{name}: not TOML that can be read: {type(error).__name__}", "correct the file") from None
    for keys, value in _leaves(data, ()):
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{name}:{locate(text, keys)}: {dotted(keys)}: expected a finite number, got {value}", "")
    return data


def convert(data: Mapping[str, Any], kind: type[T], where: Callable[[Keys], str]) -> T:
    """Data of a TOML file -> `kind`. Raises UsageError "WHERE: key: expected …, got …"; `where` gives a path's WHERE,
    as FILE:LINE from `locator`."""
    known_only(data, kind, where)
    try:
        return msgspec.convert(data, kind, strict=True)
    except msgspec.ValidationError as error:
        said, keys = complaint(error)
        if said.startswith("invalid enum value"):
            said = f"expected one of {', '.join(_choices(mi.type_info(kind), keys))}"
        raise UsageError(f"{where(keys)}: {dotted(keys)}: {said}{got(data, keys)}", "") from None


def known_only(data: Mapping[str, Any], kind: type[object], where: Callable[[Keys], str]) -> None:
    """Raises UsageError for the first key that `kind` does not have, with the near one."""
    for keys, known in _unknown(data, mi.type_info(kind), ()):
        raise UsageError(f"{where(keys)}: {dotted(keys)}: unknown key{near(str(keys[-1]), known)}", hint_of(known))


def locator(text: str, name: str) -> Callable[[Keys], str]:
    """path -> "FILE:LINE" for a file's text."""
    return lambda keys: f"{name}:{locate(text, keys)}"


def complaint(error: msgspec.ValidationError) -> tuple[str, Keys]:
    """msgspec's "Expected `str`, got `int` - at `$.live.unit`" -> ("expected `str`", ("live", "unit"))."""
    said, _, where = str(error).partition(" - at `")
    keys: Keys = tuple(
        int(part[1:-1]) if part.startswith("[") and part != "[...]" else part.lstrip(".")
        for part in re.findall(r"\.[^.\[\]`]+|\[\d+\]|\[\.\.\.\]", where.removeprefix("key in `"))
    )
    missing = re.fullmatch(r"Object missing required field `(.*)`", said)
    if missing:
        return "required, but not set", (*keys, missing[1])
    said = re.sub(r", got .*$", "", said)
    for word, plain in _PLAIN:
        said = said.replace(word, plain)
    return said[:1].lower() + said[1:], keys


def got(data: object, keys: Keys) -> str:
    """ ", got VALUE" for messages, or "" where the path leads nowhere."""
    for key in keys:
        try:
            data = data[key]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return ""
    kind = {"str": "text", "bool": "a boolean", "dict": "a table", "list": "an array"}.get(type(data).__name__, "")
    shown = escape(repr(data))
    return f", got {kind + ' ' if kind else ''}{shown if len(shown) <= 60 else shown[:57] + '...'}"


def near(word: str, known: tuple[str, ...]) -> str:
    """ "; did you mean `x`?" for messages, or "" where nothing is near."""
    found = difflib.get_close_matches(word, known, 1, 0.5)
    return f"; did you mean `{found[0]}`?" if found else ""


def hint_of(known: tuple[str, ...]) -> str:
    """The hint that lists what is known."""
    return "known here: " + ", ".join(known)


def dotted(keys: Keys) -> str:
    """("stats", 0, "jq") -> "stats[0].jq", fit for print."""
    out = ""
    for key in keys:
        out += f"[{key}]" if isinstance(key, int) else f".{escape(key)}"
    return out.removeprefix(".") or "the file"


def _unknown(data: object, kind: mi.Type, keys: Keys) -> Iterator[tuple[Keys, tuple[str, ...]]]:
    """(path, known keys) of every key that the type does not have."""
    if isinstance(kind, mi.Metadata):
        yield from _unknown(data, kind.type, keys)
    elif isinstance(kind, mi.UnionType):
        for member in kind.types:
            if isinstance(member, mi.StructType):
                yield from _unknown(data, member, keys)
    elif isinstance(kind, mi.StructType) and isinstance(data, dict):
        fields = {field.encode_name: field.type for field in kind.fields}
        for key, value in data.items():
            if key not in fields:
                yield (*keys, key), tuple(fields)
            else:
                yield from _unknown(value, fields[key], (*keys, key))
    elif isinstance(kind, mi.ListType | mi.VarTupleType) and isinstance(data, list):
        for index, value in enumerate(data):
            yield from _unknown(value, kind.item_type, (*keys, index))


def _choices(kind: mi.Type, keys: Keys) -> tuple[str, ...]:
    """The values of the Literal at this path."""
    if isinstance(kind, mi.Metadata):
        return _choices(kind.type, keys)
    if isinstance(kind, mi.UnionType):
        return next((found for member in kind.types if (found := _choices(member, keys))), ())
    if isinstance(kind, mi.LiteralType):
        return tuple(str(value) for value in kind.values)
    if isinstance(kind, mi.StructType) and keys:
        return next((_choices(field.type, keys[1:]) for field in kind.fields if field.encode_name == keys[0]), ())
    if isinstance(kind, mi.ListType | mi.VarTupleType) and keys:
        return _choices(kind.item_type, keys[1:])
    return ()


def _leaves(value: object, keys: Keys) -> Iterator[tuple[Keys, object]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*keys, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, (*keys, index))
    else:
        yield keys, value
