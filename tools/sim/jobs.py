"""What is asked of the simulated engine, and one request on its way through it. Pure data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

JobState = Literal["queued", "materializing", "prefilling", "decoding", "done", "failed", "cancelled", "lost"]
ENDED = ("done", "failed", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a server of this kind has; rates in tokens a second, decode for each lane."""

    lanes: int = 4
    queue_max: int = 32
    max_context: int = 262_144
    prefill_tok_s: float = 2500.0
    decode_tok_s: float = 60.0
    load_s: float = 2.0
    stop_s: float = 1.0
    queue_deadline_s: float = 120.0
    throughput_s: float = 5.0
    materialize_s: float = 0.02
    generation: int = 2
    address: str = "http://127.0.0.1:8080"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked. `session`: whose conversation it goes on with; `endless`: it ignores `max_tokens`."""

    prompt_tokens: int
    max_tokens: int
    session: str = ""
    stream: bool = False
    protocol: str = "openai"
    messages: int = 1
    tools: int = 0
    endless: bool = False


class Rejected(Exception):
    """A request that is not taken: HTTP status, the API's word for it, and a sentence."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message


@dataclass(slots=True)
class Job:
    """One request on its way. Times are the model's; `made` counts tokens, `marker`: the session of its words,
    `gone`: its client left, and the engine has not seen it."""

    id: int
    request: Request
    t_submit: float
    marker: str
    state: JobState = "queued"
    cached: int = 0
    t_admit: float | None = None
    left: float = 0.0
    speed: float = 0.0
    made: float = 0.0
    t_first: float | None = None
    t_end: float | None = None
    finish: str = ""
    endless: bool = False
    gone: bool = False
    status: int = 0
    error: str = ""
    failed_in: str = ""

    @property
    def tokens_out(self) -> int:
        return int(self.made + 1e-9)

    @property
    def wants(self) -> float:
        """How many tokens it will make."""
        return math.inf if self.endless or self.request.endless else float(self.request.max_tokens)

    @property
    def queued_s(self) -> float:
        return (self.t_admit if self.t_admit is not None else self.t_end or self.t_submit) - self.t_submit

    @property
    def ttft(self) -> float:
        return (self.t_first if self.t_first is not None else self.t_end or self.t_submit) - self.t_submit

    @property
    def total(self) -> float:
        return (self.t_end if self.t_end is not None else self.t_submit) - self.t_submit

    @property
    def prefill_s(self) -> float:
        return self.ttft - self.queued_s
