"""What is known of one request: filled in on its way, read at its end by the log line, the metrics and the trace.

Holds counts, names and times, never a word of the request itself.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

# Where a request's time goes: reading and checking its body, its media and its prompt; waiting for the engine; in the
# engine; making the answer.
Stage = Literal["encode", "queue", "engine", "answer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """How sure one answer is: `confidence` in the server's meaning (None for noul), entropy in bits of its probabilities."""

    question_type: str
    confidence: float | None
    entropy_bits: float


@dataclass(kw_only=True)
class RequestRecord:
    """One request. Counts are tokens unless named otherwise; None where it was not reached."""

    request_id: str
    status: int | None = None
    outcome: str = "ok"
    key_name: str | None = None
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
    stage_seconds: dict[Stage, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def stage(self, name: Stage) -> Iterator[None]:
        """Count the body's time to a stage; a stage may have several parts."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.stage_seconds[name] = self.stage_seconds.get(name, 0.0) + time.perf_counter() - started
