"""Drives streaming chat requests at a server, a fixed number at a time, and counts what came back.

Prevents: a load "test" whose dead streams count as answers; a prefix cache that makes the second run look fast.
Answers: of the requests sent, how many ended well, how soon did the first content come, and why did the rest fail?
Blind to: open-loop arrivals (each of --concurrency clients waits for its answer before it asks again, so a slow server
    is asked less); whether the text is any good; how many tokens a prompt really has where the server sends no usage.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec

from inferops.core.settings import local_option, output_option
from inferops.core.verdict import Finding, Refused, UsageError, Verdict, render
from inferops.load.wire import LINE_MAX_BYTES, Answer, Broken, brief, lines

UNREACHED_PAUSE_S = 0.5  # a server that is being restarted must not use up all requests in a millisecond
# Words that are one token each to the tokenizers of Gemma, Llama, Qwen and GPT models, with the space before them.
WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend"
).split()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to send. One of `requests` (a count) and `duration_s` (no new request after it) must bound it."""

    url: str
    model: str = "any"
    concurrency: int = 2
    requests: int | None = None
    duration_s: float | None = None
    prompt_tokens: int = 200
    max_tokens: int = 64
    deadline_s: float = 300.0
    seed: int = 1
    remote_ok: bool = False


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one request ended: well if `why` is empty. Seconds from its start, before the connection was made."""

    index: int
    why: str = ""
    reached: bool = True
    ttft_s: float | None = None
    total_s: float = 0.0
    contents: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


def prompt(tokens: int, seed: int, index: int = 0) -> str:
    """About `tokens` tokens of text, the same for the same seed and index and different from its first words on for any
    other, so that no prefix cache hides the work."""
    choose = random.Random(f"{seed}/{index}")  # noqa: S311 (words, not secrets)
    return " ".join(choose.choice(WORDS) for _ in range(max(1, tokens)))


def percentile(values: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile, `share` in (0, 1]; None of nothing."""
    return sorted(values)[math.ceil(share * len(values)) - 1] if values else None


def verdict(plan: Plan, outcomes: Sequence[Outcome], wall_s: float) -> Verdict:
    """The counts, the times and a finding for each way to fail. No request that reached the server: blind."""
    bad = [o for o in outcomes if o.why]
    ttft = [o.ttft_s for o in outcomes if not o.why and o.ttft_s is not None]
    p50, p99 = percentile(ttft, 0.5), percentile(ttft, 0.99)
    tokens = sum(o.completion_tokens or o.contents for o in outcomes if not o.why)
    evidence = {
        "attempted": len(outcomes),
        "ok": len(outcomes) - len(bad),
        "failed": len(bad),
        "ttft_p50_s": p50,
        "ttft_p99_s": p99,
        "completion_tokens": tokens,
        "prompt_tokens": sum(o.prompt_tokens or 0 for o in outcomes if not o.why),
        "wall_s": wall_s,
        "seed": plan.seed,
        "concurrency": plan.concurrency,
    }
    text = f"{evidence['ok']} of {len(outcomes)} requests ended well in {wall_s:.1f} s, {plan.concurrency} at a time"
    if not any(o.reached for o in outcomes):
        reason = outcomes[0].why if outcomes else "nothing was sent"
        return Verdict("load", plan.url, (Finding("blind", "requests", f"{text}: {reason}", evidence),))
    times = "no time to first content: no request ended well"
    if p50 is not None and p99 is not None:
        times = (
            f"first content p50 {p50:.3f} s, p99 {p99:.3f} s over {len(ttft)}; {tokens / wall_s:.1f} tokens/s in all"
        )
    findings = [Finding("fail" if bad else "ok", "requests", text, evidence), Finding("note", "times", times)]
    reasons = Counter(o.why for o in bad).most_common()
    findings += [Finding("note", "failed", f"{count} x {why}", {"count": count}) for why, count in reasons]
    return Verdict("load", plan.url, tuple(findings))


# --- edge


async def run(plan: Plan, told: Callable[[Outcome], None] | None = None) -> list[Outcome]:
    """Sends what the plan says and waits for all of it; `told` hears of each end as it comes.

    Raises UsageError for a plan that is no plan, Refused for a server that is not on this machine.
    """
    _check(plan)
    outcomes: list[Outcome] = []
    end = math.inf if plan.duration_s is None else time.monotonic() + plan.duration_s
    indices = iter(range(plan.requests) if plan.requests is not None else range(2**31))

    async def client() -> None:
        while time.monotonic() < end and (index := next(indices, None)) is not None:
            outcome = await one(plan, index)
            outcomes.append(outcome)
            if told is not None:
                told(outcome)
            if not outcome.reached:
                await asyncio.sleep(UNREACHED_PAUSE_S)

    await asyncio.gather(*(client() for _ in range(plan.concurrency)))
    return sorted(outcomes, key=lambda outcome: outcome.index)


async def one(plan: Plan, index: int) -> Outcome:
    """Sends request `index` of the plan and reads its answer to the end, at most `deadline_s`."""
    answer, start = Answer(), time.monotonic()
    reached, why, ttft = False, "", None
    try:
        async with asyncio.timeout(plan.deadline_s):
            target = urlsplit(plan.url)
            reader, writer = await asyncio.open_connection(target.hostname, target.port or 80, limit=LINE_MAX_BYTES)
            reached = True
            with contextlib.closing(writer):
                writer.write(_request(plan, index))
                async for line in lines(reader):
                    if answer.line(line):
                        ttft = time.monotonic() - start
        why = answer.why()
    except TimeoutError:
        why = f"not ended within {plan.deadline_s:g} s, {answer.contents} contents came"
    except asyncio.IncompleteReadError:
        why = answer.error or "the connection closed before the end of the answer"
    except (Broken, ValueError, OSError) as e:
        why = answer.error or brief((str(e) if reached else f"no connection: {e}").encode())
    return Outcome(
        index=index,
        why=why,
        reached=reached,
        ttft_s=ttft,
        total_s=time.monotonic() - start,
        contents=answer.contents,
        prompt_tokens=answer.usage.get("prompt_tokens"),
        completion_tokens=answer.usage.get("completion_tokens"),
    )


def _request(plan: Plan, index: int) -> bytes:
    target = urlsplit(plan.url)
    body = json.dumps(
        {
            "model": plan.model,
            "messages": [{"role": "user", "content": prompt(plan.prompt_tokens, plan.seed, index)}],
            "max_tokens": plan.max_tokens,
            "seed": plan.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = f"POST {target.path.rstrip('/')}/v1/chat/completions HTTP/1.1\r\nHost: {target.netloc}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def _check(plan: Plan) -> None:
    target = urlsplit(plan.url)
    if target.scheme != "http" or not target.hostname or not _port_is_one(plan.url):
        raise UsageError(f"--url: expected http://HOST:PORT, got {brief(plan.url.encode())}")
    if plan.requests is None and plan.duration_s is None:
        raise UsageError(
            "--requests, --duration: expected at least one, got neither", "a load without an end is refused"
        )
    for flag, number in {
        "--requests": plan.requests,
        "--concurrency": plan.concurrency,
        "--max-tokens": plan.max_tokens,
    }.items():
        if number is not None and number < 1:
            raise UsageError(f"{flag}: expected 1 or more, got {number}")
    for flag, seconds in {"--duration": plan.duration_s, "--deadline": plan.deadline_s}.items():
        if seconds is not None and not 0 < seconds < math.inf:
            raise UsageError(f"{flag}: expected seconds over 0, got {seconds}")
    if not plan.remote_ok and not _loopback(target.hostname):
        raise Refused(
            f"--url: expected a server on this machine, got {brief(target.hostname.encode())}",
            "--remote-ok, if it is yours to load",
        )


def _port_is_one(url: str) -> bool:
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_ONE = "it describes this one load"


@click.command(name="load", short_help="drive requests at a server, and report what came back")
@local_option("--url", default="http://127.0.0.1:8080", why=_ONE, help="the server [http://127.0.0.1:8080]")
@local_option("--model", default="any", why=_ONE, help="model name to ask for [any]")
@local_option("--concurrency", type=int, default=2, why=_ONE, help="requests at a time [2]")
@local_option("--requests", type=int, default=None, why=_ONE, help="requests in all [20, without --duration]")
@local_option(
    "--duration", "duration_s", type=float, default=None, metavar="SECONDS", why=_ONE, help="send no new one after it"
)
@local_option("--prompt-tokens", type=int, default=200, why=_ONE, help="about so many tokens a prompt [200]")
@local_option("--max-tokens", type=int, default=64, why=_ONE, help="tokens to ask for [64]")
@local_option(
    "--deadline", "deadline_s", type=float, default=300.0, metavar="SECONDS", why=_ONE, help="of one request [300]"
)
@local_option("--seed", type=int, default=1, why=_ONE, help="of the prompts and of the sampling [1]")
@local_option(
    "--remote-ok", is_flag=True, why="a safety that no file may switch off", help="load another machine's server"
)
@output_option
def main(output: str, **given: Any) -> int:
    """Send streaming chat requests and wait for all: exit 0 all ended well, 1 some did not, 3 none got through."""
    if given["requests"] is None and given["duration_s"] is None:
        given["requests"] = 20
    plan = Plan(**given)
    start = time.monotonic()
    outcomes = asyncio.run(run(plan))
    result = verdict(plan, outcomes, time.monotonic() - start)
    click.echo(render(result, "json" if output == "json" else "text"))
    return result.exit
