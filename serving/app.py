"""The HTTP side of SystemOne: routes, media types, body limits, readiness, and a client that leaves.

Knows nothing of prompts, tokens or SGLang; what a request means is `serving.front`'s matter.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, time
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from serving.api_types import ErrorBody, SystemOneRequest, SystemOneResponse, ValidationFaults
from serving.engine import Engine, EngineError
from serving.errors import (
    HTTP_ERROR_TYPES,
    BodyTooLargeError,
    ClientClosedError,
    RequestError,
    UnsupportedMediaTypeError,
    error_response,
    json_bytes,
    outcome_of,
    plain_error,
)
from serving.front import Front, RequestRecord
from serving.lifecycle import Lifecycle
from serving.request_frame import RequestFrame
from serving.settings import ServingSettings
from serving.strict_json import shorten
from serving.tokenizer import Tokenizer

logger = logging.getLogger("clef_serving")

MODEL_DESCRIPTION = "Clef decision model: answers noul, choice and score questions about a state in one pass."
SYSTEMONE_ERRORS = {
    404: "Unknown model",
    413: "Body or prompt over the limit",
    415: "Not JSON, or compressed",
    500: "Engine failure",
    503: "Shutting down, or the engine is gone",
}


def create_app(
    *,
    engine: Engine,
    tokenizer: Tokenizer,
    settings: ServingSettings,
    on_startup: Callable[[Lifecycle], Awaitable[None]] | None = None,
    on_fatal: Callable[[str], None] | None = None,
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

    Raises:
        ValueError: the tokenizer cannot be used.
    """
    lifecycle = Lifecycle(on_fatal=on_fatal)
    front = Front(engine=engine, tokenizer=tokenizer, settings=settings, lifecycle=lifecycle)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if on_startup is not None:
            await on_startup(lifecycle)
        warming = asyncio.create_task(_warm_up(front, lifecycle))
        try:
            yield
        finally:
            warming.cancel()
            await asyncio.gather(warming, return_exceptions=True)
            front.close()

    # The interactive pages load scripts from a third party; /openapi.json is all a client needs.
    app = FastAPI(title="clef-serving", version="0.1.0", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False
    app.state.lifecycle = lifecycle
    app.add_middleware(RequestFrame)
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
        _check_media_type(request)
        body = await _read_body(request, limit=settings.max_body_bytes)
        answered = await _unless_client_leaves(request.receive, front.answer(body, request.state.record))
        return Response(answered, media_type="application/json")

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

    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]  # FastAPI's documented way to extend it
    return app


async def _warm_up(front: Front, lifecycle: Lifecycle) -> None:
    try:
        await front.warm_up()
    except (EngineError, ValueError) as err:
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


def _check_media_type(request: Request) -> None:
    """Refuse what is not plain JSON; a body without a type is taken for JSON, as curl users expect."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedMediaTypeError(
            f"content-encoding '{shorten(encoding)}' is not supported; send the body uncompressed"
        )
    declared = request.headers.get("content-type", "")
    media_type, *parameters = (part.strip().lower() for part in declared.split(";"))
    if media_type and media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMediaTypeError(f"content-type '{shorten(media_type)}' is not supported; send application/json")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip(' "') not in ("utf-8", "utf8", "us-ascii"):
            raise UnsupportedMediaTypeError(f"charset '{shorten(value)}' is not supported; JSON is sent in UTF-8")


async def _read_body(request: Request, *, limit: int) -> bytes:
    """The whole body, never holding more than the limit and one chunk of it.

    Raises:
        BodyTooLargeError: the body is larger than `limit` bytes, by its own account or in fact.
        ClientClosedError: the client left.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise BodyTooLargeError(f"the body has {declared} bytes and the limit is {limit}")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise BodyTooLargeError(f"the body has more than {limit} bytes, which is the limit")
    except ClientDisconnect as err:
        raise ClientClosedError("the client left while sending") from err
    return bytes(body)


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
        "created": int(datetime.combine(released, time(), UTC).timestamp()),
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


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document plus the request body, which the route reads itself and FastAPI so does not know."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schema = SystemOneRequest.model_json_schema(ref_template="#/components/schemas/{model}")
        document["components"]["schemas"] |= schema.pop("$defs") | {"SystemOneRequest": schema}
        document["paths"]["/v1/systemone"]["post"]["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/SystemOneRequest"}}},
        }
        app.openapi_schema = document
    return app.openapi_schema
