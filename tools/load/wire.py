"""A streamed chat answer as it is on the wire: HTTP/1.1 from raw bytes, and what must be said for it to be a good one.

No HTTP client: a driver that retries, pools or buffers by itself measures that.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from inferops.core.finite import loads
from inferops.core.verdict import BlindError, escape

LINE_MAX_BYTES = 1 << 20  # one event of a stream is some hundred bytes
WHY_MAX_CHARS = 160


class Broken(Exception):
    """An answer that is no answer: another status than 200, or cut off."""


class Answer:
    """What a stream has said so far. Feed it lines; `why()` is empty only when it said everything that it must."""

    def __init__(self) -> None:
        self.contents = 0
        self.finish = self.error = ""
        self.done = False
        self.usage: dict[str, Any] = {}

    def line(self, line: bytes) -> bool:
        """Takes one line of the event stream; True where it brought the first content."""
        if line.startswith((b"error:", b'data: {"error"', b'data:{"error"')):
            self.error = self.error or "error in the stream: " + brief(line.partition(b":")[2])
        if not line.startswith(b"data:") or self.error:
            return False
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            self.done = True
            return False
        try:
            return self._event(loads(data, "an event of the stream"))
        except (BlindError, KeyError, TypeError, AttributeError) as e:
            self.error = f"an event of the stream: {type(e).__name__} in {brief(data)}"
            return False

    def _event(self, event: dict[str, Any]) -> bool:
        if event.get("error"):
            self.error = "error in the stream: " + brief(json.dumps(event["error"]).encode())
        self.usage = event.get("usage") or self.usage
        before = self.contents
        for choice in event.get("choices") or []:
            delta = choice.get("delta") or {}
            self.contents += any(delta.get(key) for key in ("content", "reasoning_content", "reasoning"))
            self.finish = choice.get("finish_reason") or self.finish
        return before == 0 and self.contents > 0

    def why(self) -> str:
        """Why this is no good answer, empty if it is one."""
        if self.error:
            return self.error
        if not self.finish:
            return "the stream ended without a finish_reason"
        if not self.done:
            return "the stream ended without [DONE]"
        return "" if self.contents else f"no content, finish_reason {self.finish}"


def brief(data: bytes) -> str:
    """The beginning of it, printable, for a reason."""
    text = escape(data.decode("utf-8", "replace").strip())
    return text if len(text) <= WHY_MAX_CHARS else text[: WHY_MAX_CHARS - 1] + "…"


# --- edge


async def lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The lines of an answer with status 200. Raises Broken with the status and the body's beginning for others."""
    status = (await reader.readline()).decode("latin-1").strip()
    headers: dict[str, str] = {}
    while (line := await reader.readline()) not in (b"\r\n", b"\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip().lower()
    chunks = _chunks(reader, headers)
    if status.split(" ")[1:2] != ["200"]:
        raise Broken(f"{status or 'closed without an answer'} {brief(await anext(chunks, b''))}")
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > LINE_MAX_BYTES:
            raise Broken(f"a line of the stream is longer than {LINE_MAX_BYTES} bytes")
    if rest:
        yield rest


async def _chunks(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if "chunked" in headers.get("transfer-encoding", ""):
        while size := int(await _whole_line(reader), 16):
            yield await reader.readexactly(size)
            await _whole_line(reader)
        return
    left = int(headers.get("content-length", str(2**63)))
    while left > 0 and (chunk := await reader.read(min(left, 65536))):
        left -= len(chunk)
        yield chunk
    if left and "content-length" in headers:
        raise Broken(f"{left} bytes of the answer are missing")


async def _whole_line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise Broken("the connection closed before the end of the answer")
    return line.split(b";")[0]
