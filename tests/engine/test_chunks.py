"""Prompts cut into chunks of every kind, and of none: edges fall inside states, questions and options."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import tolerances
from tests.engine.records import RECORDS, URGENCY, questions, text
from tests.engine.served import GRID, Served, cached, distance, probabilities, serving

pytestmark = pytest.mark.engine

# Seed of the release, SGLang's arguments: the third has paged KV, the last no cache and therefore no chunks.
SHAPES = {
    "chunks-of-64": (1, ["--chunked-prefill-size", "64"]),
    "chunks-of-100": (2, ["--chunked-prefill-size", "100"]),
    "chunks-of-512-in-pages-of-64": (0, ["--chunked-prefill-size", "512", "--page-size", "64"]),
    "no-cache": (1, ["--disable-radix-cache"]),
}


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def served(shape: str, release: Callable[[int], Path]) -> Iterator[Served]:
    seed, arguments = SHAPES[shape]
    with serving(release(seed), "--max-prompt-tokens", "32768", "--", *arguments) as served:
        yield served


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_answered_as_by_the_reference_and_again(served: Served, shape: str, name: str) -> None:
    record, salt = RECORDS[name], f"parity of {name}"
    expected = served.reference.probabilities(record)
    cold, again = (served.ask(record, cache_salt=salt) for _ in range(2))
    assert distance(probabilities(cold), expected) <= tolerances.FP32
    assert distance(probabilities(again), expected) <= tolerances.FP32
    assert cached(cold) == 0
    reusable = 0 if shape == "no-cache" else served.reference.state_end(record) // GRID * GRID
    assert cached(again) == reusable


@pytest.mark.parametrize("characters", [900, *range(1000, 1008), 1900])
def test_chunk_edges_move_through_the_spans(served: Served, characters: int) -> None:
    """Each length shifts every span by one token against the chunks, whose last one may be 1 to 63 tokens."""
    record = {"state": text(characters, characters), "questions": {"u": URGENCY, **questions(characters)}}
    expected = served.reference.probabilities(record)
    for _ in range(2):
        assert distance(probabilities(served.ask(record)), expected) <= tolerances.FP32


def test_a_batch_of_mixed_lengths_equals_the_reference(served: Served) -> None:
    records = [
        {"state": text(30 + number, characters), "questions": questions(30 + number)}
        for number, characters in enumerate([0, 10, 500, 1000, 2000, 63, 300, 1500])
    ]
    for record, answered in zip(records, served.ask_together(records), strict=True):
        assert distance(probabilities(answered), served.reference.probabilities(record)) <= tolerances.FP32
