"""OpenTelemetry spans of finished requests: one for the request, one in it for each stay in a stage.

A span is made when its request has ended, from what the `RequestRecord` says, so that nothing is done while a request is
on its way, and almost nothing for one that is not sampled. Knows nothing of a request but its record.
"""

import threading
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from serving.metrics import package_version
from serving.request_record import NO_ROUTE, RequestRecord

# The request headers that say which trace it belongs to: W3C Trace Context.
TRACE_HEADERS = ("traceparent", "tracestate")
TRACES_PATH = "/v1/traces"
# How long the spans that are left may take to go out when the server ends, in seconds.
CLOSE_TIMEOUT_S = 5.0


class Tracing:
    """Makes and sends spans.

    Sampling is the SDK's: what the caller decided, else OTEL_TRACES_SAMPLER, else every request. Spans go out in batches
    from a thread of their own; where the collector does not take them they are dropped.

    Args:
        provider: the SDK's, with a processor that sends what it is given.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("clef_serving")
        self._propagator = TraceContextTextMapPropagator()

    def record(self, record: RequestRecord, seconds: float) -> None:
        """Make the spans of a finished request, which took so many seconds, and note its trace in the record."""
        parent = self._propagator.extract(record.trace_headers, Context())
        name = record.method if record.route == NO_ROUTE else f"{record.method} {record.route}"
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, start_time=record.started_ns)
        record.trace_id = format_trace_id(span.get_span_context().trace_id)
        if not span.is_recording():
            return
        within = set_span_in_context(span, Context())
        for part in record.stage_parts:
            child = self._tracer.start_span(part.stage, within, start_time=_ns(record, part.started))
            child.end(_ns(record, part.ended))
        span.set_attributes(_attributes(record))
        if record.status is None or record.status >= 500:
            span.set_status(StatusCode.ERROR)
        span.end(_ns(record, record.started + seconds))

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send the spans that are left, in so many seconds at most; then they are dropped."""
        # The SDK's own way to end takes no limit, and its default is longer than a server has.
        closing = threading.Thread(target=self._provider.shutdown, name="clef-tracing-close", daemon=True)
        closing.start()
        closing.join(timeout_s)


def tracing_to_collector(endpoint: str | None, environ: Mapping[str, str], *, served_model_name: str) -> Tracing | None:
    """Tracing as configured, or None where nothing asks for it.

    Args:
        endpoint: of an OTLP/HTTP collector, such as http://collector:4318.
        environ: what else may ask for it: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or
            OTEL_TRACES_EXPORTER=otlp. OTEL_SDK_DISABLED=true and OTEL_TRACES_EXPORTER=none turn it off. The SDK itself
            reads the other OTEL_* variables from the process's environment.

    Raises:
        ValueError: traces are asked for in a way this server has not.
    """
    exporter = environ.get("OTEL_TRACES_EXPORTER", "")
    asked = (
        endpoint
        or exporter
        or any(map(environ.get, ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")))
    )
    if not asked or exporter == "none" or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if exporter not in ("", "otlp"):
        raise ValueError(f"OTEL_TRACES_EXPORTER must be otlp or none, not {exporter!r}")
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if environ.get(name, "http/protobuf") not in ("", "http/protobuf"):
            raise ValueError(f"{name} must be http/protobuf, not {environ[name]!r}")
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise ValueError(f"otlp_endpoint must begin with http:// or https://, not {endpoint!r}")
    resource = Resource.create(
        {
            "service.name": environ.get("OTEL_SERVICE_NAME") or "clef-serving",
            "service.version": package_version("clef-serving"),
            "clef.model": served_model_name,
        }
    )
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    sender = OTLPSpanExporter(endpoint=endpoint.rstrip("/") + TRACES_PATH if endpoint else None)
    provider.add_span_processor(BatchSpanProcessor(sender))
    return Tracing(provider)


def _ns(record: RequestRecord, moment: float) -> int:
    """A moment of `time.perf_counter` in ns since 1970."""
    return record.started_ns + round((moment - record.started) * 1e9)


def _attributes(record: RequestRecord) -> dict[str, AttributeValue]:
    """Names of HTTP are OpenTelemetry's own (semantic conventions for HTTP spans)."""
    given: dict[str, AttributeValue | None] = {
        "http.request.method": record.method,
        "http.route": None if record.route == NO_ROUTE else record.route,
        "http.response.status_code": record.status,
        "clef.retry_count": record.retry_count or None,
        "error.type": None if record.outcome == "ok" else record.outcome,
        "clef.request_id": record.request_id,
        "clef.key": record.key_name,
        "clef.questions": record.questions.total(),
        "clef.options": record.options.total(),
        "clef.images": record.images,
        "clef.videos": record.videos,
        "clef.tokens.prompt": record.prompt_tokens,
        "clef.tokens.state": record.state_tokens,
        "clef.tokens.schema": record.schema_tokens,
        "clef.tokens.media": record.media_tokens,
        "clef.tokens.truncated": record.truncated_tokens,
        "clef.tokens.cached": record.cached_tokens,
    }
    return {name: value for name, value in given.items() if value is not None}
