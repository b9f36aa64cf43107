"""Cloudflare's own Python client, by its base URL setting alone."""

from types import SimpleNamespace
from typing import Any

import cloudflare
import pytest

from serving.errors import (
    AuthenticationError,
    NotServingError,
    OverloadedError,
    RateLimitedError,
    RequestTimeoutError,
)
from tests.clients.conftest import QUESTIONS, TICKET
from tests.clients.hosted import ACCOUNT
from tests.serving.harness import same

REQUEST = {"model": "clef-flash", "state": TICKET, "questions": QUESTIONS}


@pytest.fixture
def client(server: SimpleNamespace) -> cloudflare.Cloudflare:
    return cloudflare.Cloudflare(api_token="any-token", base_url=server.base_url, max_retries=0)


def run(client: cloudflare.Cloudflare, request: dict[str, Any], *, model: str = "clef-flash") -> Any:
    return client.ai.run(f"@cf/cloudflare/{model}", account_id=ACCOUNT, extra_body=request)


@pytest.mark.parametrize("named", [{"model": "clef-flash"}, {}], ids=["model-in-body", "model-in-path-alone"])
@pytest.mark.parametrize("model", ["clef", "clef-flash"])
def test_answers(client: cloudflare.Cloudflare, expected: dict[str, Any], model: str, named: dict[str, str]) -> None:
    assert same(run(client, {**named, "state": TICKET, "questions": QUESTIONS}, model=model), expected)


@pytest.mark.asyncio
async def test_answers_asynchronously(server: SimpleNamespace, expected: dict[str, Any]) -> None:
    async with cloudflare.AsyncCloudflare(api_token="any-token", base_url=server.base_url, max_retries=0) as client:
        answered = await client.ai.run("@cf/cloudflare/clef-flash", account_id=ACCOUNT, extra_body=REQUEST)
    assert same(answered, expected)


@pytest.mark.parametrize(
    ("refusal", "error", "status", "code"),
    [
        (AuthenticationError("no key"), cloudflare.AuthenticationError, 401, 10000),
        (RateLimitedError("too fast", retry_after_ms=1), cloudflare.RateLimitError, 429, 3040),
        (OverloadedError("queue full", retry_after_ms=1), cloudflare.InternalServerError, 503, 3040),
        (RequestTimeoutError("too late", retry_after_ms=1), cloudflare.InternalServerError, 503, 3007),
        (NotServingError("shutting down"), cloudflare.InternalServerError, 503, 3040),
    ],
    ids=["401", "429", "503-overloaded", "503-timeout", "503-draining"],
)
def test_refusals_are_typed_errors(
    client: cloudflare.Cloudflare,
    server: SimpleNamespace,
    refusal: Exception,
    error: type[cloudflare.APIStatusError],
    status: int,
    code: int,
) -> None:
    server.engine.refusals.append(refusal)
    with pytest.raises(error) as raised:
        run(client, REQUEST)
    assert raised.value.status_code == status
    assert [(found.code, found.message) for found in raised.value.errors] == [(code, str(refusal))]
    assert len(server.engine.requests) == 1


def test_a_wrong_request_names_the_field(client: cloudflare.Cloudflare) -> None:
    with pytest.raises(cloudflare.UnprocessableEntityError) as raised:
        run(client, {"state": "x", "questions": {"colour/shape": {"type": "colour"}}})
    (found,) = raised.value.errors
    assert (found.code, found.message) == (
        5012,
        "question 'colour/shape': type must be one of noul, choice, score, not 'colour'",
    )
    assert found.source is not None
    assert found.source.pointer == "/questions/colour~1shape/type"


def test_a_long_state_is_too_large(client: cloudflare.Cloudflare) -> None:
    with pytest.raises(cloudflare.APIStatusError) as raised:
        run(client, {**REQUEST, "state": "x" * 5_000})
    assert raised.value.status_code == 413
    assert [found.code for found in raised.value.errors] == [5021]


@pytest.mark.parametrize(
    ("in_path", "in_body"), [("clef-omni", "clef"), ("clef", "clef-omni")], ids=["in-path", "in-body"]
)
def test_another_model_is_not_found(
    client: cloudflare.Cloudflare, server: SimpleNamespace, in_path: str, in_body: str
) -> None:
    with pytest.raises(cloudflare.NotFoundError) as raised:
        run(client, {**REQUEST, "model": in_body}, model=in_path)
    assert [found.code for found in raised.value.errors] == [3042]
    assert server.engine.requests == []


def test_429_and_503_are_tried_again(
    client: cloudflare.Cloudflare, server: SimpleNamespace, expected: dict[str, Any]
) -> None:
    server.engine.refusals += [
        RateLimitedError("too fast", retry_after_ms=1),
        OverloadedError("queue full", retry_after_ms=1),
    ]
    assert same(run(client.with_options(max_retries=2), REQUEST), expected)
    assert len(server.engine.requests) == 3


def test_401_is_not_tried_again(client: cloudflare.Cloudflare, server: SimpleNamespace) -> None:
    server.engine.refusals.append(AuthenticationError("no key"))
    with pytest.raises(cloudflare.AuthenticationError):
        run(client.with_options(max_retries=2), REQUEST)
    assert len(server.engine.requests) == 1
