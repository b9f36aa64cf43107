"""Engines that are full, drain, die and come back behind smg, and clients that leave."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.routing.backends import Backend, Seen, backends
from tests.routing.routers import SHORT_WAITS, Router, place, routing, until
from tests.serving.harness import SERVED_NAME

WAIT_S = 30


def question(state: str) -> dict[str, Any]:
    return {"model": SERVED_NAME, "state": state, "questions": {"q": {"type": "noul", "instructions": "Is it?"}}}


STATES = [f"State {number} of many." for number in range(20)]


@pytest.fixture
def engines() -> Iterator[list[Backend]]:
    with backends(2) as made:
        yield made


@pytest.fixture
def router(arguments: list[str], engines: list[Backend]) -> Iterator[Router]:
    with routing(arguments, [engine.url for engine in engines], *SHORT_WAITS) as started:
        yield started


def all_at_once(pool: ThreadPoolExecutor, router: Router) -> "list[Future[httpx.Response]]":
    return [pool.submit(router.ask, question(state)) for state in STATES]


def test_a_killed_engine_costs_no_answer_and_gets_its_states_back(router: Router, engines: list[Backend]) -> None:
    before = [place(router.ask(question(state)), engines) for state in STATES]
    assert set(before) == {0, 1}
    engines[1].kill()
    assert [place(router.ask(question(state)), engines) for state in STATES] == [0] * len(STATES)
    until(lambda: router.healthy() == 1, WAIT_S)
    engines[1] = Backend(port=engines[1].port).start()
    try:
        until(lambda: [place(router.ask(question(state)), engines) for state in STATES] == before, WAIT_S)
    finally:
        engines[1].stop()


def test_what_a_killed_engine_was_computing_is_answered_by_another(router: Router, engines: list[Backend]) -> None:
    before = [place(router.ask(question(state)), engines) for state in STATES]
    for engine in engines:
        engine.engine.held = True
    with ThreadPoolExecutor(len(STATES)) as pool:
        asked = all_at_once(pool, router)
        until(lambda: sum(engine.engine.running for engine in engines) == len(STATES), WAIT_S)
        assert engines[1].engine.running == sum(before)
        engines[1].kill()
        engines[0].engine.held = False
        assert [place(answer.result(), engines) for answer in asked] == [0] * len(STATES)


def test_a_draining_engine_loses_nothing_and_gets_nothing_new(router: Router, engines: list[Backend]) -> None:
    before = [place(router.ask(question(state)), engines) for state in STATES]
    for engine in engines:
        engine.engine.held = True
    with ThreadPoolExecutor(len(STATES)) as pool:
        asked = all_at_once(pool, router)
        until(lambda: sum(engine.engine.running for engine in engines) == len(STATES), WAIT_S)
        engines[1].lifecycle.drain()
        engines[0].engine.held = False
        # Until smg has seen it, it asks in vain and then elsewhere.
        assert [place(router.ask(question(state)), engines) for state in STATES] == [0] * len(STATES)
        until(lambda: router.healthy() == 1, WAIT_S)
        engines[1].seen.clear()
        assert [place(router.ask(question(state)), engines) for state in STATES] == [0] * len(STATES)
        assert engines[1].asked == []
        engines[1].engine.held = False
        assert [place(answer.result(), engines) for answer in asked] == before


def test_a_full_engine_sends_requests_to_the_other(arguments: list[str]) -> None:
    limits = {"max_running_requests": 1, "max_waiting_requests": 1}
    with backends(2, **limits) as engines, routing(arguments, [engine.url for engine in engines]) as router:
        state = next(state for state in STATES if place(router.ask(question(state)), engines) == 1)
        engines[1].engine.held = True
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(router.ask, question(state)) for _ in range(2)]
            until(lambda: engines[1].lifecycle.in_flight == 2, WAIT_S)
            assert place(router.ask(question(state)), engines) == 0
            engines[1].engine.held = False
            assert [place(answer.result(), engines) for answer in waiting] == [1, 1]


def test_an_engine_where_eight_wait_is_left_out_while_another_has_fewer(arguments: list[str]) -> None:
    """smg's own limit (--worker-overload-waiting-requests); it learns of them from /v1/loads."""
    polled = "--load-monitor-interval=1"
    with (
        backends(2, max_running_requests=1, max_waiting_requests=20) as engines,
        routing(arguments, [engine.url for engine in engines], polled) as router,
    ):
        state = next(state for state in STATES if place(router.ask(question(state)), engines) == 1)
        engines[1].engine.held = True
        with ThreadPoolExecutor(9) as pool:
            waiting = [pool.submit(router.ask, question(state)) for _ in range(9)]
            until(lambda: engines[1].lifecycle.in_flight == 9, WAIT_S)
            asked = len(loads(engines[1]))
            until(lambda: len(loads(engines[1])) >= asked + 2, WAIT_S)  # the first may have been under way
            assert place(router.ask(question(state)), engines) == 0
            engines[1].engine.held = False
            assert [place(answer.result(), engines) for answer in waiting] == [1] * 9


def loads(engine: Backend) -> list[Seen]:
    return [seen for seen in engine.seen if seen.path.startswith("/v1/loads")]


def test_a_client_that_leaves_is_forgotten_by_the_engine(router: Router, engines: list[Backend]) -> None:
    for engine in engines:
        engine.engine.held = True
    with pytest.raises(httpx.ReadTimeout):
        router.client.post("/v1/systemone", json=question("x"), timeout=1)
    until(lambda: sum(len(engine.engine.aborted) for engine in engines) == 1, WAIT_S)
    assert [engine.engine.running for engine in engines] == [0, 0]
    assert sum(len(engine.asked) for engine in engines) == 1


def test_a_router_that_is_told_to_stop_answers_what_it_has(router: Router, engines: list[Backend]) -> None:
    for engine in engines:
        engine.engine.held = True
    with ThreadPoolExecutor(len(STATES)) as pool:
        asked = all_at_once(pool, router)
        until(lambda: sum(engine.engine.running for engine in engines) == len(STATES), WAIT_S)
        router.process.terminate()
        until(lambda: router.client.get(f"{router.health_url}/readiness").status_code == 503, WAIT_S)
        assert router.client.get(f"{router.health_url}/liveness").status_code == 200
        for engine in engines:
            engine.engine.held = False
        assert {answer.result().status_code for answer in asked} == {200}
