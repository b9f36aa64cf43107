"""What is known of one request: filled in on its way, read at its end by the log line, the metrics and the trace.

Holds counts, names and times, never a word of the request itself.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

# Where a request's time goes: reading and checking its body, its media and its prompt; waiting for the engine; in the
# engine; making the answer.
Stage = Literal["encode", "queue", "engine", "answer"]
STAGES: tuple[Stage, ...] = get_args(Stage)

# For a request that no route of ours takes.
NO_ROUTE = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """How sure one answer is: `confidence` in the server's meaning (None for noul), entropy in bits of its probabilities."""

    question_type: str
    confidence: float | None
    entropy_bits: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePart:
    """One stay in a stage. Times are seconds of `time.perf_counter`."""

    stage: Stage
    started: float
    ended: float


@dataclass(kw_only=True)
class RequestRecord:
    """One request. Counts are tokens unless named otherwise; None where it was not reached.

    Attributes:
        method: one of HTTP's own, or "_OTHER".
        route: the template of the route, as the path itself may hold an account's number.
        outcome: "ok", else the type of the error.
        retry_count: which retry of its client this is, by the client's own account; 0 is the first attempt.
        trace_headers: the headers that say which trace it belongs to.
        trace_id: of that trace, where traces are made.
        started: seconds of `time.perf_counter`; `started_ns` is the same moment on the clock, in ns since 1970.
    """

    request_id: str
    method: str = "_OTHER"
    route: str = NO_ROUTE
    status: int | None = None
    outcome: str = "ok"
    key_name: str | None = None
    retry_count: int = 0
    questions: Counter[str] = field(default_factory=Counter)
    options: Counter[str] = field(default_factory=Counter)
    images: int = 0
    videos: int = 0
    state_tokens: int | None = None
    schema_tokens: int | None = None
    media_tokens: int = 0
    truncated_tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    decisions: list[Decision] = field(default_factory=list)
    stage_parts: list[StagePart] = field(default_factory=list)
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    trace_id: str | None = None
    started: float = field(default_factory=time.perf_counter)
    started_ns: int = field(default_factory=time.time_ns)

    @contextlib.contextmanager
    def stage(self, name: Stage) -> Iterator[None]:
        """Count the body's time to a stage; a stage may have several parts."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.stage_parts.append(StagePart(stage=name, started=started, ended=time.perf_counter()))

    @property
    def stage_seconds(self) -> dict[Stage, float]:
        """How long it was in each stage that it reached."""
        seconds: dict[Stage, float] = {}
        for part in self.stage_parts:
            seconds[part.stage] = seconds.get(part.stage, 0.0) + part.ended - part.started
        return seconds
