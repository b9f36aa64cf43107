"""Faults at a running server on the real engine: stopped while it answers, a killed scheduler, deadlines, priorities, probes.

To have requests where a fault must meet them, the engine's scheduler is suspended until they are there.
"""

import contextlib
import http.client
import json
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch

from launch.server import GRACE_S
from tests import tolerances
from tests.engine.records import REFUND, TEAM, URGENCY, text
from tests.engine.served import ENVIRON, START_TIMEOUT_S, Reference, distance, probabilities
from tests.launch.running import Running, alive, running
from tests.serving.exposition import Series, series

pytestmark = pytest.mark.engine

MAX_PROMPT_TOKENS = 16_384
QUESTIONS = {"r": REFUND, "t": TEAM, "u": URGENCY}
IN_FLIGHT = 64
WAIT_S = 60
# How long a patient probe waits for its answer.
PROBE_TIMEOUT_S = 5
GAUGES = ("requests_in_flight", "running_requests", "running_tokens", "queue_requests", "queue_tokens")


def record(seed: int) -> dict[str, Any]:
    return {"state": text(seed, 200 + seed), "questions": QUESTIONS}


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running server, and threads that ask it, each time on a new connection."""

    process: Running
    url: str
    scheduler: psutil.Process
    client: httpx.Client
    pool: ThreadPoolExecutor

    def get(self, path: str, timeout_s: float = WAIT_S) -> httpx.Response:
        return self.client.get(path, timeout=timeout_s)

    def post(self, body: dict[str, Any], headers: dict[str, str] | None = None) -> httpx.Response:
        return self.client.post("/v1/systemone", json=body, headers=headers)

    def send(self, body: dict[str, Any], headers: dict[str, str] | None = None) -> "Future[httpx.Response]":
        return self.pool.submit(self.post, body, headers)

    def gauges(self) -> Series:
        return series(self.get("/metrics").content)

    def gauge(self, name: str) -> float:
        return self.gauges()[f"clef_{name}", frozenset()]

    def wait_for(self, name: str, value: float) -> None:
        until(lambda: self.gauge(name) == value)

    @contextlib.contextmanager
    def nothing_is_computed(self) -> Iterator[None]:
        self.scheduler.suspend()
        try:
            yield
        finally:
            if self.scheduler.is_running():
                self.scheduler.resume()

    def everything_is_free(self) -> None:
        until(lambda: not any(self.gauges()[f"clef_{name}", frozenset()] for name in GAUGES))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_S} s in vain"
        time.sleep(0.01)


@contextlib.contextmanager
def started(release: Path, *arguments: str) -> Iterator[Server]:
    given = ["--device", "cpu", "--port", "0", "--dtype", "float32", "--model", str(release)]
    given += ["--max-prompt-tokens", str(MAX_PROMPT_TOKENS), *arguments]
    with running("launch", "up", *given, environ=ENVIRON) as process:
        url = process.wait_for(r"clef-serve is ready at (http://\S+)", START_TIMEOUT_S)[1]
        (scheduler,) = [child for child in process.tree() if "scheduler" in " ".join(child.cmdline())]
        new_each_time = httpx.Limits(max_keepalive_connections=0)
        with (
            httpx.Client(base_url=url, timeout=WAIT_S, limits=new_each_time) as client,
            ThreadPoolExecutor(IN_FLIGHT) as pool,
        ):
            yield Server(process=process, url=url, scheduler=scheduler, client=client, pool=pool)


@pytest.fixture(scope="module")
def reference(release: Callable[[int], Path]) -> Reference:
    return Reference(release(1), torch.float32)


def assert_right(responses: list[httpx.Response], reference: Reference, records: list[dict[str, Any]]) -> None:
    """Each has its own record's answers."""
    assert [response.status_code for response in responses] == [200] * len(records)
    for response, asked in zip(responses, records, strict=True):
        assert distance(probabilities(response.json()), reference.probabilities(asked)) <= tolerances.FP32


def error(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["detail"]["error_type"]


@pytest.fixture(scope="module")
def roomy(release: Callable[[int], Path]) -> Iterator[Server]:
    with started(release(1)) as server:
        yield server


def test_probes_are_answered_while_the_longest_prompts_run_back_to_back(roomy: Server, reference: Reference) -> None:
    one = {"state": text(0, 1000), "questions": QUESTIONS}
    others = len(reference.encode(one).input_ids) - 1000
    longest = [{"state": text(seed, MAX_PROMPT_TOKENS - others), "questions": QUESTIONS} for seed in range(3)]
    asked = [roomy.send(body) for body in longest]
    polls: list[int | None] = []
    while not all(future.done() for future in asked):
        for path in ("/livez", "/readyz"):
            try:
                polls.append(roomy.get(path, timeout_s=PROBE_TIMEOUT_S).status_code)
            except httpx.ReadTimeout:
                polls.append(None)  # a machine that others keep busy may miss one; Kubernetes asks again before it acts
    assert len(polls) > 10
    assert set(polls) <= {200, None}
    assert polls.count(None) * 10 <= len(polls)
    for future in asked:
        assert future.result().status_code == 200
        assert future.result().json()["usage"]["input_tokens"] == MAX_PROMPT_TOKENS


@pytest.mark.parametrize(
    ("header", "value"),
    [
        *(("x-request-timeout-ms", value) for value in ("0", "-1", "1.5", "soon", "", "1e3", "1000000000")),
        *(("x-request-priority", value) for value in ("urgent", "1", "High", "")),
    ],
)
def test_a_header_that_says_nothing_is_refused(roomy: Server, header: str, value: str) -> None:
    response = roomy.post(record(1), {header: value})
    assert response.status_code == 422
    (fault,) = response.json()["detail"]
    assert fault["loc"] == ["header", header]
    assert header in fault["msg"]


def test_sigterm_with_64_in_flight_loses_none(roomy: Server, reference: Reference) -> None:
    host, port = roomy.url.removeprefix("http://").split(":")
    kept_alive = http.client.HTTPConnection(host, int(port), timeout=WAIT_S)
    kept_alive.request("GET", "/readyz")
    assert (kept_alive.getresponse().read(), kept_alive.sock is not None) == (b'{"status":"ready"}', True)
    kept_alive.auto_open = 0
    records = [record(seed) for seed in range(IN_FLIGHT)]
    children = roomy.process.tree()
    with roomy.nothing_is_computed():
        asked = [roomy.send(body) for body in records]
        roomy.wait_for("running_requests", IN_FLIGHT)
        roomy.process.send(signal.SIGTERM)
        until(lambda: roomy.get("/readyz").status_code == 503)
        assert roomy.get("/livez").status_code == 200

        refused = roomy.post(record(1))
        assert error(refused) == (503, "not_serving")
        given = [refused.headers[name] for name in ("connection", "retry-after", "retry-after-ms")]
        assert given == ["close", "1", "1000"]
        kept_alive.request(
            "POST", "/v1/systemone", json.dumps(record(1)).encode(), {"content-type": "application/json"}
        )
        late = kept_alive.getresponse()
        assert (late.status, late.will_close) == (503, True)
        assert [late.headers[name] for name in ("connection", "retry-after", "retry-after-ms")] == given
        assert not any(future.done() for future in asked)
    answered = [future.result() for future in asked]
    assert_right(answered, reference, records)
    assert {response.headers["connection"] for response in answered} == {"close"}
    assert roomy.process.end(GRACE_S) == 0
    assert roomy.process.lines[-1] == "clef-serve: stopped"
    assert alive(children) == []


@pytest.fixture(scope="module")
def narrow(release: Callable[[int], Path]) -> Iterator[Server]:
    """One request in the engine, the others wait in order."""
    with started(release(1), "--max-running-requests", "1") as server:
        yield server


def test_a_deadline_that_the_queue_would_miss_is_refused_and_the_queue_is_answered(
    narrow: Server, reference: Reference
) -> None:
    assert narrow.post(record(0)).status_code == 200  # from this the pace is known
    records = [record(seed) for seed in range(1, 41)]
    with narrow.nothing_is_computed():
        asked = [narrow.send(body) for body in records]
        narrow.wait_for("queue_requests", 39)
        refused = narrow.post(record(41), {"x-request-timeout-ms": "50"})
        assert error(refused) == (503, "request_timeout")
        assert "of other work comes first" in refused.json()["detail"]["message"]
        assert int(refused.headers["retry-after-ms"]) >= 100
        assert int(refused.headers["retry-after"]) >= 1
        assert not any(future.done() for future in asked)
    assert_right([future.result() for future in asked], reference, records)
    narrow.everything_is_free()


def test_an_answer_that_is_not_there_in_time_is_503_and_its_slot_is_free(narrow: Server, reference: Reference) -> None:
    with narrow.nothing_is_computed():
        late = narrow.post(record(50), {"x-request-timeout-ms": "300"})
        assert error(late) == (503, "request_timeout")
        assert late.json()["detail"]["message"] == "the answer was not there before the deadline"
        assert late.headers["retry-after-ms"] == "1000"
        narrow.everything_is_free()
    assert_right([narrow.post(record(51))], reference, [record(51)])


def test_who_comes_last_with_high_priority_is_answered_before_the_low_ones(narrow: Server) -> None:
    with narrow.nothing_is_computed():
        asked = {"first": narrow.send(record(60))}
        narrow.wait_for("running_requests", 1)
        for number, priority in enumerate(("low", "low", "normal", "high"), start=1):
            asked[f"{priority} {number}"] = narrow.send(record(60 + number), {"x-request-priority": priority})
            narrow.wait_for("queue_requests", number)
    names = {future.result().headers["x-typesafe-request-id"]: name for name, future in asked.items()}
    order: list[str] = []
    while len(order) < len(names):
        line = narrow.process.wait_for(r"request_id=(\S+)", WAIT_S)
        if line[1] in names:
            order.append(names[line[1]])
    assert order == ["first", "high 4", "normal 3", "low 1", "low 2"]


def test_a_killed_scheduler_fails_what_is_in_flight_and_ends_the_server(narrow: Server) -> None:
    children = narrow.process.tree()
    narrow.scheduler.suspend()
    asked = [narrow.send(record(70 + number)) for number in range(8)]
    narrow.wait_for("queue_requests", 7)
    narrow.scheduler.kill()
    killed = time.monotonic()
    for future in asked:
        assert error(future.result()) == (503, "engine_dead")
        assert future.result().headers["retry-after-ms"] == "5000"
    with contextlib.suppress(httpx.TransportError):  # it may be gone already
        assert narrow.get("/livez").status_code == 503
    assert narrow.process.end(12) != 0
    assert time.monotonic() - killed < 10
    with pytest.raises(httpx.ConnectError):
        narrow.get("/livez")
    assert alive(children) == []
