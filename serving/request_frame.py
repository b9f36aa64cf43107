"""What every HTTP exchange carries, whatever happens inside: a request id, a JSON body, one log line.

A plain ASGI middleware, outside all routes; knows nothing of them.
"""

import logging
import time
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.errors import error_response, outcome_of
from serving.request_record import RequestRecord

logger = logging.getLogger("clef_serving.requests")

REQUEST_ID_HEADER = "x-typesafe-request-id"
LOG_LINE = "request_id=%s method=%s path=%r status=%s outcome=%s questions=%s state_tokens=%s schema_tokens=%s ms=%.1f"
QUIET_PATHS = frozenset({"/livez", "/readyz"})


class RequestFrame:
    """Gives each request a `RequestRecord` in `scope["state"]["record"]` and logs it at the end.

    An exception that nothing below turned into a response becomes a 500 here, so that it too is JSON with an id.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(request_id=str(uuid4()))
        scope.setdefault("state", {})["record"] = record
        header = (REQUEST_ID_HEADER.encode(), record.request_id.encode())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message = {**message, "headers": [*message["headers"], header]}
            await send(message)

        started = time.perf_counter()
        try:
            await self._app(scope, receive, send_with_id)
        except Exception as err:
            logger.exception("request_id=%s failed", record.request_id)
            record.outcome = outcome_of(err).error_type
            if record.status is not None:  # half a response is out; only the server below can end the connection
                raise
            await error_response(err)(scope, receive, send_with_id)
        finally:
            milliseconds = (time.perf_counter() - started) * 1000
            logger.log(
                logging.DEBUG if scope["path"] in QUIET_PATHS else logging.INFO,
                LOG_LINE,
                record.request_id,
                scope["method"],
                scope["path"][:100],
                record.status,
                record.outcome,
                "+".join(f"{count}x{kind}" for kind, count in record.questions.items()) or "-",
                "-" if record.state_tokens is None else record.state_tokens,
                "-" if record.schema_tokens is None else record.schema_tokens,
                milliseconds,
            )
