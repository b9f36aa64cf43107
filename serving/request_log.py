"""Log lines, for people or as JSON: one for each request, and all others of this server in the same form.

Knows of a request only its `RequestRecord`, so that no word of it can get into the log.
"""

import json
import logging
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from serving.request_record import STAGES, RequestRecord

LogFormat = Literal["console", "json"]

logger = logging.getLogger("clef_serving.requests")

# What is logged, from which level on. SGLang has set the root logger to its own level by the time we log.
LOGGED = {
    "clef_serving": logging.INFO,
    "model_plugin": logging.INFO,
    "uvicorn": logging.WARNING,
    "opentelemetry": logging.ERROR,
}


class Event:
    """What a log line says: a name, and named values. As text it reads `NAME name=value ...`, without those that are None."""

    def __init__(self, name: str, fields: Mapping[str, Any], *, stack: str = "") -> None:
        self.name = name
        self.fields = fields
        self.stack = stack

    def __str__(self) -> str:
        pairs = (f"{name}={_plain(value)}" for name, value in self.fields.items() if value is not None)
        return " ".join((self.name, *pairs)) + (f"\n{self.stack}" if self.stack else "")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time` (UTC), `level`, `logger`, `message`, an event's fields, and `stack` for an error."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        event = record.msg if isinstance(record.msg, Event) else Event(record.getMessage(), {})
        stack = event.stack or (self.formatException(record.exc_info) if record.exc_info else "")
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": event.name,
            **event.fields,
            **({"stack": stack} if stack else {}),
        }
        return json.dumps(line, ensure_ascii=False)


def configure(log_format: LogFormat, stream: TextIO | None = None) -> None:
    """Send the log lines of this server to a stream, stderr unless given, in one form."""
    handler = logging.StreamHandler(stream or sys.stderr)
    console = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else console)
    for name, level in LOGGED.items():
        named = logging.getLogger(name)
        named.handlers[:] = [handler]
        named.setLevel(level)
        named.propagate = False


def log_request(record: RequestRecord, seconds: float, *, level: int = logging.INFO) -> None:
    """One line for a finished request, which took so many seconds."""
    if logger.isEnabledFor(level):
        logger.log(level, Event("request", request_fields(record, seconds)))


def log_failure(record: RequestRecord, error: BaseException) -> None:
    """Where an error that nobody expected was raised, without its message: that may quote the request."""
    fields = {"request_id": record.request_id, "error": type(error).__name__}
    logger.error(Event("request failed", fields, stack=_stack(error)))


def request_fields(record: RequestRecord, seconds: float) -> dict[str, Any]:
    """What a request's line says. Times are in milliseconds; what was not reached, or is zero, is None."""
    stage_seconds = record.stage_seconds
    return {
        "request_id": record.request_id,
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "outcome": record.outcome,
        "key": record.key_name,
        "retry": record.retry_count or None,
        "questions": dict(record.questions) or None,
        "options": dict(record.options) or None,
        "images": record.images or None,
        "videos": record.videos or None,
        "prompt_tokens": record.prompt_tokens,
        "state_tokens": record.state_tokens,
        "schema_tokens": record.schema_tokens,
        "media_tokens": record.media_tokens or None,
        "truncated_tokens": record.truncated_tokens or None,
        "cached_tokens": record.cached_tokens,
        **{f"{stage}_ms": _milliseconds(stage_seconds.get(stage)) for stage in STAGES},
        "ms": _milliseconds(seconds),
        "trace_id": record.trace_id,
    }


def _plain(value: Any) -> str:
    """`2` and `ok` as they are, counts as `2xnoul+1xchoice`, anything that would blur the line in quotes."""
    if isinstance(value, dict):
        return "+".join(f"{count}x{name}" for name, count in value.items())
    text = str(value)
    return text if text and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def _stack(error: BaseException) -> str:
    """Where the error was raised, and before it each error that led to it, by type."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    before = f"{_stack(cause)}\n\nthen:\n" if cause is not None else ""
    return before + "".join(traceback.format_tb(error.__traceback__)) + type(error).__qualname__
