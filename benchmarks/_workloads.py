"""The prompts that the prefix benchmark asks, the fewest tokens they need, and the line through cost against length.

Knows tokenizers and prompts, nothing of engines.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from benchmarks.corpus import lines
from model_plugin.schema_layout import QuestionSpans
from serving.api_types import parse_request
from serving.prompt import PromptEncoder

GRID_TOKENS = 64  # where a prefix can end: Gated DeltaNet states are kept at multiples of this
TOPICS = (
    "invoice", "refund", "parcel", "courier", "warranty", "outage", "login", "contract", "renewal", "pricing",
    "discount", "shipment", "damage", "delay", "customs", "payroll", "training", "export", "backup", "latency",
    "certificate", "firewall", "printer", "licence",
)  # fmt: skip
_LINE_TOKENS_AT_LEAST = 10
_NO_LIMIT_TOKENS = 10**7


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What both sides are sent: the same tokens and spans. The state ends before token `state_end`."""

    input_ids: list[int]
    questions: tuple[QuestionSpans, ...]
    state_end: int

    @property
    def tokens_after_state(self) -> int:
        """Schema and suffix."""
        return len(self.input_ids) - self.state_end


def question_set(number: int) -> dict[str, Any]:
    """Two questions of different types, in other words for each number."""
    first, second, third, fourth = (TOPICS[(number + step) % len(TOPICS)] for step in (0, 5, 11, 17))
    questions = [
        (f"about_{first}", {"type": "noul", "instructions": f"Does any record in {number} mention a {first}?"}),
        (
            f"queue_{number}",
            {
                "type": "choice",
                "instructions": f"Which queue handles the {second}?",
                "criteria": {first: None, second: None, fourth: None},
            },
        ),
        (
            f"urgency_{number}",
            {"type": "score", "instructions": f"How urgent is the {third}?", "criteria": ["low", "medium", "high"]},
        ),
    ]
    return dict(question for index, question in enumerate(questions) if index != number % 3)


class Workloads:
    """Makes prompts whose state has an exact number of tokens, another text for each state number."""

    def __init__(self, tokenizer: Any) -> None:
        self._encoder = PromptEncoder(
            tokenizer=tokenizer, max_prompt_tokens=_NO_LIMIT_TOKENS, cache_entries=64, cache_tokens=10**6
        )

    def prompt(self, *, state: int, state_tokens: int, questions: int) -> Prompt:
        """Question set number `questions` about state number `state`, which is cut to `state_tokens` tokens."""
        count = -(-state_tokens // _LINE_TOKENS_AT_LEAST)
        window = islice(lines(200 * state + count), 200 * state, None)
        body = {
            "model": "clef",
            "state": f"Collection {state}.\n" + "\n".join(window),
            "questions": question_set(questions),
        }
        request = parse_request(body)
        whole = self._encoder.encode(request.state, request.questions)
        excess = whole.state_tokens - state_tokens
        assert excess >= 0, f"the text of state {state} has only {whole.state_tokens} tokens"
        state_end = whole.state_end - excess
        return Prompt(
            input_ids=whole.input_ids[:state_end] + whole.input_ids[whole.state_end :],
            questions=tuple(question.shifted(-excess) for question in whole.questions),
            state_end=state_end,
        )

    def shared(self, state: int, state_tokens: int, question_sets: int) -> list[Prompt]:
        """One state, asked every question set."""
        return [
            self.prompt(state=state, state_tokens=state_tokens, questions=questions)
            for questions in range(question_sets)
        ]

    def unshared(self, first_state: int, state_tokens: int, question_sets: int) -> list[Prompt]:
        """The same question sets, each about another state."""
        return [
            self.prompt(state=first_state + questions, state_tokens=state_tokens, questions=questions)
            for questions in range(question_sets)
        ]


def ideal_prefill_tokens(prompts: Sequence[Prompt], grid: int = GRID_TOKENS) -> int:
    """The fewest tokens to compute for prompts over one state: the state once, with all that stands before it; then for each
    prompt its schema and suffix, and for each but the first what of the state lies past the last multiple of `grid`."""
    state_end = prompts[0].state_end
    assert all(prompt.state_end == state_end for prompt in prompts), "the prompts share no state"
    later = (prompt.tokens_after_state + state_end % grid for prompt in prompts[1:])
    return len(prompts[0].input_ids) + sum(later)


@dataclass(frozen=True, kw_only=True)
class Line:
    """`seconds = fixed_s + s_per_token * tokens`, and the largest part of a measured time that the line misses."""

    fixed_s: float
    s_per_token: float
    worst_miss: float


def fitted(tokens: Sequence[int], seconds: Sequence[float]) -> Line:
    """The line with the least squared **relative** error, so that the short lengths count as much as the long ones.

    Closed form of weighted least squares with weights `1 / seconds^2`.
    """
    weights = [1 / second**2 for second in seconds]
    total = sum(weights)
    mean_tokens = sum(weight * token for weight, token in zip(weights, tokens, strict=True)) / total
    mean_seconds = sum(weight * second for weight, second in zip(weights, seconds, strict=True)) / total
    covariance = sum(
        weight * (token - mean_tokens) * (second - mean_seconds)
        for weight, token, second in zip(weights, tokens, seconds, strict=True)
    )
    variance = sum(weight * (token - mean_tokens) ** 2 for weight, token in zip(weights, tokens, strict=True))
    slope = covariance / variance
    fixed = mean_seconds - slope * mean_tokens
    misses = [abs(fixed + slope * token - second) / second for token, second in zip(tokens, seconds, strict=True)]
    return Line(fixed_s=fixed, s_per_token=slope, worst_miss=max(misses))


def largest_difference(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> float:
    """Max over all options of |dp|, each question's logits turned into probabilities."""
    differences = [
        abs(a - b)
        for mine, theirs in zip(left, right, strict=True)
        for a, b in zip(probabilities(mine), probabilities(theirs), strict=True)
    ]
    return max(differences)


def probabilities(logits: Sequence[float]) -> list[float]:
    """Softmax of one question's options."""
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    return [weight / sum(weights) for weight in weights]
