"""The app under uvicorn, as it runs in production, with the clients people use: the SDK, jevcompat, and raw sockets."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import jevcompat.runner
import pytest
import typesafe_sdk
from typesafe_sdk import AsyncTypeSafeClient, Choice, Noul, RetryPolicy, Score, TypeSafeClient

from serving.fake_engine import FakeEngine
from tests.cases.checks import check_outcome
from tests.cases.table import CASES
from tests.serving.harness import (
    MAX_PROMPT_TOKENS,
    SERVED_NAME,
    make_app,
    reference_body,
    running_server,
    same,
)

STATE = {"ticket": "The parcel arrived broken.", "customer": "Vermeer Tools"}
QUESTIONS: dict[str, Any] = {
    "refund": {"type": "noul", "instructions": "Does the customer want a refund?"},
    "team": {"type": "choice", "instructions": "Which team?", "criteria": {"Logistics": None, "Billing": "payments"}},
    "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["low", {"level": "high"}]},
}
SDK_QUESTIONS = {
    "refund": Noul(instructions="Does the customer want a refund?"),
    "team": Choice(instructions="Which team?", criteria={"Logistics": None, "Billing": "payments"}),
    "urgency": Score(instructions="How urgent?", criteria=["low", {"level": "high"}]),
}


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def url(engine: FakeEngine) -> Iterator[str]:
    with running_server(make_app(engine, max_body_bytes=2**20)) as url:
        yield url


@pytest.fixture(autouse=True)
def healthy(engine: FakeEngine) -> None:
    engine.delay_s, engine.fault = 0.0, None


def assert_sdk_answers(response: typesafe_sdk.SystemOneResponse) -> None:
    expected = reference_body({"state": STATE, "questions": QUESTIONS})
    answers = expected["answers"]
    assert response.model == SERVED_NAME
    assert response.usage.input_tokens == expected["usage"]["input_tokens"]
    assert response.nouls["refund"].noul == pytest.approx(answers["refund"]["noul"], abs=1e-12)
    assert response.choices["team"].choice == answers["team"]["choice"]
    assert response.choices["team"].probabilities == pytest.approx(answers["team"]["probabilities"], abs=1e-12)
    assert response.scores["urgency"].score == pytest.approx(answers["urgency"]["score"], abs=1e-12)
    assert response.scores["urgency"].legend == {0: "low", 1: {"level": "high"}}


def test_sdk(url: str) -> None:
    with TypeSafeClient(api_key="any", base_url=url) as client:
        assert_sdk_answers(client.system_one(state=STATE, questions=SDK_QUESTIONS))
        names = [model.name for model in client.models.list().models]
    assert names == [SERVED_NAME, "clef-demo", "jev-latest", "clef", "clef-flash"]


@pytest.mark.asyncio
async def test_sdk_async(url: str) -> None:
    async with AsyncTypeSafeClient(api_key="any", base_url=url) as client:
        assert_sdk_answers(await client.system_one(state=STATE, questions=SDK_QUESTIONS))
        models = await client.models.list()
    assert models.models[0].name == SERVED_NAME


@pytest.mark.parametrize(
    ("changes", "fault", "error", "message", "attempts"),
    [
        ({"model": "no-such"}, None, typesafe_sdk.TypeSafeNotFoundError, "no model 'no-such' is served here", 0),
        (
            {"questions": {"r": Choice(instructions="?", criteria={str(number): None for number in range(256)})}},
            None,
            typesafe_sdk.TypeSafeUnprocessableEntityError,
            "questions.r.criteria: question 'r': criteria has 256 options; the limit is 255",
            0,
        ),
        ({"state": "x" * (MAX_PROMPT_TOKENS + 1)}, None, typesafe_sdk.TypeSafeAPIError, "the limit is 30000: state", 0),
        ({"state": "x" * 2**20}, None, typesafe_sdk.TypeSafeAPIError, "more than 1048576 bytes, which is the limit", 0),
        ({}, "nan", typesafe_sdk.TypeSafeInternalServerError, "missing or not finite", 2),
    ],
    ids=["model", "options", "prompt", "body", "engine"],
)
def test_sdk_errors(
    url: str, engine: FakeEngine, changes: dict[str, Any], fault: Any, error: Any, message: str, attempts: int
) -> None:
    engine.fault = fault
    asked_before = len(engine.requests)
    retry = RetryPolicy(max_retries=1, backoff_initial=0)
    with (
        TypeSafeClient(api_key="any", base_url=url, retry=retry) as client,
        pytest.raises(error, match=message) as caught,
    ):
        client.system_one(**{"state": STATE, "questions": SDK_QUESTIONS} | changes)
    assert len(caught.value.request_id) == 36
    assert len(engine.requests) - asked_before == attempts


def test_jevcompat(url: str) -> None:
    report = jevcompat.runner.run(url)
    failed = {
        result.id: [finding.message for finding in result.findings] for result in report.results if result.findings
    }
    assert failed == {}
    assert report.verdict == "conformant"
    # Keys come later; everything else is exercised.
    untested = {result.id for result in report.results if result.status == "skip"}
    assert untested == {"auth.bearer", "auth.missing", "auth.invalid"}


@pytest.mark.parametrize("case", [case for case in CASES if len(case.body) < 10_000], ids=lambda case: case.id)
def test_case_over_a_socket(url: str, case: Any) -> None:
    response = httpx.post(f"{url}/v1/systemone", content=case.body, headers=dict(case.headers))
    check_outcome(case, response, served_name=SERVED_NAME)


def test_a_body_over_the_limit_is_refused_and_the_connection_stays_usable(url: str) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(64):
            yield b" " * 65_536

    with httpx.Client(base_url=url) as client:
        for body in (b" " * (2**20 + 1), endless()):
            refused = client.post("/v1/systemone", content=body)
            assert refused.status_code == 413
            assert refused.json()["detail"]["error_type"] == "body_too_large"
        answered = client.post("/v1/systemone", json={"state": STATE, "questions": QUESTIONS})
    assert same(answered.json(), reference_body({"state": STATE, "questions": QUESTIONS}))


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "waited 10 s in vain"
        time.sleep(0.01)


def test_a_client_that_leaves_frees_its_place(url: str, engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="clef_serving")
    engine.delay_s = 60
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({"state": STATE, "questions": QUESTIONS}).encode()
    head = f"POST /v1/systemone HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    aborted_before = len(engine.aborted)
    sockets = [socket.create_connection((host, int(port))) for _ in range(20)]
    for connection in sockets:
        connection.sendall(head + body)
    wait_until(lambda: engine.running == 20)
    for connection in sockets:
        connection.close()
    wait_until(lambda: engine.running == 0)
    assert len(engine.aborted) - aborted_before == 20
    wait_until(lambda: sum("outcome=client_closed" in record.getMessage() for record in caplog.records) == 20)
    assert all(record.levelname == "INFO" for record in caplog.records)
    engine.delay_s = 0
    assert httpx.post(f"{url}/v1/systemone", content=body).status_code == 200


def test_a_client_that_leaves_while_sending(url: str, engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="clef_serving")
    asked_before = len(engine.requests)
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"POST /v1/systemone HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
    wait_until(lambda: any("outcome=client_closed" in record.getMessage() for record in caplog.records))
    assert len(engine.requests) == asked_before


@pytest.mark.asyncio
async def test_many_at_once_get_their_own_answers(url: str, engine: FakeEngine) -> None:
    engine.delay_s = 0.05
    limits = httpx.Limits(max_connections=64)
    requests = [{"state": "x" * number, "questions": QUESTIONS} for number in range(64)]
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=30) as client:
        responses = await asyncio.gather(*(client.post("/v1/systemone", json=request) for request in requests))
    for request, response in zip(requests, responses, strict=True):
        assert same(response.json(), reference_body(request))
