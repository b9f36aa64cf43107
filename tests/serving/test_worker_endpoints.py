"""What a router is told: true of the server at that moment, in SGLang 0.5.23's own fields and types, and nothing else."""

import ast
import asyncio
import importlib.util
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.engine import ScoreRequest, ScoreResult
from serving.fake_engine import FakeEngine
from tests.serving.documented import Documented
from tests.serving.harness import (
    MAX_PROMPT_TOKENS,
    SERVED_NAME,
    client_of,
    demo_processor,
    key_ring,
    make_app,
    reference_record,
)

pytestmark = pytest.mark.asyncio

REQUEST: dict[str, Any] = {
    "model": SERVED_NAME,
    "state": "The parcel arrived broken.",
    "questions": {"refund": {"type": "noul", "instructions": "Does the customer want a refund?"}},
}
PATHS = ("/health", "/model_info", "/server_info", "/v1/loads")


class HeldEngine(FakeEngine):
    """Answers nothing while it is held."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()
        self.free.set()

    async def score(self, request: ScoreRequest) -> ScoreResult:
        await self.free.wait()
        return await super().score(request)


def sglang(name: str) -> ast.Module:
    """A module of the installed SGLang, read and not imported, which would take seconds."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    return ast.parse((Path(spec.origin).parent / "srt" / name).read_text(encoding="utf-8"))


def named(tree: ast.Module, name: str) -> Any:
    return next(node for node in ast.walk(tree) if getattr(node, "name", None) == name)


def fields(definition: ast.ClassDef) -> dict[str, str]:
    return {
        node.target.id: ast.unparse(node.annotation)
        for node in definition.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


async def told(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    response = await client.get(path)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_the_model_in_sglangs_fields() -> None:
    async with client_of(make_app(FakeEngine(), model_revision="4f1c")) as client:
        text_only = await told(client, "/model_info")
    async with client_of(make_app(FakeEngine(), processor=demo_processor())) as client:
        with_images = await told(client, "/model_info")
    model: dict[str, Any] = {
        "model_path": SERVED_NAME,
        "tokenizer_path": SERVED_NAME,
        "served_model_name": SERVED_NAME,
        "is_generation": False,
        "has_image_understanding": False,
        "has_audio_understanding": False,
    }
    assert text_only == model | {"weight_version": "4f1c"}
    assert with_images == model | {"has_image_understanding": True}
    handler = named(sglang("entrypoints/http_server.py"), "model_info")
    theirs = {node.value for node in ast.walk(handler) if isinstance(node, ast.Constant)}
    assert set(text_only) <= theirs


async def test_the_limits_in_sglangs_fields() -> None:
    async with client_of(make_app(FakeEngine(), max_running_requests=7)) as client:
        server = await told(client, "/server_info")
    assert server == {
        "model_path": SERVED_NAME,
        "served_model_name": SERVED_NAME,
        "is_embedding": True,
        "context_length": MAX_PROMPT_TOKENS,
        "max_running_requests": 7,
    }
    theirs: set[str] = set()
    for part in ("model", "schedule", "serving"):
        tree = sglang(f"arg_groups/fields/{part}.py")
        theirs |= {name for node in tree.body if isinstance(node, ast.ClassDef) for name in fields(node)}
    assert set(server) <= theirs


async def load_of(client: httpx.AsyncClient) -> dict[str, Any]:
    (load,) = (await told(client, "/v1/loads"))["loads"]
    assert isinstance(load, dict)
    return load


async def test_the_load_is_that_of_the_moment() -> None:
    engine = HeldEngine()
    tokens = len(reference_record(REQUEST).input_ids)
    async with client_of(make_app(engine, max_running_requests=2, max_running_tokens=10 * tokens)) as client:
        idle = await told(client, "/v1/loads")
        engine.free.clear()
        asking = [asyncio.create_task(client.post("/v1/systemone", json=REQUEST)) for _ in range(5)]
        while (await load_of(client))["num_waiting_reqs"] < 3:  # noqa: ASYNC110  (as a router would)
            await asyncio.sleep(0.005)
        busy = await told(client, "/v1/loads")
        engine.free.set()
        assert [(await task).status_code for task in asking] == [200] * 5
        after = await told(client, "/v1/loads")

    def load(running: int, waiting: int) -> dict[str, Any]:
        return {
            "dp_rank": 0,
            "num_running_reqs": running,
            "num_waiting_reqs": waiting,
            "num_waiting_uncached_tokens": waiting * tokens,
            "num_used_tokens": running * tokens,
            "num_total_tokens": (running + waiting) * tokens,
            "max_total_num_tokens": 10 * tokens,
            "max_running_requests": 2,
            "token_usage": running / 10,
        }

    for answer, expected in ((idle, load(0, 0)), (busy, load(2, 3)), (after, load(0, 0))):
        (found,) = answer["loads"]
        at = found.pop("timestamp")
        assert found == expected
        assert datetime.fromisoformat(answer["timestamp"]).timestamp() == pytest.approx(at, abs=1e-5)


async def test_a_request_larger_than_the_room_is_all_of_it() -> None:
    engine = HeldEngine()
    async with client_of(make_app(engine, max_running_tokens=10)) as client:
        engine.free.clear()
        asking = asyncio.create_task(client.post("/v1/systemone", json=REQUEST))
        while not (await load_of(client))["num_running_reqs"]:  # noqa: ASYNC110  (as a router would)
            await asyncio.sleep(0.005)
        load = await load_of(client)
        engine.free.set()
        assert (await asking).status_code == 200
    assert load["num_used_tokens"] > load["max_total_num_tokens"] == 10
    assert load["token_usage"] == 1.0


async def test_the_load_has_sglangs_fields_and_types() -> None:
    async with client_of(make_app(FakeEngine())) as client:
        answer = await told(client, "/v1/loads?include=core,disagg,queues,memory")
    theirs = fields(named(sglang("managers/load_snapshot.py"), "LoadSnapshot"))
    assert {name: theirs[name] for name in answer["loads"][0]} == {
        name: type(value).__name__ for name, value in answer["loads"][0].items()
    }
    constants = {node.value for node in ast.walk(sglang("entrypoints/v1_loads.py")) if isinstance(node, ast.Constant)}
    assert set(answer) <= constants


async def test_health_is_readiness() -> None:
    application = make_app(FakeEngine(delay_s=0.05))
    documented = Documented(application.openapi())
    lifecycle = application.state.lifecycle
    seen = []
    async with application.router.lifespan_context(application):
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://front") as client:

            async def look() -> None:
                health, ready = await client.get("/health"), await client.get("/readyz")
                assert (health.status_code, health.json()) == (ready.status_code, ready.json())
                documented.check("get", "/health", health)
                seen.append((lifecycle.phase, health.status_code))

            await look()
            while lifecycle.phase == "starting":  # noqa: ASYNC110  (as a probe would)
                await asyncio.sleep(0.005)
            await look()
            lifecycle.drain()
            await look()
            lifecycle.fail("as asked")
            await look()
    assert seen == [("starting", 503), ("ready", 200), ("draining", 503), ("dead", 503)]


async def test_they_ask_for_no_key_and_are_as_documented(tmp_path: Path) -> None:
    application = make_app(FakeEngine(), keys=key_ring(tmp_path / "keys.toml", {"clef-orders-key": ""}))
    documented = Documented(application.openapi())
    async with client_of(application) as client:
        for path in PATHS:
            response = await client.get(path)
            assert response.status_code == 200
            documented.check("get", path, response)
            assert (await client.post(path)).status_code == 405
