"""The app in process: routes, limits, readiness, failures of the engine, logs and the OpenAPI document."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema
import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from serving import strict_json
from serving.api_types import parse_request
from serving.app import create_app
from serving.engine import EngineDeadError, ScoreRequest, ScoreResult
from serving.errors import InvalidRequestError
from serving.fake_engine import FakeEngine, Fault
from serving.front import MAX_WARM_UP_STATE_TOKENS
from serving.lifecycle import Lifecycle
from tests.cases.checks import check_answers
from tests.serving.harness import (
    MAX_PROMPT_TOKENS,
    SERVED_NAME,
    client_of,
    make_app,
    reference_body,
    same,
    tiny_tokenizer,
)
from tests.serving.harness import settings as serving_settings
from tests.serving.strategies import REQUESTS
from tests.serving.test_api_types import ALMOST_REQUEST

pytestmark = pytest.mark.asyncio

REFUND = {"type": "noul", "instructions": "Does the customer want a refund?"}
REQUEST: dict[str, Any] = {
    "state": {"order": "A-17", "text": "The parcel of Lindqvist & Sons arrived broken."},
    "questions": {
        "refund": REFUND,
        "team": {"type": "choice", "instructions": "Which team?", "criteria": {"Logistics": None, "Billing": "money"}},
        "urgency": {"type": "score", "criteria": ["low", {"level": "high"}]},
    },
}


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(make_app(FakeEngine())) as client:
        yield client


def error(error_type: str, message: str) -> dict[str, Any]:
    return {"detail": {"error_type": error_type, "message": message}}


async def test_a_request_is_answered(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/systemone", json=REQUEST)
    assert response.status_code == 200
    assert same(response.json(), reference_body(REQUEST))


async def test_the_engine_is_told_where_the_state_ends_and_whose_it_is() -> None:
    engine = FakeEngine()
    async with client_of(make_app(engine)) as client:
        for salt in ("acme", None):
            response = await client.post("/v1/systemone", json={**REQUEST, "cache_salt": salt})
            assert response.status_code == 200
        refused = await client.post("/v1/systemone", json={**REQUEST, "cache_salt": "x" * 257})
    first, second = engine.requests[-2:]
    assert (first.cache_salt, second.cache_salt) == ("acme", None)
    assert first.state_end == second.state_end
    schema = tiny_tokenizer().decode(list(first.input_ids[first.state_end :]))
    assert schema.startswith("\n\nSCHEMA FIELDS:\n\nFIELD 1\nID: refund\n")
    assert refused.status_code == 422
    assert refused.json()["detail"][0]["loc"] == ["body", "cache_salt"]


async def test_reference_confidence() -> None:
    async with client_of(make_app(FakeEngine(), confidence="reference")) as client:
        answers = (await client.post("/v1/systemone", json=REQUEST)).json()["answers"]
    for answer in (answers["team"], answers["urgency"]):
        assert answer["confidence"] == max(answer["probabilities"].values())


async def test_a_tie_goes_to_the_first_in_request_order() -> None:
    async with client_of(make_app(FakeEngine(constant_logit=0.0))) as client:
        body = (await client.post("/v1/systemone", json=REQUEST)).json()
    assert body["answers"]["team"]["choice"] == "Logistics"
    assert body["answers"]["team"]["confidence"] == 0.0


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/livez", 200, {"status": "alive"}),
        ("GET", "/readyz", 200, {"status": "ready"}),
        ("GET", "/", 404, error("not_found_error", "Not Found: GET /")),
        ("POST", "/v1/systemone/", 404, error("not_found_error", "Not Found: POST /v1/systemone/")),
        ("POST", "/v1/decisions", 404, error("not_found_error", "Not Found: POST /v1/decisions")),
        ("POST", "/flush_cache", 404, error("not_found_error", "Not Found: POST /flush_cache")),
        ("GET", "/docs", 404, error("not_found_error", "Not Found: GET /docs")),
        ("GET", "/v1/systemone", 405, error("method_not_allowed", "Method Not Allowed: GET /v1/systemone")),
        ("DELETE", "/v1/models", 405, error("method_not_allowed", "Method Not Allowed: DELETE /v1/models")),
    ],
)
async def test_routes(client: httpx.AsyncClient, method: str, path: str, status: int, body: Any) -> None:
    response = await client.request(method, path)
    assert response.status_code == status
    assert response.json() == body
    assert response.headers["content-type"] == "application/json"
    assert len(response.headers["x-typesafe-request-id"]) == 36


async def test_a_wrong_method_names_the_right_ones(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/systemone")).headers["allow"] == "POST"


async def test_request_ids_differ_and_are_ours(client: httpx.AsyncClient) -> None:
    headers = {"x-typesafe-request-id": "chosen-by-the-client"}
    responses = [await client.post("/v1/systemone", json=REQUEST, headers=headers) for _ in range(3)]
    ids = {response.headers["x-typesafe-request-id"] for response in responses}
    assert len(ids) == 3
    assert "chosen-by-the-client" not in ids


async def test_the_engine_gets_the_request_id() -> None:
    engine = FakeEngine()
    async with client_of(make_app(engine)) as client:
        response = await client.post("/v1/systemone", json=REQUEST)
    assert engine.requests[-1].request_id == response.headers["x-typesafe-request-id"]


@pytest.mark.parametrize("excess", [0, 1])
async def test_the_body_limit_is_exact(excess: int) -> None:
    body = json.dumps(REQUEST).encode()
    async with client_of(make_app(FakeEngine(), max_body_bytes=len(body) - excess)) as client:
        declared = await client.post("/v1/systemone", content=body)
        streamed = await client.post("/v1/systemone", content=chunks(body))
    if not excess:
        assert (declared.status_code, streamed.status_code) == (200, 200)
        return
    limit = len(body) - 1
    assert (declared.status_code, streamed.status_code) == (413, 413)
    assert declared.json() == error(
        "body_too_large", f"the body has {len(body)} bytes and the limit is {limit} (max_body_bytes)"
    )
    assert streamed.json() == error(
        "body_too_large", f"the body has more than {limit} bytes, which is the limit (max_body_bytes)"
    )


async def test_a_compression_that_is_not_read_is_told_what_is(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/systemone", content=b"x", headers={"content-encoding": "br"})
    assert response.status_code == 415
    assert response.headers["accept-encoding"] == "gzip, zstd"
    other = await client.post("/v1/systemone", content=b"x", headers={"content-type": "text/plain"})
    assert other.status_code == 415
    assert "accept-encoding" not in other.headers


async def chunks(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 7):
        yield body[start : start + 7]


async def test_an_endless_body_is_refused_while_it_streams() -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1000
            yield b" " * 1000

    async with client_of(make_app(FakeEngine(), max_body_bytes=10_000)) as client:
        response = await client.post("/v1/systemone", content=endless())
    assert response.status_code == 413
    assert sent <= 12_000


async def test_bodies_share_a_bound_on_memory_and_give_it_back() -> None:
    body = json.dumps(REQUEST).encode()
    half, arrived, rest = len(body) // 2, asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield body[:half]
        arrived.set()
        await rest.wait()
        yield body[half:]

    size = len(body)
    async with client_of(make_app(FakeEngine(), max_body_bytes=size, max_bodies_memory=size)) as client:
        first = asyncio.create_task(client.post("/v1/systemone", content=slow()))
        await arrived.wait()
        refused = await client.post("/v1/systemone", content=body)
        rest.set()
        assert (await first).status_code == 200
        assert (await client.post("/v1/systemone", content=body)).status_code == 200
    assert (refused.status_code, refused.headers["retry-after"], refused.headers["retry-after-ms"]) == (
        503,
        "1",
        "1000",
    )
    message = f"no room for this body beside those that are here: max_bodies_memory is {size} bytes"
    assert refused.json() == error("overloaded", message)


async def test_a_prompt_over_the_limit_is_refused_with_its_counts(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/systemone", json={"state": "x" * 40_000, "questions": {"r": REFUND}})
    whole = reference_body({"state": "", "questions": {"r": REFUND}})["usage"]["input_tokens"]
    assert response.status_code == 413
    detail = response.json()["detail"]
    assert detail["error_type"] == "prompt_too_long"
    assert detail["message"].startswith(
        f"the prompt has {whole + 40_000} tokens and the limit is {MAX_PROMPT_TOKENS}: state 40000, schema "
    )


@pytest.mark.parametrize(
    ("fault", "status", "error_type"),
    [
        ("nan", 500, "engine_error"),
        ("infinity", 500, "engine_error"),
        ("short", 500, "engine_error"),
        ("refuse", 500, "engine_error"),
        ("dead", 503, "engine_dead"),
    ],
)
async def test_engine_faults(fault: Fault, status: int, error_type: str) -> None:
    engine = FakeEngine()
    async with client_of(make_app(engine)) as client:
        engine.fault = fault
        response = await client.post("/v1/systemone", json=REQUEST)
        assert response.status_code == status
        assert response.json()["detail"]["error_type"] == error_type
        assert ("retry-after" in response.headers) == (status == 503)
        engine.fault = None
        again = await client.post("/v1/systemone", json=REQUEST)
    # One bad answer leaves the server up; a dead engine does not come back.
    assert again.status_code == (503 if fault == "dead" else 200)


async def test_a_dead_engine_ends_readiness_and_liveness_and_is_reported_once() -> None:
    reasons: list[str] = []
    engine = FakeEngine()
    app = create_app(engine=engine, tokenizer=tiny_tokenizer(), settings=serving_settings(), on_fatal=reasons.append)
    async with client_of(app) as client:
        assert (await client.get("/readyz")).status_code == 200
        engine.fault = "dead"
        assert (await client.post("/v1/systemone", json=REQUEST)).status_code == 503
        for path in ("/readyz", "/livez"):
            response = await client.get(path)
            assert response.status_code == 503
            assert response.json() == error("engine_dead", "the engine behind this server has stopped")
        app.state.lifecycle.fail("told again")
    assert reasons == ["the fake engine is dead"]


async def test_draining_refuses_new_requests_but_not_the_one_in_flight() -> None:
    engine = FakeEngine(delay_s=0.2)
    app = make_app(engine)
    async with client_of(app) as client:
        in_flight = asyncio.create_task(client.post("/v1/systemone", json=REQUEST))
        while not engine.running:  # noqa: ASYNC110  (the engine is a fake; nobody signals)
            await asyncio.sleep(0.01)
        app.state.lifecycle.drain()
        refused = [await client.post("/v1/systemone", json=REQUEST), await client.get("/readyz")]
        assert (await client.get("/livez")).status_code == 200
        answered = await in_flight
        assert (answered.status_code, answered.headers["connection"]) == (200, "close")
    for response in refused:
        assert response.headers["connection"] == "close"
        assert response.status_code == 503
        assert response.headers["retry-after-ms"] == "1000"
        assert response.json() == error("not_serving", "the server is shutting down")


async def test_readiness_waits_for_short_long_and_many_options() -> None:
    engine = FakeEngine(delay_s=0.05)
    app = make_app(engine)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://front") as client:
            early = await client.get("/readyz")
            assert early.status_code == 503
            assert early.json() == error("not_serving", "the server is warming up")
            assert (early.headers["retry-after"], early.headers["retry-after-ms"]) == ("1", "1000")
            assert (await client.get("/livez")).status_code == 200
            while (await client.get("/readyz")).status_code != 200:
                assert len(engine.requests) <= 3
                await asyncio.sleep(0.01)
    short, long, many = engine.requests
    assert len(many.questions[0].options) == 255
    short, long = len(short.input_ids), len(long.input_ids)
    # Whole lines of text, so up to one line short of the target.
    assert MAX_WARM_UP_STATE_TOKENS - 60 <= long - short <= MAX_WARM_UP_STATE_TOKENS


@pytest.mark.parametrize("limit", [700, 1000, 4000])
async def test_the_warm_up_fits_a_small_limit(limit: int) -> None:
    engine = FakeEngine()
    async with client_of(make_app(engine, max_prompt_tokens=limit)) as client:
        assert (await client.get("/readyz")).status_code == 200
    assert all(len(request.input_ids) <= limit for request in engine.requests)


@pytest.mark.parametrize(
    ("engine", "limit", "reason"),
    [
        (FakeEngine(fault="nan"), MAX_PROMPT_TOKENS, "warm-up failed: 1 of 2 logits are not finite"),
        (FakeEngine(fault="dead"), MAX_PROMPT_TOKENS, "the fake engine is dead"),
        (FakeEngine(), 100, "warm-up failed: max_prompt_tokens is too small to ask anything: the prompt has"),
    ],
    ids=["nan", "dead", "limit"],
)
async def test_a_failed_warm_up_is_fatal(engine: FakeEngine, limit: int, reason: str) -> None:
    app = make_app(engine, max_prompt_tokens=limit)
    async with client_of(app) as client:
        assert (await client.get("/readyz")).status_code == 503
        assert app.state.lifecycle.phase == "dead"
        assert app.state.lifecycle.reason.startswith(reason)


async def test_startup_runs_before_the_warm_up_and_is_given_the_lifecycle() -> None:
    engine = FakeEngine()
    seen: list[Any] = []

    async def bind(lifecycle: Lifecycle) -> None:
        seen.append((lifecycle, len(engine.requests)))

    app = create_app(engine=engine, tokenizer=tiny_tokenizer(), settings=serving_settings(), on_startup=bind)
    async with client_of(app):
        assert seen == [(app.state.lifecycle, 0)]


class Broken:
    """An engine with a bug."""

    def __init__(self) -> None:
        self.calls = 0

    async def score(self, request: ScoreRequest) -> ScoreResult:
        self.calls += 1
        if self.calls > 3:  # after the warm-up
            raise KeyError("secret internals")
        return await FakeEngine().score(request)

    def close(self) -> None:
        pass


async def test_a_bug_is_a_500_in_json_with_an_id(caplog: pytest.LogCaptureFixture) -> None:
    async with client_of(make_app(Broken())) as client:
        response = await client.post("/v1/systemone", json=REQUEST)
    assert response.status_code == 500
    assert response.json() == error("internal_error", "this server failed; its log has the request id")
    assert f"request failed request_id={response.headers['x-typesafe-request-id']} error=KeyError" in caplog.text
    assert "KeyError" in caplog.text


async def test_one_log_line_a_request_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="clef_serving")
    async with client_of(make_app(FakeEngine())) as client:
        good = await client.post("/v1/systemone", json=REQUEST)
        bad = await client.post("/v1/systemone", json=REQUEST | {"state": 1})
        await client.get("/readyz")
    lines = [record for record in caplog.records if record.name == "clef_serving.requests"]
    texts = [record.getMessage() for record in lines]
    assert len(lines) == 3
    assert f"request_id={good.headers['x-typesafe-request-id']} method=POST route=/v1/systemone status=200" in texts[0]
    assert "outcome=ok questions=1xnoul+1xchoice+1xscore options=2xnoul+2xchoice+2xscore" in texts[0]
    assert "state_tokens=72 schema_tokens=671" in texts[0]
    assert f"request_id={bad.headers['x-typesafe-request-id']} method=POST route=/v1/systemone status=422" in texts[1]
    assert "outcome=validation_error encode_ms=" in texts[1]
    assert [record.levelno for record in lines] == [logging.INFO, logging.INFO, logging.DEBUG]
    assert not any("Lindqvist" in text or "Billing" in text or "refund" in text for text in texts)


@settings(max_examples=60)
@given(st.lists(REQUESTS, min_size=1, max_size=3))
async def test_random_requests_are_answered_as_the_reference_would(requests: list[dict[str, Any]]) -> None:
    # Some of these texts hold control tokens, which the reference takes as they are.
    app = make_app(FakeEngine(), max_prompt_tokens=10**6, exact_control_tokens=True)
    async with client_of(app) as client:
        for request in requests:
            response = await client.post("/v1/systemone", json=request)
            assert response.status_code == 200, response.text
            body = strict_json.parse(response.content, max_depth=200)
            check_answers(request, body, served_name=SERVED_NAME)
            assert same(body, reference_body(request))


async def test_the_openapi_document_names_every_status_and_type(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    operation = document["paths"]["/v1/systemone"]["post"]
    assert set(operation["responses"]) == {
        *("200", "400", "401", "404", "408", "413", "415", "422", "429", "500", "503")
    }
    assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/SystemOneRequest")
    schemas = document["components"]["schemas"]
    components = {f"#/components/{kind}/{name}" for kind, named in document["components"].items() for name in named}
    assert set(_references(document)) <= components
    assert schemas["ChoiceQuestion"]["properties"]["criteria"]["maxProperties"] == 255
    assert schemas["ScoreQuestion"]["properties"]["criteria"]["maxItems"] == 10
    assert schemas["ChoiceQuestion"]["additionalProperties"] is False


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for member in value.values() for found in _references(member)]
    return [found for member in value for found in _references(member)] if isinstance(value, list) else []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def document() -> Any:
    async with client_of(make_app(FakeEngine())) as client:
        return (await client.get("/openapi.json")).json()


def schema_of(document: Any, name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}", "components": document["components"]}


@settings(max_examples=100)
@given(request=REQUESTS | ALMOST_REQUEST)
async def test_what_is_accepted_fits_the_documented_request(document: Any, request: Any) -> None:
    try:
        parse_request(request)
    except InvalidRequestError:
        return
    jsonschema.validate(request, schema_of(document, "SystemOneRequest"))


@settings(max_examples=30)
@given(request=REQUESTS)
async def test_what_is_answered_fits_the_documented_response(document: Any, request: Any) -> None:
    jsonschema.validate(reference_body(request), schema_of(document, "SystemOneResponse"))


async def test_dead_before_ready_stays_dead() -> None:
    lifecycle = Lifecycle()
    lifecycle.fail("first")
    lifecycle.mark_ready()
    lifecycle.drain()
    assert (lifecycle.phase, lifecycle.reason) == ("dead", "first")
    with pytest.raises(EngineDeadError, match="first"):
        lifecycle.require_serving()
