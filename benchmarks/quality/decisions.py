"""What a server answered, as one distribution for each question. Knows the wire's form of an answer, and no server.

A distribution is divided by its sum, since servers round and some report scores that do not add up to 1.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.quality.records import Record, options_of


class AnswerError(ValueError):
    """The answers are not those of a SystemOne response to the record; the message says what is wrong."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One question of one record, answered.

    Attributes:
        record: the record's place in what was asked; with `question` it tells which decisions are about the same.
        record_name: what to call it.
        options: their names; yes first, options as sent, levels from 0.
        probabilities: of the options, with a sum of 1.
        label: index of the right option; None if the question has no label.
        group: the record's.
    """

    record: int
    record_name: str
    question: str
    question_type: str
    options: tuple[str, ...]
    probabilities: tuple[float, ...]
    label: int | None = None
    group: str | None = None

    @property
    def top(self) -> int:
        """Index of the most probable option, the first of equals."""
        return max(range(len(self.probabilities)), key=self.probabilities.__getitem__)

    @property
    def answer(self) -> str:
        """Its name."""
        return self.options[self.top]

    @property
    def confidence(self) -> float:
        """The top option's probability. Servers define a confidence of their own, differently, and none for noul."""
        return self.probabilities[self.top]

    @property
    def margin(self) -> float:
        """How far the top option is ahead of the next."""
        first, second = sorted(self.probabilities, reverse=True)[:2]
        return first - second


def decisions_of(record: Record, position: int, response: Any) -> list[Decision]:
    """The decisions of a response's body, one for each question of the record, in its order.

    Raises:
        AnswerError: the body does not answer the record.
    """
    answers = response.get("answers") if isinstance(response, dict) else None
    if not isinstance(answers, dict):
        raise AnswerError("the response has no answers")
    decisions = []
    for question_id, question in record.request["questions"].items():
        if question_id not in answers:
            raise AnswerError(f"question {question_id} has no answer")
        options = options_of(question)
        try:
            spread = _spread(question["type"], options, answers[question_id])
        except (LookupError, TypeError, ValueError) as err:
            raise AnswerError(f"the answer to {question_id} is not one to a {question['type']} question") from err
        total = math.fsum(spread)
        if not math.isfinite(total) or total <= 0 or min(spread) < 0:
            raise AnswerError(f"the probabilities of {question_id} are not a distribution")
        decisions.append(
            Decision(
                record=position,
                record_name=record.name,
                question=question_id,
                question_type=question["type"],
                options=tuple(options),
                probabilities=tuple(p / total for p in spread),
                label=record.labels.get(question_id),
                group=record.group,
            )
        )
    return decisions


def _spread(question_type: str, options: Sequence[str], answer: Mapping[str, Any]) -> list[float]:
    if answer["type"] != question_type:
        raise ValueError(question_type)
    if question_type == "noul":
        yes = float(answer["noul"])
        return [yes, 1 - yes]
    probabilities = answer["probabilities"]
    if len(probabilities) != len(options):
        raise ValueError(len(probabilities))
    return [float(probabilities[option]) for option in options]
