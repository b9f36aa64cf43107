"""What the prompt's tests share: requests as the wire reads them, the reference beside ours, tokenizers that are watched."""

import functools
import json
from collections.abc import Sequence
from typing import Any

import torch
from clef_finetune.jsm import load_jsm

from benchmarks import random_release
from model_plugin.schema_layout import QUESTION_TYPES
from serving import strict_json
from serving.api_types import SystemOneRequest, parse_request
from serving.prompt import EncodedPrompt, PromptEncoder
from tests.serving.harness import WHOLE_PROMPT, composing_tokenizer, encoder, tiny_tokenizer
from tests.serving.reference_tokenizer import without_control_tokens

ENCODER = encoder()
EXACT_ENCODER = encoder(exact_control_tokens=True)
REFUND = {"type": "noul", "instructions": "Does the customer want a refund?"}


@functools.cache
def demo_tokenizer() -> Any:
    """The random release's: Qwen3.5's normalizer and pre-tokenizer around a vocabulary of 4,032 learned tokens."""
    return random_release._tokenizer()


TOKENIZERS = {"tiny": tiny_tokenizer, "composing": composing_tokenizer, "demonstration": demo_tokenizer}


@functools.cache
def encoder_of(tokenizer: Any) -> PromptEncoder:
    """An encoder that takes prompts of any length."""
    return encoder(tokenizer)


def read(request: dict[str, Any]) -> SystemOneRequest:
    """The request as it comes through the wire."""
    return parse_request(strict_json.parse(json.dumps(request).encode(), max_depth=128))


def encode(request: dict[str, Any], by: PromptEncoder = ENCODER, **options: Any) -> EncodedPrompt:
    parsed = read(request)
    return by.encode(parsed.state, parsed.questions, **options)


def decode(prompt: EncodedPrompt, span: tuple[int, int]) -> str:
    """The text of a span in the tiny release's tokens."""
    text = tiny_tokenizer().backend_tokenizer.decode(prompt.input_ids[slice(*span)], skip_special_tokens=False)
    assert isinstance(text, str)
    return text


def assert_same_as(record: Any, prompt: EncodedPrompt) -> None:
    """The reference's encoding and ours agree in every token, span and option."""
    assert tuple(prompt.input_ids) == record.input_ids
    assert len(prompt.questions) == len(record.questions)
    for spans, names, expected in zip(prompt.questions, prompt.option_names, record.questions, strict=True):
        assert QUESTION_TYPES.index(spans.question_type) == expected.question_type
        assert spans.question == expected.question_span
        assert spans.options == expected.option_spans
        assert names == expected.option_ids


def reference_cut(request: dict[str, Any], tokenizer: Any, *, max_length: int, media_ids: Sequence[int] = ()) -> Any:
    """The reference's encoding, its state cut to the limit, behind media that a processor made these tokens of.

    Raises:
        ValueError: there is no room even without the state.
    """
    media = {"images": ["an image"]} if media_ids else {}

    def processor(**_: Any) -> Any:
        return {"input_ids": torch.tensor([media_ids])}

    return load_jsm().encode_record(tokenizer, request | media, max_length=max_length, processor=processor)


def assert_equals_reference(prompt: EncodedPrompt, request: dict[str, Any], tokenizer: Any = None) -> None:
    tokenizer = tokenizer or without_control_tokens(tiny_tokenizer())
    assert_same_as(reference_cut(request, tokenizer, max_length=WHOLE_PROMPT), prompt)


class CountingBackend:
    """The Rust tokenizer, remembering what it was asked."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.calls: list[list[str]] = []

    def encode_batch_fast(self, input: list[str], *, add_special_tokens: bool) -> Any:
        self.calls.append(input)
        return self._backend.encode_batch_fast(input, add_special_tokens=add_special_tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class CountingTokenizer:
    """The tiny tokenizer around a `CountingBackend`, which sees the texts of requests if control tokens are exact."""

    def __init__(self) -> None:
        self.backend_tokenizer = CountingBackend(tiny_tokenizer().backend_tokenizer)

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any:
        return tiny_tokenizer()(text, add_special_tokens=add_special_tokens)

    def encoder(self, **limits: Any) -> PromptEncoder:
        made = encoder(self, exact_control_tokens=True, **limits)
        self.backend_tokenizer.calls.clear()
        return made


class DroppingTokenizer(CountingTokenizer):
    """One that reads nothing in a certain text, as a tokenizer may that strips blanks."""

    def __init__(self, dropped: str) -> None:
        super().__init__()
        tokenize = self.backend_tokenizer.encode_batch_fast

        def encode_batch_fast(input: list[str], *, add_special_tokens: bool) -> Any:
            return tokenize(["" if text == dropped else text for text in input], add_special_tokens=add_special_tokens)

        self.backend_tokenizer.encode_batch_fast = encode_batch_fast  # type: ignore[method-assign]
