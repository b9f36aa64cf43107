"""How far a server's answer is from the reference's, and which tolerance that is within. Pure; knows neither of the two."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from launch.verify.reference import Probabilities


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """A max |dp| over all options and, where `margin` is given, the same top option wherever the reference's top is
    ahead by more than that.
    """

    name: str
    max_dp: float
    margin: float | None = None


# From the project's design, section "Numbers that define the same answer"; the closest first.
TOLERANCES = (
    Tolerance(name="FP32", max_dp=1e-5),
    Tolerance(name="FP32 over two tensor-parallel ranks", max_dp=5e-5),
    Tolerance(name="BF16", max_dp=1e-2, margin=0.05),
)
# A top option that differs although the reference's was further ahead than this is a disagreement.
MARGIN = 0.05


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One record. `refused` says why there is no comparison; everything below it is then empty.

    Attributes:
        max_dp: max |dp| over all options, and `question` where it is.
        same_top: whether each question's most probable option is the same.
        disagreements: the questions where it is not, although the reference's margin is above MARGIN.
        tokens: of the prompt, as the server and as the reference count them; the server may not count.
        cached: tokens that the server did not compute again when it was asked a second time, if it says so.
    """

    name: str
    refused: str | None = None
    max_dp: float = 0.0
    question: str = ""
    same_top: bool = True
    disagreements: tuple[str, ...] = ()
    tokens: tuple[int | None, int] = (None, 0)
    cached: int | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """All records together."""

    outcomes: Sequence[Outcome]
    tolerance: float
    holds: str | None = field(init=False)

    def __post_init__(self) -> None:
        within = (tolerance.name for tolerance in TOLERANCES if self._is_within(tolerance))
        object.__setattr__(self, "holds", next(within, None))

    @property
    def max_dp(self) -> float:
        return max((outcome.max_dp for outcome in self.outcomes if outcome.refused is None), default=0.0)

    @property
    def refused(self) -> list[str]:
        return [outcome.name for outcome in self.outcomes if outcome.refused is not None]

    @property
    def disagreements(self) -> list[str]:
        return [f"{outcome.name}: {question}" for outcome in self.outcomes for question in outcome.disagreements]

    @property
    def passed(self) -> bool:
        """Whether every record was answered, within the tolerance asked for."""
        return not self.refused and self.max_dp <= self.tolerance

    def _is_within(self, tolerance: Tolerance) -> bool:
        same = tolerance.margin is None or not self.disagreements
        return not self.refused and self.max_dp <= tolerance.max_dp and same


def probabilities_of(answers: Any) -> Probabilities:
    """What the answers of a response say of every option.

    Raises:
        ValueError: they are not a SystemOne response's.
    """
    try:
        return {
            question: {"true": float(answer["noul"]), "false": 1 - float(answer["noul"])}
            if answer["type"] == "noul"
            else {option: float(p) for option, p in answer["probabilities"].items()}
            for question, answer in answers.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as err:
        raise ValueError(f"not the answers of a SystemOne response: {type(err).__name__} {err}") from err


def compare(name: str, expected: Probabilities, asked: Sequence[Probabilities], **counts: Any) -> Outcome:
    """The outcome of a record that was answered, once or more.

    Args:
        expected: the reference's.
        asked: the server's, each time it was asked.
        counts: `tokens` and `cached` of the outcome.
    """
    max_dp, question, different, disagreements = 0.0, "", False, dict[str, None]()
    for served in asked:
        if problem := _other_shape(expected, served):
            return Outcome(name=name, refused=problem, **counts)
        for asked_question, reference in expected.items():
            answer = served[asked_question]
            dp = max(abs(p - answer[option]) for option, p in reference.items())
            if not math.isfinite(dp):
                return Outcome(name=name, refused=f"{asked_question} has a probability that is not a number", **counts)
            if dp >= max_dp:
                max_dp, question = dp, asked_question
            # As TypeSafe breaks a tie, so that two equal options are no difference: the first in the reference's order.
            if max(reference, key=reference.__getitem__) != max(reference, key=answer.__getitem__):
                different = True
                if _margin(reference) > MARGIN:
                    disagreements[asked_question] = None
    return Outcome(
        name=name,
        max_dp=max_dp,
        question=question,
        same_top=not different,
        disagreements=tuple(disagreements),
        **counts,
    )


def _other_shape(expected: Probabilities, served: Probabilities) -> str | None:
    if expected.keys() != served.keys():
        return "the answer is to other questions"
    other = [question for question in expected if expected[question].keys() != served[question].keys()]
    return f"the answer to {other[0]} has other options" if other else None


def _margin(probabilities: dict[str, float]) -> float:
    first, *rest = sorted(probabilities.values(), reverse=True)
    return first - rest[0] if rest else first
