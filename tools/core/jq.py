"""The one expression language: jq, through one adapter over two builds that behave alike here.

pyjq (jq 1.5) where it builds, Python 3.11; PyPI's jq (1.8) from 3.12 on. Programs keep to the subset of jq_words; what
goes in and comes out is made the same: numbers finite, whole numbers int, integers beyond 2**53 rounded to a double
(give ids and nanosecond times as text), NUL in text replaced (pyjq would cut the text there), nesting bounded.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from inferops.core.jq_words import complaints
from inferops.core.verdict import BlindError, UsageError, escape

MAX_DEPTH = 200  # levels; far under where either build or the recursion limit gives up
MAX_PROGRAM_CHARS = 16_384
_EXACT = 2**53  # a double holds every integer up to here


class Program:
    """A compiled jq program; safe to run many times and from several threads."""

    def __init__(self, text: str, where: str, run: Callable[[Any], list[Any]]) -> None:
        self.text = text
        self.where = where
        self._run = run

    def all(self, document: object) -> list[Any]:
        """Every output for this JSON document. Raises BlindError where the program fails on it or a number is not
        finite."""
        given = plain(document, f"{self.where}: jq input")
        try:
            outputs = self._run(given)
        except Exception as error:  # noqa: BLE001 - each build has its own classes: ValueError, ScriptRuntimeError
            raise BlindError(f"{self.where}: jq failed on the document: {_first_line(error)}") from None
        return [plain(output, f"{self.where}: jq output") for output in outputs]

    def first(self, document: object, default: Any = None) -> Any:
        """The first output, or `default` where the program gives none."""
        outputs = self.all(document)
        return outputs[0] if outputs else default


@functools.lru_cache(maxsize=256)
def compile(program: str, where: str) -> Program:
    """Compile a program once. `where` names it in errors ("FILE:LINE: stats[0].jq").

    Raises UsageError naming each refused word with its reason, or the build's own syntax complaint.
    """
    if len(program) > MAX_PROGRAM_CHARS:
        raise UsageError(
            f"{where}: jq program of {len(program):,} characters, at most {MAX_PROGRAM_CHARS:,} are read", ""
        )
    try:
        refused = dict(complaints(program))
    except ValueError as error:
        raise UsageError(f"{where}: not a jq program: {escape(str(error))}", "check the quotes and brackets") from None
    if refused:
        words = "; ".join(f"`{escape(word)}` ({why})" for word, why in refused.items())
        raise UsageError(
            f"{where}: jq program uses what is not allowed: {words}", "use the listed alternative, or another word"
        )
    try:
        return Program(program, where, _build(program))
    except Exception as error:  # noqa: BLE001 - as above
        raise UsageError(
            f"{where}: jq does not compile: {_first_line(error)}", "try it with `jq` on a sample"
        ) from None


def _build(program: str) -> Callable[[Any], list[Any]]:
    try:
        import pyjq  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        import jq  # type: ignore[import-not-found,import-untyped,unused-ignore]

        newer = jq.compile(program)
        return lambda document: list(newer.input_value(document).all())
    older = pyjq.compile(program)
    return lambda document: list(older.all(document))


def plain(value: object, what: str, depth: int = 0) -> Any:
    """The same JSON value as both builds can carry it. Raises BlindError on NaN, infinity, foreign types, depth."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if -_EXACT <= value <= _EXACT:
            return value
        try:
            return int(float(value))
        except OverflowError:
            raise BlindError(f"{what}: a number with {len(hex(value)) - 2} hex digits is out of range") from None
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BlindError(f"{what}: a number is {value}, expected a finite one")
        return int(value) if value.is_integer() else value
    if isinstance(value, str):
        return _text(value)
    if depth >= MAX_DEPTH:
        raise BlindError(f"{what}: nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, list | tuple):
        return [plain(item, what, depth + 1) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise BlindError(f"{what}: a key is not text")
        return {_text(key): plain(item, what, depth + 1) for key, item in value.items()}
    raise BlindError(f"{what}: a {type(value).__name__} is not JSON")


def _text(value: str) -> str:
    if value.isascii() and "\0" not in value:
        return value
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")


def _first_line(error: Exception) -> str:
    line = str(error).strip().split("\n", 1)[0].removeprefix("jq: error: ")
    return escape(line.split(" at <top-level>", 1)[0])[:200]
