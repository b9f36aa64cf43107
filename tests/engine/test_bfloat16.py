"""The server in BF16, its default type, against the reference in BF16."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import tolerances
from tests.engine.records import RECORDS, questions, text
from tests.engine.served import Served, distance, probabilities, serving

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def served(release: Callable[[int], Path]) -> Iterator[Served]:
    with serving(release(0), dtype="bfloat16") as served:
        yield served


def assert_same(answered: dict[str, dict[str, float]], expected: dict[str, dict[str, float]]) -> None:
    assert distance(answered, expected) <= tolerances.BF16
    for question_id, options in expected.items():
        first, *others = sorted(options.values(), reverse=True)
        if others and first - others[0] > tolerances.BF16_MARGIN:
            best = max(options, key=options.__getitem__)
            assert max(answered[question_id], key=answered[question_id].__getitem__) == best


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_answered_as_by_the_reference_cold_and_cached(served: Served, name: str) -> None:
    expected = served.reference.probabilities(RECORDS[name])
    for _ in range(2):
        assert_same(probabilities(served.ask(RECORDS[name], cache_salt=name)), expected)


def test_a_request_is_answered_alike_alone_among_31_others_and_from_the_cache(served: Served) -> None:
    records = [{"state": text(seed, 40 * seed), "questions": questions(seed)} for seed in range(32)]
    alone = [probabilities(served.ask(record, cache_salt="alone")) for record in records]
    for salt in ("together", "together", "alone"):  # misses, then hits of what was computed in a batch, then alone
        for answered, expected in zip(served.ask_together(records, cache_salt=salt), alone, strict=True):
            assert_same(probabilities(answered), expected)
