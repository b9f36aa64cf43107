"""Turns the head's logits into the answers of the API. Knows nothing of prompts, tokens or HTTP.

Numbers are doubles and are not rounded: rounding each of 255 probabilities would move their sum and, with it, the score
and the confidence that a client can recompute from them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never

from serving.api_types import (
    ChoiceAnswer,
    ChoiceQuestion,
    NoulAnswer,
    NoulQuestion,
    Question,
    ScoreAnswer,
    ScoreQuestion,
)
from serving.engine import EngineScoresError
from serving.request_record import Decision
from serving.settings import ConfidenceRule


def softmax(logits: Sequence[float]) -> list[float]:
    """Probabilities of one question's options, in the order of the logits.

    Raises:
        EngineScoresError: a logit is not finite.
    """
    if not all(map(math.isfinite, logits)):
        raise EngineScoresError(
            f"{sum(not math.isfinite(logit) for logit in logits)} of {len(logits)} logits are not finite"
        )
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def choice_confidence(probabilities: Sequence[float]) -> float:
    """0 for an even spread over the options, 1 for certainty: `(max p - 1/n) / (1 - 1/n)`, and 1 for a single option.

    Source: TypeSafe's definition, as `jevcompat` (SPEC 4.5) states it.
    """
    n = len(probabilities)
    if n == 1:
        return 1.0
    return min(1.0, max(0.0, (max(probabilities) - 1 / n) / (1 - 1 / n)))


def score_confidence(probabilities: Sequence[float]) -> float:
    """0 for a spread as wide as an even one, 1 for certainty; 1 for a single level.

    `max(0, 1 - sum p_i |i - k| / D)` with k the most probable level and `D = (1/n) sum |i - (n - 1) / 2|`.
    Source: TypeSafe's definition, as `jevcompat` (SPEC 4.5) states it.
    """
    n = len(probabilities)
    if n == 1:
        return 1.0
    top = max(range(n), key=probabilities.__getitem__)
    spread = math.fsum(p * abs(level - top) for level, p in enumerate(probabilities))
    even_spread = math.fsum(abs(level - (n - 1) / 2) for level in range(n)) / n
    return max(0.0, 1 - spread / even_spread)


def answer(
    question: Question, option_names: Sequence[str], logits: Sequence[float], *, confidence: ConfidenceRule
) -> NoulAnswer | ChoiceAnswer | ScoreAnswer:
    """The answer to one question.

    Args:
        question: the question as sent.
        option_names: its options' names in scoring order.
        logits: one for each option, in scoring order.
        confidence: which definition of confidence is in force.

    Raises:
        EngineScoresError: the logits are not one finite number for each option.
    """
    if len(logits) != len(option_names):
        raise EngineScoresError(f"{len(logits)} logits came back for {len(option_names)} options")
    scored = dict(zip(option_names, softmax(logits), strict=True))
    match question:
        case NoulQuestion():
            return NoulAnswer(noul=scored["true"])
        case ChoiceQuestion():
            probabilities = {name: scored[name] for name in question.criteria}  # as sent, not as scored
            values = list(probabilities.values())
            return ChoiceAnswer(
                choice=max(probabilities, key=probabilities.__getitem__),  # the first of equals
                confidence=choice_confidence(values) if confidence == "typesafe" else max(values),
                probabilities=probabilities,
            )
        case ScoreQuestion():
            values = list(scored.values())
            expectation = math.fsum(level * p for level, p in enumerate(values))
            return ScoreAnswer(
                score=min(
                    expectation, len(values) - 1
                ),  # a rounding error above the last level is still the last level
                confidence=score_confidence(values) if confidence == "typesafe" else max(values),
                legend={str(level): description for level, description in enumerate(question.criteria)},
                probabilities=scored,
            )
        case _:
            assert_never(question)


def answers(
    questions: Mapping[str, Question],
    option_names: Sequence[Sequence[str]],
    logits: Sequence[Sequence[float]],
    *,
    confidence: ConfidenceRule,
) -> dict[str, NoulAnswer | ChoiceAnswer | ScoreAnswer]:
    """One answer for each question id, in request order.

    Raises:
        EngineScoresError: the logits are not one finite number for each option of each question.
    """
    if len(logits) != len(questions):
        raise EngineScoresError(f"scores came back for {len(logits)} of {len(questions)} questions")
    return {
        question_id: answer(question, names, scores, confidence=confidence)
        for (question_id, question), names, scores in zip(questions.items(), option_names, logits, strict=True)
    }


def decisions(given: Mapping[str, NoulAnswer | ChoiceAnswer | ScoreAnswer]) -> Iterator[Decision]:
    """How sure each answer is."""
    for one in given.values():
        spread = [one.noul, 1 - one.noul] if isinstance(one, NoulAnswer) else list(one.probabilities.values())
        yield Decision(
            question_type=one.type,
            confidence=None if isinstance(one, NoulAnswer) else one.confidence,
            entropy_bits=max(0.0, -math.fsum(p * math.log2(p) for p in spread if p > 0)),
        )
