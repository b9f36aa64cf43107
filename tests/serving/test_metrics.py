"""The page of metrics: exact counts after known requests, names, formats, and a scrape that stops nobody."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry, Gauge, Metric
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.admission import Admission, AdmissionLimits
from serving.fake_engine import FakeEngine
from serving.lifecycle import Lifecycle
from serving.metrics import REFUSALS, Metrics, MetricsServer, metrics_response
from serving.request_record import Decision, RequestRecord
from serving.schema_cache import SchemaCache
from tests.serving.exposition import families, faults, series
from tests.serving.harness import SERVED_NAME, client_of, reference_record
from tests.serving.observed import (
    REQUEST,
    RUN_PATH,
    SCHEMA_TOKENS,
    SECRETS,
    STATE_TOKENS,
    new_metrics,
    observed_app,
)

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
NO_QUESTION = {"state": "x", "questions": {}}


class Page:
    """Values of a page by name and labels; 0 for a series that is not there."""

    def __init__(self, metrics: Metrics) -> None:
        self.text, _ = metrics.page("")
        self._series = series(self.text)

    def __call__(self, name: str, **labels: str) -> float:
        return self._series.get((name, frozenset(labels.items())), 0)

    def by(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """All series of a name that are not 0, by the values of these labels."""
        return {
            tuple(dict(given)[label] for label in labels): value
            for (found, given), value in self._series.items()
            if found == name and value
        }


@pytest.mark.asyncio
async def test_counters_after_known_requests() -> None:
    metrics = new_metrics()
    async with client_of(observed_app(FakeEngine(), metrics=metrics)) as client:
        for _ in range(3):
            assert (await client.post("/v1/systemone", json=REQUEST)).status_code == 200
        assert (await client.post(RUN_PATH, json=REQUEST)).status_code == 200
        assert (await client.post("/v1/systemone", json=REQUEST | {"model": "other"})).status_code == 404
        assert (await client.post("/v1/systemone", json=NO_QUESTION)).status_code == 422
        assert (await client.post("/v1/systemone", content=b"{")).status_code == 422
        assert (await client.get("/nowhere/account-4711")).status_code == 404
        assert (await client.get("/v1/systemone")).status_code == 405
        assert (await client.get("/v1/models")).status_code == 200
        for probe in ("/livez", "/readyz", "/metrics"):
            await client.get(probe)
    page = Page(metrics)
    run = "/client/v4/accounts/{account_id}/ai/run/{model_name:path}"
    assert page.by("clef_requests_total", "route", "status", "outcome") == {
        ("/v1/systemone", "200", "ok"): 3,
        (run, "200", "ok"): 1,
        ("/v1/systemone", "404", "model_not_found_error"): 1,
        ("/v1/systemone", "422", "validation_error"): 2,
        ("none", "404", "not_found_error"): 1,
        ("/v1/systemone", "405", "method_not_allowed"): 1,
        ("/v1/models", "200", "ok"): 1,
    }
    durations = page.by("clef_request_duration_seconds_count", "route")
    assert durations == {("/v1/systemone",): 7, (run,): 1, ("none",): 1, ("/v1/models",): 1}
    answered = 4
    assert page.by("clef_tokens_total", "kind") == {
        ("prompt",): answered * len(reference_record(REQUEST).input_ids),
        ("state",): answered * STATE_TOKENS,
        ("schema",): answered * SCHEMA_TOKENS,
    }
    assert page.by("clef_questions_total", "type") == {("noul",): 4, ("choice",): 4, ("score",): 4}
    assert page.by("clef_options_total", "type") == {("noul",): 8, ("choice",): 8, ("score",): 12}
    model = {"model": SERVED_NAME}
    assert page("clef_answer_entropy_count", **model, type="noul") == 4
    assert page("clef_answer_entropy_count", **model, type="choice") == 4
    assert page.by("clef_answer_confidence_count", "model", "type") == {
        (SERVED_NAME, "choice"): 4,
        (SERVED_NAME, "score"): 4,
    }
    assert page.by("clef_request_stage_seconds_count", "stage") == {
        ("encode",): 7,  # those that are wrong were read, too
        ("queue",): answered,
        ("engine",): answered,
        ("answer",): answered,
    }
    assert page.by("clef_refusals_total", "reason") == {}
    assert page("clef_requests_in_flight") == 0
    assert not [secret for secret in SECRETS if secret in page.text.decode()]


@pytest.mark.parametrize(
    ("headers", "retries"),
    [
        ({}, 0),
        ({"X-TypeSafe-Retry-Count": "0"}, 0),
        ({"X-TypeSafe-Retry-Count": "2"}, 1),
        ({"X-TypeSafe-SDK-Retry-Count": "1"}, 1),
        ({"X-TypeSafe-Retry-Count": "-1"}, 0),
        ({"X-TypeSafe-Retry-Count": "9" * 400}, 0),
        ({"X-TypeSafe-Retry-Count": "sk-clef-secret"}, 0),
    ],
    ids=["none", "first", "second-retry", "other-name", "negative", "huge", "text"],
)
@pytest.mark.asyncio
async def test_retries_are_counted_by_the_clients_account(headers: dict[str, str], retries: int) -> None:
    metrics = new_metrics()
    async with client_of(observed_app(FakeEngine(), metrics=metrics)) as client:
        await client.post("/v1/systemone", json=REQUEST, headers=headers)
    assert Page(metrics)("clef_client_retries_total") == retries


@pytest.mark.asyncio
async def test_an_engine_failure_is_counted_and_its_request_is_no_answer() -> None:
    metrics, engine = new_metrics(), FakeEngine()
    async with client_of(observed_app(engine, metrics=metrics)) as client:
        engine.fault = "nan"
        assert (await client.post("/v1/systemone", json=REQUEST)).status_code == 500
    page = Page(metrics)
    assert page.by("clef_requests_total", "status", "outcome") == {("500", "engine_error"): 1}
    assert page.by("clef_tokens_total", "kind") == {}
    assert page.by("clef_questions_total", "type") == {}


@pytest.mark.asyncio
async def test_requests_in_flight() -> None:
    metrics, engine = new_metrics(), Held()
    async with client_of(observed_app(engine, metrics=metrics)) as client:
        engine.release.clear()
        asked = [asyncio.create_task(client.post("/v1/systemone", json=REQUEST)) for _ in range(3)]
        for _ in asked:
            await engine.arrived.acquire()
        during = Page(metrics)("clef_requests_in_flight")
        engine.release.set()
        assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200] * 3
    assert (during, Page(metrics)("clef_requests_in_flight")) == (3, 0)


class Held(FakeEngine):
    """Answers once `release` is set; `arrived` counts up with each request that waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived = asyncio.Semaphore(0)
        self.release = asyncio.Event()
        self.release.set()

    async def score(self, request: Any) -> Any:
        if not self.release.is_set():
            self.arrived.release()
        await self.release.wait()
        return await super().score(request)


@pytest.mark.asyncio
async def test_a_request_that_is_cut_off_has_no_status() -> None:
    metrics, engine = new_metrics(), Held()
    async with client_of(observed_app(engine, metrics=metrics)) as client:
        engine.release.clear()
        asked = asyncio.create_task(client.post("/v1/systemone", json=REQUEST))
        await engine.arrived.acquire()
        asked.cancel()  # the transport runs the app in the client's task
        with pytest.raises(asyncio.CancelledError):
            await asked
    page = Page(metrics)
    assert page.by("clef_requests_total", "status", "outcome") == {("none", "unanswered"): 1}
    assert page("clef_requests_in_flight") == 0


def record(**fields: Any) -> RequestRecord:
    return RequestRecord(request_id="r", route="/v1/systemone", **({"status": 200} | fields))


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_by_reason(reason: str) -> None:
    metrics = new_metrics()
    metrics.observe(record(status=503, outcome=reason), 0.1)
    assert Page(metrics).by("clef_refusals_total", "reason") == {(reason,): 1}


def test_keys_media_and_cached_tokens() -> None:
    metrics = new_metrics()
    counted = {"prompt_tokens": 100, "state_tokens": 60, "schema_tokens": 30, "media_tokens": 10, "cached_tokens": 64}
    metrics.observe(record(key_name="acme-1", images=2, videos=1, truncated_tokens=7, **counted), 0.1)
    metrics.observe(record(key_name="acme-1", status=429, outcome="rate_limit_error", **counted), 0.1)
    page = Page(metrics)
    assert page.by("clef_key_requests_total", "key", "outcome") == {
        ("acme-1", "ok"): 1,
        ("acme-1", "rate_limit_error"): 1,
    }
    assert page.by("clef_key_prompt_tokens_total", "key") == {("acme-1",): 100}
    assert page.by("clef_media_total", "type") == {("image",): 2, ("video",): 1}
    assert page.by("clef_tokens_total", "kind") == {
        ("prompt",): 100,
        ("state",): 60,
        ("schema",): 30,
        ("media",): 10,
        ("cached",): 64,
        ("truncated",): 7,
    }


def test_histograms_put_values_where_they_belong() -> None:
    metrics = new_metrics()
    sure = Decision(question_type="choice", confidence=1.0, entropy_bits=0.0)
    unsure = Decision(question_type="choice", confidence=0.0, entropy_bits=2.0)
    metrics.observe(record(prompt_tokens=1, decisions=[sure, sure, unsure]), 0.03)
    page = Page(metrics)
    of = {"model": SERVED_NAME, "type": "choice"}
    assert [page("clef_answer_confidence_bucket", **of, le=le) for le in ("0.1", "0.99", "1.0")] == [1, 1, 3]
    assert [page("clef_answer_entropy_bucket", **of, le=le) for le in ("0.05", "1.5", "2.0")] == [2, 2, 3]
    route = {"route": "/v1/systemone"}
    assert [page("clef_request_duration_seconds_bucket", **route, le=le) for le in ("0.02", "0.05")] == [0, 1]
    assert page("clef_request_duration_seconds_sum", **route) == 0.03


def test_what_is_watched_is_read_when_the_page_is_made() -> None:
    metrics, lifecycle, cache = new_metrics(), Lifecycle(), SchemaCache[str](max_entries=9, max_tokens=99)
    limits = AdmissionLimits(max_running_requests=1, max_running_tokens=1, max_waiting_requests=1, max_waiting_tokens=1)
    admission = Admission(limits)
    metrics.watch(admission=admission, schema_cache=cache, lifecycle=lifecycle)
    admission.running_requests, admission.running_tokens = 2, 300
    admission.waiting_requests, admission.waiting_tokens = 4, 5000
    cache.put("key", "value", tokens=6)
    lifecycle.mark_ready()
    page = Page(metrics)
    assert (page("clef_running_requests"), page("clef_running_tokens")) == (2, 300)
    assert (page("clef_queue_requests"), page("clef_queue_tokens")) == (4, 5000)
    assert (page("clef_schema_cache_entries"), page("clef_schema_cache_tokens")) == (1, cache.tokens)
    assert page.by("clef_lifecycle_phase", "phase") == {("ready",): 1}
    lifecycle.drain()
    assert Page(metrics).by("clef_lifecycle_phase", "phase") == {("draining",): 1}


def test_build_info_and_series_that_are_there_from_the_start() -> None:
    page, _ = new_metrics().page("")
    found = series(page)
    (build,) = [dict(labels) for name, labels in found if name == "clef_build_info"]
    assert build == {"version": "0.1.0", "sglang": "0.5.23", "model": SERVED_NAME, "revision": "0123abc"}
    assert {dict(labels)["reason"] for name, labels in found if name == "clef_refusals_total"} == set(REFUSALS)
    assert ("clef_tokens_total", frozenset({("kind", "cached")})) in found
    assert ("process_resident_memory_bytes", frozenset()) in found
    assert not [name for name, _ in found if name.endswith("_created")]


def full_metrics() -> Metrics:
    """One with a value in every family."""
    metrics = new_metrics()
    limits = AdmissionLimits(max_running_requests=1, max_running_tokens=1, max_waiting_requests=1, max_waiting_tokens=1)
    metrics.watch(
        admission=Admission(limits), schema_cache=SchemaCache(max_entries=1, max_tokens=1), lifecycle=Lifecycle()
    )
    decision = Decision(question_type="choice", confidence=0.5, entropy_bits=1.0)
    metrics.observe(record(key_name="acme-1", prompt_tokens=1, decisions=[decision], retry_count=1), 0.1)
    return metrics


def test_names_follow_the_conventions() -> None:
    assert faults(full_metrics().page("")[0]) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("# TYPE a_x gauge\na_x 1\n", "no help"),
        ("# HELP a:x h\n# TYPE a:x gauge\na:x 1\n", "snake case"),
        ("# HELP a_ms h\n# TYPE a_ms gauge\na_ms 1\n", "should not say ms"),
        ("# HELP a_count h\n# TYPE a_count gauge\na_count 1\n", "another type"),
        ('# HELP a_x h\n# TYPE a_x gauge\na_x{le="1"} 1\n', "label le"),
    ],
    ids=["help", "colon", "unit", "suffix", "le"],
)
@pytest.mark.filterwarnings("ignore:promtool")
def test_a_bad_name_is_found(text: str, fault: str) -> None:
    assert fault in "\n".join(faults(text.encode()))


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/html,*/*", "text/plain; version=0.0.4; charset=utf-8"),
        (OPEN_METRICS, "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores"),
    ],
    ids=["any", "browser", "openmetrics"],
)
def test_the_page_is_in_the_format_that_is_asked_for(accept: str, content_type: str) -> None:
    page, found = full_metrics().page(accept)
    assert found == content_type
    names = {family.name for family in families(page, found)}
    assert {"clef_requests", "clef_request_duration_seconds", "clef_queue_requests"} <= names


def test_the_registry_can_be_the_callers() -> None:
    registry = CollectorRegistry()
    Gauge("host_gauge", "The caller's own.", registry=registry).set(7)
    page, _ = Metrics(served_model_name="m", registry=registry).page("")
    assert series(page)["host_gauge", frozenset()] == 7


class Slow:
    """A collector that is not done before it is let go."""

    def __init__(self) -> None:
        self.entered, self.let_go = threading.Event(), threading.Event()

    def collect(self) -> Iterator[Metric]:
        self.entered.set()
        assert self.let_go.wait(30)
        return iter(())


@pytest_asyncio.fixture
async def slow_page() -> AsyncIterator[tuple[httpx.AsyncClient, Slow]]:
    metrics, slow = new_metrics(), Slow()
    metrics.registry.register(slow)

    async def page(request: Request) -> Response:
        return await metrics_response(metrics, request)

    async def quick(_: Request) -> Response:
        return Response("quick")

    app = Starlette(routes=[Route("/metrics", page), Route("/quick", quick)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://front") as client:
        yield client, slow


@pytest.mark.asyncio
async def test_a_scrape_stops_nobody(slow_page: tuple[httpx.AsyncClient, Slow]) -> None:
    client, slow = slow_page
    scrape = asyncio.create_task(client.get("/metrics", headers={"accept": OPEN_METRICS}))
    assert await asyncio.to_thread(slow.entered.wait, 30)
    assert (await client.get("/quick")).text == "quick"
    assert not scrape.done()
    slow.let_go.set()
    response = await scrape
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert families(response.content, response.headers["content-type"])


@pytest.mark.asyncio
@pytest.mark.parametrize("shown", [True, False])
async def test_the_page_is_a_route_of_the_app_unless_it_has_a_port(shown: bool) -> None:
    metrics = new_metrics()
    async with client_of(observed_app(FakeEngine(), metrics=metrics, metrics_route=shown)) as client:
        page = await client.get("/metrics")
        wrong = await client.post("/metrics")
    assert (page.status_code, wrong.status_code) == ((200, 405) if shown else (404, 404))
    if shown:
        found = series(page.content)
        assert found["clef_lifecycle_phase", frozenset({("phase", "ready")})] == 1
        assert found["clef_queue_requests", frozenset()] == 0
        # The warm-up's questions.
        assert found["clef_schema_cache_entries", frozenset()] > 0
        assert faults(page.content) == []


def test_a_port_of_its_own() -> None:
    metrics = new_metrics()
    server = MetricsServer(metrics, host="127.0.0.1", port=0)
    url = f"http://127.0.0.1:{server.port}/metrics"
    metrics.observe(record(), 0.1)
    page = httpx.get(url)
    assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert series(page.content)["clef_request_duration_seconds_count", frozenset({("route", "/v1/systemone")})] == 1
    with pytest.raises(ValueError, match=f"cannot listen on 127.0.0.1 port {server.port} for metrics: "):
        MetricsServer(metrics, host="127.0.0.1", port=server.port)
    server.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
