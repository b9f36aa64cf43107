"""The texts of a prompt: what tells one set of questions from another, and what an absent, null or empty text becomes."""

from typing import Any

import pytest
from hypothesis import given, settings

from serving.api_types import ChoiceQuestion, NoulQuestion
from serving.prompt_text import schema_key
from tests.serving.harness import encoder
from tests.serving.prompts import REFUND, assert_equals_reference, decode, encode, read
from tests.serving.strategies import QUESTIONS


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
