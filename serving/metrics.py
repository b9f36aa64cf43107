"""What is counted for operators, as a page that Prometheus reads. Knows of a request only its `RequestRecord`.

Names and units follow Prometheus' conventions; ratios are left to queries, such as the share of tokens that were cached:
`rate(clef_tokens_total{kind="cached"}[5m]) / ignoring(kind) rate(clef_tokens_total{kind="prompt"}[5m])`. No label holds
anything a client chose.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)
from prometheus_client.exposition import choose_encoder
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from serving.admission import Admission
from serving.engine_metrics import EngineMetrics, keep_own_values_in_memory
from serving.lifecycle import Lifecycle, Phase
from serving.request_record import STAGES, RequestRecord
from serving.schema_cache import SchemaCache

# In seconds: from an answer out of the cache of a small model to the longest that a request may take by default.
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)
CONFIDENCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1)
ENTROPY_BITS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1, 1.5, 2, 3, 4, 6, 8)
TOKEN_KINDS = ("prompt", "state", "schema", "media", "cached", "truncated")
# The outcomes by which a request is sent away that could have been answered at another time.
REFUSALS = ("overloaded", "request_timeout", "rate_limit_error", "not_serving")


class Metrics:
    """Counts finished requests, and reads what is in the server now when a page is asked for.

    Args:
        served_model_name: the name in responses; the only model that a label names.
        revision: of the checkpoint, if known.
        registry: where the figures are kept; one of its own unless given.
    """

    def __init__(
        self, *, served_model_name: str, revision: str | None = None, registry: CollectorRegistry | None = None
    ) -> None:
        keep_own_values_in_memory()
        # When a counter was made is what the process's start time says already.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = registry or CollectorRegistry()
        ProcessCollector(registry=registry)
        build = {"version": package_version("clef-serving"), "sglang": package_version("sglang")}
        Info("clef_build", "What is running.", registry=registry).info(
            {**build, "model": served_model_name, "revision": revision or ""}
        )
        self._model = served_model_name
        self._requests = Counter(
            "clef_requests", "Finished requests, probes left out.", ["route", "status", "outcome"], registry=registry
        )
        self._seconds = Histogram(
            "clef_request_duration_seconds",
            "From a request's head to its last byte, probes left out.",
            ["route"],
            buckets=SECONDS,
            registry=registry,
        )
        self._stages = Histogram(
            "clef_request_stage_seconds",
            "Time a request spent in a stage: queue is for the engine, its body's arrival is in none.",
            ["stage"],
            buckets=SECONDS,
            registry=registry,
        )
        self._in_flight = Gauge("clef_requests_in_flight", "Requests here now, probes left out.", registry=registry)
        self._refusals = Counter(
            "clef_refusals", "Requests sent away for now, by reason.", ["reason"], registry=registry
        )
        self._retries = Counter(
            "clef_client_retries", "Requests that are a client's later attempt, by its account.", registry=registry
        )
        self._tokens = Counter(
            "clef_tokens",
            "Tokens of answered requests: prompt counts all of the engine's input, cached those of it not computed again, "
            "truncated those cut off before.",
            ["kind"],
            registry=registry,
        )
        self._media = Counter("clef_media", "Images and videos of answered requests.", ["type"], registry=registry)
        self._questions = Counter("clef_questions", "Questions of answered requests.", ["type"], registry=registry)
        self._options = Counter("clef_options", "Options of answered requests.", ["type"], registry=registry)
        self._confidence = Histogram(
            "clef_answer_confidence",
            "Confidence of answers, in the meaning set by `confidence`.",
            ["model", "type"],
            buckets=CONFIDENCES,
            registry=registry,
        )
        self._entropy = Histogram(
            "clef_answer_entropy",
            "Entropy of answers' probabilities, in bits.",
            ["model", "type"],
            buckets=ENTROPY_BITS,
            registry=registry,
        )
        self._key_requests = Counter(
            "clef_key_requests", "Finished requests by API key.", ["key", "outcome"], registry=registry
        )
        self._key_tokens = Counter(
            "clef_key_prompt_tokens", "Prompt tokens of answered requests by API key.", ["key"], registry=registry
        )
        self._start_at_zero()

    def _start_at_zero(self) -> None:
        """Make the series that are known beforehand: a first increase that brings its series is not seen as one."""
        for stage in STAGES:
            self._stages.labels(stage)
        for reason in REFUSALS:
            self._refusals.labels(reason)
        for kind in TOKEN_KINDS:
            self._tokens.labels(kind)
        for medium in ("image", "video"):
            self._media.labels(medium)
        for question_type in ("noul", "choice", "score"):
            self._questions.labels(question_type)
            self._options.labels(question_type)

    def watch(self, *, admission: Admission, schema_cache: SchemaCache[Any], lifecycle: Lifecycle) -> None:
        """Show what these hold whenever a page is made. To be called once."""
        for name, help_text, read in (
            ("running_requests", "Requests handed to the engine.", lambda: admission.running_requests),
            ("running_tokens", "Prompt tokens handed to the engine.", lambda: admission.running_tokens),
            ("queue_requests", "Requests that wait for the engine.", lambda: admission.waiting_requests),
            ("queue_tokens", "Prompt tokens that wait for the engine.", lambda: admission.waiting_tokens),
            ("schema_cache_entries", "Encoded question sets kept.", lambda: len(schema_cache)),
            ("schema_cache_tokens", "Weight of the encoded question sets kept.", lambda: schema_cache.tokens),
        ):
            Gauge(f"clef_{name}", help_text, registry=self.registry).set_function(read)
        phases = Gauge("clef_lifecycle_phase", "1 for the server's phase.", ["phase"], registry=self.registry)
        for phase in get_args(Phase):
            phases.labels(phase).set_function(partial(_is_in, lifecycle, phase))

    def add_engine(self, directory: Path) -> None:
        """Show what the engine's processes write into this directory. To be called once."""
        self.registry.register(EngineMetrics(directory))

    @contextlib.contextmanager
    def in_flight(self) -> Iterator[None]:
        """Count a request as being here while the body runs."""
        with self._in_flight.track_inprogress():
            yield

    def observe(self, record: RequestRecord, seconds: float) -> None:
        """Count a finished request, which took so many seconds."""
        status = "none" if record.status is None else str(record.status)
        self._requests.labels(record.route, status, record.outcome).inc()
        self._seconds.labels(record.route).observe(seconds)
        for stage, stage_seconds in record.stage_seconds.items():
            self._stages.labels(stage).observe(stage_seconds)
        if record.outcome in REFUSALS:
            self._refusals.labels(record.outcome).inc()
        if record.retry_count:
            self._retries.inc()
        if record.key_name is not None:
            self._key_requests.labels(record.key_name, record.outcome).inc()
        if record.outcome == "ok" and record.prompt_tokens is not None:
            self._observe_answer(record, record.prompt_tokens)

    def _observe_answer(self, record: RequestRecord, prompt_tokens: int) -> None:
        for kind, tokens in (
            ("prompt", prompt_tokens),
            ("state", record.state_tokens),
            ("schema", record.schema_tokens),
            ("media", record.media_tokens),
            ("cached", record.cached_tokens),
            ("truncated", record.truncated_tokens),
        ):
            self._tokens.labels(kind).inc(tokens or 0)
        self._media.labels("image").inc(record.images)
        self._media.labels("video").inc(record.videos)
        for counter, counted in ((self._questions, record.questions), (self._options, record.options)):
            for question_type, count in counted.items():
                counter.labels(question_type).inc(count)
        for decision in record.decisions:
            self._entropy.labels(self._model, decision.question_type).observe(decision.entropy_bits)
            if decision.confidence is not None:
                self._confidence.labels(self._model, decision.question_type).observe(decision.confidence)
        if record.key_name is not None:
            self._key_tokens.labels(record.key_name).inc(prompt_tokens)

    def page(self, accept: str) -> tuple[bytes, str]:
        """All figures in the format that an Accept header asks for, text or OpenMetrics, and the format's content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


async def metrics_response(metrics: Metrics, request: Request) -> Response:
    """The page as an answer, made off the event loop."""
    page, content_type = await run_in_threadpool(metrics.page, request.headers.get("accept", ""))
    return Response(page, headers={"content-type": content_type})


class MetricsServer:
    """The page on a port of its own, served by a thread.

    Attributes:
        port: the one it listens on.

    Raises:
        ValueError: the address cannot be used.
    """

    def __init__(self, metrics: Metrics, *, host: str, port: int) -> None:
        try:
            self._server, self._thread = start_http_server(port, host, metrics.registry)
        except OSError as err:
            raise ValueError(f"cannot listen on {host} port {port} for metrics: {err.strerror or err}") from err
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _is_in(lifecycle: Lifecycle, phase: Phase) -> float:
    return float(lifecycle.phase == phase)


def package_version(package: str) -> str:
    """What is installed; nothing where it is not."""
    try:
        return version(package)
    except PackageNotFoundError:  # the front alone, as a library
        return ""
