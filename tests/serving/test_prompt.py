"""The prompt is the reference's, token for token, and every span decodes to exactly the text it stands for."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_plugin.schema_layout import QUESTION_TYPES
from serving import strict_json
from serving.api_types import ChoiceQuestion, NoulQuestion, SystemOneRequest, parse_request
from serving.errors import InvalidRequestError, PromptTooLongError
from serving.prompt import (
    MAX_CHARACTERS_PER_TOKEN,
    PREFIX,
    EncodedPrompt,
    PromptEncoder,
    render,
    schema_key,
    scored_options,
)
from tests.serving.harness import composing_tokenizer, encoder, reference_record, tiny_tokenizer
from tests.serving.strategies import QUESTIONS, REQUESTS

ENCODER = encoder()
REFUND = {"type": "noul", "instructions": "Does the customer want a refund?"}


def read(request: dict[str, Any]) -> SystemOneRequest:
    """The request as it comes through the wire."""
    return parse_request(strict_json.parse(json.dumps(request).encode(), max_depth=128))


def encode(request: dict[str, Any], by: PromptEncoder = ENCODER) -> EncodedPrompt:
    parsed = read(request)
    return by.encode(parsed.state, parsed.questions)


def decode(prompt: EncodedPrompt, span: tuple[int, int]) -> str:
    text = tiny_tokenizer().backend_tokenizer.decode(prompt.input_ids[slice(*span)], skip_special_tokens=False)
    assert isinstance(text, str)
    return text


def assert_equals_reference(prompt: EncodedPrompt, request: dict[str, Any], tokenizer: Any = None) -> None:
    record = reference_record(request, tokenizer)
    assert tuple(prompt.input_ids) == record.input_ids
    assert len(prompt.questions) == len(record.questions)
    for spans, names, expected in zip(prompt.questions, prompt.option_names, record.questions, strict=True):
        assert QUESTION_TYPES.index(spans.question_type) == expected.question_type
        assert spans.question == expected.question_span
        assert spans.options == expected.option_spans
        assert names == expected.option_ids


@settings(max_examples=200)
@given(REQUESTS)
def test_equals_the_reference(request: dict[str, Any]) -> None:
    assert_equals_reference(encode(request), request)
    assert_equals_reference(encode(request), request)  # now from the cache


@settings(max_examples=50)
@given(REQUESTS)
def test_equals_the_reference_where_the_tokenizer_normalizes(request: dict[str, Any]) -> None:
    assert_equals_reference(encode(request, encoder(composing_tokenizer())), request, composing_tokenizer())


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
    prompt = encode(request)
    assert prompt.state_tokens == len(tiny_tokenizer()(render(request["state"]), add_special_tokens=False).input_ids)
    assert prompt.state_tokens + prompt.schema_tokens + prompt.fixed_tokens == len(prompt.input_ids)
    assert decode(prompt, (0, prompt.state_end)) == PREFIX + render(request["state"])


@settings(max_examples=200)
@given(QUESTIONS, QUESTIONS)
def test_two_schemas_share_a_key_only_if_they_are_encoded_alike(left: dict[str, Any], right: dict[str, Any]) -> None:
    for other in (right, dict(reversed(left.items()))):
        requests = [{"state": "", "questions": questions} for questions in (left, other)]
        keys = [schema_key(read(request).questions) for request in requests]
        if keys[0] == keys[1]:
            assert encode(requests[0], encoder()) == encode(requests[1], encoder())


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"a": {"x": 1}}, {"a": {"x": 1.0}}),
        ({"a": {"x": 1}}, {"a": {"x": True}}),
        ({"a": [0.0]}, {"a": [-0.0]}),
        ({"a": None}, {"a": ""}),
        ({"a": None}, {"a": "null"}),
        ({"a": {"x": None}}, {"a": {}}),
        ({"a": "[]"}, {"a": []}),
        ({"caf\u00e9": None}, {"cafe\u0301": None}),
        ({"a": 'x","b":"y'}, {"a": "x", "b": "y"}),
    ],
    ids=repr,
)
def test_schemas_that_differ_in_one_value_have_different_keys(left: Any, right: Any) -> None:
    keys = {schema_key({"q": ChoiceQuestion(type="choice", criteria=criteria)}) for criteria in (left, right)}
    assert len(keys) == 2


def test_key_order_of_options_and_objects_does_not_matter() -> None:
    left = ChoiceQuestion(type="choice", criteria={"a": {"x": 1, "y": 2}, "b": None})
    right = ChoiceQuestion(type="choice", criteria={"b": None, "a": {"y": 2, "x": 1}})
    assert schema_key({"q": left}) == schema_key({"q": right})


def test_question_order_matters() -> None:
    questions = {
        "a": NoulQuestion(type="noul", instructions="one?"),
        "b": NoulQuestion(type="noul", instructions="two?"),
    }
    assert schema_key(questions) != schema_key(dict(reversed(questions.items())))


@pytest.mark.parametrize("criteria", [None, {}, {"true": "yes"}, {"true": None}, {"true": None, "false": None}])
def test_absent_and_null_sides_of_a_noul_are_told_apart(criteria: Any) -> None:
    request = {"state": "s", "questions": {"r": REFUND | {"criteria": criteria}}}
    prompt = encode(request)
    assert_equals_reference(prompt, request)
    defaulted = ["The proposition is" in decode(prompt, span) for span in prompt.questions[0].options]
    assert defaulted == [side not in (criteria or {}) for side in ("true", "false")]


def test_null_and_empty_descriptions_are_different_prompts() -> None:
    prompts = [
        encode({"state": "s", "questions": {"t": {"type": "choice", "criteria": {"a": text}}}}) for text in (None, "")
    ]
    assert [decode(prompt, prompt.questions[0].options[0]) for prompt in prompts] == [
        '{"option_id":"a"}',
        '{"description":"","option_id":"a"}',
    ]


class CountingBackend:
    """The Rust tokenizer, remembering what it was asked."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.calls: list[list[str]] = []

    def encode_batch_fast(self, input: list[str], *, add_special_tokens: bool) -> Any:
        self.calls.append(input)
        return self._backend.encode_batch_fast(input, add_special_tokens=add_special_tokens)

    def no_truncation(self) -> None:
        self._backend.no_truncation()

    def no_padding(self) -> None:
        self._backend.no_padding()


class CountingTokenizer:
    def __init__(self) -> None:
        self.backend_tokenizer = CountingBackend(tiny_tokenizer().backend_tokenizer)

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any:
        return tiny_tokenizer()(text, add_special_tokens=add_special_tokens)

    def texts_of(self, request: dict[str, Any]) -> list[str]:
        """What is tokenized of a request that was not seen before: the state, then the schema's pieces."""
        by = encoder(self)
        self.backend_tokenizer.calls.clear()
        encode(request, by)
        return self.backend_tokenizer.calls[-1]


def test_a_request_is_one_call_and_a_repeated_schema_costs_only_its_state() -> None:
    tokenizer = CountingTokenizer()
    counting = encoder(tokenizer)
    calls = tokenizer.backend_tokenizer.calls
    calls.clear()
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


@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_the_limit_is_exact_and_nothing_is_cut(excess: int) -> None:
    request = {"state": "s" * 100, "questions": {"r": REFUND}}
    whole = encode(request)
    by = encoder(max_prompt_tokens=len(whole.input_ids) - excess)
    if excess <= 0:
        assert encode(request, by) == whole
        return
    with pytest.raises(PromptTooLongError) as caught:
        encode(request, by)
    assert str(caught.value) == (
        f"the prompt has {len(whole.input_ids)} tokens and the limit is {len(whole.input_ids) - 1}: "
        f"state 100, schema {whole.schema_tokens}, fixed text {whole.fixed_tokens}"
    )


@pytest.mark.parametrize("excess", [0, 1])
@pytest.mark.parametrize("where", ["state", "schema", "schema again"])
def test_a_text_far_over_the_limit_is_not_tokenized_whole(where: str, excess: int) -> None:
    tokenizer = CountingTokenizer()
    limit = 2000
    by = encoder(tokenizer, max_prompt_tokens=limit)
    question = {"type": "choice", "instructions": "Pick", "criteria": {"a": None}}
    small = {"state": "s", "questions": {"t": question}}
    if where == "schema again":
        encode(small, by)
    known = 0 if where == "schema again" else sum(map(len, tokenizer.texts_of(small)[1:]))
    filler = "x" * (MAX_CHARACTERS_PER_TOKEN * limit - known - 1 + excess)
    request = {"state": "s" + filler, "questions": {"t": question}}
    if where == "schema":
        request = {"state": "s", "questions": {"t": question | {"instructions": "Pick" + filler}}}
    tokenizer.backend_tokenizer.calls.clear()
    with pytest.raises(
        PromptTooLongError, match="refused without counting" if excess else r"^the prompt has \d+ tokens"
    ):
        encode(request, by)
    [call] = tokenizer.backend_tokenizer.calls
    assert max(map(len, call)) <= MAX_CHARACTERS_PER_TOKEN * limit


def test_a_panic_in_the_tokenizer_is_an_ordinary_error() -> None:
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    tokenizer = CountingTokenizer()
    by = encoder(tokenizer)

    def panicking(input: list[str], *, add_special_tokens: bool) -> Any:
        raise panic("retry-limit-in-match over")

    tokenizer.backend_tokenizer.encode_batch_fast = panicking  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="the tokenizer panicked: retry-limit-in-match over"):
        by.count("text")


def test_other_base_exceptions_pass_through() -> None:
    tokenizer = CountingTokenizer()
    by = encoder(tokenizer)

    def interrupted(input: list[str], *, add_special_tokens: bool) -> Any:
        raise KeyboardInterrupt

    tokenizer.backend_tokenizer.encode_batch_fast = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        by.count("text")


class DroppingTokenizer(CountingTokenizer):
    """One that reads nothing in a certain text, as a tokenizer may that strips blanks."""

    def __init__(self, dropped: str) -> None:
        super().__init__()
        tokenize = self.backend_tokenizer.encode_batch_fast

        def encode_batch_fast(input: list[str], *, add_special_tokens: bool) -> Any:
            return tokenize(["" if text == dropped else text for text in input], add_special_tokens=add_special_tokens)

        self.backend_tokenizer.encode_batch_fast = encode_batch_fast  # type: ignore[method-assign]


def test_a_text_without_tokens_is_refused() -> None:
    request = {"state": "s", "questions": {"r": {"type": "noul", "instructions": "drop me"}}}
    with pytest.raises(InvalidRequestError) as caught:
        encode(request, encoder(DroppingTokenizer("drop me")))
    assert caught.value.faults == [
        {
            "loc": ["body", "questions", "r", "instructions"],
            "msg": "question 'r': instructions have no token that the model could read",
            "type": "no_token",
        }
    ]


def test_a_tokenizer_whose_batched_call_differs_is_refused() -> None:
    with pytest.raises(ValueError, match="disagrees with its single call on 'END FIELD"):
        encoder(DroppingTokenizer("END FIELD\n"))


def test_a_tokenizer_without_a_fast_implementation_is_refused() -> None:
    class Slow:
        def __call__(self, text: str, *, add_special_tokens: bool) -> Any:
            raise AssertionError("not reached")

    with pytest.raises(ValueError, match="no fast"):
        encoder(Slow())


@settings(max_examples=30)
@given(st.lists(REQUESTS, min_size=2, max_size=6))
def test_threads_do_not_disturb_each_other(requests: list[dict[str, Any]]) -> None:
    by = encoder(cache_entries=2)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda request: encode(request, by), requests * 3))
    assert together == [encode(request) for request in requests * 3]
