"""Spans of requests: their shape, whose trace they join, what they do not say, and collectors that are not there."""

import socket
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import SpanKind, StatusCode

from serving.fake_engine import FakeEngine
from serving.request_record import RequestRecord
from serving.tracing import Tracing, tracing_to_collector
from tests.serving.harness import client_of, reference_record
from tests.serving.observed import REQUEST, RUN_PATH, SCHEMA_TOKENS, SECRETS, STATE_TOKENS, observed_app

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"


def in_memory(sampler: Sampler | None = None) -> tuple[Tracing, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider), exporter


async def spans_of(path: str = "/v1/systemone", *, fault: str | None = None, **headers: str) -> Sequence[ReadableSpan]:
    """The spans of one request, children first."""
    tracing, exporter = in_memory()
    engine = FakeEngine()
    async with client_of(observed_app(engine, tracing=tracing)) as client:
        engine.fault = fault  # type: ignore[assignment]
        await client.post(path, json=REQUEST, headers=headers)
        await client.get("/readyz")
    return exporter.get_finished_spans()


@pytest.mark.asyncio
async def test_a_span_for_the_request_and_one_for_each_stage() -> None:
    *stages, server = await spans_of()
    assert [span.name for span in stages] == ["encode", "queue", "encode", "engine", "answer"]
    assert (server.name, server.kind, server.parent) == ("POST /v1/systemone", SpanKind.SERVER, None)
    assert server.status.status_code is StatusCode.UNSET
    assert all(span.parent is not None and span.parent.span_id == server.context.span_id for span in stages)
    assert {span.context.trace_id for span in stages} == {server.context.trace_id}
    assert server.start_time is not None
    assert server.end_time is not None
    edges = [
        server.start_time,
        *(edge for span in stages for edge in (span.start_time, span.end_time)),
        server.end_time,
    ]
    assert all(before <= after for before, after in pairwise(edges) if before is not None and after is not None)


@pytest.mark.asyncio
async def test_attributes_are_counts_and_names_without_a_word_of_the_request() -> None:
    *_, server = spans = await spans_of(RUN_PATH, authorization="Bearer sk-clef-secret")
    attributes = dict(server.attributes or {})
    assert len(attributes.pop("clef.request_id")) == 36
    assert attributes == {
        "http.request.method": "POST",
        "http.route": "/client/v4/accounts/{account_id}/ai/run/{model_name:path}",
        "http.response.status_code": 200,
        "clef.questions": 3,
        "clef.options": 7,
        "clef.images": 0,
        "clef.videos": 0,
        "clef.tokens.prompt": len(reference_record(REQUEST).input_ids),
        "clef.tokens.state": STATE_TOKENS,
        "clef.tokens.schema": SCHEMA_TOKENS,
        "clef.tokens.media": 0,
        "clef.tokens.truncated": 0,
        "clef.tokens.cached": 0,
    }
    said = "".join(span.to_json() for span in spans)
    assert not [secret for secret in SECRETS if secret in said]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "fault", "name", "error", "status"),
    [
        ("/v1/systemone", "nan", "POST /v1/systemone", "engine_error", StatusCode.ERROR),
        ("/nowhere", None, "POST", "not_found_error", StatusCode.UNSET),
    ],
    ids=["ours", "the-clients"],
)
async def test_failures(path: str, fault: str, name: str, error: str, status: StatusCode) -> None:
    *_, server = await spans_of(path, fault=fault)
    assert (server.name, server.status.status_code) == (name, status)
    assert (server.attributes or {})["error.type"] == error


@pytest.mark.asyncio
async def test_a_trace_that_the_client_began_goes_on() -> None:
    *stages, server = await spans_of(traceparent=f"00-{TRACE_ID}-{PARENT_ID}-01", tracestate="vendor=value")
    assert f"{server.context.trace_id:032x}" == TRACE_ID
    assert server.parent is not None
    assert (f"{server.parent.span_id:016x}", server.parent.is_remote) == (PARENT_ID, True)
    assert server.context.trace_state.get("vendor") == "value"
    assert {f"{span.context.trace_id:032x}" for span in stages} == {TRACE_ID}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "traceparent",
    [
        f"00-{TRACE_ID}-{PARENT_ID}",
        f"ff-{TRACE_ID}-{PARENT_ID}-01",
        f"00-{'0' * 32}-{PARENT_ID}-01",
        "x" * 10_000,
        "\xff",
    ],
    ids=["short", "version", "zero", "long", "latin-1"],
)
async def test_a_broken_traceparent_begins_a_trace(traceparent: str) -> None:
    tracing, exporter = in_memory()
    async with client_of(observed_app(FakeEngine(), tracing=tracing)) as client:
        headers = [(b"traceparent", traceparent.encode("latin-1"))]
        assert (await client.post("/v1/systemone", json=REQUEST, headers=headers)).status_code == 200
    *_, server = exporter.get_finished_spans()
    assert server.parent is None
    assert f"{server.context.trace_id:032x}" != TRACE_ID


@pytest.mark.asyncio
async def test_nothing_is_made_of_a_request_whose_client_does_not_sample() -> None:
    assert await spans_of(traceparent=f"00-{TRACE_ID}-{PARENT_ID}-00") == ()


def test_nothing_is_made_of_a_request_that_is_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    tracing, exporter = in_memory(ALWAYS_OFF)
    monkeypatch.setattr("serving.tracing._attributes", None)  # would fail if asked for any
    record = RequestRecord(request_id="r", status=200)
    with record.stage("encode"):
        pass
    tracing.record(record, 0.1)
    assert exporter.get_finished_spans() == ()


def test_the_record_learns_its_trace() -> None:
    tracing, _ = in_memory()
    record = RequestRecord(request_id="r", trace_headers={"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"})
    tracing.record(record, 0.1)
    assert record.trace_id == TRACE_ID


@pytest.mark.parametrize(
    ("endpoint", "environ", "on"),
    [
        (None, {}, False),
        ("http://collector:4318", {}, True),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        (None, {"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (None, {"OTEL_SERVICE_NAME": "clef"}, False),
        ("http://collector:4318", {"OTEL_SDK_DISABLED": "TRUE"}, False),
        ("http://collector:4318", {"OTEL_TRACES_EXPORTER": "none"}, False),
    ],
    ids=["unset", "setting", "endpoint", "traces-endpoint", "exporter", "other", "disabled", "none"],
)
def test_what_turns_tracing_on(endpoint: str | None, environ: dict[str, str], on: bool) -> None:
    tracing = tracing_to_collector(endpoint, environ, served_model_name="m")
    assert (tracing is not None) == on
    if tracing is not None:
        tracing.close()


@pytest.mark.parametrize(
    ("endpoint", "environ", "message"),
    [
        ("collector:4318", {}, "otlp_endpoint must begin with http:// or https://, not 'collector:4318'"),
        (None, {"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER must be otlp or none, not 'zipkin'"),
        (
            "http://collector:4317",
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf, not 'grpc'",
        ),
    ],
    ids=["scheme", "exporter", "protocol"],
)
def test_what_cannot_be_had_is_said(endpoint: str | None, environ: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tracing_to_collector(endpoint, environ, served_model_name="m")


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """A collector's endpoint, and the requests' heads as they come."""
    heads: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as stream:
                head = b"".join(iter(stream.readline, b"\r\n"))
                heads.append(head)
                length = next(line for line in head.lower().splitlines() if line.startswith(b"content-length:"))
                heads.append(stream.read(int(length.split(b":")[1])))
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", heads
        thread.join(10)


def test_spans_reach_a_collector_before_the_end(collector: tuple[str, list[bytes]]) -> None:
    endpoint, heads = collector
    tracing = tracing_to_collector(endpoint + "/", {}, served_model_name="Example/clef")
    assert tracing is not None
    tracing.record(RequestRecord(request_id="r", method="POST", route="/v1/systemone", status=200), 0.1)
    tracing.close()
    head, body = heads
    assert head.startswith(b"POST /v1/traces HTTP/1.1\r\n")
    for expected in (b"POST /v1/systemone", b"service.name", b"clef-serving", b"0.1.0", b"Example/clef"):
        assert expected in body


@pytest.fixture(params=["refused", "silent"])
def no_collector(request: pytest.FixtureRequest) -> Iterator[str]:
    """An endpoint where nobody listens, and one where nobody answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if request.param == "silent":
            listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.asyncio
async def test_requests_are_answered_whether_or_not_there_is_a_collector(
    no_collector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")  # send at once
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    tracing = tracing_to_collector(no_collector, {}, served_model_name="m")
    assert tracing is not None
    async with client_of(observed_app(FakeEngine(), tracing=tracing)) as client:
        answers: list[httpx.Response] = [await client.post("/v1/systemone", json=REQUEST) for _ in range(20)]
    assert [answer.status_code for answer in answers] == [200] * 20
    tracing.close(timeout_s=0.1)


class Stuck(SpanExporter):
    """Never done sending, until it is let go."""

    def __init__(self) -> None:
        self.entered, self.let_go = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self.let_go.wait()
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


def test_the_end_does_not_wait_for_a_sender_that_is_stuck() -> None:
    stuck, provider = Stuck(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(stuck))
    tracing = Tracing(provider)
    tracing.record(RequestRecord(request_id="r", status=200), 0.1)
    tracing.close(timeout_s=0.1)  # without the limit this would never return
    assert stuck.entered.wait(30)
    assert not stuck.let_go.is_set()
    stuck.let_go.set()
