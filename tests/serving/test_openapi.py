"""The OpenAPI document: valid, committed as it is, complete, and true of requests and responses. Run to print the document."""

import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import pytest_asyncio
from hypothesis import given, settings
from openapi_spec_validator import OpenAPIV31SpecValidator

from serving import app, errors
from serving.api_types import REFUSED_FIELDS, SystemOneRequest, parse_request
from serving.errors import InvalidRequestError
from serving.fake_engine import FakeEngine
from serving.openapi import ASKED, EXAMPLE, FIELDS, HEADERS, PARAMETERS
from tests.clients.hosted import RefusingEngine
from tests.serving.documented import Documented
from tests.serving.harness import SERVED_NAME, client_of, make_app
from tests.serving.strategies import REQUESTS

COMMITTED = Path(__file__).parents[2] / "serving" / "openapi.json"
SYSTEMONE, WORKERS_AI = ASKED
URLS = {
    SYSTEMONE: SYSTEMONE,
    WORKERS_AI: WORKERS_AI.format(account_id="a", model_name=f"@cf/cloudflare/{SERVED_NAME}"),
}


def written(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return make_app(FakeEngine()).openapi()


@pytest.fixture(scope="module")
def documented(document: dict[str, Any]) -> Documented:
    return Documented(document)


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(make_app(FakeEngine())) as client:
        yield client


def fits(value: Any, name: str, document: dict[str, Any]) -> bool:
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def test_it_is_valid_and_of_version_3_1(document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0"
    OpenAPIV31SpecValidator(document).validate()


def test_the_committed_one_is_current(document: dict[str, Any]) -> None:
    assert COMMITTED.read_text(encoding="utf-8") == written(document), (
        "write it again: python -m tests.serving.test_openapi > serving/openapi.json"
    )


@pytest.mark.asyncio
async def test_it_is_what_the_server_hands_out(client: httpx.AsyncClient, document: dict[str, Any]) -> None:
    assert (await client.get("/openapi.json")).json() == document


def test_every_field_is_described_and_refused_ones_are_hidden(document: dict[str, Any]) -> None:
    properties = document["components"]["schemas"]["SystemOneRequest"]["properties"]
    assert set(properties) == set(FIELDS) == set(SystemOneRequest.model_fields) - set(REFUSED_FIELDS)


def test_headers_are_those_the_server_reads_and_sends() -> None:
    assert {app.TIMEOUT_HEADER, app.PRIORITY_HEADER} < set(PARAMETERS)
    assert PARAMETERS[app.PRIORITY_HEADER]["schema"]["enum"] == list(app.PRIORITIES)
    assert app.TRUNCATED_HEADER in HEADERS


@pytest.mark.parametrize("path", ASKED)
def test_both_forms_take_the_same_bodies_headers_and_keys(path: str, document: dict[str, Any]) -> None:
    shared, operation = document["paths"][path], document["paths"][path]["post"]
    request = {"$ref": "#/components/schemas/SystemOneRequest"}
    content = operation["requestBody"]["content"]
    assert content["application/json"]["schema"] == request
    assert content["multipart/form-data"]["schema"]["properties"] == {"request": request}
    assert content["multipart/form-data"]["schema"]["required"] == ["request"]
    assert content["multipart/form-data"]["encoding"] == {"request": {"contentType": "application/json"}}
    assert shared["parameters"] == [{"$ref": f"#/components/parameters/{name}"} for name in PARAMETERS]
    assert operation["security"] == [{"key": []}, {}]
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    # Nobody receives 499: the client has left.
    statuses = {str(outcome.status) for outcome in errors.OUTCOMES.values()} - {"499"}
    assert set(operation["responses"]) == {"200", *statuses}


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ASKED)
async def test_the_example_is_answered(
    client: httpx.AsyncClient, document: dict[str, Any], documented: Documented, path: str
) -> None:
    assert fits(EXAMPLE, "SystemOneRequest", document)
    assert document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"] == EXAMPLE
    form = {"request": (None, json.dumps(EXAMPLE), "application/json")}
    packed = gzip.compress(json.dumps(EXAMPLE).encode())
    for response in (
        await client.post(URLS[path], json=EXAMPLE, headers={"x-request-priority": "high"}),
        await client.post(URLS[path], files=form, headers={"x-request-timeout-ms": "60000"}),
        await client.post(URLS[path], content=packed, headers={"content-encoding": "gzip"}),
    ):
        assert response.status_code == 200, response.text
        documented.check("post", path, response)


@pytest.mark.asyncio
async def test_a_cut_state_is_told_in_the_documented_header(documented: Documented) -> None:
    async with client_of(make_app(FakeEngine(), max_prompt_tokens=1000)) as client:
        response = await client.post(SYSTEMONE, json={**EXAMPLE, "state": "x" * 2000, "over_limit": "truncate"})
    assert response.status_code == 200, response.text
    assert int(response.headers["x-truncated-tokens"]) > 0
    documented.check("post", SYSTEMONE, response)


WAITS = (errors.RateLimitedError, errors.OverloadedError, errors.RequestTimeoutError)
RAISED = [
    error("told", retry_after_ms=1) if error in WAITS else error("told")
    for error in errors.OUTCOMES
    if error not in (InvalidRequestError, errors.ClientClosedError)
]


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("error", [*RAISED, ValueError("ours")], ids=lambda error: type(error).__name__)
async def test_every_error_is_documented(documented: Documented, path: str, error: Exception) -> None:
    engine = RefusingEngine()
    async with client_of(make_app(engine)) as client:
        engine.refusals.append(error)
        response = await client.post(URLS[path], json=EXAMPLE)
    assert response.status_code == errors.outcome_of(error).status
    documented.check("post", path, response)


@pytest.mark.asyncio
async def test_refused_requests_and_other_paths_are_documented(
    client: httpx.AsyncClient, documented: Documented
) -> None:
    for path in ASKED:
        refused = await client.post(URLS[path], json={"state": 1})
        assert refused.status_code == 422
        documented.check("post", path, refused)
        coded = await client.post(URLS[path], content=b"x", headers={"content-encoding": "br"})
        assert (coded.status_code, coded.headers["accept-encoding"]) == (415, "gzip, zstd")
        documented.check("post", path, coded)
        documented.check_error(await client.delete(URLS[path]))
    documented.check_error(await client.get("/v1/nothing"))


@pytest.mark.asyncio
async def test_probes_and_models_are_documented(documented: Documented) -> None:
    application = make_app(FakeEngine(), model_revision="main")
    async with client_of(application) as client:
        for _ in range(2):
            for path in ("/livez", "/readyz", "/v1/models"):
                response = await client.get(path)
                died = application.state.lifecycle.phase == "dead" and path != "/v1/models"
                assert response.status_code == (503 if died else 200)
                documented.check("get", path, response)
            application.state.lifecycle.fail("as asked")


MEDIA: dict[str, tuple[Any, bool]] = {
    "text": ({"images": ["data:image/png;base64,AA=="], "videos": ["AAAA"]}, True),
    "SGLang's form": (
        {"images": [{"url": "data:,", "detail": "auto"}], "videos": [{"url": "https://a.example/v"}]},
        True,
    ),
    "Cloudflare's form": (
        {"images": [{"base64": "AA==", "content_type": "image/png"}], "videos": [{"base64": "A"}]},
        True,
    ),
    "frames": ({"videos": [{"frames": ["AA==", {"url": "data:,"}, {"base64": "A"}], "fps": 2}]}, True),
    "sampling": ({"media_kwargs": {"fps": 0.5, "num_frames": None, "do_sample_frames": False}}, True),
    "an asset": ({"assets": {"<a>": {"type": "image", "format": "png", "data_base64": "AA=="}}}, True),
    "an asset in a part": ({"assets": {"<a>": {"part": "asset-0"}}}, True),
    "nothing": ({"images": None, "videos": None, "assets": None, "media_kwargs": None, "over_limit": None}, True),
    "a misspelt key": ({"images": [{"uri": "data:,"}]}, False),
    "two forms at once": ({"images": [{"url": "data:,", "base64": "AA=="}]}, False),
    "another detail": ({"images": [{"url": "data:,", "detail": "high"}]}, False),
    "a video's type on an image": ({"images": [{"base64": "AA==", "content_type": "video/mp4"}]}, False),
    "no frames": ({"videos": [{"frames": [], "fps": 2}]}, False),
    "frames without a rate": ({"videos": [{"frames": ["AA=="]}]}, False),
    "a rate of nothing": ({"media_kwargs": {"fps": 0}}, False),
    "no assets": ({"assets": {}}, False),
    "an asset without a name": ({"assets": {"": {"data_base64": "AA=="}}}, False),
    "another limit": ({"over_limit": "cut"}, False),
}


@pytest.mark.parametrize("form", MEDIA)
def test_media_are_documented_as_they_are_read(document: dict[str, Any], form: str) -> None:
    fields, is_request = MEDIA[form]
    request = {**EXAMPLE, **fields}
    assert fits(request, "SystemOneRequest", document) is is_request
    try:
        parse_request(request)
    except InvalidRequestError:
        assert not is_request
    else:
        assert is_request


@settings(max_examples=200)
@given(request=REQUESTS)
def test_what_is_accepted_fits(document: dict[str, Any], request: dict[str, Any]) -> None:
    parse_request(request)
    assert fits(request, "SystemOneRequest", document)


if __name__ == "__main__":
    print(written(make_app(FakeEngine()).openapi()), end="")
