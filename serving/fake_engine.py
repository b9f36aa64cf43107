"""An engine without a model, for tests of everything around one. Its logits depend on the prompt's spans alone.

Shipped beside the protocol so that whoever uses the front as a library can test against it. Knows nothing of SGLang.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

from serving.engine import EngineDeadError, EngineRefusedError, ScoreRequest, ScoreResult

Fault = Literal["nan", "infinity", "short", "refuse", "dead"]


def fake_logit(question_ids: Sequence[int], option_ids: Sequence[int]) -> float:
    """A logit in [-4, 4) that is the same for the same question and option tokens, on any machine."""
    text = ",".join(map(str, question_ids)) + "|" + ",".join(map(str, option_ids))
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest()) / 2**29 - 4.0


@dataclass(kw_only=True)
class FakeEngine:
    """Answers at once, or after `delay_s` seconds, or with one of the faults an engine can have.

    `requests` holds what was asked; `aborted` the ids of requests whose call was cancelled; `running` how many are in
    flight. With `constant_logit` every option gets that logit, which makes every question a tie.
    """

    fault: Fault | None = None
    delay_s: float = 0.0
    constant_logit: float | None = None
    requests: list[ScoreRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    running: int = 0
    closed: bool = False

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """See `serving.engine.Engine`."""
        self.requests.append(request)
        self.running += 1
        try:
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.aborted.append(request.request_id)
            raise
        finally:
            self.running -= 1
        if self.fault == "dead":
            raise EngineDeadError("the fake engine is dead")
        if self.fault == "refuse":
            raise EngineRefusedError("the fake engine refuses everything")
        return ScoreResult(logits=self._logits(request), prompt_tokens=len(request.input_ids))

    def close(self) -> None:
        """See `serving.engine.Engine`."""
        self.closed = True

    def _logits(self, request: ScoreRequest) -> list[list[float]]:
        ids = request.input_ids
        logits = []
        for spans in request.questions:
            question_ids = ids[slice(*spans.question)]
            options = [fake_logit(question_ids, ids[slice(*option)]) for option in spans.options]
            logits.append(options if self.constant_logit is None else [self.constant_logit] * len(options))
        match self.fault:
            case "nan":
                logits[0][0] = math.nan
            case "infinity":
                logits[0][0] = math.inf
            case "short":
                logits[0].pop()
        return logits
