"""The engine the front asks for scores: a small protocol, and its one implementation on an embedded `sglang.Engine`.

This is the only module of `serving` that names SGLang. It knows nothing of HTTP, question text or answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from model_plugin.schema_layout import QuestionSpans


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreRequest:
    """One prompt to score. Spans index `input_ids`."""

    request_id: str
    input_ids: Sequence[int]
    questions: Sequence[QuestionSpans]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreResult:
    """The head's FP32 logits, one list per question in request order, one value per option in scoring order."""

    logits: list[list[float]]
    prompt_tokens: int


class EngineError(Exception):
    """Base of what an engine raises.

    EngineError
    ├── EngineRefusedError   the engine refused this request; the front should have, so it is a fault of ours
    ├── EngineScoresError    the engine answered without one finite logit per option
    └── EngineDeadError      the engine or one of its processes is gone
    """


class EngineRefusedError(EngineError):
    """The engine refused the request."""


class EngineScoresError(EngineError):
    """The scores are missing or not finite."""


class EngineDeadError(EngineError):
    """The engine is gone; no later request can succeed."""


class Engine(Protocol):
    """What the front needs of an engine."""

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score one prompt.

        Cancelling the call aborts the request inside the engine.

        Raises:
            EngineError: see its tree.
        """
        ...

    def close(self) -> None:
        """End the engine's processes. Safe to call twice."""
        ...
