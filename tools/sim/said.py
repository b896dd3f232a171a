"""What the simulated server writes: journal lines of both generations, and records of the request log. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferops.sim.model import Job, Model

REUSE = ("root", "private_endpoint", "private_long_anchor")
LONG_ANCHOR_TOKENS = 8192


def rate(tokens: float, seconds: float) -> str:
    """406.8, or 6.78k from a thousand on."""
    value = tokens / seconds if seconds > 0 else 0.0
    return f"{value / 1000:.2f}k" if value >= 1000 else f"{value:.1f}"


def span(seconds: float) -> str:
    """12.3s, 880 ms, or 1m 47.1s."""
    if seconds >= 60:
        return f"{int(seconds // 60)}m {seconds % 60:.1f}s"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f}s"


def throughput(
    generation: int, seconds: float, prefilled: float, decoded: float, rounds: float, gauges: dict[str, int]
) -> str:
    """The rate line of an interval in which anything ran or waited; prefilled, decoded: tokens, in so many rounds."""
    running, prefilling = gauges["running"], gauges["prefilling"]
    ready, waiting = gauges["decode_ready"], gauges["waiting"]
    if generation == 1:
        return (
            f"throughput interval {seconds:.1f}s prefill={prefilled / seconds:.1f}tok/s "
            f"decode={decoded / seconds:.1f}tok/s running={running} prefilling={prefilling} "
            f"decode_ready={ready} waiting={waiting} materializing={gauges['materializing']}"
        )
    parts = [f"throughput | {span(seconds)}"]
    if prefilled >= 1:
        parts.append(f"prefill {rate(prefilled, seconds)} tok/s ({prefilled:,.0f} tok)")
    if decoded >= 1:
        parts.append(f"decode {rate(decoded, seconds)} tok/s ({decoded:,.0f} tok)")
    inside = [f"{word} {n}" for word, n in (("prefill", prefilling), ("decode-ready", ready)) if n]
    parts.append(f"running {running}" + (f" ({', '.join(inside)})" if inside else ""))
    parts.append(f"waiting {waiting}")
    if decoded >= 1:
        parts.append(f"batch {decoded / rounds if rounds else 1.0:.2f}")  # rows a round, not the lanes of the moment
    return " | ".join(parts)


def started(job: Job) -> str:
    """The line of an arrival: no progress."""
    asked = job.request
    stream = " stream" if asked.stream else ""
    return (
        f"req#{job.id} started | {asked.protocol}{stream} | {asked.messages} messages | "
        f"max output {asked.max_tokens:,} | tools {asked.tools}"
    )


def done(job: Job) -> str:
    """The line of a request that has its tokens."""
    share = 100.0 * job.cached / max(1, job.request.prompt_tokens)
    cache = f"cache {job.cached:,} ({share:.1f}%{', long anchor' if job.cached >= LONG_ANCHOR_TOKENS else ''})"
    decode_s = (job.t_end or 0.0) - (job.t_first or job.t_end or 0.0)
    return (
        f"req#{job.id} done | {job.request.protocol} | prompt {job.request.prompt_tokens:,} | "
        f"output {job.tokens_out:,} | {cache} | TTFT {span(job.ttft)} | total {span(job.total)} | "
        f"queue {span(job.queued_s)} | prefill {rate(job.request.prompt_tokens - job.cached, job.prefill_s)} tok/s | "
        f"decode {rate(job.tokens_out, decode_s)} tok/s"
    )


def failed(job: Job) -> str:
    """The line of one that ended in an error."""
    where = {"queued": "while queued", "prefilling": "during prefill"}.get(job.failed_in, "during generation")
    return f"req#{job.id} failed {where} | {job.request.protocol} | HTTP {job.status} | {job.error}"


def residual(why: str, pages: int, slots: int, kv_bytes: int) -> str:
    """What a recovery or a stop leaves behind: all zero is the noise of a stop."""
    return (
        f"[engine] post-recovery residual ({why}): main_kv_pages={pages} backend_kv_pages=0 "
        f"device_state_slots={slots} host_state_slots=0 host_kv_bytes={kv_bytes}"
    )


def cleanup() -> str:
    """The line of a stop before its residual."""
    return (
        "[engine] fail-all cleanup: shared catalogued=0 released-refused=0 skipped=0 (reserved-capture=0 "
        "reserved-replacement=0) continuations-live=0"
    )


def record(model: Model, event: str, job: Job | None = None, **more: Any) -> dict[str, Any]:
    """One record of the request log; `more` is put over what the job says."""
    stamp = {
        "event": event,
        "timestamp_unix_ms": int((model.epoch + model.t) * 1000),
        "server_instance_id": model.instance,
    }
    if job is None:
        return stamp | more
    stamp["request"] = {"request_id": job.id, "protocol": job.request.protocol}
    if event == "request_done":
        path = REUSE[2] if job.cached >= LONG_ANCHOR_TOKENS else REUSE[1] if job.cached else REUSE[0]
        stamp["result"] = {
            "finish_reason": job.finish, "prompt_tokens": job.request.prompt_tokens,
            "completion_tokens": job.tokens_out, "prefix_cache_hit_tokens": job.cached, "prefix_reuse_path": path,
            "computed_prefill_tokens": job.request.prompt_tokens - job.cached,
        }  # fmt: skip
        stamp["timings_seconds"] = {
            "ttft": round(job.ttft, 4), "prefill": round(job.prefill_s, 4),
            "decode": round(job.total - job.ttft, 4), "total": round(job.total, 4),
        }  # fmt: skip
        stamp["engine_timing"] = {"queue_wait_seconds": round(job.queued_s, 4)}
    if event == "request_error":
        stamp["error"] = {"status": job.status, "message": job.error}
    return stamp | more


def stats(model: Model) -> dict[str, Any]:
    """The /stats document."""
    count = len(model.queue) + len(model.running) + (model.between is not None)
    used = sum(job.request.prompt_tokens + job.tokens_out for job in model.running)
    room = model.config.max_context
    return {
        "counters": {name: int(value + 0.001) for name, value in model.counters.items()},
        "scheduler": model.gauges(),
        "http": {"in_flight": count, "max_in_flight": model.config.lanes + model.config.queue_max},
        "memory": {"device": 0, "kv_capacity": room, "max_context": room, "weights_bytes": 22_000_000_000},
        "pressure": {"device_main_kv_occupied_pages": used // 64, "publication_cell_probes": int(used * 17)},
        "cache_reuse": {"reused_prompt_tokens": model.reused},
        "load": {"architecture": "SimForCausalLM", "load_seconds": model.load_s, "model_id": "sim"},
        "server_instance_id": model.instance,
        "timestamp_unix_ms": int((model.epoch + model.t) * 1000),
    }
