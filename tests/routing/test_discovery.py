"""smg finds the engines' pods with the chart's own arguments, by list and watch alone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.k8s.chart import NAMESPACE, RELEASE
from tests.routing.backends import Backend
from tests.routing.fake_kubernetes import FakeKubernetes
from tests.routing.routers import place, routing, until
from tests.serving.harness import SERVED_NAME

WAIT_S = 30
LABELS = {
    "app.kubernetes.io/name": "clef-serving",
    "app.kubernetes.io/instance": RELEASE,
    "app.kubernetes.io/component": "engine",
}
STATES = [f"State {number} of many." for number in range(20)]


def question(state: str) -> dict[str, Any]:
    return {"model": SERVED_NAME, "state": state, "questions": {"q": {"type": "noul", "instructions": "Is it?"}}}


@pytest.fixture
def engines() -> Iterator[list[Backend]]:
    # Pods have addresses of their own and one port.
    first = Backend(host="127.0.0.2").start()
    second = Backend(host="127.0.0.3", port=first.port).start()
    yield [first, second]
    first.stop()
    second.stop()


@pytest.fixture
def kubernetes() -> Iterator[FakeKubernetes]:
    fake = FakeKubernetes(NAMESPACE, LABELS)
    yield fake
    fake.close()


def test_pods_are_found_and_left_before_they_end(
    chart_args: list[str], engines: list[Backend], kubernetes: FakeKubernetes, tmp_path: Path
) -> None:
    environ = {"KUBECONFIG": str(kubernetes.kubeconfig(tmp_path / "kubeconfig"))}
    kubernetes.put("engine-0", "127.0.0.2")
    kubernetes.put("engine-1", "127.0.0.3", ready=False)
    port = f"--service-discovery-port={engines[0].port}"
    with routing(chart_args, [], port, ready=1, environ=environ) as router:
        assert [place(router.ask(question(state)), engines) for state in STATES] == [0] * len(STATES)
        kubernetes.put("engine-1", "127.0.0.3")
        until(lambda: router.healthy() == 2, WAIT_S)
        places = [place(router.ask(question(state)), engines) for state in STATES]
        assert set(places) == {0, 1}
        # A rollout: what it computes is answered, and nothing new comes.
        for engine in engines:
            engine.engine.held = True
        with ThreadPoolExecutor(len(STATES)) as pool:
            asked = [pool.submit(router.ask, question(state)) for state in STATES]
            until(lambda: sum(engine.engine.running for engine in engines) == len(STATES), WAIT_S)
            kubernetes.put("engine-1", "127.0.0.3", terminating=True)
            until(lambda: router.healthy() == 1, WAIT_S)
            for engine in engines:
                engine.engine.held = False
            assert [place(answer.result(), engines) for answer in asked] == places
        engines[1].seen.clear()
        assert [place(router.ask(question(state)), engines) for state in STATES] == [0] * len(STATES)
        kubernetes.delete("engine-1")
        assert engines[1].asked == []
    (listed, *watched) = [query for _, query in kubernetes.asked]
    assert {path for path, _ in kubernetes.asked} == {f"/api/v1/namespaces/{NAMESPACE}/pods"}
    assert "watch" not in listed
    assert {query["watch"] for query in watched} == {"true"}
    selected = dict(label.split("=") for label in listed["labelSelector"].split(","))
    assert selected == LABELS
