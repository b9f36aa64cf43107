"""The highest rate that keeps an SLO: which rate to try next, and what the tries say. Pure; knows no server and no clock.

Doubles or halves until a rate that meets the SLO lies below one that misses it, then halves the distance between them on a
logarithmic scale, then measures the best one once more, since the luckiest of several tries looks better than it is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.load.slo import Verdict

LOWEST = 256


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What all looks at one rate say together."""

    verdict: Verdict
    looks: int


Trials = Mapping[float, Trial]


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Where to look. Rates in requests a second.

    Attributes:
        start_rps: the first rate; the lowest is its 256th part.
        resolution: the search ends when the rate that misses is at most so much higher, as a ratio.
        max_looks: how often one rate is measured while it lies near the edge.
        max_measurements: all looks together.
    """

    max_rps: float
    start_rps: float | None = None
    resolution: float = 1.05
    max_looks: int = 3
    max_measurements: int = 30

    def __post_init__(self) -> None:
        if not 0 < (self.start_rps or self.max_rps) <= self.max_rps:
            raise ValueError(f"rates must be above 0, and the first at most {self.max_rps:g}, not {self.start_rps}")
        if not self.resolution > 1:
            raise ValueError(f"a resolution is a ratio above 1, not {self.resolution:g}")
        if min(self.max_looks, self.max_measurements) < 1:
            raise ValueError("a rate must be looked at once at least")

    def starting(self, idle_s: float) -> "SearchSettings":
        """With a first rate, where none was given: half of what one client alone gets answered, at `idle_s` for each."""
        return self if self.start_rps is not None else replace(self, start_rps=min(self.max_rps, 0.5 / idle_s))


@dataclass(frozen=True, kw_only=True)
class RateFound:
    """The answer. The rate lies between `low_rps` and `high_rps` as far as the intervals of the SLO's shares can say.

    Attributes:
        rate_rps: the highest rate that met the SLO, below every one that missed it; None if none did.
        low_rps: the highest rate that certainly met it; None if none did.
        high_rps: the lowest rate that certainly missed it; None if none did, as at the highest rate allowed.
    """

    rate_rps: float | None
    low_rps: float | None
    high_rps: float | None

    def report(self) -> dict[str, Any]:
        """For the JSON object."""
        return {"rate_rps": self.rate_rps, "rate_rps_interval": [self.low_rps, self.high_rps]}


def found(trials: Trials) -> RateFound:
    """What these trials say."""
    missed = min((rate for rate, trial in trials.items() if not trial.verdict.met), default=math.inf)
    met = [rate for rate, trial in trials.items() if trial.verdict.met and rate < missed]
    rate = max(met, default=None)
    low = max((rate for rate in met if trials[rate].verdict.certain), default=None)
    high = min(
        (rate for rate, trial in trials.items() if not trial.verdict.met and trial.verdict.certain),
        default=None,
    )
    return RateFound(rate_rps=rate, low_rps=low, high_rps=high)


def next_rate(trials: Trials, settings: SearchSettings) -> float | None:
    """The rate to measure now, or to measure once more; None when the search is over."""
    assert settings.start_rps is not None, "a search must have started"
    lowest = settings.start_rps / LOWEST
    if sum(trial.looks for trial in trials.values()) >= settings.max_measurements:
        return None
    for rate, trial in trials.items():
        if trial.verdict.near_the_edge and trial.looks < settings.max_looks:
            return rate
    if not trials:
        return settings.start_rps
    best = found(trials).rate_rps
    missed = min((rate for rate, trial in trials.items() if not trial.verdict.met), default=None)
    if best is None:
        assert missed is not None
        return max(missed / 2, lowest) if missed > lowest else None
    if missed is None:
        if best < settings.max_rps:
            return min(best * 2, settings.max_rps)
    elif missed / best > settings.resolution:
        return math.sqrt(best * missed)
    return best if trials[best].looks == 1 and settings.max_looks > 1 else None
