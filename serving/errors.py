"""What can go wrong with a request, and the one table that turns it into an HTTP response.

Knows nothing of routes or of how an error came about.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from fastapi import Response

from serving.engine import EngineDeadError, EngineError, EngineRefusedError, EngineScoresError, EngineStartError


class Fault(TypedDict):
    """One entry of a 422 response's `detail`, in FastAPI's form."""

    loc: list[str | int]
    msg: str
    type: str


class RequestError(Exception):
    """Base of what the front itself raises about a request. The message is shown to the client.

    RequestError
    ├── InvalidRequestError        the body is not a valid request; holds one fault for each thing wrong
    ├── BodyTooLargeError          more bytes than the limit
    ├── PromptTooLongError         more tokens than the limit
    ├── UnsupportedMediaTypeError  not JSON, or encoded in a way this server does not read
    ├── UnknownModelError          `model` names something this server does not serve
    ├── NotServingError            starting, draining, or the engine is gone
    └── ClientClosedError          the client left before the answer

    What the engine raises is drawn in `serving.engine.EngineError`.
    """


class InvalidRequestError(RequestError):
    """The body is not a valid request."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(fault["msg"] for fault in faults))
        self.faults = list(faults)


class BodyTooLargeError(RequestError):
    """The body holds more bytes than the limit."""


class PromptTooLongError(RequestError):
    """The prompt holds more tokens than the limit."""


class UnsupportedMediaTypeError(RequestError):
    """The body's media type, charset or content encoding is not one this server reads."""


class UnknownModelError(RequestError):
    """The request names a model that is not served here."""


class NotServingError(RequestError):
    """The server cannot answer now."""


class ClientClosedError(RequestError):
    """The client closed the connection before the answer."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one error class looks on the wire. `public_message` stands in for a message that may hold internals."""

    status: int
    error_type: str
    retry_after_ms: int | None = None
    public_message: str | None = None


# 499 is nginx's status for a client that left; nobody receives it, the log shows it.
OUTCOMES: dict[type[Exception], Outcome] = {
    InvalidRequestError: Outcome(status=422, error_type="validation_error"),
    BodyTooLargeError: Outcome(status=413, error_type="body_too_large"),
    PromptTooLongError: Outcome(status=413, error_type="prompt_too_long"),
    UnsupportedMediaTypeError: Outcome(status=415, error_type="unsupported_media_type"),
    UnknownModelError: Outcome(status=404, error_type="model_not_found_error"),
    NotServingError: Outcome(status=503, error_type="not_serving", retry_after_ms=1000),
    ClientClosedError: Outcome(status=499, error_type="client_closed"),
    EngineStartError: Outcome(
        status=500, error_type="engine_error", public_message="the engine did not start; the server's log says why"
    ),
    EngineRefusedError: Outcome(
        status=500,
        error_type="engine_error",
        public_message="the engine refused a request that this server had accepted; the server's log says why",
    ),
    EngineScoresError: Outcome(
        status=500,
        error_type="engine_error",
        public_message="the engine returned scores that are missing or not finite, so there is no answer to give",
    ),
    EngineDeadError: Outcome(
        status=503,
        error_type="engine_dead",
        retry_after_ms=5000,
        public_message="the engine behind this server has stopped",
    ),
    EngineError: Outcome(
        status=500, error_type="engine_error", public_message="the engine failed; the server's log says why"
    ),
}

INTERNAL = Outcome(
    status=500, error_type="internal_error", public_message="this server failed; its log has the request id"
)

# What a route's absence or a wrong method is called; other HTTP statuses of the framework are named after this one.
HTTP_ERROR_TYPES = {404: "not_found_error", 405: "method_not_allowed"}


def outcome_of(error: BaseException) -> Outcome:
    """The table's entry for the error's class or its nearest listed ancestor."""
    for cls in type(error).__mro__:
        if cls in OUTCOMES:
            return OUTCOMES[cls]
    return INTERNAL


def json_bytes(value: Any) -> bytes:
    """Compact UTF-8 JSON that keeps every digit of an integer.

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def plain_error(
    status: int,
    error_type: str,
    message: str,
    *,
    retry_after_ms: int | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """An error body that is not a list of faults: `detail: {error_type, message}`."""
    headers = dict(headers or {})
    if retry_after_ms is not None:
        headers["retry-after"] = str(-(-retry_after_ms // 1000))  # whole seconds, rounded up
        headers["retry-after-ms"] = str(retry_after_ms)
    body = json_bytes({"detail": {"error_type": error_type, "message": message}})
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def error_response(error: BaseException) -> Response:
    """The response for an error raised while answering."""
    outcome = outcome_of(error)
    if isinstance(error, InvalidRequestError):
        return Response(json_bytes({"detail": error.faults}), status_code=outcome.status, media_type="application/json")
    message = outcome.public_message or str(error)
    return plain_error(outcome.status, outcome.error_type, message, retry_after_ms=outcome.retry_after_ms)
