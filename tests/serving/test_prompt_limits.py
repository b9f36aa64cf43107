"""The limit is exact, only the state's end is ever cut, as the reference cuts it, and very long texts are not read whole."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving import tokenizer as tokenizer_module
from serving.errors import PromptTooLongError
from serving.prompt import MAX_CHARACTERS_PER_TOKEN, EncodedPrompt
from tests.serving.harness import encoder, tiny_tokenizer
from tests.serving.prompts import (
    REFUND,
    TOKENIZERS,
    CountingTokenizer,
    assert_same_as,
    demo_tokenizer,
    encode,
    encoder_of,
    read,
    reference_cut,
)
from tests.serving.reference_tokenizer import without_control_tokens
from tests.serving.strategies import REQUESTS, TEXT

MEDIA_IDS = [7] * 40
TEAM = {"type": "choice", "instructions": "Pick", "criteria": {"a": None}}
EACH_TOKENIZER = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)


def encoded_within(limit: int, request: dict[str, Any], **options: Any) -> EncodedPrompt:
    return encode(request, encoder(max_prompt_tokens=limit), **options)


def refusal(limit: int, request: dict[str, Any], **options: Any) -> str:
    with pytest.raises(PromptTooLongError) as caught:
        encoded_within(limit, request, **options)
    return str(caught.value)


@pytest.mark.parametrize("media_ids", [[], MEDIA_IDS], ids=["text", "media"])
@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_the_limit_is_exact_and_nothing_is_cut_unasked(excess: int, media_ids: list[int]) -> None:
    request = {"state": "s" * 100, "questions": {"r": REFUND}}
    whole = encode(request, media_ids=media_ids)
    total = len(whole.input_ids)
    if excess <= 0:
        assert encoded_within(total - excess, request, media_ids=media_ids) == whole
        return
    assert refusal(total - 1, request, media_ids=media_ids) == (
        f"the prompt has {total} tokens and the limit is {total - 1}: state 100, schema {whole.schema_tokens}, "
        f"media {len(media_ids)}, fixed text {whole.fixed_tokens}"
    )


@pytest.mark.parametrize("media_ids", [[], MEDIA_IDS], ids=["text", "media"])
@pytest.mark.parametrize("kept", [101, 100, 99, 1, 0])
def test_asked_to_cut_the_state_loses_its_end_and_nothing_else_changes(kept: int, media_ids: list[int]) -> None:
    request = {"state": "s" * 100, "questions": {"r": REFUND, "t": TEAM}}
    limit = len(encode(request, media_ids=media_ids).input_ids) - 100 + kept
    cut = encoded_within(limit, request, media_ids=media_ids, truncate=True)
    kept = min(kept, 100)
    expected = encode(request | {"state": "s" * kept}, media_ids=media_ids)
    assert cut.truncated_tokens == 100 - kept
    assert cut.state_tokens == kept
    assert (cut.input_ids, cut.questions, cut.state_end) == (
        expected.input_ids,
        expected.questions,
        expected.state_end,
    )


@pytest.mark.parametrize(
    ("media_ids", "advice"),
    [
        ([], "send fewer or shorter questions"),
        (MEDIA_IDS, "send fewer or shorter questions, or fewer or smaller media"),
    ],
    ids=["text", "media"],
)
def test_what_exceeds_the_limit_without_the_state_is_refused_with_what_to_shrink(
    media_ids: list[int], advice: str
) -> None:
    request = {"state": "", "questions": {"r": REFUND}}
    whole = encode(request, media_ids=media_ids)
    total = len(whole.input_ids)
    message = refusal(total - 1, request | {"state": "s" * 500}, media_ids=media_ids, truncate=True)
    assert message == (
        f"the prompt has {total} tokens even without the state, which alone may be cut, and the limit is {total - 1}: "
        f"schema {whole.schema_tokens}, media {len(media_ids)}, fixed text {whole.fixed_tokens}; {advice}"
    )


@EACH_TOKENIZER
@settings(max_examples=60)
@given(request=REQUESTS, text=TEXT, times=st.integers(1, 60), room=st.integers(-2, 300), media=st.integers(0, 30))
def test_a_cut_is_the_reference_s_own(
    tokenizer: Callable[[], Any], request: dict[str, Any], text: str, times: int, room: int, media: int
) -> None:
    request |= {"state": [request["state"], text * times] if times % 2 else text * times}
    media_ids = [5] * media
    reference = without_control_tokens(tokenizer())
    limit = len(encode(request | {"state": ""}, encoder_of(tokenizer()), media_ids=media_ids).input_ids) + room
    by = encoder(tokenizer(), max_prompt_tokens=limit)
    try:
        record = reference_cut(request, reference, max_length=limit, media_ids=media_ids)
    except ValueError:
        assert room < 0
        with pytest.raises(PromptTooLongError):
            encode(request, by, media_ids=media_ids, truncate=True)
        return
    cut = encode(request, by, media_ids=media_ids, truncate=True)
    assert_same_as(record, cut)
    whole = encode(request, encoder_of(tokenizer()), media_ids=media_ids)
    assert cut.state_tokens + cut.truncated_tokens == whole.state_tokens


@EACH_TOKENIZER
@settings(max_examples=40)
@given(
    words=st.lists(TEXT.filter(bool) | st.sampled_from([" and", ", or", '":"', "\n", " " * 40]), min_size=1),
    room=st.integers(0, 300),
    characters_per_token=st.integers(1, 4),
)
def test_a_state_too_long_to_be_read_whole_is_cut_as_if_it_had_been(
    tokenizer: Callable[[], Any], words: list[str], room: int, characters_per_token: int
) -> None:
    request = {"state": "", "questions": {"r": REFUND}}
    limit = len(encode(request, encoder_of(tokenizer())).input_ids) + room
    words.append(" x")  # or else there might be no place to cut
    characters = characters_per_token * limit + 1
    request["state"] = "".join(words) * (characters // sum(map(len, words)) + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("serving.prompt.MAX_CHARACTERS_PER_TOKEN", characters_per_token)
        cut = encode(request, encoder(tokenizer(), max_prompt_tokens=limit), truncate=True)
    record = reference_cut(request, without_control_tokens(tokenizer()), max_length=limit)
    assert_same_as(record, cut)
    whole = encode(request, encoder_of(tokenizer()))
    # Of the rest that was not read nothing is counted.
    assert cut.truncated_tokens <= whole.state_tokens - cut.state_tokens
    assert (cut.truncated_tokens > 0) == (whole.state_tokens > cut.state_tokens)


def test_a_state_of_few_tokens_is_read_until_the_prompt_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.prompt.MAX_CHARACTERS_PER_TOKEN", 1)
    request = {"state": "Invoice from Halden Freight, not paid. " * 400, "questions": {"r": REFUND}}
    limit = len(encode(request | {"state": ""}, encoder_of(demo_tokenizer())).input_ids) + 2000
    cut = encode(request, encoder(demo_tokenizer(), max_prompt_tokens=limit), truncate=True)
    assert cut.state_tokens == 2000
    assert_same_as(reference_cut(request, demo_tokenizer(), max_length=limit), cut)


def test_of_a_state_far_too_long_the_tokens_cut_are_counted_to_the_bound() -> None:
    limit = 2000
    state = "word " * 20_000
    cut = encoded_within(limit, {"state": state, "questions": {"r": REFUND}}, truncate=True)
    assert cut.state_tokens == limit - cut.schema_tokens - cut.fixed_tokens
    # The first break after 32,000 characters is before the blank at 32,004; the tiny tokenizer makes one token a letter.
    assert cut.state_tokens + cut.truncated_tokens == 32_004


def test_a_state_without_a_place_to_cut_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "MAX_UNBROKEN_CHARACTERS", 1000)
    message = refusal(500, {"state": "x" * 9001, "questions": {"r": REFUND}}, truncate=True)
    assert message == (
        "the state has 9001 characters, which is over the limit of 500 tokens, and it cannot be cut: it has more than "
        "1000 characters without a blank or the end of a word"
    )


@pytest.mark.parametrize("excess", [0, 1])
@pytest.mark.parametrize("where", ["state", "schema", "schema again"])
def test_a_text_far_over_the_limit_is_not_tokenized_whole(where: str, excess: int) -> None:
    tokenizer = CountingTokenizer()
    limit = 2000
    by = tokenizer.encoder(max_prompt_tokens=limit)
    calls = tokenizer.backend_tokenizer.calls
    encode({"state": "s", "questions": {"t": TEAM}}, by)
    known = 0 if where == "schema again" else sum(map(len, calls.pop()[1:]))
    if where != "schema again":
        by = tokenizer.encoder(max_prompt_tokens=limit)
    filler = "x" * (MAX_CHARACTERS_PER_TOKEN * limit - known - 1 + excess)
    request = {"state": "s" + filler, "questions": {"t": TEAM}}
    if where == "schema":
        request = {"state": "s", "questions": {"t": TEAM | {"instructions": "Pick" + filler}}}
    calls.clear()
    with pytest.raises(
        PromptTooLongError, match="refused without counting" if excess else r"^the prompt has \d+ tokens"
    ):
        encode(request, by)
    [call] = calls
    assert max(map(len, call)) <= MAX_CHARACTERS_PER_TOKEN * limit


@pytest.mark.parametrize("truncate", [False, True])
def test_what_is_far_too_long_is_refused_with_what_was_counted(truncate: bool) -> None:
    limit = 1000
    questions = {"t": TEAM | {"instructions": "Pick" * 10_000}}
    message = refusal(limit, {"state": "s" * 50, "questions": questions}, media_ids=MEDIA_IDS, truncate=truncate)
    fixed = encode({"state": "", "questions": {"r": REFUND}}).fixed_tokens
    assert message == (
        f"the prompt has at least {fixed + 40 + 50 + 16_000} tokens and the limit is 1000: state at least 50, schema at "
        f"least 16000, media 40, fixed text {fixed}; more than 16 characters for each token of the limit are refused "
        "without counting the rest"
    )


def test_isolated_prompts_are_each_cut_on_their_own_and_share_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = CountingTokenizer()
    request = {"state": "word " * 30, "questions": {"long": TEAM | {"instructions": "Pick " * 40}, "short": TEAM}}
    parsed = read(request)
    alone = [
        {"state": request["state"], "questions": {key: question}} for key, question in request["questions"].items()
    ]
    longest = max(len(encode(one).input_ids) for one in alone)
    limit = longest - 50
    by = tokenizer.encoder(max_prompt_tokens=limit)
    prompts = by.encode_isolated(parsed.state, parsed.questions, media_ids=[9, 9], truncate=True)
    assert [call.count(request["state"]) for call in tokenizer.backend_tokenizer.calls] == [1, 0]
    assert prompts == [encoded_within(limit, one, media_ids=[9, 9], truncate=True) for one in alone]
    assert [prompt.truncated_tokens for prompt in prompts] == [52, 0]


def test_isolated_prompts_about_a_state_far_too_long_share_its_beginning() -> None:
    tokenizer = CountingTokenizer()
    request = {"state": "word " * 5000, "questions": {"a": TEAM | {"instructions": "Pick " * 9}, "b": TEAM}}
    parsed = read(request)
    by = tokenizer.encoder(max_prompt_tokens=600)
    prompts = by.encode_isolated(parsed.state, parsed.questions, truncate=True)
    beginning, *schemas = tokenizer.backend_tokenizer.calls
    assert [len(beginning), len(beginning[0])] == [1, 9604]
    assert not any("word " in text for call in schemas for text in call)
    for prompt, (key, question) in zip(prompts, request["questions"].items(), strict=True):
        one = {"state": request["state"], "questions": {key: question}}
        assert_same_as(reference_cut(one, tiny_tokenizer(), max_length=600), prompt)


def test_an_isolated_question_too_long_is_named() -> None:
    parsed = read({"state": "s" * 50, "questions": {"fits": REFUND, "does not": TEAM | {"instructions": "x" * 900}}})
    by = encoder(max_prompt_tokens=700)
    for truncate in (False, True):
        with pytest.raises(PromptTooLongError, match=r"^question 'does not': the prompt has \d+ tokens"):
            by.encode_isolated(parsed.state, parsed.questions, truncate=truncate)
