"""The HTTP side of SystemOne: routes, media types, body limits, readiness, and a client that leaves.

Knows nothing of prompts, tokens or SGLang; what a request means is `serving.front`'s matter.
"""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from datetime import time as time_of_day
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import Receive

from serving.api_types import ErrorBody, SystemOneResponse, ValidationFaults
from serving.assets import MAX_ASSETS
from serving.auth import ANONYMOUS, KeyRing
from serving.body_memory import BodyMemory
from serving.engine import Engine, EngineError
from serving.errors import (
    HTTP_ERROR_TYPES,
    BodyTimeoutError,
    ClientClosedError,
    Fault,
    InvalidRequestError,
    RequestError,
    error_response,
    json_bytes,
    outcome_of,
    plain_error,
)
from serving.front import Front
from serving.lifecycle import Lifecycle
from serving.metrics import Metrics, metrics_response
from serving.openapi import document
from serving.request_body import BodyLimits, RequestBody, read_body
from serving.request_frame import RequestFrame
from serving.request_record import RequestRecord
from serving.settings import ServingSettings
from serving.strict_json import shorten
from serving.tokenizer import Tokenizer
from serving.tracing import Tracing
from serving.worker_endpoints import worker_router
from serving.workers_ai import workers_ai_router

logger = logging.getLogger("clef_serving")

MODEL_DESCRIPTION = "Clef decision model: answers noul, choice and score questions about a state in one pass."
TIMEOUT_HEADER = "x-request-timeout-ms"
PRIORITY_HEADER = "x-request-priority"
PRIORITIES = {"low": -1, "normal": 0, "high": 1}
TRUNCATED_HEADER = "x-truncated-tokens"
SYSTEMONE_ERRORS = {
    400: "The body cannot be unpacked, or its fields do not belong together",
    401: "No key, or not a known one",
    404: "Unknown model",
    408: "The body did not arrive in time",
    413: "Body or prompt over the limit",
    415: "A media type or content encoding that is not read here",
    429: "The key has used up its rate",
    500: "Engine failure",
    503: "Overloaded, too late, shutting down, or the engine is gone",
}


def create_app(
    *,
    engine: Engine,
    tokenizer: Tokenizer,
    settings: ServingSettings,
    on_startup: Callable[[Lifecycle], Awaitable[None]] | None = None,
    on_fatal: Callable[[str], None] | None = None,
    processor: Any = None,
    keys: KeyRing | None = None,
    metrics: Metrics | None = None,
    metrics_route: bool = True,
    tracing: Tracing | None = None,
) -> FastAPI:
    """The ASGI application. Its lifespan warms the engine up in the background; /readyz tells when that is done.

    `app.state.lifecycle` is the `Lifecycle`: call its `drain()` when shutting down.

    Args:
        engine: scores prompts. Whoever made it closes it.
        tokenizer: the release's, a Transformers fast tokenizer.
        settings: see `ServingSettings`.
        on_startup: awaited in the server's event loop before the warm-up, for what an engine binds to the loop; it gets
            the `Lifecycle`, whose `fail(reason)` is to be called when the engine is found dead from outside.
        on_fatal: called once, in the event loop, when the engine is found dead or the warm-up failed.
        processor: the release's, a Transformers processor; without one, media are refused.
        keys: who may ask; without it, anyone.
        metrics: where requests are counted.
        metrics_route: whether the figures are shown at /metrics.
        tracing: where spans go.

    Raises:
        ValueError: the tokenizer cannot be used.
    """
    lifecycle = Lifecycle(on_fatal=on_fatal)
    front = Front(engine=engine, tokenizer=tokenizer, processor=processor, settings=settings, lifecycle=lifecycle)
    body_limits = BodyLimits(
        max_wire_bytes=settings.max_wire_bytes,
        max_body_bytes=settings.max_body_bytes,
        max_parts=MAX_ASSETS + 1,  # the document and a part for each asset
    )
    body_memory = BodyMemory(settings.max_bodies_memory)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if on_startup is not None:
            await on_startup(lifecycle)
        running = [asyncio.create_task(_warm_up(front, lifecycle))]
        if keys is not None:
            running.append(asyncio.create_task(keys.watch()))
        try:
            yield
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await front.aclose()

    # The interactive pages load scripts from a third party; /openapi.json is all a client needs.
    app = FastAPI(title="clef-serving", version="0.1.0", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False
    app.state.lifecycle = lifecycle
    app.add_middleware(RequestFrame, metrics=metrics, tracing=tracing)
    if metrics is not None:
        front.show_in(metrics)
        if metrics_route:
            app.add_route("/metrics", partial(metrics_response, metrics))
    for raised in (RequestError, EngineError):
        app.add_exception_handler(raised, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)

    @app.post(
        "/v1/systemone",
        response_class=Response,
        responses={
            200: {"model": SystemOneResponse, "description": "One answer for each question"},
            422: {"model": ValidationFaults, "description": "Not a valid request"},
            **{status: {"model": ErrorBody, "description": text} for status, text in SYSTEMONE_ERRORS.items()},
        },
    )
    async def systemone(request: Request) -> Response:
        """Answer every question about the state."""
        record: RequestRecord = request.state.record
        caller = keys.identify(_authorization(request)) if keys is not None else ANONYMOUS
        record.key_name = caller.key_name
        deadline, priority = _deadline(request, settings), _priority(request)
        with front.room(caller), body_memory.hold() as take:
            body = await _in_time(read_body(request, body_limits, take), deadline)
            answer = front.answer(body, record, caller=caller, deadline=deadline, priority=priority)
            answered = await _unless_client_leaves(request.receive, answer)
        headers = {TRUNCATED_HEADER: str(record.truncated_tokens)} if record.truncated_tokens else {}
        if lifecycle.phase == "draining":
            headers["connection"] = "close"
        return Response(answered, media_type="application/json", headers=headers)

    app.include_router(workers_ai_router(answer=systemone, on_error=_on_error, model_names=settings.accepted_names))

    @app.get("/v1/models", response_class=Response)
    async def models() -> Response:
        """List the names a request's `model` may hold, for TypeSafe's clients and for OpenAI's."""
        return Response(json_bytes(_model_list(settings)), media_type="application/json")

    @app.get("/livez", response_class=Response)
    async def livez() -> Response:
        """Tell whether this process can still be of use."""
        lifecycle.require_alive()
        return Response(json_bytes({"status": "alive"}), media_type="application/json")

    @app.get("/readyz", response_class=Response)
    async def readyz() -> Response:
        """Tell whether to send requests here."""
        lifecycle.require_ready()
        return Response(json_bytes({"status": "ready"}), media_type="application/json")

    app.include_router(
        worker_router(
            settings=settings, lifecycle=lifecycle, admission=front.admission, sees_images=processor is not None
        )
    )
    app.openapi = lambda: document(app)  # type: ignore[method-assign]  # FastAPI's documented way to extend it
    return app


async def _warm_up(front: Front, lifecycle: Lifecycle) -> None:
    try:
        await front.warm_up()
    except Exception as err:  # whatever it was, this server would be starting for ever
        logger.exception("warm-up failed")
        lifecycle.fail(f"warm-up failed: {err}")
    else:
        lifecycle.mark_ready()


def _on_error(request: Request, error: Exception) -> Response:
    record: RequestRecord = request.state.record
    record.outcome = outcome_of(error).error_type
    if isinstance(error, EngineError):
        logger.error("request_id=%s %s: %s", record.request_id, type(error).__name__, error)
    return error_response(error)


def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    error_type = HTTP_ERROR_TYPES.get(error.status_code, "http_error")
    request.state.record.outcome = error_type
    message = f"{error.detail}: {request.method} {shorten(request.url.path)}"
    return plain_error(error.status_code, error_type, message, headers=dict(error.headers or {}))


def _authorization(request: Request) -> str | None:
    # Joined, so that a header sent twice is refused rather than half read.
    return ", ".join(request.headers.getlist("authorization")) or None


def _deadline(request: Request, settings: ServingSettings) -> float:
    """When the answer must be there, by `time.monotonic`.

    Raises:
        InvalidRequestError: the client's own limit is not a number of milliseconds.
    """
    limit_ms, asked = settings.request_timeout_ms, request.headers.get(TIMEOUT_HEADER)
    if asked is not None:
        if not re.fullmatch(r"[0-9]{1,9}", asked) or int(asked) == 0:
            message = f"{TIMEOUT_HEADER} must be a whole number of milliseconds, at least 1"
            raise InvalidRequestError([Fault(loc=["header", TIMEOUT_HEADER], msg=message, type="int_type")])
        limit_ms = min(limit_ms, int(asked))
    return time.monotonic() + limit_ms / 1000


def _priority(request: Request) -> int:
    """Of the names in `PRIORITIES`.

    Raises:
        InvalidRequestError: it is another.
    """
    asked = request.headers.get(PRIORITY_HEADER, "normal")
    if asked not in PRIORITIES:
        message = f"{PRIORITY_HEADER} must be one of {', '.join(PRIORITIES)}"
        raise InvalidRequestError([Fault(loc=["header", PRIORITY_HEADER], msg=message, type="literal_error")])
    return PRIORITIES[asked]


async def _in_time(work: Awaitable[RequestBody], deadline: float) -> RequestBody:
    """Raise BodyTimeoutError if the body is not there by the deadline."""
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            return await work
    except TimeoutError as err:
        raise BodyTimeoutError("the body did not arrive before the request's deadline") from err


async def _unless_client_leaves(receive: Receive, work: Any) -> Any:
    """The result of `work`, which is cancelled as soon as the client closes the connection.

    Raises:
        ClientClosedError: the client left first.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_client_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientClosedError("the client left before the answer")
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _model_list(settings: ServingSettings) -> dict[str, Any]:
    """Both shapes in one body: TypeSafe's `models` and OpenAI's `data`."""
    released = settings.release_date
    owner, slash, _ = settings.served_model_name.partition("/")
    entry = {
        "object": "model",
        "created": int(datetime.combine(released, time_of_day(), UTC).timestamp()),
        "owned_by": owner if slash else "local",
        "root": settings.served_model_name,
        **({"revision": settings.model_revision} if settings.model_revision else {}),
    }
    names = settings.accepted_names
    return {
        "models": [
            {"name": name, "description": MODEL_DESCRIPTION, "release_date": released.isoformat()} for name in names
        ],
        "object": "list",
        "data": [{"id": name, **entry} for name in names],
    }
