"""Pools too small for what is asked: states are evicted, prompts wait, clients leave at any moment, and no answer changes.

SGLang's scheduler counts its pools whenever it is idle (free + cached + in use = total, KV slots and recurrent states
alike) and ends if they do not add up, and with it the server; so each pause here is also a count.
"""

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import tolerances
from tests.engine.records import REFUND, URGENCY, questions, text
from tests.engine.served import GRID, Served, cached, distance, probabilities, serving

pytestmark = pytest.mark.engine

MAX_PROMPT_TOKENS = 4096
STEPS = 1000
STATES = 40


@pytest.fixture(scope="module")
def served(release: Callable[[int], Path]) -> Iterator[Served]:
    # Room for three of the longest prompts, and for the recurrent states of about a dozen cached ones.
    arguments = ["--max-total-tokens", "12800", "--max-mamba-cache-size", "24", "--max-running-requests", "4"]
    arguments += ["--chunked-prefill-size", "512"]
    with serving(release(1), "--max-prompt-tokens", str(MAX_PROMPT_TOKENS), "--", *arguments) as served:
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


class Client:
    """One of several that ask, ask again, ask something else about a known state, or leave before the answer."""

    def __init__(
        self, served: Served, seed: int, known: list[tuple[dict[str, Any], dict[str, dict[str, float]]]]
    ) -> None:
        self._served = served
        self._known = known
        self._draw = random.Random(seed)
        self.asked = self.left = self.hits = 0
        self.worst = 0.0

    def run(self, steps: int) -> None:
        with httpx.Client(base_url=self._served.url, timeout=120) as http:
            for _ in range(steps):
                self._step(http)

    def _step(self, http: httpx.Client) -> None:
        record, expected = self._draw.choice(self._known)
        self.asked += 1
        if self._draw.random() < 0.35:
            # From "before it is read" to "after it is answered".
            timeout = self._draw.choice([0.001, 0.005, 0.02, 0.05, 0.1])
            try:
                http.post("/v1/systemone", json=record, timeout=timeout)
            except httpx.TimeoutException:
                self.left += 1
            return
        response = http.post("/v1/systemone", json=record)
        assert response.status_code == 200, response.text
        self.hits += cached(response.json()) > 2 * GRID
        self.worst = max(self.worst, distance(probabilities(response.json()), expected))


def test_a_thousand_steps_of_asking_leaving_and_evicting_change_no_answer(served: Served) -> None:
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

    clients = [Client(served, seed, known) for seed in range(4)]
    for burst in range(5):
        with ThreadPoolExecutor(len(clients)) as pool:
            for done in [pool.submit(client.run, STEPS // 20) for client in clients]:
                done.result()
        time.sleep(0.5)  # idle: the pools are counted
        assert served.process.process.poll() is None, "\n".join(served.process.lines)
        record, expected = known[burst]
        assert distance(probabilities(served.ask(record)), expected) <= tolerances.FP32

    assert sum(client.asked for client in clients) == STEPS
    assert max(client.worst for client in clients) <= tolerances.FP32
    # What the steps were to bring about did come about.
    assert sum(client.left for client in clients) > STEPS // 10
    assert sum(client.hits for client in clients) > STEPS // 10
