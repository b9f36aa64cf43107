"""A client that leaves, and a deadline that passes, in every stage of a request: all that it held is free again."""

import asyncio
import base64
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest
import pytest_asyncio
from fastapi import FastAPI

from serving.api_types import parse_request
from serving.app import create_app
from serving.fake_engine import FakeEngine
from serving.media import images
from serving.media.reader import MediaReader
from serving.metrics import Metrics
from serving.prompt import PromptEncoder
from tests.serving.exposition import series
from tests.serving.harness import demo_processor, encoder, settings
from tests.serving.media_samples import encoded, photo
from tests.serving.observed import new_metrics

pytestmark = pytest.mark.asyncio

Stage = Literal["body", "encode", "media", "queue", "engine"]
QUESTIONS = {"refund": {"type": "noul", "instructions": "Does the customer want a refund?"}}
REQUEST = {"state": "The parcel of Vermeer Tools arrived broken.", "questions": QUESTIONS}
HELD = {"state": "Held where it is.", "questions": QUESTIONS}
GAUGES = ("requests_in_flight", "running_requests", "running_tokens", "queue_requests", "queue_tokens")
WAIT_S = 20


class Visit:
    """One exchange with the app, message by message, as a server makes it. With `reads` unset nothing sent gets through."""

    def __init__(
        self, app: FastAPI, body: bytes, *, complete: bool = True, headers: dict[str, str] | None = None
    ) -> None:
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": body, "more_body": not complete})
        self.sent: list[dict[str, Any]] = []
        self.sending, self.reads = asyncio.Event(), asyncio.Event()
        self.reads.set()
        given = {"content-type": "application/json", **(headers or {})}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/v1/systemone",
            "raw_path": b"/v1/systemone",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        self.task = asyncio.create_task(app(scope, self._inbox.get, self._send))

    async def _send(self, message: Any) -> None:
        self.sending.set()
        await self.reads.wait()
        self.sent.append(message)

    def leave(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def status(self) -> int:
        """The response's, once it is all there."""
        async with asyncio.timeout(WAIT_S):
            await self.task
        status: int = self.sent[0]["status"]
        return status

    def error_type(self) -> str:
        body = b"".join(message.get("body", b"") for message in self.sent)
        error_type: str = json.loads(body)["detail"]["error_type"]
        return error_type


class House:
    """A server with room for one request in the engine and one that waits, and places where a request can be held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = FakeEngine()
        self.metrics: Metrics = new_metrics()
        self.held, self.go_on = threading.Event(), threading.Event()
        self.readers: list[MediaReader] = []
        self._patch(monkeypatch)
        self.app = create_app(
            engine=self.engine,
            tokenizer=demo_processor().tokenizer,
            processor=demo_processor(),
            settings=settings(max_running_requests=1, max_waiting_requests=1),
            metrics=self.metrics,
        )

    def _patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        encode, decode, init = PromptEncoder.encode, images.decode_image, MediaReader.__init__

        def held_encode(this: PromptEncoder, state: Any, *args: Any, **options: Any) -> Any:
            if state == HELD["state"]:
                self._hold()
            return encode(this, state, *args, **options)

        def held_decode(*args: Any, **options: Any) -> Any:
            self._hold()
            return decode(*args, **options)

        def seen_init(this: MediaReader, **options: Any) -> None:
            init(this, **options)
            self.readers.append(this)

        monkeypatch.setattr(PromptEncoder, "encode", held_encode)
        monkeypatch.setattr(images, "decode_image", held_decode)
        monkeypatch.setattr(MediaReader, "__init__", seen_init)

    def _hold(self) -> None:
        self.held.set()
        assert self.go_on.wait(WAIT_S)

    def gauges(self) -> dict[str, float]:
        """Those that are not 0, and the memory of media."""
        found = series(self.metrics.page("text/plain")[0])
        values = {name: found[f"clef_{name}", frozenset()] for name in GAUGES}
        values["in_flight"] = self.app.state.lifecycle.in_flight
        values["media_memory"] = self.readers[0].memory_taken
        return {name: value for name, value in values.items() if value}

    async def is_held(self) -> None:
        assert await asyncio.to_thread(self.held.wait, WAIT_S)


async def until(condition: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - nobody signals
            await asyncio.sleep(0.001)


@pytest_asyncio.fixture
async def house(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    built = House(monkeypatch)
    async with built.app.router.lifespan_context(built.app):
        await until(lambda: built.app.state.lifecycle.phase == "ready")
        yield built
        built.go_on.set()


@contextlib.asynccontextmanager
async def request_in(house: House, stage: Stage, headers: dict[str, str] | None = None) -> AsyncIterator[Visit]:
    """A request that stays in this stage while the body runs."""
    if stage == "body":
        visit = Visit(house.app, b'{"state": ', complete=False, headers=headers)
        await until(lambda: house.app.state.lifecycle.in_flight == 1)
        yield visit
    elif stage == "encode":
        visit = Visit(house.app, json.dumps(HELD).encode(), headers=headers)
        await house.is_held()
        yield visit
    elif stage == "media":
        picture = {"content_type": "image/png", "base64": base64.b64encode(encoded(photo(), "PNG")).decode()}
        visit = Visit(house.app, json.dumps({**REQUEST, "images": [picture]}).encode(), headers=headers)
        await house.is_held()
        yield visit
    elif stage == "queue":
        house.engine.delay_s = 600
        first = Visit(house.app, json.dumps(REQUEST).encode())
        await until(lambda: house.engine.running == 1)
        visit = Visit(house.app, json.dumps(REQUEST).encode(), headers=headers)
        await until(lambda: house.gauges().get("queue_requests") == 1)
        yield visit
        first.leave()
        await first.status()
    else:
        house.engine.delay_s = 600
        visit = Visit(house.app, json.dumps(REQUEST).encode(), headers=headers)
        await until(lambda: house.engine.running == 1)
        yield visit


async def everything_is_free(house: House) -> None:
    house.engine.delay_s = 0
    house.go_on.set()
    # What a thread has begun it ends, and only then its memory is free.
    await until(lambda: house.gauges() == {})
    assert house.engine.running == 0
    assert await Visit(house.app, json.dumps(REQUEST).encode()).status() == 200
    assert house.gauges() == {}


def places(house: House) -> dict[str, float]:
    """What is held apart from the memory of a thread that still works."""
    return {name: value for name, value in house.gauges().items() if name != "media_memory"}


STAGES = pytest.mark.parametrize("stage", ["body", "encode", "media", "queue", "engine"])


@STAGES
async def test_a_client_that_leaves(house: House, stage: Stage) -> None:
    async with request_in(house, stage) as visit:
        before = house.gauges()
        assert before["requests_in_flight"] == before["in_flight"] == (2 if stage == "queue" else 1)
        visit.leave()
        await visit.status()
        assert visit.error_type() == "client_closed"
        assert places(house).get("in_flight", 0) == (1 if stage == "queue" else 0)
        assert "queue_requests" not in places(house)
    await everything_is_free(house)


@STAGES
async def test_a_deadline_that_passes(house: House, stage: Stage) -> None:
    async with request_in(house, stage, headers={"x-request-timeout-ms": "1000"}) as visit:
        assert await visit.status() == (408 if stage == "body" else 503)
        assert visit.error_type() == ("body_timeout" if stage == "body" else "request_timeout")
        assert places(house).get("in_flight", 0) == (1 if stage == "queue" else 0)
    await everything_is_free(house)


async def test_an_answer_that_nobody_reads_holds_no_place(house: House) -> None:
    visit = Visit(house.app, json.dumps(REQUEST).encode())
    visit.reads.clear()
    await visit.sending.wait()
    assert house.gauges() == {"requests_in_flight": 1}
    visit.leave()
    visit.reads.set()  # as a server does with what it can send to nobody
    assert await visit.status() == 200
    assert house.gauges() == {}


async def test_of_isolated_questions_the_state_counts_once(house: House) -> None:
    questions = {f"q{number}": {"type": "noul", "instructions": f"Is it {number}?"} for number in range(5)}
    house.engine.delay_s = 600
    visit = Visit(house.app, json.dumps({**REQUEST, "questions": questions, "x_isolated": True}).encode())
    await until(lambda: house.engine.running == 1)
    parsed = parse_request({**REQUEST, "questions": questions})
    prompts = encoder(demo_processor().tokenizer).encode_isolated(parsed.state, parsed.questions)
    (state_end,) = {prompt.state_end for prompt in prompts}
    once = state_end + sum(len(prompt.input_ids) - state_end for prompt in prompts)
    assert house.gauges()["running_tokens"] == once
    visit.leave()
    await visit.status()
    await everything_is_free(house)


async def test_a_request_whose_deadline_other_work_would_miss_is_not_even_read(house: House) -> None:
    house.engine.delay_s = 0.3
    assert await Visit(house.app, json.dumps(REQUEST).encode()).status() == 200  # from this the pace is known
    house.engine.delay_s = 600
    async with request_in(house, "engine") as running:
        refused = Visit(house.app, b"not JSON", headers={"x-request-timeout-ms": "1"})
        assert await refused.status() == 503
        headers = dict(refused.sent[0]["headers"])
        assert int(headers[b"retry-after-ms"]) >= 100
        assert headers[b"retry-after"] == b"1"
        running.leave()
        await running.status()
    await everything_is_free(house)
