"""Percentiles, shares and ratios with their intervals, against exact values."""

import itertools
import math

import numpy as np
import pytest

from benchmarks.load.intervals import (
    binomial_bounds,
    effective_size,
    percentile,
    percentile_interval,
    ratio_interval,
    share_interval,
)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([7], 0.99, 7),
        ([4, 1, 3, 2], 0.5, 2),
        (list(range(1, 101)), 0.99, 99),
        (list(range(1, 101)), 0.07, 7),
        ([1, math.inf], 0.5, 1),
        ([1, math.inf], 0.51, math.inf),
    ],
)
def test_percentile_is_the_nearest_rank(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected


def test_nothing_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_binomial_bounds_are_clopper_and_pearsons() -> None:
    assert binomial_bounds(0, 10, 0.95) == pytest.approx((0, 1 - 0.025**0.1))
    assert binomial_bounds(10, 10, 0.95) == pytest.approx((0.025**0.1, 1))
    low, high = binomial_bounds(3, 10, 0.95)

    def at_most(hits: int, share: float) -> float:
        return sum(math.comb(10, k) * share**k * (1 - share) ** (10 - k) for k in range(hits + 1))

    assert at_most(3, high) == pytest.approx(0.025)
    assert 1 - at_most(2, low) == pytest.approx(0.025)


def test_shuffled_hits_count_in_full_and_clustered_ones_for_less() -> None:
    regular = [index % 10 == 0 for index in range(1000)]
    clustered = [400 <= index < 500 for index in range(1000)]
    assert effective_size(regular) == 1000
    # Two of 20 batches of 50 are all hits: a variance of 0.0947 against 0.0018 for independent values.
    assert effective_size(clustered) == int(1000 / ((2 * 0.9**2 + 18 * 0.1**2) / 19 / (0.1 * 0.9 / 50)))
    narrow, wide = share_interval(regular, 0.95), share_interval(clustered, 0.95)
    assert narrow.value == wide.value == 0.1
    assert wide.low < narrow.low < 0.1 < narrow.high < wide.high


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_ranks_of_a_percentile_interval_enclose_it_with_the_confidence(share: float) -> None:
    """Summed from the binomial distribution: enough, and one rank less on either side would not be."""
    count, confidence = 200, 0.95
    values = [float(value) for value in _spread(count)]
    assert sorted(values) == [float(value) for value in range(1, count + 1)]
    assert effective_size([value > share * count for value in values]) == count
    interval = percentile_interval(values, share, confidence)
    low, high = int(interval.low), int(interval.high)
    below = [math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(count + 1)]
    assert sum(below[low:high]) >= confidence
    assert sum(below[:low]) < (1 - confidence) / 2 <= sum(below[: low + 1])
    assert sum(below[high:]) <= (1 - confidence) / 2 < sum(below[high - 1 :])


def _spread(count: int) -> list[int]:
    """1 to `count` in an order in which each of 20 consecutive batches holds low and high ones alike."""
    return list(itertools.chain.from_iterable(range(start, count + 1, 20) for start in range(1, 21)))


def test_too_few_values_leave_a_high_percentile_open() -> None:
    assert percentile_interval([float(index % 7) for index in range(100)], 0.99, 0.95).high == math.inf
    assert math.isfinite(percentile_interval([float(index % 7) for index in range(400)], 0.99, 0.95).high)


def test_ratio_of_blocks_that_are_all_twice_as_slow_is_two_without_doubt() -> None:
    generator = np.random.default_rng(0)
    lower = [generator.exponential(1 + block % 3, size=50) for block in range(12)]
    interval = ratio_interval([2 * block for block in lower], lower, 0.5, 0.95, seed=1)
    assert interval is not None
    assert (interval.value, interval.low, interval.high) == pytest.approx((2, 2, 2))


def test_ratio_of_equal_servers_has_one_within_its_interval() -> None:
    generator = np.random.default_rng(1)
    one, other = ([generator.exponential(1, size=80) for _ in range(20)] for _ in range(2))
    interval = ratio_interval(one, other, 0.9, 0.95, seed=1)
    assert interval is not None
    assert 0.8 < interval.low < 1 < interval.high < 1.25


def test_no_ratio_of_few_blocks_or_of_unanswered_requests() -> None:
    block = np.array([1.0, 2.0])
    assert ratio_interval([block] * 7, [block] * 7, 0.5, 0.95, seed=1) is None
    lost = np.array([math.inf, math.inf])
    assert ratio_interval([block] * 8, [lost] * 8, 0.5, 0.95, seed=1) is None
