"""Every case of the table against the app with the fake engine, body for body; and the cases that are no request."""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from serving.answers import answer, choice_confidence, score_confidence
from serving.api_types import ScoreQuestion
from serving.engine import ScoreRequest, ScoreResult
from serving.fake_engine import FakeEngine
from tests.cases.checks import check_outcome
from tests.cases.table import CASES, CASES_WITH_VISION, CASES_WITHOUT_VISION, REFUND, STATE, Case
from tests.serving.harness import (
    SERVED_NAME,
    client_of,
    composing_tokenizer,
    demo_processor,
    make_app,
    reference_body,
    reference_record,
    same,
    tiny_tokenizer,
)
from tests.serving.reference_tokenizer import without_control_tokens

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(make_app(FakeEngine())) as client:
        yield client


@pytest.fixture(scope="module")
def seeing() -> FakeEngine:
    """The engine behind the client that media are served to."""
    return FakeEngine()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def media_client(seeing: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(make_app(seeing, processor=demo_processor())) as client:
        yield client


async def post(client: httpx.AsyncClient, case: Case) -> httpx.Response:
    return await client.post("/v1/systemone", content=case.body, headers=dict(case.headers))


@pytest.mark.parametrize("case", [*CASES, *CASES_WITHOUT_VISION], ids=lambda case: case.id)
async def test_case(client: httpx.AsyncClient, case: Case) -> None:
    response = await post(client, case)
    check_outcome(case, response, served_name=SERVED_NAME)
    if case.status == 200:  # the very body that the reference's prompt leads to
        assert same(response.json(), reference_body(case.request, tokenizer=without_control_tokens(tiny_tokenizer())))


@pytest.mark.parametrize("case", CASES_WITH_VISION, ids=lambda case: case.id)
async def test_case_with_vision(media_client: httpx.AsyncClient, seeing: FakeEngine, case: Case) -> None:
    asked_before = len(seeing.requests)
    response = await post(media_client, case)
    check_outcome(case, response, served_name=SERVED_NAME)
    assert len(seeing.requests) - asked_before == (case.status == 200)
    if case.status == 200:
        assert case.record is not None
        processor = demo_processor()
        tokenizer = without_control_tokens(processor.tokenizer)
        expected = reference_record(case.record, tokenizer, processor=processor)
        assert seeing.requests[-1].input_ids == list(expected.input_ids)
        assert same(response.json(), reference_body(case.record, tokenizer=tokenizer, processor=processor))


async def test_shape_018_composed_and_decomposed_names_are_two_options() -> None:
    case = next(case for case in CASES if case.id == "shape-018")
    async with client_of(make_app(FakeEngine(), tokenizer=composing_tokenizer())) as client:
        body = (await post(client, case)).json()
    assert same(body, reference_body(case.request, tokenizer=composing_tokenizer()))
    assert body["answers"]["t"]["probabilities"] == {"caf\u00e9": 0.5, "cafe\u0301": 0.5}
    assert body["answers"]["t"]["choice"] == "caf\u00e9"


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer any-key"}], ids=["without-key", "with-key"])
async def test_model_004(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    response = await client.get("/v1/models", headers=headers)
    names = [SERVED_NAME, "clef-demo", "jev-latest", "clef", "clef-flash"]
    description = "Clef decision model: answers noul, choice and score questions about a state in one pass."
    assert response.status_code == 200
    assert response.json() == {
        "models": [{"name": name, "description": description, "release_date": "1970-01-01"} for name in names],
        "object": "list",
        "data": [
            {"id": name, "object": "model", "created": 0, "owned_by": "Example", "root": SERVED_NAME} for name in names
        ],
    }


@pytest.mark.parametrize("name", [SERVED_NAME, "clef-demo", "jev-latest", "clef", "clef-flash"])
async def test_model_001_every_listed_name_is_answered_as_the_served_one(client: httpx.AsyncClient, name: str) -> None:
    response = await client.post("/v1/systemone", json={"model": name, "state": STATE, "questions": {"r": REFUND}})
    assert response.status_code == 200
    assert response.json()["model"] == SERVED_NAME


@pytest.mark.parametrize(
    ("probabilities", "confidence"), [([0.7, 0.2, 0.1], 0.55), ([0.25] * 4, 0.0), ([1.0], 1.0), ([1.0, 0.0], 1.0)]
)
async def test_num_001(probabilities: list[float], confidence: float) -> None:
    assert choice_confidence(probabilities) == pytest.approx(confidence, abs=1e-12)


@pytest.mark.parametrize(
    ("probabilities", "confidence"),
    [([0.1, 0.2, 0.6, 0.1], 0.5), ([0.5, 0, 0, 0, 0.5], 0.0), ([1.0], 1.0), ([0, 1.0], 1.0)],
)
async def test_num_002(probabilities: list[float], confidence: float) -> None:
    assert score_confidence(probabilities) == pytest.approx(confidence, abs=1e-12)


async def test_num_002_score() -> None:
    question = ScoreQuestion(type="score", criteria=["a", "b", "c", "d"])
    logits = [math.log(p) for p in (0.1, 0.2, 0.6, 0.1)]
    given = answer(question, ["0", "1", "2", "3"], logits, confidence="typesafe")
    assert given.score == pytest.approx(1.7, abs=1e-12)  # type: ignore[union-attr]
    assert given.confidence == pytest.approx(0.5, abs=1e-12)  # type: ignore[union-attr]


class OneBadRow:
    """Seven good answers, and NaN for the request whose state says so."""

    def __init__(self, poison: int) -> None:
        self.good, self.bad, self.poison = FakeEngine(), FakeEngine(fault="nan"), poison

    async def score(self, request: ScoreRequest) -> ScoreResult:
        engine = self.bad if len(request.input_ids) == self.poison else self.good
        return await engine.score(request)

    def close(self) -> None:
        pass


async def test_num_007_one_request_without_finite_scores_fails_alone() -> None:
    bodies: list[dict[str, Any]] = [{"state": "x" * length, "questions": {"r": REFUND}} for length in range(8)]
    poison = reference_body(bodies[3])["usage"]["input_tokens"]
    async with client_of(make_app(OneBadRow(poison))) as client:
        responses = await asyncio.gather(*(client.post("/v1/systemone", json=body) for body in bodies))
    for number, (body, response) in enumerate(zip(bodies, responses, strict=True)):
        if number == 3:
            assert response.status_code == 500
            assert response.json() == {
                "detail": {
                    "error_type": "engine_error",
                    "message": "the engine returned scores that are missing or not finite, "
                    "so there is no answer to give",
                }
            }
        else:
            assert response.status_code == 200
            assert same(response.json(), reference_body(body))
