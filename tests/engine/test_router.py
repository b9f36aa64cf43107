"""Two real engines behind the real smg, started as the chart starts it: one engine's answers, and states that stay cached."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import tolerances
from tests.engine.records import REFUND, TEAM, URGENCY, text
from tests.engine.served import GRID, READY, START_TIMEOUT_S, cached, distance, probabilities, starting
from tests.k8s.chart import Helm, unpack_helm
from tests.launch.running import Running
from tests.routing.routers import ROUTED, Router, chart_arguments, routing, without_discovery
from tests.serving.harness import SERVED_NAME

pytestmark = pytest.mark.engine

STATES = [text(seed, 600) for seed in range(8)]
QUESTION_SETS: list[dict[str, Any]] = [{"refund": REFUND}, {"team": TEAM, "urgency": URGENCY}]
PROMPTS = ["--max-prompt-tokens", "4096", "--served-model-name", SERVED_NAME]


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The engines' processes by URL, and the router before them."""

    engines: dict[str, Running]
    router: Router


@pytest.fixture(scope="module")
def fleet(release: Callable[[int], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("helm")
    helm = Helm(major=4, program=unpack_helm(4, folder), folder=folder)
    with contextlib.ExitStack() as running:
        processes = [running.enter_context(starting(release(3), *PROMPTS)) for _ in range(2)]
        engines = {process.wait_for(READY, START_TIMEOUT_S)[1]: process for process in processes}
        router = running.enter_context(routing(without_discovery(chart_arguments(helm)), list(engines)))
        yield Fleet(engines=engines, router=router)


def body(state: str, questions: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": SERVED_NAME, "state": state, "questions": questions, **fields}


def answered(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def test_states_stay_cached_and_answers_are_one_engines(fleet: Fleet) -> None:
    ask = fleet.router.ask
    first, second = ([ask(body(state, questions)) for state in STATES] for questions in QUESTION_SETS)
    places = [response.headers[ROUTED] for response in first]
    assert places == [response.headers[ROUTED] for response in second]
    assert set(places) == set(fleet.engines)
    for state, cold, warm in zip(STATES, map(answered, first), map(answered, second), strict=True):
        assert cached(cold) < len(state) // 2  # what all prompts begin with, at most
        assert len(state) - GRID < cached(warm) < warm["usage"]["input_tokens"]
    one = next(iter(fleet.engines))
    for questions, responses in zip(QUESTION_SETS, (first, second), strict=True):
        for state, response in zip(STATES, responses, strict=True):
            alone = answered(httpx.post(f"{one}/v1/systemone", json=body(state, questions, cache_salt="alone")))
            assert distance(probabilities(answered(response)), probabilities(alone)) <= tolerances.FP32


def test_an_engine_that_is_stopped_costs_no_answer(fleet: Fleet) -> None:
    """The last test: one engine is left."""
    (_, stopped), (left, _) = fleet.engines.items()
    asked = [body(state, questions, cache_salt="again") for state in STATES for questions in QUESTION_SETS]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = [pool.submit(fleet.router.ask, each) for each in asked]
        stopped.send(signal.SIGTERM)
        assert {answer.result().status_code for answer in answers} == {200}
    assert stopped.end(60) == 0
    after = [fleet.router.ask(each) for each in asked]
    assert {(response.status_code, response.headers[ROUTED]) for response in after} == {(200, left)}
