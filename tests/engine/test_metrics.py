"""The page of a real server under load: its own figures and the engine's agree, and no counter ever decreases."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.mmap_dict import MmapedDict, mmap_key

from serving.engine_metrics import DIRECTORY_VARIABLE
from tests.engine.records import REFUND, URGENCY, text
from tests.engine.served import Served, serving
from tests.serving.exposition import Series, faults, monotone, series

pytestmark = pytest.mark.engine

REQUESTS = 200
SCRAPES = 20
KV_SLOTS = 12_800
STATES = 24


@pytest.fixture(scope="module")
def served(release: Callable[[int], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose pools hold a part of what is asked, and whose figures go where an earlier run has left some."""
    directory = tmp_path_factory.mktemp("figures")
    left = MmapedDict(str(directory / "counter_1.db"))
    left.write_value(mmap_key("sglang:evicted_tokens", "sglang:evicted_tokens_total", [], [], "left"), 1e9, 0)
    left.close()
    pools = ["--max-total-tokens", str(KV_SLOTS), "--max-mamba-cache-size", str(STATES), "--max-running-requests", "4"]
    environ = {DIRECTORY_VARIABLE: str(directory)}
    with serving(release(1), "--max-prompt-tokens", "4096", "--", *pools, environ=environ) as served:
        yield served
    assert [path.name for path in directory.iterdir()] == ["counter_1.db"]


def scrape(served: Served) -> bytes:
    response = served.client.get("/metrics")
    assert response.status_code == 200
    return response.content


def total(found: Series, name: str, **labels: str) -> float:
    """The sum of a name's series that have these labels."""
    return sum(
        value for (each, given), value in found.items() if each == name and labels.items() <= dict(given).items()
    )


def test_a_scraped_server_under_load(served: Served) -> None:
    records: list[dict[str, Any]] = [
        {"state": text(number % 30, 1500), "questions": {"r": REFUND, "u": URGENCY}} for number in range(REQUESTS)
    ]
    first = scrape(served)
    pages = [monotone(first)]
    usages = []
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(served.ask, record) for record in records]
        for number, done in enumerate(as_completed(asked), start=1):
            usages.append(done.result()["usage"])
            if number % (REQUESTS // SCRAPES) == 0:
                pages.append(monotone(scrape(served)))
    assert len(pages) == SCRAPES + 1
    for before, after in pairwise(pages):
        assert {key: (value, after.get(key)) for key, value in before.items() if after.get(key, -1) < value} == {}

    given = sum(usage["input_tokens"] for usage in usages)
    cached = sum(usage["x_cached_tokens"] for usage in usages)
    assert 0 < cached < given

    def grown(name: str, **labels: str) -> float:
        return total(series(last), name, **labels) - total(series(first), name, **labels)

    engine_tokens, deadline = 0.0, time.monotonic() + 30
    while engine_tokens < given:  # the engine counts a batch after it has answered
        assert time.monotonic() < deadline, (engine_tokens, given)
        last = scrape(served)
        engine_tokens = grown("sglang_prefill_effective_tokens_total")
    assert grown("clef_requests_total", route="/v1/systemone", status="200", outcome="ok") == REQUESTS
    assert engine_tokens == grown("clef_tokens_total", kind="prompt") == given
    in_cache = grown("sglang_prefill_effective_tokens_total", mode="device_hit")
    assert in_cache == grown("clef_tokens_total", kind="cached") == cached
    assert grown("clef_request_stage_seconds_count", stage="engine") == REQUESTS

    found = series(last)
    assert total(found, "clef_kv_slots") == KV_SLOTS
    assert total(found, "clef_recurrent_states") == STATES
    assert 0 < total(found, "clef_recurrent_states", use="cached") <= STATES
    assert 0 < total(found, "clef_evicted_tokens_total") < given
    assert 0 < total(found, "clef_evicted_states_total") < REQUESTS
    assert total(found, "clef_requests_in_flight") == 0
    assert total(found, "clef_lifecycle_phase", phase="ready") == 1
    assert faults(last) == []
