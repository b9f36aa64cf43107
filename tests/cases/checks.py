"""Whether a response is the outcome a case asks for, on any server: exact status, keys and texts, consistent numbers."""

import math
import re
from typing import Any

import httpx
from jevcompat import validate

from tests.cases.case import Case

# Doubles are returned unrounded, so what can be recomputed agrees almost to the last digit.
ABS_TOL = 1e-9


def check_outcome(case: Case, response: httpx.Response, *, served_name: str) -> None:
    """Fail unless the response is what the case asks for."""
    assert response.status_code == case.status, response.text[:500]
    assert response.headers["content-type"] == "application/json"
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", response.headers["x-typesafe-request-id"])
    body = response.json()
    if case.status == 200:
        check_answers(case.request, body, served_name=served_name)
        return
    assert list(body) == ["detail"]
    if case.message_pattern is None:
        assert body["detail"] == case.detail
    else:
        assert list(body["detail"]) == ["error_type", "message"]
        assert body["detail"]["error_type"] == case.detail
        assert re.fullmatch(case.message_pattern, body["detail"]["message"])


def check_answers(request: dict[str, Any], body: dict[str, Any], *, served_name: str) -> None:
    """Fail unless the body answers the request: exact keys in order, a distribution, and what follows from it."""
    assert list(body) == ["model", "answers", "usage"]
    assert body["model"] == served_name
    assert list(body["usage"]) == ["input_tokens", "output_tokens", "x_cached_tokens", "x_truncated_tokens"]
    assert body["usage"]["input_tokens"] > 0
    assert body["usage"]["output_tokens"] == 0
    assert list(body["answers"]) == list(request["questions"])
    for question_id, question in request["questions"].items():
        check_answer(question, body["answers"][question_id])


def check_answer(question: dict[str, Any], answer: dict[str, Any]) -> None:
    """Fail unless the answer belongs to the question and agrees with itself."""
    assert answer["type"] == question["type"]
    if question["type"] == "noul":
        assert list(answer) == ["type", "noul"]
        assert 0 <= answer["noul"] <= 1
        return
    probabilities = answer["probabilities"]
    values = list(probabilities.values())
    assert all(0 <= value <= 1 for value in values)
    assert math.isclose(math.fsum(values), 1, abs_tol=ABS_TOL)
    if question["type"] == "choice":
        assert list(answer) == ["type", "choice", "confidence", "probabilities"]
        assert list(probabilities) == list(question["criteria"])
        assert answer["choice"] == max(probabilities, key=probabilities.__getitem__)
        assert math.isclose(answer["confidence"], validate.choice_confidence(values), abs_tol=ABS_TOL)
    else:
        levels = [str(level) for level in range(len(question["criteria"]))]
        assert list(answer) == ["type", "score", "confidence", "legend", "probabilities"]
        assert list(probabilities) == levels
        assert answer["legend"] == dict(zip(levels, question["criteria"], strict=True))
        expectation = math.fsum(level * value for level, value in enumerate(values))
        assert math.isclose(answer["score"], expectation, abs_tol=ABS_TOL)
        assert math.isclose(answer["confidence"], validate.score_confidence(values), abs_tol=ABS_TOL)
