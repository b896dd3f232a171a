"""The output contract: findings, their verdict and its exit code, rendered as text or JSON."""

from __future__ import annotations

import math
import os
import re
import sys
import unicodedata
from typing import Any, Literal

import msgspec
import orjson

from inferops.core.entry import BlindError, InferopsError, Refused, UsageError, escape, guard

__all__ = [
    "BlindError",
    "Finding",
    "InferopsError",
    "Level",
    "Output",
    "Refused",
    "UsageError",
    "Verdict",
    "columns",
    "escape",
    "guard",
    "render",
    "wrap",
]

Level = Literal["ok", "fail", "note", "blind"]
Output = Literal["text", "json"]

COLUMNS = 99  # "under 100": fits a split screen and a quoted mail
ID_COLUMNS = 30  # a longer id gets a line of its own instead of pushing every message to the right
SHORT_COLUMNS = 60  # of the one finding that the last line quotes
COLOURS = {"ok": "32", "fail": "1;31", "note": "36", "blind": "33"}
RAW_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


class Finding(msgspec.Struct, frozen=True):
    """One check's outcome. A `note` is no check: it counts in no denominator."""

    level: Level
    id: str
    message: str
    evidence: dict[str, Any] = {}


class Verdict(msgspec.Struct, frozen=True):
    """What one instrument says of one subject. Nothing checked is blind, never ok."""

    instrument: str
    subject: str
    findings: tuple[Finding, ...]
    schema: str = "inferops.verdict/1"

    def _of(self, level: Level) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == level]

    @property
    def verdict(self) -> Literal["ok", "fail", "blind"]:
        if self._of("fail"):
            return "fail"
        return "blind" if self._of("blind") or not self._of("ok") else "ok"

    @property
    def exit(self) -> int:
        return {"ok": 0, "fail": 1, "blind": 3}[self.verdict]

    def summary(self) -> str:
        """The denominators: `3 of 4 checks held, 1 blind: no receipt`."""
        held = len(self._of("ok"))
        checks = len(self.findings) - len(self._of("note"))
        if not checks:
            return "0 checks ran: nothing was looked at"
        parts = [f"{held} of {checks} check{'s' * (checks != 1)} held"]
        worse: tuple[tuple[Level, str], ...] = (("fail", "failed"), ("blind", "blind"))
        for level, word in worse:
            some = self._of(level)
            if some:
                which = some[0].message if len(some) == 1 else ", ".join(finding.id for finding in some)
                parts.append(f"{len(some)} {word}: {_short(escape(which))}")
        return ", ".join(parts)


def render(v: Verdict, output: Output, *, colour: bool | None = None) -> str:
    """The report, without a newline at its end. Text is one line a finding, wrapped under 100 columns with a hanging
    indent, the denominators last; JSON is one object. Colour (None: only if stdout is a terminal) is for text."""
    if output == "json":
        return _render_json(v)
    colour = _stdout_is_terminal() if colour is None else colour
    wide = min(max((columns(escape(f.id)) for f in v.findings), default=0), ID_COLUMNS)
    indent = len("blind  ") + wide + 2
    lines: list[str] = []
    for finding in v.findings:
        ident, message = escape(finding.id), wrap(escape(finding.message), COLUMNS - indent)
        level = f"\x1b[{COLOURS[finding.level]}m{finding.level:5}\x1b[0m" if colour else f"{finding.level:5}"
        if columns(ident) > wide:
            first, *rest = wrap(ident, COLUMNS - len("blind  "))
            lines += [f"{level}  {first}", *(" " * len("blind  ") + line for line in rest)]
        else:
            lines.append(f"{level}  {ident}{' ' * (wide - columns(ident))}  {message.pop(0)}")
        lines += [" " * indent + line for line in message]
    name = escape(" ".join(part for part in (v.instrument, v.subject) if part))
    first, *rest = wrap(f"{name}: {v.summary()}", COLUMNS - 2)
    return "\n".join(line.rstrip() for line in [*lines, first, *("  " + line for line in rest)])


def columns(text: str) -> int:
    """How many terminal columns `text` takes: wide East Asian characters two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def wrap(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width` columns, broken at spaces where it can be, at least one line."""
    lines = [""]
    for word in text.split(" "):
        if columns(lines[-1]) + 1 + columns(word) <= width and lines[-1]:
            lines[-1] += " " + word
            continue
        if lines[-1]:
            lines.append("")
        for char in word:
            if columns(lines[-1] + char) > width:
                lines.append("")
            lines[-1] += char
    return lines


def _short(text: str) -> str:
    return text if columns(text) <= SHORT_COLUMNS else wrap(text, SHORT_COLUMNS - 1)[0] + "…"


def _render_json(v: Verdict) -> str:
    report = {
        "schema": v.schema,
        "instrument": v.instrument,
        "subject": v.subject,
        "verdict": v.verdict,
        "findings": msgspec.to_builtins(v.findings, enc_hook=str, str_keys=True),
        "exit": v.exit,
    }
    text = orjson.dumps(_plain(report)).decode()
    # inside JSON strings only, so this stays the same document
    return RAW_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _plain(value: Any) -> Any:
    """What orjson drops or refuses, kept readable: it writes NaN as null and fails on big integers and surrogates."""
    if isinstance(value, dict):
        return {_plain(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value


def _stdout_is_terminal() -> bool:
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return bool(wanted and sys.stdout and sys.stdout.isatty())
