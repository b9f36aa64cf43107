"""How sure the figures are: percentile bootstrap over records. Knows records only as numbers.

Records are drawn and not questions, since the questions of one record are answered together from one prompt.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.quality.sample import METRICS, Floats, Sample

LEVEL = 0.95
_AT_ONCE = 64  # drawings; bounds the memory of one product of matrices


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The middle LEVEL of what drawings gave."""

    low: float
    high: float


class Drawings:
    """Which records each drawing holds, and how often: as many as there are, with replacement.

    Args:
        records: numbers of the records to draw from.
        drawings: how many to make.
        seed: equal seeds give equal drawings.
    """

    def __init__(self, records: NDArray[np.int64], *, drawings: int, seed: int) -> None:
        self._records = np.unique(records)
        assert len(self._records), "nothing to draw from"
        number = len(self._records)
        generator = np.random.default_rng(seed)
        even = np.full(number, 1 / number)
        # In few records one may be drawn often, in many none is: two bytes always hold it.
        self._counts_BR = np.concatenate(
            [generator.multinomial(number, even, size=size).astype(np.uint16) for size in _sizes(drawings)]
        )

    def intervals(self, sample: Sample) -> dict[str, Interval | None]:
        """Of each metric; None where no drawing has it."""
        return {name: _interval(values) for name, values in self._figures(sample).items()}

    def intervals_of_difference(self, left: Sample, right: Sample) -> dict[str, Interval | None]:
        """Of right - left, both over the same records in every drawing."""
        ours, theirs = self._figures(left), self._figures(right)
        return {name: _interval(theirs[name] - ours[name]) for name in METRICS}

    def _figures(self, sample: Sample) -> dict[str, Floats]:
        columns = np.searchsorted(self._records, sample.record_D)
        parts = [
            sample.drawn(self._counts_BR[start : start + _AT_ONCE, columns].astype(np.float64))
            for start in range(0, len(self._counts_BR), _AT_ONCE)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in METRICS}


def _sizes(drawings: int) -> Iterator[int]:
    for start in range(0, drawings, _AT_ONCE):
        yield min(_AT_ONCE, drawings - start)


def _interval(values: Floats) -> Interval | None:
    known = values[np.isfinite(values)]
    if not known.size:
        return None
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(low=float(low), high=float(high))
