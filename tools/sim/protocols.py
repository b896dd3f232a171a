"""The three APIs that the simulator speaks: how each is asked, and how it answers, whole and as a stream. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from inferops.sim.jobs import Job, Request

TEMPLATE_TOKENS = 8  # that a chat template puts around a prompt
MAX_TOKENS_DEFAULT = 64
SYSTEM = ("system", "instructions")  # where /v1/messages and /v1/responses have the system prompt
FINISH = {"length": "max_tokens"}


class BadRequest(Exception):
    """A body that is none of this API's; the sentence says what was expected."""


def words(job: Job, first: int, last: int) -> str:
    """The answer's words from `first` to before `last`: each carries the session that it belongs to."""
    return "".join(f"{job.marker}.{i} " for i in range(first, last))


def request_of(body: Any, protocol: str) -> Request:
    """What is asked. A word is a token here; the session is all up to the first user message. Raises BadRequest."""
    if not isinstance(body, dict):
        raise BadRequest(f"expected a JSON object, got {type(body).__name__}")
    turns = body.get("input", body.get("messages"))
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, dict) for turn in turns):
        raise BadRequest("expected `messages` (or `input`): a list of at least one message")
    texts = [_text(body.get(name)) for name in SYSTEM] + [_text(turn.get("content")) for turn in turns]
    users = (n for n, turn in enumerate(turns, len(SYSTEM)) if turn.get("role", "user") == "user")
    opening = "\n".join(text for text in texts[: next(users, len(SYSTEM)) + 1] if text)
    most = body.get("max_tokens", body.get("max_completion_tokens", body.get("max_output_tokens", MAX_TOKENS_DEFAULT)))
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise BadRequest(f"max_tokens: expected a number of at least 1, got {most!r:.40}")
    tools = body.get("tools")
    return Request(
        prompt_tokens=TEMPLATE_TOKENS + sum(len(text.split()) for text in texts), max_tokens=most,
        session=hashlib.sha256(opening.encode("utf-8", "replace")).hexdigest()[:8], stream=body.get("stream") is True,
        protocol=protocol, messages=len(turns), tools=len(tools) if isinstance(tools, list) else 0,
    )  # fmt: skip


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return " ".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def timings(job: Job) -> dict[str, float]:
    """llama.cpp's object of that name, in ms and tokens."""
    decode_s = job.total - job.ttft
    return {
        "cache_n": job.cached, "prompt_n": job.request.prompt_tokens - job.cached,
        "prompt_ms": round(job.prefill_s * 1000, 3), "predicted_n": job.tokens_out,
        "predicted_ms": round(decode_s * 1000, 3),
        "predicted_per_second": round(job.tokens_out / decode_s, 3) if decode_s > 0 else 0.0,
    }  # fmt: skip


def event(data: Any, name: str = "") -> bytes:
    """One server-sent event."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + orjson.dumps(data) + b"\n\n"


@dataclass(frozen=True, slots=True)
class Protocol:
    """One API. `whole`: the answer in one piece; `begin`, `piece`, `end`: of its stream; `error`: status, kind, message
    as its error object."""

    name: str
    whole: Callable[[Job, str], dict[str, Any]]
    begin: Callable[[Job], Iterator[bytes]]
    piece: Callable[[Job, str], bytes]
    end: Callable[[Job], Iterator[bytes]]
    error: Callable[[int, str, str], dict[str, Any]]


def _openai_error(status: int, kind: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": status}}


def _chunk(job: Job, delta: dict[str, str], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": f"chatcmpl-{job.id}", "object": "chat.completion.chunk", "model": "sim",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]} | more  # fmt: skip


def _usage(job: Job) -> dict[str, int]:
    asked, made = job.request.prompt_tokens, job.tokens_out
    return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}


def _chat_whole(job: Job, text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"id": f"chatcmpl-{job.id}", "object": "chat.completion", "model": "sim", "usage": _usage(job),
            "choices": [{"index": 0, "message": message, "finish_reason": job.finish}],
            "timings": timings(job)}  # fmt: skip


def _chat_begin(job: Job) -> Iterator[bytes]:
    yield event(_chunk(job, {"role": "assistant", "content": ""}))


def _chat_end(job: Job) -> Iterator[bytes]:
    yield event(_chunk(job, {}, job.finish, timings=timings(job)))
    yield event({"id": f"chatcmpl-{job.id}", "object": "chat.completion.chunk", "choices": [], "usage": _usage(job)})
    yield b"data: [DONE]\n\n"


def _anthropic_error(status: int, kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def _message(job: Job, content: list[dict[str, str]]) -> dict[str, Any]:
    usage = {"input_tokens": job.request.prompt_tokens, "output_tokens": job.tokens_out}
    return {"id": f"msg_{job.id}", "type": "message", "role": "assistant", "model": "sim", "content": content,
            "stop_reason": FINISH.get(job.finish), "usage": usage}  # fmt: skip


def _messages_begin(job: Job) -> Iterator[bytes]:
    yield event({"type": "message_start", "message": _message(job, [])}, "message_start")
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    yield event(block, "content_block_start")


def _messages_piece(job: Job, text: str) -> bytes:
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
    return event(delta, "content_block_delta")


def _messages_end(job: Job) -> Iterator[bytes]:
    yield event({"type": "content_block_stop", "index": 0}, "content_block_stop")
    delta = {"stop_reason": FINISH.get(job.finish)}
    usage = {"output_tokens": job.tokens_out}
    yield event({"type": "message_delta", "delta": delta, "usage": usage}, "message_delta")
    yield event({"type": "message_stop"}, "message_stop")


def _response(job: Job, text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text}
    usage = {"input_tokens": job.request.prompt_tokens, "output_tokens": job.tokens_out}
    done = job.state == "done"
    return {"id": f"resp_{job.id}", "object": "response", "model": "sim", "usage": usage,
            "status": "completed" if done else "in_progress",
            "output": [{"type": "message", "role": "assistant", "content": [part]}] if done else []}  # fmt: skip


def _response_begin(job: Job) -> Iterator[bytes]:
    yield event({"type": "response.created", "response": _response(job, "")}, "response.created")


def _response_piece(job: Job, text: str) -> bytes:
    return event({"type": "response.output_text.delta", "output_index": 0, "delta": text}, "response.output_text.delta")


def _response_end(job: Job) -> Iterator[bytes]:
    text = words(job, 0, job.tokens_out)
    yield event({"type": "response.completed", "response": _response(job, text)}, "response.completed")


PROTOCOLS: dict[str, Protocol] = {
    "/v1/chat/completions": Protocol(
        "openai", _chat_whole, _chat_begin, lambda job, text: event(_chunk(job, {"content": text})), _chat_end,
        _openai_error),
    "/v1/messages": Protocol(
        "anthropic", lambda job, text: _message(job, [{"type": "text", "text": text}]), _messages_begin,
        _messages_piece, _messages_end, _anthropic_error),
    "/v1/responses": Protocol(
        "responses", _response, _response_begin, _response_piece, _response_end, _openai_error),
}  # fmt: skip
