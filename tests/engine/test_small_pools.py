"""Pools too small for what is asked: states are evicted, prompts wait, clients leave at any moment, and no answer changes.

SGLang's scheduler counts its pools whenever it is idle (free + cached + in use = total, KV slots and recurrent states
alike) and ends if they do not add up, and with it the server; so each pause here is also a count. The inspector counts them
slot by slot, and knows what a client that left hit.
"""

import asyncio
import contextlib
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import psutil
import pytest

from tests import tolerances
from tests.engine.inspector import Inspector, inspector
from tests.engine.records import REFUND, URGENCY, questions, text
from tests.engine.served import GRID, Served, cached, distance, probabilities, serving

pytestmark = pytest.mark.engine

MAX_PROMPT_TOKENS = 4096
STATES = 40
CLIENTS = 8
STEPS_A_BURST = 320
# What the steps are to bring about, and how often at least; how soon they do depends on the machine.
LEAST = {
    "steps": 1000,
    "aborted": 1000,
    "aborted waiting": 50,
    "aborted between chunks": 50,
    "aborted running": 1,
    "evicted KV slots": 10 * 12800,
    "evicted states": 10 * 24,
    "hits": 1,
    "flushes refused": 1,
}
MOST_BURSTS = 16
LEAVING = 200
# A record, and the reference's answer.
Known: TypeAlias = tuple[dict[str, Any], dict[str, dict[str, float]]]
# The engine ends at the first KV slot that is lost, or used while free, at every step and not only when idle.
CHECKS = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
    "SGLANG_ENABLE_TREE_CACHE_SANITY_CHECK": "1",
}


@pytest.fixture(scope="module")
def inside() -> Iterator[Inspector]:
    with inspector() as inside:
        yield inside


@pytest.fixture(scope="module")
def served(release: Callable[[int], Path], inside: Inspector) -> Iterator[Served]:
    # Room for three of the longest prompts, and for the recurrent states of about a dozen cached ones.
    arguments = ["--max-total-tokens", "12800", "--max-mamba-cache-size", "24", "--max-running-requests", "4"]
    arguments += ["--chunked-prefill-size", "512"]
    arguments = ["--max-prompt-tokens", str(MAX_PROMPT_TOKENS), "--", *arguments]
    with serving(release(1), *arguments, environ=CHECKS | inside.environ) as served:
        yield served


def test_the_log_says_how_large_the_row_pool_is(served: Served) -> None:
    """One row of 32 FP32 numbers for each KV slot and for the slot that takes the writes of padding."""
    (line,) = [line for line in served.process.lines if "Memory rows are allocated" in line]
    assert line.endswith(f"Memory rows are allocated: 12801 slots, {12801 * 32 * 4 / 1e9:.3f} GB")


def test_an_evicted_state_is_computed_again_and_cached_again(served: Served) -> None:
    record = {"state": text(1, 2000), "questions": {"u": URGENCY}}
    expected = served.reference.probabilities(record)
    reusable = served.reference.state_end(record) // GRID * GRID
    answers = [served.ask(record) for _ in range(2)]
    for seed in range(2, 12):  # more than the pool holds
        served.ask({"state": text(seed, 3000), "questions": {"r": REFUND}})
    answers += [served.ask(record) for _ in range(2)]
    assert [cached(answered) >= reusable for answered in answers] == [False, True, False, True]
    for answered in answers:
        assert distance(probabilities(answered), expected) <= tolerances.FP32


def test_more_than_the_pools_hold_waits_its_turn(served: Served) -> None:
    records = [{"state": text(100 + seed, 3300), "questions": {"u": URGENCY}} for seed in range(12)]
    for record, answered in zip(records, served.ask_together(records), strict=True):
        assert distance(probabilities(answered), served.reference.probabilities(record)) <= tolerances.FP32


def count_slots(inside: Inspector) -> dict[str, Any]:
    """Once nobody is served: each slot of each pool is free or cached, and none is both. Returns what the inspector says."""
    state = inside.settled()
    assert state["running"] == state["waiting"] == state["front"]["cached_tokens"] == 0
    for name, pool in state["pools"].items():
        assert pool["free"] + pool["cached"] == pool["total"], (name, pool)
        assert pool["lost"] == pool["twice"] == 0, (name, pool)
    return state


def test_the_inspector_sees_full_pools(served: Served, inside: Inspector) -> None:
    """Otherwise its counts would show nothing."""
    assert inside.flush(timeout_s=10)
    pools = count_slots(inside)["pools"]
    assert {name: (pool["cached"], pool["total"]) for name, pool in pools.items()} == {
        "kv": (0, 12800),
        "states": (0, 24),
        "requests": (0, 4),
    }
    record = {"state": text(90, 200), "questions": {"u": URGENCY}}
    served.ask(record)
    pools = count_slots(inside)["pools"]
    assert pools["kv"]["cached"] == served.reference.state_end(record) // GRID * GRID
    assert pools["states"]["cached"] == 1


class Client:
    """One of several that ask, ask again, leave before the answer, or empty the cache."""

    def __init__(self, served: Served, inside: Inspector, seed: int, known: list[Known]) -> None:
        self._served = served
        self._inside = inside
        self._known = known
        self._draw = random.Random(seed)
        self.steps = self.hits = self.flushes_refused = 0
        self.worst = 0.0

    def run(self, steps: int) -> None:
        with httpx.Client(base_url=self._served.url, timeout=120) as http:
            for _ in range(steps):
                self.steps += 1
                self._step(http)

    def _step(self, http: httpx.Client) -> None:
        what = self._draw.choices(["ask", "leave", "flush"], [12, 87, 1])[0]
        record, expected = self._draw.choice(self._known)
        if what == "flush":
            self.flushes_refused += not self._inside.flush(timeout_s=self._draw.choice([0, 0.2]))
        elif what == "leave":
            # From "before it is read" to "after it is answered".
            with contextlib.suppress(httpx.TimeoutException):
                http.post("/v1/systemone", json=record, timeout=self._draw.uniform(0.001, 0.15))
        else:
            response = http.post("/v1/systemone", json=record)
            assert response.status_code == 200, response.text
            self.hits += cached(response.json()) > 2 * GRID
            self.worst = max(self.worst, distance(probabilities(response.json()), expected))


@pytest.fixture(scope="module")
def known(served: Served) -> list[Known]:
    """Records about states of many lengths, and the reference's answers."""
    draw = random.Random(7)
    beginning = text(200, 1500)
    known = []
    for seed in range(STATES):
        # Half of the states begin alike, so that partial hits and branches come about.
        length = draw.choice([0, 50, 63, 64, 65, 500, 1000, 1500])
        state = (
            beginning[: draw.randint(1, 1000)] + text(300 + seed, length)
            if seed % 2
            else text(300 + seed, 3 * length // 2)
        )
        record = {"state": state, "questions": questions(seed % 12), "cache_salt": draw.choice([None, "acme"])}
        known.append((record, served.reference.probabilities(record)))
    return known


def test_asking_leaving_flushing_and_evicting_change_no_answer_and_lose_no_slot(
    served: Served, inside: Inspector, known: list[Known]
) -> None:
    """Also case cache-005."""
    clients = [Client(served, inside, seed, known) for seed in range(CLIENTS)]
    before = Counter(inside.settled()["seen"])
    lacking: dict[str, int] = {}
    for burst in range(MOST_BURSTS):
        with ThreadPoolExecutor(len(clients)) as pool:
            for done in [pool.submit(client.run, STEPS_A_BURST // CLIENTS) for client in clients]:
                done.result()
        seen = Counter(count_slots(inside)["seen"])
        seen.subtract(before)
        for record, expected in known:
            assert distance(probabilities(served.ask(record)), expected) <= tolerances.FP32
        so_far = brought_about(clients, seen)
        lacking = {what: least - so_far[what] for what, least in LEAST.items() if so_far[what] < least}
        if not lacking:
            break
        if burst % 2:
            assert inside.flush(timeout_s=10)
            assert cached(served.ask(known[0][0])) == 0

    assert max(client.worst for client in clients) <= tolerances.FP32
    assert not lacking


def brought_about(clients: Sequence[Client], seen: Counter[str]) -> dict[str, int]:
    """How often each thing that `LEAST` names has come about."""
    return {
        **{what: seen[what] for what in LEAST},
        "steps": sum(client.steps for client in clients),
        "aborted": aborted(seen),
        "hits": sum(client.hits for client in clients),
        "flushes refused": sum(client.flushes_refused for client in clients),
    }


def aborted(seen: Counter[str]) -> int:
    """How many requests SGLang aborted while they waited or ran."""
    return sum(count for name, count in seen.items() if name.startswith("aborted"))


async def leave(url: httpx.URL, body: bytes, when: asyncio.Task[Any] | None) -> None:
    """Send a request over a connection of its own and close it, once a task has ended or after 50 ms."""
    _, writer = await asyncio.open_connection(url.host, url.port)
    head = f"POST /v1/systemone HTTP/1.1\r\nhost: {url.host}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    await (asyncio.sleep(0.05) if when is None else asyncio.wait([when]))
    writer.close()


def all_leave(served: Served, inside: Inspector, number: int, *, from_the_engine: bool) -> Counter[str]:
    """So many clients with new long states leave, 50 ms after asking or once most of them wait inside the engine.

    Returns what the engine aborted.
    """
    url = httpx.URL(served.url)
    bodies = [
        json.dumps({"state": text(LEAVING * number + client, 2000), "questions": questions(client % 12)}).encode()
        for client in range(LEAVING)
    ]

    def most_are_inside(state: dict[str, Any]) -> bool:
        return bool(state["front"]["requests"] >= LEAVING // 2)

    async def together() -> None:
        when = asyncio.create_task(asyncio.to_thread(inside.until, most_are_inside)) if from_the_engine else None
        await asyncio.gather(*(leave(url, body, when) for body in bodies), *([when] if when else []))

    before = Counter(inside.settled()["seen"])
    asyncio.run(together())
    # Whoever was read before this one is gone when it is answered.
    served.ask({"state": "", "questions": {"r": REFUND}})
    seen = Counter(count_slots(inside)["seen"])
    seen.subtract(before)
    return seen


def read_log(served: Served) -> list[str]:
    """All lines of the server's log up to now."""
    answered = served.post({"state": "", "questions": {"r": REFUND}})
    served.process.wait_for(f"request_id={answered.headers['x-typesafe-request-id']}", 10)
    return served.process.lines


def test_ops_006_200_clients_leave_after_50_ms_20_times(served: Served, inside: Inspector, known: list[Known]) -> None:
    """And, in four rounds before, once most of them wait inside the engine."""
    server = psutil.Process(served.process.process.pid)
    lines_before = len(read_log(served))
    memory_bytes, hit = [], []
    for number in range(24):
        hit.append(aborted(all_leave(served, inside, number, from_the_engine=number < 4)))
        memory_bytes.append(server.memory_info().rss)
        record, expected = known[number]
        assert distance(probabilities(served.ask(record)), expected) <= tolerances.FP32
    for record, expected in known:
        assert distance(probabilities(served.ask(record)), expected) <= tolerances.FP32

    assert min(hit[:4]) >= LEAVING // 4, hit
    assert sum(hit[4:]) > 0
    # If 4,000 requests stayed somewhere, as text and as tokens, it would be several times that.
    assert memory_bytes[-1] - memory_bytes[3] < 16 << 20, memory_bytes
    outcomes = Counter(
        found[0] for line in read_log(served)[lines_before:] if (found := re.search(r"status=\S+ outcome=\S+", line))
    )
    assert outcomes.keys() == {"status=499 outcome=client_closed", "status=200 outcome=ok"}
    assert outcomes["status=499 outcome=client_closed"] > 0.9 * 24 * LEAVING
