"""Where a key stands in a TOML file: path -> line. Errors of a schema name a path, people need the line.

It reads text that a TOML parser has accepted already; on anything else its answers mean nothing.
"""

from __future__ import annotations

import json
import re

Path = tuple[str | int, ...]

_SPACE = " \t"
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_VALUE_END = re.compile(r"[,\]}#\r\n]")


def locate(text: str, path: Path) -> int:
    """The 1-based line of the longest known beginning of `path` (array elements by index); 1 where none is known."""
    found = lines(text)
    for size in range(len(path), 0, -1):
        if path[:size] in found:
            return found[path[:size]]
    return 1


def lines(text: str) -> dict[Path, int]:
    """Every path of the file -> the line of its key, its table header or, in an array, its value."""
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.found: dict[Path, int] = {}
        self.counts: dict[Path, int] = {}  # elements of each array of tables so far

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip_blank():
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
        return self.found

    def _skip_blank(self) -> bool:
        """Over spaces, newlines and comments; False at the end."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in " \t\r\n":
                self.line += char == "\n"
                self.at += 1
            else:
                return True
        return False

    def _header(self) -> Path:
        array = self.text.startswith("[[", self.at)
        self.at += 2 if array else 1
        names = self._key()
        self.at += 2 if array else 1
        path: Path = ()
        for i, name in enumerate(names):
            path += (name,)
            self.found.setdefault(path, self.line)
            if array and i == len(names) - 1:
                self.counts[path] = self.counts.get(path, -1) + 1
            if path in self.counts:
                path += (self.counts[path],)
                self.found.setdefault(path, self.line)
        if not array:
            self.found[path] = self.line
        return path

    def _pair(self, table: Path) -> None:
        path = table
        line = self.line
        for name in self._key():
            path += (name,)
            self.found.setdefault(path, line)
        self.at += 1  # "="
        self._value(path)

    def _key(self) -> list[str]:
        names = []
        while True:
            self._spaces()
            if self.text[self.at] in "\"'":
                names.append(self._string())
            else:
                bare = _BARE.match(self.text, self.at)
                names.append(bare.group() if bare else "")
                self.at = bare.end() if bare else self.at + 1
            self._spaces()
            if self.text[self.at : self.at + 1] != ".":
                return names
            self.at += 1

    def _value(self, path: Path) -> None:
        self._spaces()
        char = self.text[self.at]
        if char in "\"'":
            self._string()
        elif char == "[":
            self._array(path)
        elif char == "{":
            self._inline(path)
        else:
            end = _VALUE_END.search(self.text, self.at)
            self.at = end.start() if end else len(self.text)

    def _array(self, path: Path) -> None:
        self.at += 1
        index = 0
        while self._skip_blank() and self.text[self.at] != "]":
            if self.text[self.at] == ",":
                self.at += 1
                continue
            self.found[(*path, index)] = self.line
            self._value((*path, index))
            index += 1
        self.at += 1

    def _inline(self, path: Path) -> None:
        self.at += 1
        while self._skip_blank() and self.text[self.at] != "}":
            if self.text[self.at] == ",":
                self.at += 1
            else:
                self._pair(path)
        self.at += 1

    def _string(self) -> str:
        """Over a string of any of the four kinds; its text, with the escapes of a one-line basic string undone."""
        quote = self.text[self.at]
        mark = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        start = self.at = self.at + len(mark)
        while not self.text.startswith(mark, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        if len(mark) == 3:  # up to two more quotes belong to the text
            while self.text.startswith(quote, self.at + 3):
                self.at += 1
        raw = self.text[start : self.at]
        self.at += len(mark)
        self.line += raw.count("\n")
        return _unescaped(raw) if quote == '"' and len(mark) == 1 else raw

    def _spaces(self) -> None:
        while self.text[self.at : self.at + 1] and self.text[self.at] in _SPACE:
            self.at += 1


def _unescaped(raw: str) -> str:
    raw = re.sub(r"\\U([0-9A-Fa-f]{8})", lambda found: chr(int(found[1], 16)), raw)
    try:
        return str(json.loads(f'"{raw}"', strict=False))
    except ValueError:
        return raw
