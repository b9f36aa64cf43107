"""Two ranks: heads and vocabulary are split, options have tokens in both halves of the LM head."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import tolerances
from tests.engine.records import RECORDS, URGENCY, questions, text
from tests.engine.served import ENVIRON, GRID, START_TIMEOUT_S, Served, cached, distance, probabilities, serving
from tests.launch.running import running

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def served(release: Callable[[int], Path]) -> Iterator[Served]:
    arguments = ["--", "--tp-size", "2", "--chunked-prefill-size", "512"]
    # SGLang binds each rank to a NUMA node of its own unless told which cores to use.
    first, second = sorted(os.sched_getaffinity(0))[:2]
    cores = {"SGLANG_CPU_OMP_THREADS_BIND": f"{first}|{second}"}
    with serving(release(2), "--max-prompt-tokens", "32768", *arguments, environ=cores) as served:
        yield served


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_answered_as_by_the_reference_cold_and_cached(served: Served, name: str) -> None:
    record = RECORDS[name]
    expected = served.reference.probabilities(record)
    cold, again = (served.ask(record, cache_salt=name) for _ in range(2))
    assert distance(probabilities(cold), expected) <= tolerances.FP32_TENSOR_PARALLEL
    assert distance(probabilities(again), expected) <= tolerances.FP32_TENSOR_PARALLEL
    assert cached(again) == served.reference.state_end(record) // GRID * GRID


def test_a_batch_across_chunks_equals_the_reference(served: Served) -> None:
    records = [
        {"state": text(40 + number, characters), "questions": {"u": URGENCY, **questions(40 + number)}}
        for number, characters in enumerate([0, 700, 1500, 90, 64, 1024])
    ]
    for record, answered in zip(records, served.ask_together(records), strict=True):
        expected = served.reference.probabilities(record)
        assert distance(probabilities(answered), expected) <= tolerances.FP32_TENSOR_PARALLEL


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--tp-size", "4"], "--tp-size 4: this one has 2 key-value heads, which 4 ranks cannot share evenly"),
        (["--pp-size", "2"], "--pp-size 2: the joint schema head reads the last stage's hidden states"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_cannot_be_right_is_refused_at_start(
    release: Callable[[int], Path], arguments: list[str], reason: str
) -> None:
    up = ["up", "--device", "cpu", "--port", "0", "--dtype", "float32", "--model", str(release(0))]
    with running("launch", *up, "--", *arguments, environ=ENVIRON) as process:
        assert process.end(START_TIMEOUT_S) == 1
        assert reason in process.lines[-1], process.lines
