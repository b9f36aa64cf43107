"""Answers agree with themselves, with jevcompat's formulas and with the reference, for any logits."""

import math
from typing import Any

import pytest
from clef_finetune.jsm import load_jsm
from hypothesis import given
from hypothesis import strategies as st
from jevcompat import validate

from serving.answers import answer, answers, choice_confidence, score_confidence, softmax
from serving.api_types import ChoiceQuestion, NoulQuestion, ScoreQuestion
from serving.engine import EngineScoresError

LOGITS = st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=255)


def choice(names: list[str], logits: list[float], confidence: Any = "typesafe") -> dict[str, Any]:
    """The answer to a choice whose options are sent in the order of `names`; logits go with the names."""
    question = ChoiceQuestion(type="choice", criteria=dict.fromkeys(names))
    scored = sorted(zip(names, logits, strict=True))
    given_answer = answer(question, [name for name, _ in scored], [x for _, x in scored], confidence=confidence)
    return given_answer.model_dump()


def score(logits: list[float], confidence: Any = "typesafe") -> dict[str, Any]:
    levels = [f"level {number}" for number in range(len(logits))]
    question = ScoreQuestion(type="score", criteria=levels)
    return answer(question, [str(n) for n in range(len(logits))], logits, confidence=confidence).model_dump()


@given(LOGITS)
def test_softmax_is_a_distribution(logits: list[float]) -> None:
    probabilities = softmax(logits)
    assert all(0 <= p <= 1 for p in probabilities)
    assert math.fsum(probabilities) == pytest.approx(1, abs=1e-12)
    assert max(zip(logits, probabilities, strict=True))[1] == max(probabilities)


@given(LOGITS, st.floats(-1e3, 1e3))
def test_softmax_ignores_a_common_offset(logits: list[float], offset: float) -> None:
    assert softmax([x + offset for x in logits]) == pytest.approx(softmax(logits), abs=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_logit_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(EngineScoresError, match="1 of 3 logits are not finite"):
        softmax([0.0, bad, 1.0])


@given(LOGITS)
def test_confidence_is_typesafes(logits: list[float]) -> None:
    p = softmax(logits)
    assert 0 <= choice_confidence(p) <= 1
    assert choice_confidence(p) == pytest.approx(validate.choice_confidence(p), abs=1e-12)
    levels = p[:10]
    assert 0 <= score_confidence(levels) <= 1
    assert score_confidence(levels) == pytest.approx(validate.score_confidence(levels), abs=1e-12)


@given(st.dictionaries(st.text(), st.floats(-20, 20, width=32), min_size=1, max_size=40))
def test_choice(scores: dict[str, float]) -> None:
    body = choice(list(scores), list(scores.values()))
    probabilities = body["probabilities"]
    assert list(body) == ["type", "choice", "confidence", "probabilities"]
    assert list(probabilities) == list(scores)
    assert body["choice"] == max(probabilities, key=probabilities.__getitem__)
    assert dict(zip(scores, softmax(list(scores.values())), strict=True)) == pytest.approx(probabilities, abs=1e-12)


@pytest.mark.parametrize("names", [["b", "a", "c"], ["c", "b", "a"], ["a", "b", "c"]])
def test_a_tie_goes_to_the_first_in_request_order(names: list[str]) -> None:
    assert choice(names, [1.0, 1.0, 1.0])["choice"] == names[0]
    assert choice(names, [0.0, 1.0, 1.0])["choice"] == names[1]


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=10))
def test_score(logits: list[float]) -> None:
    body = score(logits)
    p = list(body["probabilities"].values())
    assert list(body) == ["type", "score", "confidence", "legend", "probabilities"]
    assert list(body["probabilities"]) == list(body["legend"]) == [str(n) for n in range(len(logits))]
    assert 0 <= body["score"] <= len(logits) - 1
    assert body["score"] == pytest.approx(sum(n * x for n, x in enumerate(p)), abs=1e-9)


def test_the_legend_is_as_sent() -> None:
    levels = ["", {"b": 10**40, "a": None}, [1.0, True], "last"]
    question = ScoreQuestion(type="score", criteria=levels)
    body = answer(question, ["0", "1", "2", "3"], [0.0] * 4, confidence="typesafe").model_dump()
    assert repr(list(body["legend"].values())) == repr(levels)


def test_single_options() -> None:
    assert choice(["only"], [-7.0]) == {
        "type": "choice",
        "choice": "only",
        "confidence": 1.0,
        "probabilities": {"only": 1.0},
    }
    assert score([3.0]) == {
        "type": "score",
        "score": 0.0,
        "confidence": 1.0,
        "legend": {"0": "level 0"},
        "probabilities": {"0": 1.0},
    }


def test_noul_holds_type_and_noul_only() -> None:
    question = NoulQuestion(type="noul", instructions="ok?")
    body = answer(question, ["true", "false"], [math.log(3), 0.0], confidence="typesafe").model_dump()
    assert body == {"type": "noul", "noul": pytest.approx(0.75, abs=1e-12)}


@given(st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=10))
def test_reference_confidence_and_answers_are_the_references(logits: list[float]) -> None:
    names = [f"option {number}" for number in range(len(logits))]
    for ours, question in (
        (choice(names, logits, "reference"), {"type": "choice", "criteria": dict.fromkeys(names)}),
        (score(logits, "reference"), {"type": "score", "criteria": [f"level {n}" for n in range(len(logits))]}),
    ):
        theirs = load_jsm().systemone_answer(question, ours["probabilities"])
        assert list(ours) == list(theirs)
        # The reference rounds to four decimals.
        for key, value in theirs.items():
            assert ours[key] == pytest.approx(value, abs=0.5001e-4) if key != "legend" else ours[key] == value


@pytest.mark.parametrize("logits", [[[0.0]], [[0.0] * 3], [], [[0.0, 0.0], [0.0, 0.0]]])
def test_scores_that_do_not_fit_the_questions_are_refused(logits: list[list[float]]) -> None:
    questions = {"r": NoulQuestion(type="noul", instructions="ok?")}
    with pytest.raises(EngineScoresError, match="came back for"):
        answers(questions, [("true", "false")], logits, confidence="typesafe")
