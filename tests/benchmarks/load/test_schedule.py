"""Arrival times, and whose turn it is."""

from itertools import pairwise

import pytest
from scipy import stats  # type: ignore[import-untyped]

from benchmarks.load.schedule import poisson, sides_in_turn


def test_a_seed_gives_one_schedule() -> None:
    assert poisson(20, 10, "a") == poisson(20, 10, "a") != poisson(20, 10, "b")


def test_gaps_are_exponential_with_the_rate() -> None:
    due = poisson(50, 400, "gaps")
    assert due == sorted(due)
    assert 0 < due[0] < due[-1] < 400
    gaps = [later - earlier for earlier, later in pairwise(due)]
    assert stats.kstest(gaps, "expon", args=(0, 1 / 50)).pvalue > 0.01
    assert abs(len(due) - 20_000) < 4 * 20_000**0.5


@pytest.mark.parametrize(("rate", "seconds"), [(0, 1), (-1, 1), (1, 0)])
def test_nothing_positive_is_refused(rate: float, seconds: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        poisson(rate, seconds, "a")


def test_two_sides_take_turns_and_neither_is_always_first() -> None:
    assert sides_in_turn(3, 2) == [(0, 0), (0, 1), (1, 1), (1, 0), (2, 0), (2, 1)]
    assert sides_in_turn(2, 1) == [(0, 0), (1, 0)]
