"""Percentiles, shares and ratios, each with a confidence interval. Knows numbers alone.

Latencies under load are not independent: a queue makes neighbours slow together, and formulas for independent values would
promise too much. So a sample counts for as many independent values as the scatter of its consecutive batches allows
(`effective_size`, the method of batch means), and the exact binomial intervals are taken for that many.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

BATCHES = 20
RESAMPLES = 2000
Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value and the ends between which it lies with the confidence asked for. The upper end may be infinite."""

    value: float
    low: float
    high: float


def percentile(values: Sequence[float] | Values, share: float) -> float:
    """The least value that so large a share of the values does not exceed (the nearest rank).

    Raises:
        ValueError: there are no values.
    """
    if not len(values):
        raise ValueError("no values have no percentile")
    return float(np.sort(np.asarray(values))[_rank(share, len(values)) - 1])


def _rank(share: float, count: int) -> int:
    # 0.07 * 100 is a little more than 7.
    return max(1, math.ceil(round(share * count, 9)))


def effective_size(hits: Sequence[bool] | NDArray[np.bool_]) -> int:
    """As how many independent values the scatter of these, in order of time, counts: never more than there are.

    The variance of the means of `BATCHES` consecutive batches over that of independent values, p (1 - p) / m, is the factor
    by which the sample is worth less (the design effect).
    """
    flags = np.asarray(hits, dtype=float)
    count, share = len(flags), float(flags.mean()) if len(flags) else 0.0
    length = count // BATCHES
    if length < 2 or share in (0.0, 1.0):
        return count
    means = flags[: length * BATCHES].reshape(BATCHES, length).mean(axis=1)
    factor = float(means.var(ddof=1)) / (share * (1 - share) / length)
    return max(1, int(count / max(1.0, factor)))


def percentile_interval(values: Sequence[float] | Values, share: float, confidence: float) -> Interval:
    """A percentile of values in order of time, by order statistics.

    Of n independent values, those below the true percentile are binomial (n, share), whatever the distribution: so two of the
    sorted values enclose it, and none of them bounds it from above where n is too small (1 / (1 - share) times about 3.7 at
    95%): then the interval is open. Distribution-free, hence right for latencies with several humps.
    """
    series = np.asarray(values)
    value = percentile(series, share)
    ordered, count = np.sort(series), len(series)
    size = effective_size(series > value)
    tail = (1 - confidence) / 2
    low = int(stats.binom.ppf(tail, size, share))
    high = int(stats.binom.ppf(1 - tail, size, share)) + 1
    scale = count / size
    return Interval(
        value=value,
        low=float(ordered[max(1, math.floor(low * scale)) - 1]) if low >= 1 else 0.0,
        high=float(ordered[min(count, math.ceil(high * scale)) - 1]) if high <= size else math.inf,
    )


def share_interval(hits: Sequence[bool] | NDArray[np.bool_], confidence: float) -> Interval:
    """The share of hits in a series in order of time: the exact binomial interval (Clopper and Pearson, 1934)."""
    flags = np.asarray(hits, dtype=bool)
    if not len(flags):
        return Interval(value=0.0, low=0.0, high=1.0)
    size = effective_size(flags)
    value = float(flags.mean())
    low, high = binomial_bounds(value * size, size, confidence)
    return Interval(value=value, low=low, high=high)


def binomial_bounds(hits: float, count: float, confidence: float) -> tuple[float, float]:
    """Clopper and Pearson's bounds of a share; `hits` may be a fraction where `count` stands for fewer independent values."""
    tail = (1 - confidence) / 2
    low = 0.0 if hits <= 0 else float(stats.beta.ppf(tail, hits, count - hits + 1))
    high = 1.0 if hits >= count else float(stats.beta.ppf(1 - tail, hits + 1, count - hits))
    return low, high


def ratio_interval(
    upper: Sequence[Values], lower: Sequence[Values], share: float, confidence: float, seed: int
) -> Interval | None:
    """A percentile of `upper` over that of `lower`, whose blocks were measured in pairs, with a bootstrap over the pairs.

    Whole blocks are drawn, so that what is slow together stays together, and both of a pair, so that a busy moment of the
    machine is in both or in neither. Needs 8 pairs; None with fewer, or where a percentile is not finite.
    """
    pairs = [(a, b) for a, b in zip(upper, lower, strict=True) if len(a) and len(b)]
    if len(pairs) < 8:
        return None

    def ratio(chosen: NDArray[np.int64]) -> float:
        drawn = [pairs[int(index)] for index in chosen]
        below = percentile(np.concatenate([b for _, b in drawn]), share)
        above = percentile(np.concatenate([a for a, _ in drawn]), share)
        return above / below if math.isfinite(below) and below > 0 else math.nan

    value = ratio(np.arange(len(pairs)))
    if not math.isfinite(value):
        return None
    found = stats.bootstrap(
        (np.arange(len(pairs)),),
        ratio,
        vectorized=False,
        n_resamples=RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    if not (math.isfinite(found.low) and math.isfinite(found.high)):
        return None
    return Interval(value=value, low=float(found.low), high=float(found.high))
