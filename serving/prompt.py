"""Turns a request into the prompt a Clef release was trained on, and says which tokens stand for which option.

Knows nothing of HTTP, engines or answers. The layout is that of `encode_record` in Cloudflare's
`joint_schema_model.py`, token for token: the prompt is a sequence of pieces, each tokenized on its own, so that a
span's tokens are exactly the tokens of the text it stands for. Spans are sums of lengths; the text is never searched.

In one thing it differs from the reference: the text of a control token (`<|im_end|>`) in a request stays text, and only
the prompt's own texts hold control tokens. `exact_control_tokens` makes such a text that token, as the reference does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from model_plugin.schema_layout import QuestionSpans, Span
from serving.api_types import Question
from serving.errors import Fault, InvalidRequestError, PromptTooLongError
from serving.prompt_text import (
    FIELD_END,
    OPTION_END,
    OPTION_STARTS,
    OPTIONS_START,
    PREFIX,
    SCHEMA_START,
    SUFFIX,
    QuestionTexts,
    neutral,
    question_texts,
    render,
    schema_key,
)
from serving.schema_cache import SchemaCache
from serving.strict_json import shorten
from serving.tokenizer import BatchTokenizer, Tokenizer, UnbrokenTextError

# What the reference puts in an image's or a video's place, and before each: where a text holds one, positions are wrong.
MEDIA_PLACEHOLDERS = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>")
# A text with more characters than this for each token of the limit is not tokenized whole. Ordinary text has 1 to 6
# characters a token, and only long runs of blanks have more than 16. Without a bound a body of 30 MB took 15 s and 4 GB
# to be told that it is too long, and a run of 10 million blanks made the tokenizer's regular expression engine panic.
MAX_CHARACTERS_PER_TOKEN = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedPrompt:
    """A prompt and what its tokens stand for.

    `option_names` holds, for each question, its options' names in the order of its spans, which is the scoring order.
    `media_tokens` + `state_tokens` + `schema_tokens` + `fixed_tokens` is the prompt's length; fixed are the texts around
    them. Media stand before the state; the state ends before token `state_end`, where the schema begins.
    `truncated_tokens` more were cut off the state's end; of a state longer than `MAX_CHARACTERS_PER_TOKEN` characters for
    each token of the limit at least so many, since its rest is not counted.
    """

    input_ids: list[int]
    questions: tuple[QuestionSpans, ...]
    option_names: tuple[tuple[str, ...], ...]
    state_end: int
    state_tokens: int
    schema_tokens: int
    media_tokens: int
    fixed_tokens: int
    truncated_tokens: int


@dataclass(kw_only=True, slots=True)
class _State:
    """A state's text, and its tokens once they are known: prompts about one state share them."""

    text: str
    ids: list[int] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Schema:
    """The encoded questions. Spans count from the schema's first token."""

    ids: list[int]
    questions: tuple[QuestionSpans, ...]
    option_names: tuple[tuple[str, ...], ...]


class PromptEncoder:
    """Encodes requests with one tokenizer. Every method may be called from any thread.

    Args:
        tokenizer: the release's, a Transformers fast tokenizer; see `BatchTokenizer`.
        max_prompt_tokens: the longest prompt, in tokens.
        cache_entries: how many encoded schemas to keep.
        cache_tokens: how many tokens of encoded schemas to keep.
        exact_control_tokens: let the text of a control token in a request become that token, as the reference does.

    Attributes:
        fixed_tokens: the tokens around state and schema.
        schema_cache: the encoded schemas that are kept.

    Raises:
        ValueError: the tokenizer cannot be used.
    """

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        max_prompt_tokens: int,
        cache_entries: int,
        cache_tokens: int,
        exact_control_tokens: bool = False,
    ) -> None:
        self._tokenize = BatchTokenizer(tokenizer, exact=exact_control_tokens)
        self._max_prompt_tokens = max_prompt_tokens
        self.schema_cache: SchemaCache[_Schema] = SchemaCache(max_entries=cache_entries, max_tokens=cache_tokens)
        constants = [PREFIX, SUFFIX, SCHEMA_START, OPTIONS_START, OPTION_END, FIELD_END, *OPTION_STARTS]
        self._constants = self._tokenize.own(constants)
        self.fixed_tokens = len(self._constants[PREFIX]) + len(self._constants[SUFFIX])
        self._media_token_ids: Mapping[int, str] = {}
        if exact_control_tokens:
            placeholders = self._tokenize.own(MEDIA_PLACEHOLDERS)
            self._media_token_ids = {ids[0]: text for text, ids in placeholders.items() if len(ids) == 1}

    def count(self, text: str) -> int:
        """The number of tokens of a text that stands alone."""
        return len(self._tokenize([text])[text])

    def encode(
        self,
        state: Any,
        questions: Mapping[str, Question],
        *,
        neutral_ids: bool = False,
        media_ids: Sequence[int] = (),
        truncate: bool = False,
    ) -> EncodedPrompt:
        """Encode one request, tokenizing everything not yet known in one batched call.

        Args:
            state: text, an object or an array.
            questions: by the ids they were sent with.
            neutral_ids: let the prompt call them as `neutral` does; errors still name them as sent.
            media_ids: the tokens of images and videos as the release's processor writes them, one for each patch, with
                the newline after them.
            truncate: cut the state's end, as the reference does, where the prompt would exceed the limit. Questions and
                media are never cut.

        Raises:
            PromptTooLongError: the prompt exceeds the limit, or does so even without the state.
            InvalidRequestError: a question's text has no token at all; or, with media and exact control tokens, a text
                holds a token that would be taken for media.
        """
        return self._encode(
            _State(text=render(state)), questions, neutral_ids=neutral_ids, media_ids=media_ids, truncate=truncate
        )

    def encode_isolated(
        self,
        state: Any,
        questions: Mapping[str, Question],
        *,
        neutral_ids: bool = False,
        media_ids: Sequence[int] = (),
        truncate: bool = False,
    ) -> list[EncodedPrompt]:
        """For each question the prompt that `encode` makes of it alone. The state is tokenized once.

        Each prompt is cut on its own: one with a shorter question keeps more of the state.

        Raises:
            PromptTooLongError: one of the prompts exceeds the limit; the message names its question.
            InvalidRequestError: as for `encode`.
        """
        shared = _State(text=render(state))
        prompts: list[EncodedPrompt] = []
        for question_id, question in questions.items():
            try:
                prompt = self._encode(
                    shared,
                    {question_id: question},
                    neutral_ids=neutral_ids,
                    media_ids=media_ids,
                    truncate=truncate,
                )
            except PromptTooLongError as err:
                raise PromptTooLongError(f"question '{shorten(question_id)}': {err}") from err
            prompts.append(prompt)
        return prompts

    def _encode(
        self,
        state: _State,
        questions: Mapping[str, Question],
        *,
        neutral_ids: bool,
        media_ids: Sequence[int],
        truncate: bool,
    ) -> EncodedPrompt:
        named = neutral(questions) if neutral_ids else questions
        key = schema_key(named)
        known = self.schema_cache.get(key)
        pieces: list[QuestionTexts] = []
        if known is None:
            pieces = list(map(question_texts, count(1), questions, named, named.values()))
        schema_texts = list(chain.from_iterable(pieces))
        most = MAX_CHARACTERS_PER_TOKEN * self._max_prompt_tokens
        if sum(map(len, schema_texts)) + (0 if truncate else len(state.text)) > most:
            raise self._far_too_long(state.text[:most], "".join(schema_texts)[:most], known, len(media_ids))
        if state.ids is None and len(state.text) > most:
            state.ids = self._beginning(state.text, most)
        ids = self._tokenize([state.text, *schema_texts] if state.ids is None else schema_texts)
        if state.ids is None:
            state.ids = ids[state.text]
        schema = known or self._assemble(pieces, ids)

        state_ids = self._fitted(state.ids, schema, len(media_ids), truncate=truncate)
        if media_ids and self._media_token_ids:
            self._refuse_media_tokens(state_ids, schema, questions)
        if known is None:
            self.schema_cache.put(key, schema, tokens=len(schema.ids))
        prefix = self._constants[PREFIX]
        offset = len(prefix) + len(media_ids) + len(state_ids)
        return EncodedPrompt(
            input_ids=[*prefix, *media_ids, *state_ids, *schema.ids, *self._constants[SUFFIX]],
            questions=tuple(spans.shifted(offset) for spans in schema.questions),
            option_names=schema.option_names,
            state_end=offset,
            state_tokens=len(state_ids),
            schema_tokens=len(schema.ids),
            media_tokens=len(media_ids),
            fixed_tokens=self.fixed_tokens,
            truncated_tokens=len(state.ids) - len(state_ids),
        )

    def _beginning(self, state_text: str, characters: int) -> list[int]:
        """The tokens of a state too long to be tokenized whole, more of them than any prompt has room for."""
        try:
            return self._tokenize.beginning(state_text, characters=characters, tokens=self._max_prompt_tokens + 1)
        except UnbrokenTextError as err:
            raise PromptTooLongError(
                f"the state has {len(state_text)} characters, which is over the limit of {self._max_prompt_tokens} tokens, "
                f"and it cannot be cut: it has {err}"
            ) from err

    def _fitted(self, state_ids: list[int], schema: _Schema, media_tokens: int, *, truncate: bool) -> list[int]:
        """The state's tokens, or if asked as many as there is room for, which may be none."""
        limit = self._max_prompt_tokens
        others = self.fixed_tokens + media_tokens + len(schema.ids)
        counts = f"schema {len(schema.ids)}, media {media_tokens}, fixed text {self.fixed_tokens}"
        if not truncate and others + len(state_ids) > limit:
            raise PromptTooLongError(
                f"the prompt has {others + len(state_ids)} tokens and the limit is {limit}: state {len(state_ids)}, {counts}"
            )
        if others > limit:
            raise PromptTooLongError(
                f"the prompt has {others} tokens even without the state, which alone may be cut, and the limit is {limit}: "
                f"{counts}; send fewer or shorter questions" + (", or fewer or smaller media" if media_tokens else "")
            )
        return state_ids[: limit - others]

    def _far_too_long(
        self, state_start: str, schema_start: str, known: _Schema | None, media_tokens: int
    ) -> PromptTooLongError:
        """What to say of a prompt that is not worth counting to its end."""
        ids = self._tokenize([state_start, schema_start])
        state_tokens = len(ids[state_start])
        schema_tokens = len(known.ids) if known else len(ids[schema_start])
        return PromptTooLongError(
            f"the prompt has at least {self.fixed_tokens + media_tokens + state_tokens + schema_tokens} tokens and the "
            f"limit is {self._max_prompt_tokens}: state at least {state_tokens}, schema at least {schema_tokens}, media "
            f"{media_tokens}, fixed text {self.fixed_tokens}; more than {MAX_CHARACTERS_PER_TOKEN} characters for each "
            "token of the limit are refused without counting the rest"
        )

    def _refuse_media_tokens(self, state_ids: list[int], schema: _Schema, questions: Mapping[str, Question]) -> None:
        """Raises InvalidRequestError for text that became the placeholder of a medium, beside real media."""
        for token_id, placeholder in self._media_token_ids.items():
            if token_id in state_ids:
                raise _typed_placeholder(placeholder, "state", ["state"])
            if token_id not in schema.ids:
                continue
            for question_id, spans in zip(questions, schema.questions, strict=True):
                where, loc = f"question '{shorten(question_id)}'", ["questions", shorten(question_id)]
                if token_id in schema.ids[slice(*spans.question)]:
                    raise _typed_placeholder(placeholder, f"{where}: instructions", [*loc, "instructions"])
                if any(token_id in schema.ids[slice(*span)] for span in spans.options):
                    raise _typed_placeholder(placeholder, f"{where}: criteria", [*loc, "criteria"])
            # What is left of a question is its id.
            raise _typed_placeholder(placeholder, "a question's id", ["questions"])

    def _assemble(self, pieces: list[QuestionTexts], ids: Mapping[str, list[int]]) -> _Schema:
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
                QuestionSpans(question_type=piece.question_type, question=question, options=tuple(options))
            )
        return _Schema(
            ids=schema, questions=tuple(questions), option_names=tuple(piece.option_names for piece in pieces)
        )


def _no_token(question_id: str) -> InvalidRequestError:
    message = f"question '{shorten(question_id)}': instructions have no token that the model could read"
    loc: list[str | int] = ["body", "questions", shorten(question_id), "instructions"]
    return InvalidRequestError([Fault(loc=loc, msg=message, type="no_token")])


def _typed_placeholder(placeholder: str, where: str, loc: list[str]) -> InvalidRequestError:
    message = f"{where} holds the text {placeholder}, which would be taken for one of the request's images or videos"
    return InvalidRequestError([Fault(loc=["body", *loc], msg=message, type="media_token")])
