"""The contract between the front and the model: which tokens of a prompt stand for the state, each question, each option.

Knows nothing of text, tokenizers, tensors or SGLang. All positions are token indices into the prompt; ends are exclusive.
On the way to the engine positions count tokens before media placeholders are expanded, as SGLang's own layouts do.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

QuestionType = Literal["noul", "choice", "score"]

# In the order of the head's type embedding (rows 0, 1, 2 of `type_embedding.weight`).
QUESTION_TYPES: tuple[QuestionType, ...] = get_args(QuestionType)

Span = tuple[int, int]

# A salt travels as this many non-negative 32-bit integers.
_SALT_WORDS = 8


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


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptLayout:
    """What the engine must know of a prompt besides its tokens.

    Attributes:
        prompt_tokens: length of the prompt.
        state_end: where the state ends and the questions begin; nothing from there on is ever served from the cache.
        namespace: prompts share cached prefixes only within one namespace; empty is the common one.
    """

    prompt_tokens: int
    questions: tuple[QuestionSpans, ...]
    state_end: int
    namespace: str = ""

    def __post_init__(self) -> None:
        if not self.questions:
            raise ValueError("a layout needs at least one question")
        previous = self.state_end
        if not 0 <= previous <= self.prompt_tokens:
            raise ValueError(f"the state ends at {previous}, outside the prompt of {self.prompt_tokens} tokens")
        for question in self.questions:
            if not question.options:
                raise ValueError("a question needs at least one option")
            for start, end in (question.question, *question.options):
                if not previous <= start < end <= self.prompt_tokens:
                    raise ValueError(
                        f"span ({start}, {end}) is empty, out of order or outside the prompt of "
                        f"{self.prompt_tokens} tokens, whose state ends at {self.state_end}"
                    )
                previous = end

    def expanded(self, prompt_tokens: int) -> "PromptLayout":
        """The same layout once media placeholders, all before the state, have grown the prompt to `prompt_tokens`."""
        offset = prompt_tokens - self.prompt_tokens
        if not offset:
            return self
        if offset < 0:
            raise ValueError(f"the layout describes {self.prompt_tokens} tokens, the prompt has {prompt_tokens}")
        return PromptLayout(
            prompt_tokens=prompt_tokens,
            questions=tuple(question.shifted(offset) for question in self.questions),
            state_end=self.state_end + offset,
            namespace=self.namespace,
        )


def namespace_of(salt: str | None) -> str:
    """The cache namespace of a client's salt: equal for equal salts, 256 bits wide, and no secret."""
    if not salt:
        return ""
    return hashlib.blake2b(salt.encode(), digest_size=4 * _SALT_WORDS).hexdigest()


def pack_layout(layout: PromptLayout) -> list[int]:
    """Flatten a layout into the integers that travel with a request.

    First SGLang's own `decision_layout`: `[prompt tokens, number of questions]`, then for each question `type, start, end,
    number of options` and a `start, end` pair for each option. Then what SGLang does not carry: `state end` and, unless the
    namespace is the common one, its 256 bits as 32-bit integers.
    """
    packed = [layout.prompt_tokens, len(layout.questions)]
    for question in layout.questions:
        packed += (QUESTION_TYPES.index(question.question_type), *question.question, len(question.options))
        for option in question.options:
            packed += option
    packed.append(layout.state_end)
    digest = bytes.fromhex(layout.namespace)
    packed += (int.from_bytes(digest[at : at + 4], "big") for at in range(0, len(digest), 4))
    return packed


def unpack_layout(packed: Sequence[int]) -> PromptLayout:
    """Read `pack_layout`'s integers, or SGLang's own, whose state is taken to end where the first question starts.

    Raises:
        ValueError: the integers describe no layout.
    """
    values = iter(packed)
    try:
        prompt_tokens, question_count = next(values), next(values)
        questions = tuple(_unpack_question(values) for _ in range(question_count))
    except (StopIteration, RuntimeError) as err:
        raise ValueError("the layout is cut short") from err
    if not questions:
        raise ValueError("a layout needs at least one question")
    rest = list(values)
    if len(rest) not in (0, 1, 1 + _SALT_WORDS):
        raise ValueError(f"the layout has {len(rest)} values after its last question")
    try:
        namespace = b"".join(word.to_bytes(4, "big") for word in rest[1:]).hex()
    except OverflowError as err:
        raise ValueError("the layout's namespace is not made of 32-bit integers") from err
    return PromptLayout(
        prompt_tokens=prompt_tokens,
        questions=questions,
        state_end=rest[0] if rest else questions[0].question[0],
        namespace=namespace,
    )


def _unpack_question(values: Iterator[int]) -> QuestionSpans:
    kind, start, end, option_count = (next(values) for _ in range(4))
    if not 0 <= kind < len(QUESTION_TYPES):
        raise ValueError(f"the layout has a question of unknown type {kind}")
    return QuestionSpans(
        question_type=QUESTION_TYPES[kind],
        question=(start, end),
        options=tuple((next(values), next(values)) for _ in range(option_count)),
    )
