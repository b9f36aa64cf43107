"""The contract between the front and the model: which tokens of a prompt stand for which question and option.

Knows nothing of text, tokenizers, tensors or SGLang. All positions are token indices into the prompt
before media placeholders are expanded; ends are exclusive.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

QuestionType = Literal["noul", "choice", "score"]

# In the order of the head's type embedding (rows 0, 1, 2 of `type_embedding.weight`).
QUESTION_TYPES: tuple[QuestionType, ...] = get_args(QuestionType)

Span = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionSpans:
    """Where one question and each of its allowed options stand in the prompt, options in scoring order."""

    question_type: QuestionType
    question: Span
    options: tuple[Span, ...]

    def shifted(self, offset: int) -> "QuestionSpans":
        """The same spans, `offset` tokens further on."""
        return QuestionSpans(
            question_type=self.question_type,
            question=(self.question[0] + offset, self.question[1] + offset),
            options=tuple((start + offset, end + offset) for start, end in self.options),
        )


def pack_layout(prompt_length: int, questions: Sequence[QuestionSpans]) -> list[int]:
    """Flatten a prompt's questions into the integers that travel with a request.

    The format is SGLang's `decision_layout`: `[prompt_length, number of questions]`, then for each question
    `type, question start, question end, number of options` and a `start, end` pair for each option.

    Raises:
        ValueError: a span is empty or leaves the prompt, or there is no question or no option.
    """
    if not questions:
        raise ValueError("a layout needs at least one question")
    layout = [prompt_length, len(questions)]
    for question in questions:
        if not question.options:
            raise ValueError("a question needs at least one option")
        for start, end in (question.question, *question.options):
            if not 0 <= start < end <= prompt_length:
                raise ValueError(f"span ({start}, {end}) is empty or outside the prompt of {prompt_length} tokens")
        layout += (QUESTION_TYPES.index(question.question_type), *question.question, len(question.options))
        for option in question.options:
            layout += option
    return layout
