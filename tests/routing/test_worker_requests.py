"""What smg asks of our server, what it makes of the answers, and that nobody can tell it anything else."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.routing.backends import backends
from tests.routing.routers import SHORT_WAITS, routing, until
from tests.serving.harness import MAX_PROMPT_TOKENS, SERVED_NAME

WAIT_S = 30
LOADS = "/v1/loads?include=core,disagg,queues,memory"
READ_ONLY = "--control-plane-api-keys=reader:reader:user:reader"


def test_it_asks_for_health_once_for_the_model_and_for_the_load(arguments: list[str]) -> None:
    more = [*SHORT_WAITS, "--load-monitor-interval=1", READ_ONLY]
    with backends(1) as (engine,), routing(arguments, [engine.url], *more) as router:
        until(lambda: sum(seen.path == LOADS for seen in engine.seen) >= 1, WAIT_S)
        until(lambda: sum(seen.path == "/health" for seen in engine.seen) >= 4, WAIT_S)
        # /version and /loads are those of other engines, which ours is taken for if it answers.
        paths = {seen.path.partition("?")[0] for seen in engine.seen}
        assert paths - {"/version", "/loads"} == {"/health", "/v1/models", "/model_info", "/server_info", "/v1/loads"}
        assert not [seen for seen in engine.seen if "authorization" in seen.headers]
        engine.engine.held = True
        body = {"model": SERVED_NAME, "state": "x", "questions": {"q": {"type": "noul", "instructions": "Is it?"}}}
        with ThreadPoolExecutor(3) as pool:
            asked = [pool.submit(router.ask, body) for _ in range(3)]

            def worker() -> dict[str, Any]:
                listed = router.client.get("/workers", headers={"authorization": "Bearer reader"})
                (found,) = listed.json()["workers"]
                assert isinstance(found, dict)
                return found

            until(lambda: worker()["engine_load"]["loads"][0]["num_running_reqs"] == 3, WAIT_S)
            seen = worker()
            engine.engine.held = False
            assert [answer.result().status_code for answer in asked] == [200] * 3
    assert (seen["model_id"], seen["runtime_type"]) == (SERVED_NAME, "sglang")
    (model,) = seen["models"]
    assert (model["model_type"], model["context_length"]) == (["embeddings"], MAX_PROMPT_TOKENS)


CONTROL = [
    ("GET", "/workers"),
    ("POST", "/workers"),
    ("PUT", "/workers/1"),
    ("DELETE", "/workers/1"),
    ("GET", "/get_loads"),
    ("POST", "/flush_cache"),
    ("POST", "/start_profile"),
    ("POST", "/stop_profile"),
    ("POST", "/heap_profile"),
    ("POST", "/parse/reasoning"),
    ("POST", "/wasm"),
    ("GET", "/wasm"),
    ("POST", "/v1/tokenizers"),
    ("GET", "/v1/tokenizers"),
]


def test_the_control_plane_is_closed_to_everyone(arguments: list[str]) -> None:
    with backends(1) as (engine,), routing(arguments, [engine.url]) as router:
        for authorization in (None, "Bearer", "Bearer closed", "Bearer \\n"):
            headers = {} if authorization is None else {"authorization": authorization}
            answers = {
                (method, path): router.client.request(method, path, headers=headers).status_code
                for method, path in CONTROL
            }
            assert answers == dict.fromkeys(CONTROL, 401)
        for port in (router.health_url, router.metrics_url):
            assert router.client.get(f"{port}/workers").status_code == 404
        page = router.client.get(f"{router.metrics_url}/metrics").text
        assert re.search(r"^smg_\w+", page, re.MULTILINE)


@pytest.mark.parametrize("ready", [True, False])
def test_it_is_ready_when_an_engine_is(arguments: list[str], ready: bool) -> None:
    with backends(1) as (engine,):
        if not ready:
            engine.lifecycle.drain()
        with routing(arguments, [engine.url], ready=int(ready)) as router:
            found = [router.client.get(f"{router.health_url}/{path}").status_code for path in ("readiness", "liveness")]
    assert found == [200 if ready else 503, 200]
