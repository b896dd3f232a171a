"""No NaN or infinity crosses a boundary: every number that comes from outside is checked here once.

A comparison with NaN is false (and in jq NaN < 1 is true), so a NaN that gets in makes a timer that never fires.
"""

from __future__ import annotations

import math
from typing import Any

import orjson

from inferops.core.verdict import BlindError, escape

SHOWN = 40  # characters of what came instead, enough to tell an HTML page from half a JSON


def finite(x: object, what: str) -> float:
    """`x` as a float. Raises BlindError, naming `what`, for NaN, an infinity, a bool, or anything that is no number."""
    if isinstance(x, bool) or not isinstance(x, int | float):
        raise BlindError(f"{what}: expected a number, got {_shown(x)}")
    try:
        number = float(x)
    except OverflowError:
        raise BlindError(f"{what}: expected a number, got an integer too large for one") from None
    if not math.isfinite(number):
        raise BlindError(f"{what}: expected a finite number, got {number}")
    return number


def loads(data: bytes | str, what: str) -> Any:
    """The JSON value in `data`, every number in it finite. Raises BlindError, naming `what`, where it is not JSON."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BlindError(f"{what}: expected JSON, got {_shown(data)} ({escape(str(error))})") from None
    check(value, what)
    return value


def check(value: Any, what: str) -> None:
    """Raises BlindError, naming `what` and the path, if a number anywhere inside `value` is not finite."""
    todo: list[tuple[str, Any]] = [("$", value)]  # a list, not recursion: JSON nests deeper than Python's stack
    while todo:
        path, item = todo.pop()
        if isinstance(item, dict):
            todo += [(f"{path}.{key}", inner) for key, inner in item.items()]
        elif isinstance(item, list | tuple):
            todo += [(f"{path}[{index}]", inner) for index, inner in enumerate(item)]
        elif isinstance(item, float) and not math.isfinite(item):
            raise BlindError(f"{what}: {escape(path)}: expected a finite number, got {item}")


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        value = value[: SHOWN * 4].decode("utf-8", "replace")
    if value == "":
        return "nothing"
    text = repr(value) if isinstance(value, str) else f"{value!r:.{SHOWN}} ({type(value).__name__})"
    return escape(text if len(text) <= SHOWN else text[:SHOWN] + "…")
