"""What every HTTP exchange carries, whatever happens inside: a request id, a JSON body, and an account of it at its end.

A plain ASGI middleware, outside all routes; knows nothing of them.
"""

import contextlib
import logging
import re
import time
from typing import Any
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.errors import error_response, outcome_of
from serving.metrics import Metrics
from serving.request_log import log_failure, log_request
from serving.request_record import NO_ROUTE, RequestRecord
from serving.tracing import TRACE_HEADERS, Tracing

REQUEST_ID_HEADER = "x-typesafe-request-id"
# With each later attempt a client says the how many-th it is: TypeSafe's SDK 0.7.5 under the first name, others the second.
RETRY_HEADERS = ("x-typesafe-retry-count", "x-typesafe-sdk-retry-count")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})
# Asked all the time, and about nothing: neither counted nor traced, and only logged for debugging.
QUIET_PATHS = frozenset({"/livez", "/readyz", "/health", "/v1/loads", "/metrics"})


class RequestFrame:
    """Gives each request a `RequestRecord` in `scope["state"]["record"]`, and at its end logs, traces and counts it.

    An exception that nothing below turned into a response becomes a 500 here, so that it too is JSON with an id.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics | None = None, tracing: Tracing | None = None) -> None:
        self._app = app
        self._metrics = metrics
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        quiet = scope["path"] in QUIET_PATHS
        record = _record_of(scope)
        scope.setdefault("state", {})["record"] = record
        with contextlib.nullcontext() if quiet or self._metrics is None else self._metrics.in_flight():
            try:
                await self._answer(scope, receive, send, record)
            finally:
                seconds = time.perf_counter() - record.started
                record.route = _route_of(scope)
                if record.status is None:  # cut off: the server ends, or the connection broke below us
                    record.outcome = "unanswered" if record.outcome == "ok" else record.outcome
                self._account(record, seconds, quiet=quiet)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, record: RequestRecord) -> None:
        header = (REQUEST_ID_HEADER.encode(), record.request_id.encode())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message = {**message, "headers": [*message["headers"], header]}
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as err:
            log_failure(record, err)
            record.outcome = outcome_of(err).error_type
            if record.status is not None:  # half a response is out; only the server below can end the connection
                raise
            await error_response(err)(scope, receive, send_with_id)

    def _account(self, record: RequestRecord, seconds: float, *, quiet: bool) -> None:
        if quiet:
            log_request(record, seconds, level=logging.DEBUG)
            return
        if self._tracing is not None:
            self._tracing.record(record, seconds)
        if self._metrics is not None:
            self._metrics.observe(record, seconds)
        log_request(record, seconds)


def _record_of(scope: Scope) -> RequestRecord:
    wanted = {name.encode() for name in (*TRACE_HEADERS, *RETRY_HEADERS)}
    headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in wanted}
    retries = [int(headers[name]) for name in RETRY_HEADERS if re.fullmatch("[0-9]{1,4}", headers.get(name, ""))]
    return RequestRecord(
        request_id=str(uuid4()),
        method=scope["method"] if scope["method"] in METHODS else "_OTHER",
        retry_count=max(retries, default=0),
        trace_headers={name: headers[name] for name in TRACE_HEADERS if name in headers},
    )


def _route_of(scope: Scope) -> str:
    """The template of the route that took the request."""
    route: Any = scope.get("route")
    return getattr(route, "path", NO_ROUTE)
