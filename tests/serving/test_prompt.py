"""The prompt is the reference's, token for token, and every span decodes to exactly the text it stands for."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.errors import InvalidRequestError
from serving.prompt_text import PREFIX, render, scored_options
from tests.serving.harness import WHOLE_PROMPT, encoder, tiny_tokenizer
from tests.serving.prompts import (
    REFUND,
    TOKENIZERS,
    CountingTokenizer,
    DroppingTokenizer,
    assert_equals_reference,
    assert_same_as,
    decode,
    encode,
    read,
    reference_cut,
)
from tests.serving.reference_tokenizer import without_control_tokens
from tests.serving.strategies import REQUESTS


# The reference reads control tokens in a request's texts, and so do we if asked; else it gets a tokenizer that does not.
@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact control tokens"])
@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@settings(max_examples=60)
@given(request=REQUESTS)
def test_equals_the_reference(tokenizer: Callable[[], Any], exact: bool, request: dict[str, Any]) -> None:
    by = encoder(tokenizer(), exact_control_tokens=exact)
    reference = tokenizer() if exact else without_control_tokens(tokenizer())
    assert_equals_reference(encode(request, by), request, reference)
    assert_equals_reference(encode(request, by), request, reference)  # now from the cache


@settings(max_examples=60)
@given(REQUESTS, st.lists(st.integers(0, 264), min_size=1, max_size=40))
def test_media_stand_before_the_state_as_in_the_reference(request: dict[str, Any], media_ids: list[int]) -> None:
    prompt = encode(request, media_ids=media_ids)
    reference = without_control_tokens(tiny_tokenizer())
    assert_same_as(reference_cut(request, reference, max_length=WHOLE_PROMPT, media_ids=media_ids), prompt)
    without = encode(request)
    assert prompt.media_tokens == len(media_ids)
    assert prompt.state_end == without.state_end + len(media_ids)
    assert (prompt.state_tokens, prompt.schema_tokens) == (without.state_tokens, without.schema_tokens)


@settings(max_examples=200)
@given(REQUESTS)
def test_every_span_decodes_to_its_text(request: dict[str, Any]) -> None:
    prompt = encode(request)
    parsed = read(request)
    for (question_id, question), spans, names in zip(
        parsed.questions.items(), prompt.questions, prompt.option_names, strict=True
    ):
        asked = question_id if question.instructions in (None, "") else render(question.instructions)
        assert decode(prompt, spans.question) == asked
        assert len(names) == len(spans.options)
        for name, (scored_name, description), span in zip(names, scored_options(question), spans.options, strict=True):
            assert name == scored_name
            expected = {"option_id": name} if description is None else {"option_id": name, "description": description}
            assert repr(json.loads(decode(prompt, span))) == repr(dict(sorted(_plain(expected).items())))


def _plain(value: Any) -> Any:
    """A value with its keys sorted, as the prompt holds it."""
    if isinstance(value, dict):
        return {key: _plain(value[key]) for key in sorted(value)}
    return [_plain(member) for member in value] if isinstance(value, list) else value


@settings(max_examples=100)
@given(REQUESTS)
def test_counts_add_up(request: dict[str, Any]) -> None:
    prompt = encode(request, media_ids=[7, 8, 9])
    assert prompt.media_tokens == 3
    assert prompt.truncated_tokens == 0
    counts = (prompt.media_tokens, prompt.state_tokens, prompt.schema_tokens, prompt.fixed_tokens)
    assert sum(counts) == len(prompt.input_ids)
    state = (prompt.state_end - prompt.state_tokens, prompt.state_end)
    assert decode(prompt, state) == render(request["state"])
    assert decode(prompt, (0, state[0] - 3)) == PREFIX


def test_a_request_is_one_call_and_a_repeated_schema_costs_only_its_state() -> None:
    tokenizer = CountingTokenizer()
    counting = tokenizer.encoder()
    calls = tokenizer.backend_tokenizer.calls
    questions = {
        "t": {"type": "choice", "criteria": {"a": "same", "b": "same"}},
        "r": {"type": "noul", "instructions": "ok?"},
        "s": {"type": "noul", "instructions": "ok?"},
    }
    encode({"state": "first", "questions": questions}, counting)
    assert len(calls) == 1
    assert len(calls[0]) == len(set(calls[0]))  # no piece twice, though two questions share theirs
    encode({"state": "second", "questions": questions}, counting)
    assert calls[1:] == [["second"]]


@pytest.mark.parametrize(("entries", "tokens"), [(0, 10**6), (64, 0)])
def test_without_a_cache_the_answer_is_the_same(entries: int, tokens: int) -> None:
    request = {"state": "s", "questions": {"r": REFUND}}
    by = encoder(cache_entries=entries, cache_tokens=tokens)
    assert encode(request, by) == encode(request, by) == encode(request)


def test_a_text_without_tokens_is_refused() -> None:
    request = {"state": "s", "questions": {"r": {"type": "noul", "instructions": "drop me"}}}
    with pytest.raises(InvalidRequestError) as caught:
        encode(request, DroppingTokenizer("drop me").encoder())
    assert caught.value.faults == [
        {
            "loc": ["body", "questions", "r", "instructions"],
            "msg": "question 'r': instructions have no token that the model could read",
            "type": "no_token",
        }
    ]


@settings(max_examples=30)
@given(st.lists(REQUESTS, min_size=2, max_size=6))
def test_threads_do_not_disturb_each_other(requests: list[dict[str, Any]]) -> None:
    by = encoder(cache_entries=2)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda request: encode(request, by), requests * 3))
    assert together == [encode(request) for request in requests * 3]
