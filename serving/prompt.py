"""Turns a request into the prompt a Clef release was trained on, and says which tokens stand for which option.

Knows nothing of HTTP, engines or answers. The layout is that of `encode_record` in Cloudflare's
`joint_schema_model.py`, token for token: the prompt is a sequence of pieces, each tokenized on its own, so that a
span's tokens are exactly the tokens of the text it stands for. Spans are sums of lengths; the text is never searched.
As in the reference, the text of a control token (`<|im_end|>`) in a request becomes that control token.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from model_plugin.schema_layout import QuestionSpans, Span
from serving.api_types import MAX_CHOICE_OPTIONS, ChoiceQuestion, NoulCriteria, NoulQuestion, Question, ScoreQuestion
from serving.errors import Fault, InvalidRequestError, PromptTooLongError
from serving.schema_cache import SchemaCache
from serving.strict_json import shorten
from serving.tokenizer import BatchTokenizer, Tokenizer

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
# A text with more characters than this for each token of the limit is refused before it is tokenized whole. Ordinary
# text has 1 to 6 characters a token, and only long runs of blanks have more than 16. Without a bound a body of 30 MB
# took 15 s and 4 GB to be told that it is too long, and a run of 10 million blanks made the tokenizer's regular
# expression engine panic.
MAX_CHARACTERS_PER_TOKEN = 16
NOUL_DESCRIPTIONS: Mapping[str, Any] = {
    "true": "The proposition is true or the answer is yes.",
    "false": "The proposition is false or the answer is no.",
}

# How the reference writes JSON into the prompt.
_write_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedPrompt:
    """A prompt and what its tokens stand for.

    `option_names` holds, for each question, its options' names in the order of its spans, which is the scoring order.
    `state_tokens` + `schema_tokens` + `fixed_tokens` is the prompt's length; fixed are the texts around both. The state ends
    before token `state_end`, where the schema begins.
    """

    input_ids: list[int]
    questions: tuple[QuestionSpans, ...]
    option_names: tuple[tuple[str, ...], ...]
    state_end: int
    state_tokens: int
    schema_tokens: int
    fixed_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Schema:
    """The encoded questions. Spans count from the schema's first token."""

    ids: list[int]
    questions: tuple[QuestionSpans, ...]
    option_names: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pieces:
    """The texts of one question that differ from request to request."""

    sent_id: str
    question: Question
    header: str
    instructions: str
    options: list[str]
    option_names: tuple[str, ...]


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


class PromptEncoder:
    """Encodes requests with one tokenizer. Every method may be called from any thread.

    Args:
        tokenizer: the release's, a Transformers fast tokenizer; see `BatchTokenizer`.
        max_prompt_tokens: the longest prompt, in tokens.
        cache_entries: how many encoded schemas to keep.
        cache_tokens: how many tokens of encoded schemas to keep.

    Raises:
        ValueError: the tokenizer cannot be used.
    """

    def __init__(self, *, tokenizer: Tokenizer, max_prompt_tokens: int, cache_entries: int, cache_tokens: int) -> None:
        self._tokenize = BatchTokenizer(tokenizer)
        self._max_prompt_tokens = max_prompt_tokens
        self._cache: SchemaCache[_Schema] = SchemaCache(max_entries=cache_entries, max_tokens=cache_tokens)
        constants = [PREFIX, SUFFIX, SCHEMA_START, OPTIONS_START, OPTION_END, FIELD_END, *OPTION_STARTS]
        self._constants = self._tokenize.checked(constants)
        self.fixed_tokens = len(self._constants[PREFIX]) + len(self._constants[SUFFIX])

    def count(self, text: str) -> int:
        """The number of tokens of a text that stands alone."""
        return len(self._tokenize([text])[text])

    def encode(self, state: Any, questions: Mapping[str, Question], *, neutral_ids: bool = False) -> EncodedPrompt:
        """Encode one request, tokenizing everything not yet known in one batched call.

        Args:
            state: text, an object or an array.
            questions: by the ids they were sent with.
            neutral_ids: let the prompt call them as `neutral` does; errors still name them as sent.

        Raises:
            PromptTooLongError: the prompt exceeds the limit. Neither state nor schema is ever cut.
            InvalidRequestError: a question's text has no token at all.
        """
        return self._encode(render(state), None, questions, neutral_ids=neutral_ids)

    def encode_isolated(
        self, state: Any, questions: Mapping[str, Question], *, neutral_ids: bool = False
    ) -> list[EncodedPrompt]:
        """For each question the prompt that `encode` makes of it alone. The state is tokenized once.

        Raises:
            PromptTooLongError: one of the prompts exceeds the limit; the message names its question.
            InvalidRequestError: a question's text has no token at all.
        """
        state_text = render(state)
        prompts: list[EncodedPrompt] = []
        state_ids = None
        for question_id, question in questions.items():
            try:
                prompt = self._encode(state_text, state_ids, {question_id: question}, neutral_ids=neutral_ids)
            except PromptTooLongError as err:
                raise PromptTooLongError(f"question '{shorten(question_id)}': {err}") from err
            if state_ids is None:
                state_ids = prompt.input_ids[prompt.state_end - prompt.state_tokens : prompt.state_end]
            prompts.append(prompt)
        return prompts

    def _encode(
        self, state_text: str, state_ids: list[int] | None, questions: Mapping[str, Question], *, neutral_ids: bool
    ) -> EncodedPrompt:
        """The prompt; `state_ids` where the state's text has been tokenized before."""
        named = neutral(questions) if neutral_ids else questions
        key = schema_key(named)
        known = self._cache.get(key)
        pieces = [] if known else [_pieces(*item) for item in zip(count(1), questions, named.items(), strict=False)]
        schema_texts = list(_texts(pieces))
        most = MAX_CHARACTERS_PER_TOKEN * self._max_prompt_tokens
        if len(state_text) + sum(map(len, schema_texts)) > most:
            raise self._far_too_long(state_text[:most], "".join(schema_texts)[:most], known)
        ids = self._tokenize([state_text, *schema_texts] if state_ids is None else schema_texts)
        if state_ids is None:
            state_ids = ids[state_text]
        schema = known or self._assemble(pieces, ids)
        total = self.fixed_tokens + len(state_ids) + len(schema.ids)
        if total > self._max_prompt_tokens:
            raise PromptTooLongError(
                f"the prompt has {total} tokens and the limit is {self._max_prompt_tokens}: state {len(state_ids)}, "
                f"schema {len(schema.ids)}, fixed text {self.fixed_tokens}"
            )
        if known is None:
            self._cache.put(key, schema, tokens=len(schema.ids))
        prefix = self._constants[PREFIX]
        offset = len(prefix) + len(state_ids)
        return EncodedPrompt(
            input_ids=prefix + state_ids + schema.ids + self._constants[SUFFIX],
            questions=tuple(spans.shifted(offset) for spans in schema.questions),
            option_names=schema.option_names,
            state_end=offset,
            state_tokens=len(state_ids),
            schema_tokens=len(schema.ids),
            fixed_tokens=self.fixed_tokens,
        )

    def _far_too_long(self, state_start: str, schema_start: str, known: _Schema | None) -> PromptTooLongError:
        """What to say of a prompt that is not worth counting to its end."""
        ids = self._tokenize([state_start, schema_start])
        state_tokens = len(ids[state_start])
        schema_tokens = len(known.ids) if known else len(ids[schema_start])
        return PromptTooLongError(
            f"the prompt has at least {self.fixed_tokens + state_tokens + schema_tokens} tokens and the limit is "
            f"{self._max_prompt_tokens}: state at least {state_tokens}, schema at least {schema_tokens}, fixed text "
            f"{self.fixed_tokens}; more than {MAX_CHARACTERS_PER_TOKEN} characters for each token of the limit are "
            "refused without counting the rest"
        )

    def _assemble(self, pieces: list[_Pieces], ids: Mapping[str, list[int]]) -> _Schema:
        constants = self._constants
        options_start, option_end, field_end = constants[OPTIONS_START], constants[OPTION_END], constants[FIELD_END]
        schema = list(constants[SCHEMA_START])

        def add(piece: list[int]) -> Span:
            start = len(schema)
            schema.extend(piece)
            return start, len(schema)

        questions = []
        for piece in pieces:
            add(ids[piece.header])
            question = add(ids[piece.instructions])
            if question[0] == question[1]:
                raise _no_token(piece.sent_id)
            add(options_start)
            options = []
            for option_start, text in zip(OPTION_STARTS, piece.options, strict=False):
                add(constants[option_start])
                options.append(add(ids[text]))
                add(option_end)
            add(field_end)
            questions.append(
                QuestionSpans(question_type=piece.question.type, question=question, options=tuple(options))
            )
        return _Schema(
            ids=schema, questions=tuple(questions), option_names=tuple(piece.option_names for piece in pieces)
        )


def _asked(question_id: str, question: Question) -> Any:
    """What a question asks: its instructions, or its id if it has none."""
    instructions = question.instructions
    return question_id if instructions is None or instructions == "" else instructions


def _pieces(number: int, sent_id: str, named: tuple[str, Question]) -> _Pieces:
    name, question = named
    options = scored_options(question)
    return _Pieces(
        sent_id=sent_id,
        question=question,
        header=f"\nFIELD {number}\nID: {name}\nTYPE: {question.type}\nINSTRUCTION: ",
        instructions=render(_asked(name, question)),
        options=[
            _write_json({"option_id": name} if text is None else {"option_id": name, "description": text})
            for name, text in options
        ],
        option_names=tuple(name for name, _ in options),
    )


def _no_token(question_id: str) -> InvalidRequestError:
    message = f"question '{shorten(question_id)}': instructions have no token that the model could read"
    loc: list[str | int] = ["body", "questions", shorten(question_id), "instructions"]
    return InvalidRequestError([Fault(loc=loc, msg=message, type="no_token")])


def _texts(pieces: Iterable[_Pieces]) -> Iterable[str]:
    for piece in pieces:
        yield piece.header
        yield piece.instructions
        yield from piece.options
