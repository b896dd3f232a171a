"""Which jq programs are let in: the part of the language on which jq 1.5 (pyjq) and jq 1.8 (PyPI jq) agree and which
always ends. It is an allow-list, because the words that hurt differ between the two builds: `input` and `debug` crash
pyjq's interpreter, `env` and `$ENV` read secrets, and a runaway program cannot be interrupted.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

KEYWORDS = frozenset({"if", "then", "elif", "else", "end", "and", "or", "as"})

# name -> the numbers of arguments that mean the same in both dialects. None loops over more than its input holds.
FUNCTIONS: dict[str, frozenset[int]] = {
    **dict.fromkeys(
        "add arrays ascii_downcase ascii_upcase booleans empty false flatten floor from_entries iterables keys length"
        " max min not null nulls numbers objects scalars sort strings to_entries tonumber tostring true type unique"
        " values".split(),
        frozenset({0}),
    ),
    **dict.fromkeys(
        "contains endswith group_by has map max_by min_by select sort_by startswith unique_by with_entries".split(),
        frozenset({1}),
    ),
    "all": frozenset({0, 1, 2}),
    "any": frozenset({0, 1, 2}),
}

# Words that deserve a reason of their own; everything else outside FUNCTIONS is merely "not in the shared subset".
REASONS: dict[str, str] = {
    **dict.fromkeys(("input", "inputs", "debug", "stderr"), "it crashes the interpreter in one of the two jq builds"),
    **dict.fromkeys(("env", "$ENV"), "it reads the environment, where secrets are"),
    **dict.fromkeys(("halt", "halt_error"), "it ends the process"),
    **dict.fromkeys(("input_filename", "input_line_number", "get_search_list"), "there is no input file here"),
    **dict.fromkeys(
        ("range", "repeat", "recurse", "recurse_down", "until", "while", "limit", "combinations", "walk", "infinite"),
        "a loop of its own may never end, and a running jq program cannot be stopped",
    ),
    **dict.fromkeys(("def", "reduce", "foreach", "label", "break"), "it can loop or grow without bound"),
    **dict.fromkeys(("import", "include", "modulemeta"), "it reads other files"),
    **dict.fromkeys(("now", "localtime", "mktime", "strftime"), "time is data here, read from the document"),
    **dict.fromkeys(
        ("test", "match", "capture", "scan", "sub", "gsub", "split", "splits"), "a backtracking regex can run for ever"
    ),
    **dict.fromkeys(("try", "catch", "error"), "error texts differ between jq builds; use the `?` suffix"),
    **dict.fromkeys(("getpath", "setpath", "path", "paths", "del", "delpaths"), "the document is only read here"),
    **dict.fromkeys(("nan", "isnan", "isinfinite"), "no NaN or infinity crosses here"),
    "*": "text from a server times a number is that much memory; divide instead (x / 0.001)",
    "%": "its rounding differs between jq builds",
    "@": "formats differ between jq builds",
    **dict.fromkeys(("ltrimstr", "rtrimstr", "trimstr"), "jq builds disagree on what is no text"),
    "..": "jq 1.5 leaves out the nulls; name the path",
    "?//": "jq 1.5 reads it as `? //` and jq 1.8 does not; put a space between",
    "=": "the document is only read here",
}

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\n]*)
      |(?P<quote>")
      |(?P<field>\.[A-Za-z_][A-Za-z_0-9]*)
      |(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
      |(?P<var>\$[A-Za-z_][A-Za-z_0-9:]*)
      |(?P<word>[A-Za-z_][A-Za-z_0-9]*(?:::[A-Za-z_][A-Za-z_0-9]*)*)
      |(?P<op>\?//=?|//=|[|+\-*/%]=|[=!<>]=|//|\.\.|[.\[\](){}|,:;+\-*/%<>?=@])
    """,
    re.VERBOSE,
)
_ASSIGNMENTS = frozenset({"=", "|=", "+=", "-=", "*=", "/=", "%=", "//="})
_CLOSERS = {"(": ")", "[": "]", "{": "}"}


class Token(NamedTuple):
    kind: str
    text: str
    depth: int  # brackets open around it
    inside: str  # the innermost open bracket, "" at the top


def tokens(program: str) -> list[Token]:
    """The program's tokens. The inside of a string is dropped, the program inside `\\(…)` in a string is kept.

    Raises ValueError with one line where the text is no jq.
    """
    out: list[Token] = []
    stack: list[str] = []  # open brackets; "\\(" is an interpolation, whose ")" goes back into the string
    at = 0
    while at < len(program):
        found = _TOKEN.match(program, at)
        if found is None:
            raise ValueError(f"character {program[at]!r} at offset {at} is no jq")
        at = found.end()
        kind, text = found.lastgroup or "", found.group()
        if kind == "quote":
            out.append(Token("string", "", len(stack), stack[-1] if stack else ""))
            at = _string(program, at, out, stack)
        elif kind != "space":
            at = _token(program, at, kind, text, out, stack)
    if stack:
        raise ValueError(f"{stack[-1]!r} is never closed")
    return out


def _token(program: str, at: int, kind: str, text: str, out: list[Token], stack: list[str]) -> int:
    if text in _CLOSERS:
        out.append(Token("op", text, len(stack), stack[-1] if stack else ""))
        stack.append(text)
        return at
    if kind == "op" and text in ")]}":
        opened = stack.pop() if stack else ""
        if _CLOSERS.get(opened[-1:]) != text:
            raise ValueError(f"{text!r} closes nothing")
        out.append(Token("op", text, len(stack), stack[-1] if stack else ""))
        return _string(program, at, out, stack) if opened == "\\(" else at
    out.append(Token(kind, text, len(stack), stack[-1] if stack else ""))
    return at


def _string(program: str, at: int, out: list[Token], stack: list[str]) -> int:
    """From inside a string to after its closing quote, or to after the `\\(` of an interpolation."""
    while at < len(program):
        if program[at] == '"':
            return at + 1
        if program[at] == "\\":
            if program[at + 1 : at + 2] == "(":
                out.append(Token("op", "(", len(stack), stack[-1] if stack else ""))
                stack.append("\\(")
                return at + 2
            at += 1
        at += 1
    raise ValueError("a string is never closed")


def complaints(program: str) -> Iterator[tuple[str, str]]:
    """(the word, why it is refused) for everything in the program that is outside the shared, ending subset."""
    items = tokens(program)
    if not items:
        yield "an empty program", "jq builds disagree on what it gives; write `.`"
    ifs: list[bool] = []
    for i, token in enumerate(items):
        if token.kind == "word" and not _is_key(items, i):
            if token.text == "if":
                ifs.append(False)
            elif token.text == "else" and ifs:
                ifs[-1] = True
            elif token.text == "end" and ifs and not ifs.pop():
                yield "if", "jq 1.5 has no `if` without `else`"
            yield from _word(items, i)
        elif token.kind == "op":
            yield from _operator(items, i)
        else:
            yield from _atom(token)


def _atom(token: Token) -> Iterator[tuple[str, str]]:
    if token.kind == "var" and (token.text == "$ENV" or token.text.startswith("$__")):
        yield token.text, REASONS.get(token.text, "it is not in the shared subset")
    elif token.kind == "number" and not math.isfinite(float(token.text)):
        yield token.text, "it is not finite"
    elif token.kind == "field" and re.fullmatch(r"\.[eE][0-9]+", token.text):
        yield token.text, f'jq 1.5 reads it as a number; write .["{token.text[1:]}"]'


def _operator(items: list[Token], i: int) -> Iterator[tuple[str, str]]:
    text = items[i].text
    word = "=" if text in _ASSIGNMENTS else "?//" if text.startswith("?//") else text
    if word in REASONS:
        yield text, REASONS[word]
    if text == "(" and _at_key(items, i):
        yield "{(…): …}", 'a key that is no text aborts the interpreter in one jq build; write {"\\(…)": …}'
    if text == "?" and not _after_path(items, i):
        yield "…?", "only .a? and .[…]?: after anything else jq 1.5 swallows later errors as well"
    if _dot_bracket(items, i):
        yield ".[ after a path", "jq 1.5 does not know `.a.[0]`; write `.a[0]`"


def _dot_bracket(items: list[Token], i: int) -> bool:
    """`.a.[0]`: a lone dot straight after something that can be indexed."""
    if items[i].text != "." or i == 0 or i + 1 == len(items) or items[i + 1].text != "[":
        return False
    before = items[i - 1]
    return before.kind in ("field", "string", "var") or before.text in (")", "]", "}", "?")


def _after_path(items: list[Token], i: int) -> bool:
    """Whether the `?` at i stands after a field or an index: .a? ."a"? .[0]? .a[]? $x[0]?"""
    if i and items[i - 1].kind == "string":
        return i > 1 and items[i - 2].text == "."
    if i == 0 or items[i - 1].text != "]":
        return i > 0 and items[i - 1].kind == "field"
    opened = next(j for j in range(i - 2, -1, -1) if items[j].text == "[" and items[j].depth == items[i - 1].depth)
    before = items[opened - 1] if opened else items[opened]
    return before.kind in ("field", "var") or before.text in (".", "]", ")", "?")


def _at_key(items: list[Token], i: int) -> bool:
    return items[i].inside == "{" and i > 0 and items[i - 1].kind == "op" and items[i - 1].text in ("{", ",")


def _is_key(items: list[Token], i: int) -> bool:
    """A word at the key place of an object: `{env: …}` names a key, `{env}` reads the field .env."""
    return _at_key(items, i) and i + 1 < len(items) and items[i + 1].text in (":", ",", "}")


def _word(items: list[Token], i: int) -> Iterator[tuple[str, str]]:
    word = items[i].text
    if word in KEYWORDS:
        return
    if word not in FUNCTIONS:
        near = difflib.get_close_matches(word, [*FUNCTIONS, *KEYWORDS], 1)
        yield (
            word,
            REASONS.get(word, "it is not in the subset both jq builds share" + (f"; near: {near[0]}" if near else "")),
        )
        return
    arguments = 0
    if i + 1 < len(items) and items[i + 1].text == "(" and items[i + 1].kind == "op":
        arguments = 1
        for token in items[i + 2 :]:
            if token.text == ")" and token.depth == items[i].depth:
                break
            arguments += token.text == ";" and token.depth == items[i].depth + 1
    if arguments not in FUNCTIONS[word]:
        yield f"{word}/{arguments}", f"{word} takes {' or '.join(map(str, sorted(FUNCTIONS[word])))} arguments here"
