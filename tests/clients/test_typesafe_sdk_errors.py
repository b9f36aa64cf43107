"""What TypeSafe's own Python client makes of refusals: typed errors, and when it tries again. It would try twice more."""

import asyncio
import base64
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from unittest import mock

import httpx
import httpx2
import pytest
import typesafe_sdk
from typesafe_sdk import Box, Choice, Image, RetryPolicy
from typesafe_sdk._core.transport import Request

from tests.cases.case import Case
from tests.cases.table import CASES, CASES_WITH_VISION
from tests.clients.exchanges import Exchange
from tests.clients.sdk_server import (
    KEY,
    KEYS,
    LIMITED_KEY,
    QUESTIONS,
    REFUND,
    SDK_QUESTIONS,
    STATE,
    TOKENS_KEY,
    Server,
    assert_answers,
    fresh,
    sdk_server,
)
from tests.serving.harness import key_ring
from tests.serving.media_samples import encoded, photo

PNG = encoded(photo(96, 64), "PNG")
INVALID = [case for case in (*CASES, *CASES_WITH_VISION) if case.status != 200]
# Whoever has used up its requests now is given some within the SDK's budget of 30 seconds for all attempts.
LATE_IN_A_MINUTE = 1_800_000_050.0
EARLY_IN_ANOTHER = 1_800_003_605.0


@pytest.fixture(scope="module")
def _server() -> Iterator[Server]:
    with sdk_server() as server:
        yield server


@pytest.fixture(scope="module")
def _guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    keys = key_ring(tmp_path_factory.mktemp("keys") / "keys.toml", KEYS)
    with sdk_server(keys=keys, max_running_requests=1, max_waiting_requests=0) as server:
        yield server


@pytest.fixture
def server(_server: Server) -> Server:
    """Without keys; nothing was asked of it yet."""
    return fresh(_server)


@pytest.fixture
def guarded(_guarded: Server) -> Server:
    """With keys, room for one request, and no queue."""
    return fresh(_guarded)


@pytest.mark.parametrize(
    ("changes", "error", "status", "message"),
    [
        (
            {"extra_body": {"assets": {"nobody's": {"data_base64": base64.b64encode(PNG).decode()}}}},
            typesafe_sdk.TypeSafeBadRequestError,
            400,
            "no string in state, instructions or criteria refers to the asset 'nobody's'",
        ),
        ({"model": "no-such"}, typesafe_sdk.TypeSafeNotFoundError, 404, "no model 'no-such' is served here"),
        ({"state": "word " * 10_000}, typesafe_sdk.TypeSafeAPIError, 413, "the limit is 10000: state"),
        (
            {"questions": {"where": Box(instructions="The parcel"), "r": REFUND}},
            typesafe_sdk.TypeSafeUnprocessableEntityError,
            422,
            "questions.where.type: question 'where': type box is not supported by this model; "
            "it answers noul, choice, score",
        ),
        (
            {"questions": {"r": Choice(criteria={str(number): None for number in range(256)})}},
            typesafe_sdk.TypeSafeUnprocessableEntityError,
            422,
            "questions.r.criteria: question 'r': criteria has 256 options; the limit is 255",
        ),
        (
            {"state": Image(b"no picture")},
            typesafe_sdk.TypeSafeUnprocessableEntityError,
            422,
            "is no image of a format that is read, which are PNG, JPEG, WebP and still GIF",
        ),
    ],
    ids=["400", "404", "413", "422-box", "422-options", "422-image"],
)
def test_invalid_requests_are_typed_errors_and_not_tried_again(
    server: Server, changes: dict[str, Any], error: type[typesafe_sdk.TypeSafeAPIError], status: int, message: str
) -> None:
    with server.client() as client, pytest.raises(error) as caught:
        client.system_one(**{"state": STATE, "questions": SDK_QUESTIONS} | changes)
    assert caught.value.status == status
    assert message in str(caught.value)
    (exchange,) = server.exchanges
    assert caught.value.request_id == exchange.received["x-typesafe-request-id"]
    assert server.engine.requests == []


def test_a_body_over_the_limit_is_413(server: Server) -> None:
    photo_ = Image(PNG + b"\0" * (64 * 2**20))
    with server.client(compression=False) as client, pytest.raises(typesafe_sdk.TypeSafeAPIError) as caught:
        client.system_one(state=photo_, questions={"r": REFUND})
    assert caught.value.status == 413
    assert caught.value.body["detail"]["error_type"] == "body_too_large"
    assert len(server.exchanges) == 1


def test_an_encoding_that_is_not_read_is_415(server: Server) -> None:
    def say_brotli(request: httpx2.Request) -> None:
        request.headers["content-encoding"] = "br"

    http = httpx2.Client(event_hooks={"request": [say_brotli]})
    with server.client(http_client=http) as client, pytest.raises(typesafe_sdk.TypeSafeAPIError) as caught:
        client.system_one(state=STATE, questions=SDK_QUESTIONS)
    assert caught.value.status == 415
    assert "content-encoding 'br' is not supported; send the body in one of gzip, zstd" in str(caught.value)
    assert len(server.exchanges) == 1


@pytest.mark.parametrize("case", INVALID, ids=lambda case: case.id)
def test_ops_008_no_invalid_request_is_tried_twice(server: Server, case: Case) -> None:
    """Sent below what the SDK's own checks would let through, by its sender with its rules for retries."""
    request = Request(
        method="POST",
        url=f"{server.url}/v1/systemone",
        headers=httpx2.Headers(dict(case.headers)),
        content=case.body,
        timeout=30.0,
        response_type=typesafe_sdk.SystemOneResponse,
        compression=None,
    )
    with server.client() as client, pytest.raises(typesafe_sdk.TypeSafeAPIError) as caught:
        client._request(request)
    assert caught.value.status == case.status
    assert len(server.exchanges) == 1
    assert server.engine.requests == []


@pytest.mark.parametrize("key", ["clef-another-key", f"{KEY}s"])
def test_an_unknown_key_is_401(guarded: Server, key: str) -> None:
    with guarded.client(api_key=key) as client, pytest.raises(typesafe_sdk.TypeSafeAuthenticationError) as caught:
        client.system_one(state=STATE, questions=SDK_QUESTIONS)
    assert "the API key is not known here" in str(caught.value)
    assert key not in str(caught.value)
    (exchange,) = guarded.exchanges
    assert caught.value.request_id == exchange.received["x-typesafe-request-id"]


def test_a_known_key_is_answered(guarded: Server) -> None:
    with guarded.client() as client:
        assert_answers(client.system_one(state=STATE, questions=SDK_QUESTIONS))


# Retries: when, the server says; how often, the SDK decides.


@dataclass
class Sleeps:
    """Takes the place of the SDK's sleep: what it was asked for in seconds, and what happens meanwhile."""

    meanwhile: Callable[[float], None] = lambda seconds: None
    seconds: list[float] = field(default_factory=list)

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.meanwhile(seconds)

    async def asynchronously(self, seconds: float) -> None:
        await asyncio.to_thread(self, seconds)


def told_to_wait(exchange: Exchange) -> float:
    """Seconds, after a check that both headers say the same."""
    milliseconds = int(exchange.received["retry-after-ms"])
    assert int(exchange.received["retry-after"]) == -(-milliseconds // 1000)
    return milliseconds / 1000


def test_an_engine_that_fails_is_500_and_tried_again(server: Server) -> None:
    server.engine.fault = "nan"
    with server.client() as client:
        client._retry.sleep = sleeps = Sleeps()
        with pytest.raises(typesafe_sdk.TypeSafeInternalServerError) as caught:
            client.system_one(state=STATE, questions=SDK_QUESTIONS)
    assert len(sleeps.seconds) == 2
    assert caught.value.status == 500
    assert "the engine returned scores that are missing or not finite" in str(caught.value)
    assert [exchange.status for exchange in server.exchanges] == [500] * 3
    assert caught.value.request_id == server.exchanges[-1].received["x-typesafe-request-id"]


class Busy:
    """The one place of a server, taken until `release`."""

    def __init__(self, server: Server, pool: ThreadPoolExecutor) -> None:
        self._engine = server.engine
        self._engine.open.clear()
        headers = {"authorization": f"Bearer {KEY}"}
        body = {"state": STATE, "questions": QUESTIONS}
        self._asking = pool.submit(httpx.post, f"{server.url}/v1/systemone", json=body, headers=headers)
        self._wait_for(1)

    def release(self, _: float = 0) -> None:
        self._engine.open.set()
        assert self._asking.result(10).status_code == 200
        self._wait_for(0)

    def _wait_for(self, running: int) -> None:
        waiting = threading.Event()
        for _ in range(2000):
            if self._engine.running == running:
                return
            waiting.wait(0.005)
        pytest.fail(f"{self._engine.running} requests are running, not {running}")


def assert_overloaded_and_then_answered(server: Server, sleeps: Sleeps) -> None:
    _, refused, answered = server.exchanges
    assert (refused.status, answered.status) == (503, 200)
    assert sleeps.seconds == [told_to_wait(refused)]
    assert "x-typesafe-retry-count" not in refused.sent
    assert answered.sent["x-typesafe-retry-count"] == "1"


def test_a_full_queue_is_503_and_asked_again_when_it_said(guarded: Server) -> None:
    with ThreadPoolExecutor(1) as pool, guarded.client() as client:
        busy = Busy(guarded, pool)
        client._retry.sleep = sleeps = Sleeps(busy.release)
        assert_answers(client.system_one(state=STATE, questions=SDK_QUESTIONS))
    assert_overloaded_and_then_answered(guarded, sleeps)


@pytest.mark.asyncio
async def test_a_full_queue_asynchronously(guarded: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        busy = await asyncio.to_thread(Busy, guarded, pool)
        sleeps = Sleeps(busy.release)
        async with guarded.new_client() as client:
            client._retry.sleep = sleeps.asynchronously
            assert_answers(await client.system_one(state=STATE, questions=SDK_QUESTIONS))
    assert_overloaded_and_then_answered(guarded, sleeps)


def test_a_queue_that_stays_full_is_a_typed_error(guarded: Server) -> None:
    with ThreadPoolExecutor(1) as pool, guarded.client() as client:
        busy = Busy(guarded, pool)
        client._retry.sleep = sleeps = Sleeps()
        with pytest.raises(typesafe_sdk.TypeSafeInternalServerError) as caught:
            client.system_one(state=STATE, questions=SDK_QUESTIONS)
        busy.release()
    assert caught.value.status == 503
    assert "the queue is full: max_waiting_requests is 0" in str(caught.value)
    refused = guarded.exchanges[1:]
    assert [exchange.status for exchange in refused] == [503] * 3
    assert sleeps.seconds == [told_to_wait(exchange) for exchange in refused[:2]]


@pytest.fixture
def clock() -> Iterator[mock.Mock]:
    """What the server takes for the time, in Unix seconds, is `clock.return_value`."""
    with mock.patch("time.time", return_value=LATE_IN_A_MINUTE) as clock:
        yield clock


@pytest.mark.parametrize(("key", "limit"), [(LIMITED_KEY, "requests_per_minute"), (TOKENS_KEY, "tokens_per_minute")])
def test_a_rate_limit_is_429_and_waiting_as_long_as_it_says_is_enough(
    guarded: Server, clock: mock.Mock, key: str, limit: str
) -> None:
    def pass_time(seconds: float) -> None:
        clock.return_value += seconds

    with guarded.client(api_key=key) as client:
        client._retry.sleep = sleeps = Sleeps(pass_time)
        for _ in range(3):
            assert_answers(client.system_one(state=STATE, questions=SDK_QUESTIONS))
    statuses = [exchange.status for exchange in guarded.exchanges]
    assert statuses.count(200) == 3
    assert statuses.count(429) == len(sleeps.seconds) >= 1, limit
    assert sleeps.seconds == [told_to_wait(exchange) for exchange in guarded.exchanges if exchange.status == 429]
    # One retry for each refusal: it was never told too little.
    assert all(following == 200 for status, following in pairwise(statuses) if status == 429)


def test_a_wait_beyond_the_sdk_s_patience_is_a_typed_error_at_once(guarded: Server, clock: mock.Mock) -> None:
    clock.return_value = EARLY_IN_ANOTHER
    with guarded.client(api_key=LIMITED_KEY) as client:
        client._retry.sleep = sleeps = Sleeps()
        for _ in range(2):
            client.system_one(state=STATE, questions=SDK_QUESTIONS)
        with pytest.raises(typesafe_sdk.TypeSafeRateLimitError) as caught:
            client.system_one(state=STATE, questions=SDK_QUESTIONS)
    assert caught.value.retry_after_ms == 55_001
    assert "has used 2 of its 2 requests a minute (requests_per_minute)" in str(caught.value)
    assert LIMITED_KEY not in str(caught.value)
    assert sleeps.seconds == []
    assert caught.value.request_id == guarded.exchanges[-1].received["x-typesafe-request-id"]


def test_a_policy_of_the_client_s_own(guarded: Server) -> None:
    with ThreadPoolExecutor(1) as pool, guarded.client(retry=RetryPolicy(max_retries=0)) as client:
        busy = Busy(guarded, pool)
        with pytest.raises(typesafe_sdk.TypeSafeInternalServerError):
            client.system_one(state=STATE, questions=SDK_QUESTIONS)
        busy.release()
    assert [exchange.status for exchange in guarded.exchanges[1:]] == [503]
