"""Log lines: exact fields after known requests, in both forms, and nothing of what was asked."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from serving.engine import ScoreRequest, ScoreResult
from serving.fake_engine import FakeEngine
from serving.request_log import LOGGED, LogFormat, configure, log_request
from serving.request_record import RequestRecord
from tests.serving.harness import client_of
from tests.serving.observed import REQUEST, RUN_PATH, SCHEMA_TOKENS, SECRETS, STATE_TOKENS, observed_app

WORD = SECRETS[0]
STAGE_TIMES = ["encode_ms", "queue_ms", "engine_ms", "answer_ms"]


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """Loggers are left as they were found."""
    found = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in map(logging.getLogger, LOGGED)]
    yield
    for logger, handlers, level, propagate in found:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


def configured(log_format: LogFormat) -> io.StringIO:
    stream = io.StringIO()
    configure(log_format, stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    """The JSON lines about requests."""
    parsed = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [line for line in parsed if line["logger"] == "clef_serving.requests"]


@pytest.mark.asyncio
async def test_a_line_for_each_request() -> None:
    stream = configured("json")
    async with client_of(observed_app(FakeEngine())) as client:
        headers = {"authorization": "Bearer sk-clef-secret", "x-typesafe-retry-count": "2"}
        good = await client.post("/v1/systemone", json=REQUEST, headers=headers)
        run = await client.post(RUN_PATH, json=REQUEST)
        bad = await client.post("/v1/systemone", json=REQUEST | {"state": 1})
        nowhere = await client.request("BREW", "/account-4711/Lindqvist?refund=yes")
        await client.get("/readyz")
    answered, through_run, refused, lost = lines(stream)
    times = {name: answered.pop(name) for name in ["time", "ms", *STAGE_TIMES]}
    assert answered == {
        "level": "INFO",
        "logger": "clef_serving.requests",
        "message": "request",
        "request_id": good.headers["x-typesafe-request-id"],
        "method": "POST",
        "route": "/v1/systemone",
        "status": 200,
        "outcome": "ok",
        "key": None,
        "retry": 2,
        "questions": {"noul": 1, "choice": 1, "score": 1},
        "options": {"noul": 2, "choice": 2, "score": 3},
        "images": None,
        "videos": None,
        "prompt_tokens": good.json()["usage"]["input_tokens"],
        "state_tokens": STATE_TOKENS,
        "schema_tokens": SCHEMA_TOKENS,
        "media_tokens": None,
        "truncated_tokens": None,
        "cached_tokens": 0,
        "trace_id": None,
    }
    assert times["ms"] >= sum(times[stage] for stage in STAGE_TIMES) - 0.3  # each is rounded
    assert times["time"].endswith("+00:00")
    assert through_run["route"] == "/client/v4/accounts/{account_id}/ai/run/{model_name:path}"
    assert through_run["request_id"] == run.headers["x-typesafe-request-id"]
    assert (refused["status"], refused["outcome"], refused["state_tokens"]) == (422, "validation_error", None)
    assert refused["request_id"] == bad.headers["x-typesafe-request-id"]
    assert (lost["method"], lost["route"], lost["status"]) == ("_OTHER", "none", 404)
    assert lost["request_id"] == nowhere.headers["x-typesafe-request-id"]
    assert not [secret for secret in SECRETS if secret in stream.getvalue()]


@pytest.mark.asyncio
async def test_probes_are_logged_for_debugging_alone() -> None:
    stream = configured("json")
    logging.getLogger("clef_serving").setLevel(logging.DEBUG)
    async with client_of(observed_app(FakeEngine())) as client:
        await client.get("/readyz")
    (probe,) = lines(stream)
    assert (probe["level"], probe["route"], probe["status"]) == ("DEBUG", "/readyz", 200)


def test_the_console_line_says_what_is_known() -> None:
    stream = configured("console")
    record = RequestRecord(
        request_id="r-1", method="POST", route="/v1/systemone", status=200, key_name="the first", cached_tokens=0
    )
    record.questions.update({"noul": 2, "choice": 1})
    log_request(record, 0.01234)
    log_request(RequestRecord(request_id="r-2", outcome="unanswered"), 1)
    known, unknown = stream.getvalue().splitlines()
    assert known.split(" ", 2)[2] == (
        "INFO clef_serving.requests: request request_id=r-1 method=POST route=/v1/systemone status=200 outcome=ok "
        'key="the first" questions=2xnoul+1xchoice cached_tokens=0 ms=12.3'
    )
    assert unknown.endswith("request request_id=r-2 method=_OTHER route=none outcome=unanswered ms=1000")


@pytest.mark.parametrize("name", ["a\nb", 'a"b', "a=b", "a\x1b[31m", ""])
def test_no_value_blurs_a_console_line(name: str) -> None:
    stream = configured("console")
    log_request(RequestRecord(request_id="r", key_name=name), 1)
    (line,) = stream.getvalue().splitlines()
    assert f" key={json.dumps(name)} ms=1000" in line


class Broken:
    """An engine with a bug whose message quotes the request, as a KeyError does."""

    def __init__(self) -> None:
        self.broken = False

    async def score(self, request: ScoreRequest) -> ScoreResult:
        if self.broken:
            try:
                raise KeyError(WORD)
            except KeyError as err:
                raise LookupError(f"no {WORD}") from err
        return await FakeEngine().score(request)

    def close(self) -> None:
        pass


@pytest.mark.asyncio
@pytest.mark.parametrize("log_format", ["json", "console"])
async def test_a_bug_is_logged_with_its_place_and_without_its_words(log_format: LogFormat) -> None:
    stream, engine = configured(log_format), Broken()
    async with client_of(observed_app(engine)) as client:
        engine.broken = True
        response = await client.post("/v1/systemone", json=REQUEST)
    assert response.status_code == 500
    text = stream.getvalue()
    for expected in (
        response.headers["x-typesafe-request-id"],
        "request failed",
        "KeyError",
        "then:",
        "LookupError",
        "test_request_log.py",
        "in score",
    ):
        assert expected in text
    assert WORD not in text
    if log_format == "json":
        failure, request = lines(stream)
        assert (failure["message"], failure["level"], failure["error"]) == ("request failed", "ERROR", "LookupError")
        assert failure["stack"].endswith("LookupError")
        assert (request["outcome"], request["status"]) == ("internal_error", 500)


def test_other_lines_take_the_same_form() -> None:
    stream = configured("json")
    logging.getLogger("clef_serving.auth").info("%d keys", 3)
    logging.getLogger("uvicorn.error").info("of no interest")
    try:
        raise OSError("no space left")
    except OSError:
        logging.getLogger("uvicorn.error").exception("trouble\nin two lines")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["logger"], first["level"], first["message"]) == ("clef_serving.auth", "INFO", "3 keys")
    assert (second["logger"], second["message"]) == ("uvicorn.error", "trouble\nin two lines")
    assert second["stack"].endswith("OSError: no space left")


def test_the_last_configuration_holds_alone() -> None:
    first, second = configured("console"), configured("json")
    logging.getLogger("clef_serving").info("once")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1
