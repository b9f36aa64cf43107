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
    ├── MalformedBodyError         the body cannot be unpacked: compression or multipart framing is broken
    ├── ApiUsageError              valid field by field, but the fields do not belong together (an asset nobody refers to)
    ├── BodyTimeoutError           the body came too slowly
    ├── BodyTooLargeError          more bytes than the limit
    ├── PromptTooLongError         more tokens than the limit
    ├── UnsupportedMediaTypeError  neither JSON nor multipart, or in a charset this server does not read
    │   └── UnsupportedEncodingError  compressed in a way this server does not read
    ├── AuthenticationError        no key, or one that is not known
    ├── UnknownModelError          `model` names something this server does not serve
    ├── RetryLaterError            refused for now; holds when to try again
    │   ├── RateLimitedError       the key has used up its rate
    │   ├── OverloadedError        the queue is full
    │   └── RequestTimeoutError    the answer would come, or came, too late for the deadline
    ├── NotServingError            starting, draining, or the engine is gone
    └── ClientClosedError          the client left before the answer

    What the engine raises is drawn in `serving.engine.EngineError`.
    """


class InvalidRequestError(RequestError):
    """The body is not a valid request."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(fault["msg"] for fault in faults))
        self.faults = list(faults)


class MalformedBodyError(RequestError):
    """The body cannot be unpacked."""


class ApiUsageError(RequestError):
    """The request's fields do not belong together."""


class AuthenticationError(RequestError):
    """The request carries no key, or one that is not known. The message never holds the key."""


class RetryLaterError(RequestError):
    """Refused for now; the same request may be answered after `retry_after_ms` milliseconds."""

    def __init__(self, message: str, *, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class RateLimitedError(RetryLaterError):
    """The key has used up its rate."""


class OverloadedError(RetryLaterError):
    """The queue is full."""


class RequestTimeoutError(RetryLaterError):
    """The request cannot be answered, or was not, before its deadline."""


class BodyTimeoutError(RequestError):
    """The body did not arrive in time."""


class BodyTooLargeError(RequestError):
    """The body holds more bytes, or more parts, than the limit."""


class PromptTooLongError(RequestError):
    """The prompt holds more tokens than the limit."""


class UnsupportedMediaTypeError(RequestError):
    """The body's media type or charset is not one this server reads."""


class UnsupportedEncodingError(UnsupportedMediaTypeError):
    """The body's content encoding is not one this server reads; the response says which are (RFC 9110, 12.5.3)."""


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


ACCEPTED_ENCODINGS = "gzip, zstd"

# 499 is nginx's status for a client that left; nobody receives it, the log shows it.
OUTCOMES: dict[type[Exception], Outcome] = {
    InvalidRequestError: Outcome(status=422, error_type="validation_error"),
    MalformedBodyError: Outcome(status=400, error_type="malformed_body"),
    ApiUsageError: Outcome(status=400, error_type="api_usage_error"),
    AuthenticationError: Outcome(status=401, error_type="authentication_error"),
    RateLimitedError: Outcome(status=429, error_type="rate_limit_error"),
    OverloadedError: Outcome(status=503, error_type="overloaded"),
    RequestTimeoutError: Outcome(status=503, error_type="request_timeout"),
    BodyTimeoutError: Outcome(status=408, error_type="body_timeout"),
    BodyTooLargeError: Outcome(status=413, error_type="body_too_large"),
    PromptTooLongError: Outcome(status=413, error_type="prompt_too_long"),
    UnsupportedEncodingError: Outcome(status=415, error_type="unsupported_media_type"),
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
    retry_after_ms = error.retry_after_ms if isinstance(error, RetryLaterError) else outcome.retry_after_ms
    headers = {}
    if isinstance(error, AuthenticationError):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, NotServingError):
        headers["connection"] = "close"  # the next request should find another server
    if isinstance(error, UnsupportedEncodingError):
        headers["accept-encoding"] = ACCEPTED_ENCODINGS
    return plain_error(outcome.status, outcome.error_type, message, retry_after_ms=retry_after_ms, headers=headers)
