"""Any JSON value is either a request or refused with clear, bounded faults."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.api_types import REFUSED_FIELDS, SystemOneRequest, parse_request
from serving.errors import InvalidRequestError
from serving.faults import MAX_REPORTED_FAULTS
from tests.serving.strategies import JSON, QUESTIONS, REQUESTS, TEXT

KNOWN_KEYS = st.sampled_from(["type", "instructions", "criteria", "true", "false", "noul", "choice", "score", "box"])
ALMOST_QUESTION = st.dictionaries(KNOWN_KEYS | TEXT, KNOWN_KEYS | JSON, max_size=4)
TOP_LEVEL = st.sampled_from(
    [
        *("model", "state", "questions", "temperature", "x_trace_id", "x_question_ids", "x_isolated"),
        *("assets", "images", "videos", "media_kwargs", "over_limit", "files"),
    ]
)
MEDIA_KEYS = st.sampled_from(
    ["url", "detail", "base64", "content_type", "frames", "fps", "part", "data_base64", "format"]
)
ALMOST_MEDIUM = st.dictionaries(MEDIA_KEYS, MEDIA_KEYS | JSON | st.lists(JSON, max_size=2), max_size=3)
ALMOST_REQUEST = st.dictionaries(
    TOP_LEVEL,
    JSON
    | QUESTIONS
    | st.dictionaries(TEXT, ALMOST_QUESTION | ALMOST_MEDIUM, max_size=3)
    | st.lists(ALMOST_MEDIUM, max_size=3),
    max_size=4,
)


def faults_of(value: Any) -> list[Any]:
    with pytest.raises(InvalidRequestError) as caught:
        parse_request(value)
    return list(caught.value.faults)


@given(REQUESTS)
def test_what_the_strategies_build_is_valid(request: dict[str, Any]) -> None:
    parsed = parse_request(request)
    assert list(parsed.questions) == list(request["questions"])
    assert parsed.state is request["state"]
    for question_id, question in request["questions"].items():
        kept = parsed.questions[question_id]
        assert kept.type == question["type"]
        assert kept.instructions == question.get("instructions")


@given(JSON | ALMOST_REQUEST)
def test_what_is_refused_is_refused_clearly(value: Any) -> None:
    faults: list[Any] | None = None
    try:
        parse_request(value)
    except InvalidRequestError as err:
        faults = err.faults
    if faults is None:
        return
    assert 1 <= len(faults) <= MAX_REPORTED_FAULTS + 1
    for fault in faults:
        assert list(fault) == ["loc", "msg", "type"]
        assert fault["loc"][0] == "body"
        assert _leads_to_something(value, fault["loc"][1:])
        assert "pydantic" not in fault["msg"]
        assert "Input should" not in fault["msg"]  # pydantic's own words, which name its insides
    json.dumps(faults).encode()


def _leads_to_something(value: Any, path: list[str | int]) -> bool:
    """Whether the path exists in the value, but for its last step: that may be a key that is missing."""
    for part in path[:-1]:
        if (isinstance(value, dict) and part in value) or (isinstance(value, list) and part in range(len(value))):
            value = value[part]
        else:
            return False
    return True


def test_many_faults_are_bounded() -> None:
    faults = faults_of({"state": "", "questions": {str(number): {} for number in range(1000)}})
    assert len(faults) == MAX_REPORTED_FAULTS + 1
    assert faults[-1] == {
        "loc": ["body"],
        "msg": f"{1000 - MAX_REPORTED_FAULTS} more faults are not listed",
        "type": "too_many_faults",
    }


def test_long_texts_are_not_echoed() -> None:
    long = "k" * 100_000
    faults = faults_of(
        {
            "state": 1,
            "questions": {long: {"type": "choice", "criteria": {long: 1}}, "r": {"type": long}, "s": {long: 1}},
        }
    )
    assert len(faults) == 4
    assert len(json.dumps(faults)) < 3000


def test_a_value_is_never_echoed() -> None:
    secret = "SECRET-4711"
    bodies = [
        {"state": "", "questions": {"r": {"type": "noul", "instructions": 4711, "extra": secret}}},
        {"state": "", "questions": {"r": [secret]}},
        {"state": "", "questions": {"r": {"type": "score", "criteria": {"a": secret}}}},
        {"state": "", "questions": {"r": {"type": "noul", "instructions": "a?"}}, "images": [{"url": 4711}]},
        {"state": None, "questions": {"r": {"type": "noul", "criteria": {"true": 4711}}}},
    ]
    assert all("4711" not in json.dumps(faults_of(body)) for body in bodies)


def test_every_refused_field_is_a_field_and_hidden_from_the_schema() -> None:
    assert set(REFUSED_FIELDS) <= set(SystemOneRequest.model_fields)
    served = ["model", "state", "questions", "cache_salt", "x_question_ids", "x_isolated"]
    served += ["assets", "images", "videos", "media_kwargs", "over_limit"]
    assert list(SystemOneRequest.model_json_schema()["properties"]) == served
    assert set(SystemOneRequest.model_fields) == {*served, *REFUSED_FIELDS}


@pytest.mark.parametrize(
    ("limits", "fault"),
    [
        ({"max_questions": 2}, "questions has 3 questions; the limit max_questions is 2"),
        ({"max_options": 6}, "questions has 7 options; the limit max_options is 6"),
        ({"max_questions": 3, "max_options": 7}, None),
    ],
    ids=["questions", "options", "neither"],
)
def test_questions_and_options_are_bounded_together(limits: dict[str, int], fault: str | None) -> None:
    body = {
        "state": "",
        "questions": {
            "a": {"type": "choice", "criteria": {"x": None, "y": None}},
            "b": {"type": "score", "criteria": ["low", "middle", "high"]},
            "c": {"type": "noul", "instructions": "?", "criteria": {"true": "x", "false": "y"}},
        },
    }
    if fault is None:
        assert len(parse_request(body, **limits).questions) == 3
        return
    with pytest.raises(InvalidRequestError) as caught:
        parse_request(body, **limits)
    assert caught.value.faults == [{"loc": ["body", "questions"], "msg": fault, "type": "too_long"}]
