"""The texts that a prompt is made of, as `encode_record` in Cloudflare's `joint_schema_model.py` writes them.

Knows nothing of tokens. Each text here is tokenized on its own; `serving.prompt` puts them in order.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from model_plugin.schema_layout import QuestionType
from serving.api_types import MAX_CHOICE_OPTIONS, ChoiceQuestion, NoulCriteria, NoulQuestion, Question, ScoreQuestion

PREFIX = (
    "<|im_start|>system\nRead the complete state and schema. Decide every field jointly. "
    "Each answer must be exactly one of that field's allowed options.<|im_end|>\n<|im_start|>user\nSTATE:\n"
)
SUFFIX = "\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nJOINT SCHEMA DECISIONS:"
SCHEMA_START = "\n\nSCHEMA FIELDS:\n"
OPTIONS_START = "\nALLOWED OPTIONS:\n"
OPTION_STARTS = tuple(f"OPTION {number}: " for number in range(1, MAX_CHOICE_OPTIONS + 1))
OPTION_END = "\n"
FIELD_END = "END FIELD\n"
NOUL_DESCRIPTIONS: Mapping[str, Any] = {
    "true": "The proposition is true or the answer is yes.",
    "false": "The proposition is false or the answer is no.",
}

# How the reference writes JSON into the prompt.
_write_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionTexts:
    """The texts of one question that differ from request to request."""

    sent_id: str
    question_type: QuestionType
    header: str
    instructions: str
    options: list[str]
    option_names: tuple[str, ...]

    def __iter__(self) -> Iterator[str]:
        """Each text in the order of the prompt."""
        yield self.header
        yield self.instructions
        yield from self.options


def render(content: Any) -> str:
    """Text as it is; an object or array as the reference writes it: compact, keys sorted, nothing escaped."""
    return content if isinstance(content, str) else _write_json(content)


def scored_options(question: Question) -> list[tuple[str, Any]]:
    """Each option's name and description, null for none, in the order the model scores them.

    A choice's options are sorted by name in code-point order, as the reference sorts them.
    """
    match question:
        case NoulQuestion():
            sent = question.criteria.as_sent() if question.criteria else {}
            return [(side, sent.get(side, default)) for side, default in NOUL_DESCRIPTIONS.items()]
        case ChoiceQuestion():
            return sorted(question.criteria.items(), key=lambda option: option[0])
        case ScoreQuestion():
            return [(str(level), description) for level, description in enumerate(question.criteria)]


def neutral(questions: Mapping[str, Question]) -> dict[str, Question]:
    """The questions under ids that say nothing, `q1`, `q2`, ... in their order.

    One without instructions asks the id it was sent with, as it would under that id: nothing else says what is asked.
    """
    return {
        f"q{number}": question.model_copy(update={"instructions": _asked(question_id, question)})
        for number, (question_id, question) in enumerate(questions.items(), start=1)
    }


def schema_key(questions: Mapping[str, Question]) -> str:
    """A text that two sets of questions share only if they have the same prompt and the same scoring order.

    It is JSON, which keeps 1, 1.0 and true apart. Questions stand in a list, since their order is part of the prompt;
    the keys of objects are sorted, since the prompt sorts them too.
    """
    return _write_json(
        [
            (
                question_id,
                question.type,
                question.instructions,
                question.criteria.as_sent() if isinstance(question.criteria, NoulCriteria) else question.criteria,
            )
            for question_id, question in questions.items()
        ]
    )


def question_texts(number: int, sent_id: str, name: str, question: Question) -> QuestionTexts:
    """The texts of the question that stands at `number`, from 1, under `name`, and was sent as `sent_id`."""
    options = scored_options(question)
    return QuestionTexts(
        sent_id=sent_id,
        question_type=question.type,
        header=f"\nFIELD {number}\nID: {name}\nTYPE: {question.type}\nINSTRUCTION: ",
        instructions=render(_asked(name, question)),
        options=[
            _write_json({"option_id": option} if text is None else {"option_id": option, "description": text})
            for option, text in options
        ],
        option_names=tuple(option for option, _ in options),
    )


def _asked(question_id: str, question: Question) -> Any:
    """What a question asks: its instructions, or its id if it has none."""
    instructions = question.instructions
    return question_id if instructions is None or instructions == "" else instructions
