"""Two and four ranks: heads and vocabulary are split, options have tokens in several parts of the LM head."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import tolerances
from tests.engine.records import RECORDS, URGENCY, questions, text
from tests.engine.served import (
    GRID,
    START_TIMEOUT_S,
    Served,
    build_release,
    cached,
    distance,
    probabilities,
    serving,
    starting,
)

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module", params=[2, 4], ids=lambda ranks: f"{ranks}-ranks")
def served(
    request: pytest.FixtureRequest, release: Callable[[int], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    ranks: int = request.param
    if ranks == 2:
        of_ranks = release(2)
    else:
        # One head of each kind for each rank. The vocabulary's 300 rows are padded to 320, 80 a rank: the last has 60.
        heads = {"num_key_value_heads": ranks, "linear_num_key_heads": ranks}
        of_ranks = build_release(tmp_path_factory.mktemp("release") / "tiny-4", 4, vocabulary=300, **heads)
    arguments = ["--", "--tp-size", str(ranks), "--chunked-prefill-size", "512"]
    # SGLang binds each rank to a NUMA node of its own unless told which cores to use.
    first, second = sorted(os.sched_getaffinity(0))[:2]
    cores = {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(ranks // 2 * [f"{first}|{second}"])}
    with serving(of_ranks, "--max-prompt-tokens", "32768", *arguments, environ=cores) as served:
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
    with starting(release(0), "--", *arguments) as process:
        assert process.end(START_TIMEOUT_S) == 1
        assert reason in process.lines[-1], process.lines
