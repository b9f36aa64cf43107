"""The app under uvicorn, as it runs in production: every case over a socket, jevcompat, and clients that leave."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jevcompat.runner
import pytest

from serving.fake_engine import FakeEngine
from serving.metrics import Metrics
from tests.cases.case import Case
from tests.cases.checks import check_outcome
from tests.cases.table import CASES, CASES_WITH_VISION, CASES_WITHOUT_VISION
from tests.serving.exposition import series
from tests.serving.harness import (
    SERVED_NAME,
    demo_processor,
    key_ring,
    make_app,
    reference_body,
    running_server,
    same,
)
from tests.serving.observed import new_metrics

STATE = {"ticket": "The parcel arrived broken.", "customer": "Vermeer Tools"}
QUESTIONS: dict[str, Any] = {
    "refund": {"type": "noul", "instructions": "Does the customer want a refund?"},
    "team": {"type": "choice", "instructions": "Which team?", "criteria": {"Logistics": None, "Billing": "payments"}},
    "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["low", {"level": "high"}]},
}


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    return new_metrics()


@pytest.fixture(scope="module")
def url(engine: FakeEngine, metrics: Metrics) -> Iterator[str]:
    with running_server(make_app(engine, metrics=metrics, max_body_bytes=2**20)) as url:
        yield url


@pytest.fixture(autouse=True)
def healthy(engine: FakeEngine) -> None:
    engine.delay_s, engine.fault = 0.0, None


def assert_conformant(report: jevcompat.runner.Report, *, untested: set[str]) -> None:
    assert {result.id: result.findings for result in report.results if result.findings} == {}
    assert report.verdict == "conformant"
    assert {result.id for result in report.results if result.status == "skip"} == untested


def test_jevcompat(url: str) -> None:
    assert_conformant(jevcompat.runner.run(url), untested={"auth.bearer", "auth.missing", "auth.invalid"})


def test_jevcompat_with_keys(tmp_path: Path) -> None:
    keys = key_ring(tmp_path / "keys.toml", {"clef-orders-key": ""})
    with running_server(make_app(FakeEngine(), keys=keys)) as url:
        report = jevcompat.runner.run(url, key="clef-orders-key")
    assert_conformant(report, untested={"auth.ignored-when-off"})


@pytest.fixture(scope="module")
def media_url() -> Iterator[str]:
    with running_server(make_app(FakeEngine(), processor=demo_processor())) as url:
        yield url


def check_over_a_socket(url: str, case: Case) -> None:
    response = httpx.post(f"{url}/v1/systemone", content=case.body, headers=dict(case.headers), timeout=30)
    check_outcome(case, response, served_name=SERVED_NAME)


@pytest.mark.parametrize(
    "case", [case for case in (*CASES, *CASES_WITHOUT_VISION) if len(case.body) < 30_000], ids=lambda case: case.id
)
def test_case_over_a_socket(url: str, case: Case) -> None:
    check_over_a_socket(url, case)


@pytest.mark.parametrize("case", CASES_WITH_VISION, ids=lambda case: case.id)
def test_case_with_vision_over_a_socket(media_url: str, case: Case) -> None:
    check_over_a_socket(media_url, case)


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


def test_a_client_that_leaves_frees_its_place(
    url: str, engine: FakeEngine, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    def counted() -> float:
        labels = {"route": "/v1/systemone", "status": "499", "outcome": "client_closed"}
        return series(metrics.page("")[0]).get(("clef_requests_total", frozenset(labels.items())), 0)

    counted_before = counted()
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
    assert counted() - counted_before == 20
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
