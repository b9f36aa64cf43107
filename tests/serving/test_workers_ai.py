"""Cloudflare's form of the API in process: paths, envelopes to the byte, codes, and the OpenAPI document."""

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema
import pytest
import pytest_asyncio
from openapi_spec_validator import validate

from serving import errors
from serving.engine import EngineDeadError, EngineError
from serving.fake_engine import FakeEngine
from serving.workers_ai import CODES
from tests.clients.hosted import ACCOUNT, RefusingEngine
from tests.serving.harness import MAX_PROMPT_TOKENS, SERVED_NAME, client_of, make_app

pytestmark = pytest.mark.asyncio

RUN = f"/client/v4/accounts/{ACCOUNT}/ai/run"
PATH = f"{RUN}/@cf/cloudflare/clef"
REQUEST: dict[str, Any] = {
    "state": {"text": "The parcel of Lindqvist & Sons arrived broken."},
    "questions": {
        "refund": {"type": "noul", "instructions": "Does the customer want a refund?"},
        "team": {"type": "choice", "instructions": "Which team?", "criteria": {"Logistics": None, "Billing": "money"}},
        # Its description comes back in the legend: more digits than a double or 64 bits can hold.
        "amount": {"type": "score", "criteria": ["low", {"at least": 12345678901234567890123}]},
    },
}

REFUSALS: list[tuple[Exception, int, int, dict[str, str]]] = [
    (errors.MalformedBodyError("not gzip"), 400, 6003, {}),
    (errors.ApiUsageError("asset 'a' is not referred to"), 400, 5006, {}),
    (errors.AuthenticationError("no key"), 401, 10000, {"www-authenticate": "Bearer"}),
    (errors.UnknownModelError("no such model"), 404, 3042, {}),
    (errors.BodyTooLargeError("9 bytes, limit 8"), 413, 3006, {}),
    (errors.PromptTooLongError("9 tokens, limit 8"), 413, 5021, {}),
    (errors.UnsupportedMediaTypeError("text/csv"), 415, 6003, {}),
    (errors.RateLimitedError("fast", retry_after_ms=1500), 429, 3040, {"retry-after": "2", "retry-after-ms": "1500"}),
    (errors.OverloadedError("full", retry_after_ms=20), 503, 3040, {"retry-after": "1", "retry-after-ms": "20"}),
    (
        errors.RequestTimeoutError("late", retry_after_ms=3000),
        503,
        3007,
        {"retry-after": "3", "retry-after-ms": "3000"},
    ),
    (
        errors.NotServingError("starting"),
        503,
        3040,
        {"retry-after": "1", "retry-after-ms": "1000", "connection": "close"},
    ),
    (errors.ClientClosedError("left"), 499, 3008, {}),
]


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(make_app(FakeEngine())) as client:
        yield client


def failure(*found: dict[str, Any]) -> dict[str, Any]:
    return {"result": None, "success": False, "errors": list(found), "messages": []}


async def test_the_answer_of_v1_systemone_is_wrapped_byte_for_byte(client: httpx.AsyncClient) -> None:
    plain = await client.post("/v1/systemone", json=REQUEST)
    wrapped = await client.post(PATH, json=REQUEST)
    assert wrapped.status_code == 200
    assert b'{"at least":12345678901234567890123}' in plain.content
    assert wrapped.content == b'{"result":' + plain.content + b',"success":true,"errors":[],"messages":[]}'
    assert wrapped.headers["content-type"] == plain.headers["content-type"] == "application/json"
    assert wrapped.headers["content-length"] == str(len(wrapped.content))
    assert wrapped.headers["x-typesafe-request-id"] != plain.headers["x-typesafe-request-id"]


@pytest.mark.parametrize(
    "path",
    [
        f"{RUN}/@cf/cloudflare/clef",
        f"{RUN}/@cf/cloudflare/clef-flash",
        f"{RUN}/@cf/cloudflare/clef-demo",
        f"{RUN}/@cf/cloudflare/{SERVED_NAME}",
        f"{RUN}/@cf%2Fcloudflare%2Fclef",
        f"{RUN}/%40cf/cloudflare/clef",
        "/client/v4/accounts/any account/ai/run/@cf/cloudflare/clef",
    ],
    ids=["clef", "clef-flash", "served-name", "full-name", "encoded-slashes", "encoded-at", "any-account"],
)
async def test_paths_that_name_the_served_model(client: httpx.AsyncClient, path: str) -> None:
    response = await client.post(path, json=REQUEST)
    assert response.status_code == 200
    assert response.json()["result"]["model"] == SERVED_NAME


@pytest.mark.parametrize(
    "name",
    [
        "@cf/meta/llama-3.1-8b-instruct",
        "@cf/cloudflare/clef-omni",
        "@cf/cloudflare/",
        "@cf/cloudflare/clef/",
        "clef",
        "x" * 200,
    ],
    ids=["other-author", "other-model", "no-name", "trailing-slash", "no-prefix", "long"],
)
async def test_a_path_that_names_another_model(name: str) -> None:
    engine = FakeEngine()
    async with client_of(make_app(engine)) as client:
        warm_up = len(engine.requests)
        response = await client.post(f"{RUN}/{name}", json=REQUEST)
    assert response.status_code == 404
    shown = name if len(name) <= 80 else name[:80] + "…"
    message = f"no model '{shown}' is served here; GET /v1/models lists what may follow @cf/cloudflare/"
    assert response.json() == failure({"code": 3042, "message": message})
    assert len(engine.requests) == warm_up


@pytest.mark.parametrize("model", ["clef", "clef-flash", "clef-demo", None])
async def test_a_body_may_name_the_served_model_or_none(client: httpx.AsyncClient, model: str | None) -> None:
    assert (await client.post(PATH, json={**REQUEST, "model": model})).status_code == 200


async def test_a_body_that_names_another_model_than_the_served_one(client: httpx.AsyncClient) -> None:
    request = {**REQUEST, "model": "clef-omni"}
    plain, wrapped = await client.post("/v1/systemone", json=request), await client.post(PATH, json=request)
    assert wrapped.status_code == plain.status_code == 404
    assert wrapped.json() == failure({"code": 3042, "message": plain.json()["detail"]["message"]})


@pytest.mark.parametrize(
    ("refusal", "status", "code", "headers"), REFUSALS, ids=[type(row[0]).__name__ for row in REFUSALS]
)
async def test_a_refusal_keeps_its_status_headers_and_message(
    caplog: pytest.LogCaptureFixture, refusal: Exception, status: int, code: int, headers: dict[str, str]
) -> None:
    engine = RefusingEngine()
    async with client_of(make_app(engine)) as client:
        engine.refusals.append(refusal)
        with caplog.at_level(logging.INFO, "clef_serving.requests"):
            response = await client.post(PATH, json=REQUEST)
    assert response.status_code == status
    assert response.json() == failure({"code": code, "message": str(refusal)})
    own = {"content-type", "content-length", "x-typesafe-request-id"}
    assert {name: value for name, value in response.headers.items() if name not in own} == headers
    assert f"outcome={errors.outcome_of(refusal).error_type} " in caplog.text


@pytest.mark.parametrize(
    ("error", "status", "code", "message"),
    [
        (EngineError("secret text"), 500, 5012, "the engine failed; the server's log says why"),
        (EngineDeadError("secret text"), 503, 3040, "the engine behind this server has stopped"),
    ],
    ids=["failed", "dead"],
)
async def test_an_engine_failure_tells_nothing_of_its_insides(
    error: Exception, status: int, code: int, message: str
) -> None:
    engine = RefusingEngine()
    async with client_of(make_app(engine)) as client:
        engine.refusals.append(error)
        response = await client.post(PATH, json=REQUEST)
    assert response.status_code == status
    assert response.json() == failure({"code": code, "message": message})


async def test_each_fault_of_a_request_is_an_error_with_a_pointer(client: httpx.AsyncClient) -> None:
    request = {
        "state": "x",
        "cache_salt": 7,
        "questions": {
            "a/b~c": {"type": "colour"},
            "team": {"type": "choice", "criteria": {}},
            "level": {"type": "score", "criteria": ["low", 3]},
        },
    }
    plain, wrapped = await client.post("/v1/systemone", json=request), await client.post(PATH, json=request)
    assert wrapped.status_code == 422
    pointers = {
        "/questions/a~1b~0c/type": "question 'a/b~c': type must be one of noul, choice, score, not 'colour'",
        "/questions/team/criteria": "question 'team': criteria has no options; it needs at least 1",
        "/questions/level/criteria/1": "question 'level': criteria.1 must be a string, an object or an array, not a number",
        "/cache_salt": "cache_salt must be a string, not a number",
    }
    assert wrapped.json() == failure(
        *({"code": 5012, "message": pointers[pointer], "source": {"pointer": pointer}} for pointer in pointers)
    )
    assert list(pointers.values()) == [fault["msg"] for fault in plain.json()["detail"]]


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"", b'{"state":"\xff"}'], ids=["not-json", "array", "empty", "not-utf-8"]
)
async def test_a_fault_of_the_whole_body_has_no_pointer(client: httpx.AsyncClient, body: bytes) -> None:
    plain, wrapped = await client.post("/v1/systemone", content=body), await client.post(PATH, content=body)
    assert wrapped.status_code == 422
    (fault,) = plain.json()["detail"]
    assert wrapped.json() == failure({"code": 5012, "message": fault["msg"]})


async def test_limits_hold_here_too(client: httpx.AsyncClient) -> None:
    too_long = await client.post(PATH, json={**REQUEST, "state": "x" * MAX_PROMPT_TOKENS})
    assert (too_long.status_code, too_long.json()["errors"][0]["code"]) == (413, 5021)
    csv = await client.post(PATH, content=b"a,b", headers={"content-type": "text/csv"})
    assert (csv.status_code, csv.json()["errors"][0]["code"]) == (415, 6003)


async def test_every_error_type_has_a_code() -> None:
    assert set(CODES) == {outcome.error_type for outcome in (*errors.OUTCOMES.values(), errors.INTERNAL)}


async def test_the_openapi_document_describes_the_route(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    validate(document)
    operation = document["paths"]["/client/v4/accounts/{account_id}/ai/run/{model_name}"]["post"]
    assert [parameter["name"] for parameter in operation["parameters"]] == ["account_id", "model_name"]
    statuses = {str(outcome.status) for outcome in errors.OUTCOMES.values()} - {"499"}  # which nobody receives
    assert set(operation["responses"]) == {"200", *statuses}
    assert operation["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/SystemOneRequest"
    }
    for request, path in ((REQUEST, PATH), ({"state": 1, "questions": {}}, PATH), (REQUEST, f"{RUN}/@cf/meta/llama")):
        response = await client.post(path, json=request)
        described = operation["responses"][str(response.status_code)]["content"]["application/json"]["schema"]
        schema = {**described, "components": document["components"]}
        jsonschema.validate(json.loads(response.content), schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**response.json(), "success": not response.json()["success"]}, schema)
