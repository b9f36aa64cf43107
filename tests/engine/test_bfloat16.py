"""The server in BF16, its default type, against the reference in BF16."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import tolerances
from tests.engine.records import RECORDS
from tests.engine.served import Served, distance, probabilities, serving

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def served(release: Callable[[int], Path]) -> Iterator[Served]:
    with serving(release(0), dtype="bfloat16") as served:
        yield served


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_answered_as_by_the_reference_cold_and_cached(served: Served, name: str) -> None:
    record = RECORDS[name]
    expected = served.reference.probabilities(record)
    for _ in range(2):
        answered = probabilities(served.ask(record, cache_salt=name))
        assert distance(answered, expected) <= tolerances.BF16
        for question_id, options in expected.items():
            first, *others = sorted(options.values(), reverse=True)
            if others and first - others[0] > tolerances.BF16_MARGIN:
                assert max(answered[question_id], key=answered[question_id].__getitem__) == max(
                    options, key=options.__getitem__
                )
