"""Requests that were measured, as columns, and what they come to. Knows nothing of how they were sent."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.load.intervals import Values, percentile, percentile_interval

# By construction: a state that no request of the run had before; one asked before with other questions; the same again.
KINDS = ("cold", "prefix", "repeated")
ANSWERED = "answered"
PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9)
CURVE_PERCENTS = (1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 92.5, 95, 97, 98, 99, 99.5, 99.8, 99.9, 99.95, 99.99)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One request. Seconds count from the start of its slice.

    `outcome` is `answered`, or why not: `status 503`, `timeout`, `connection`, `unreadable`, `not sent`, `given up`.
    """

    slice_number: int
    due_s: float
    started_s: float
    done_s: float
    outcome: str
    kind: str
    cached_tokens: int | None = None
    input_tokens: int | None = None

    @property
    def latency_s(self) -> float:
        """From when it was due; infinite without an answer, so that no miss is ever left out of a percentile."""
        return self.done_s - self.due_s if self.outcome == ANSWERED else math.inf


class Samples:
    """Samples in order of time, as columns."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.rows = sorted(samples, key=lambda sample: (sample.slice_number, sample.due_s))
        self.latency_s: Values = np.array([sample.latency_s for sample in self.rows], dtype=float)
        self._kinds = np.array([sample.kind for sample in self.rows], dtype=object)

    def __len__(self) -> int:
        return len(self.rows)

    def of_kind(self, kind: str | None) -> NDArray[np.bool_]:
        """Which ones are of that kind; None: all."""
        return np.ones(len(self.rows), dtype=bool) if kind is None else np.asarray(self._kinds == kind, dtype=bool)

    def blocks(self, kind: str | None, seconds: float) -> dict[tuple[int, int], Values]:
        """Latencies by slice and stretch of `seconds`, for a bootstrap that pairs them."""
        chosen = self.of_kind(kind)
        blocks: dict[tuple[int, int], list[float]] = {}
        for row, wanted in zip(self.rows, chosen, strict=True):
            if wanted:
                blocks.setdefault((row.slice_number, int(row.due_s / seconds)), []).append(row.latency_s)
        return {key: np.array(block) for key, block in blocks.items()}


def milliseconds(seconds: float) -> float | None:
    """For JSON, which has no infinity: None is one, a percentile among requests without an answer."""
    return round(seconds * 1000, 3) if math.isfinite(seconds) else None


def latency_report(samples: Samples, kind: str | None, confidence: float) -> dict[str, Any] | None:
    """Percentiles with intervals, in milliseconds from when requests were due; None of no requests.

    Requests without an answer are in it as infinitely late: `null`. The mean is of those answered.
    """
    latency_s = samples.latency_s[samples.of_kind(kind)]
    if not len(latency_s):
        return None
    answered = latency_s[np.isfinite(latency_s)]
    report: dict[str, Any] = {
        "requests": len(latency_s),
        "answered": len(answered),
        "answered_mean_ms": milliseconds(float(answered.mean())) if len(answered) else None,
    }
    for percent in PERCENTS:
        interval = percentile_interval(latency_s, percent / 100, confidence)
        report[f"p{percent:g}_ms"] = milliseconds(interval.value)
        report[f"p{percent:g}_ms_interval"] = [milliseconds(interval.low), milliseconds(interval.high)]
    # A percentile that fewer requests than this could show says nothing.
    curve = [percent for percent in CURVE_PERCENTS if len(latency_s) * (1 - percent / 100) >= 1]
    report["curve"] = [[percent, milliseconds(percentile(latency_s, percent / 100))] for percent in curve]
    return report


def outcomes(samples: Samples) -> dict[str, int]:
    """Requests by what became of them."""
    return dict(Counter(row.outcome for row in samples.rows).most_common())


def cache_report(samples: Samples) -> dict[str, Any]:
    """What the server says of its cache (`usage.x_cached_tokens`), beside what each kind should show; None where it is silent.

    A cold request that finds more than a quarter of its tokens cached, or another that finds none, is `unexpected`.
    """
    report: dict[str, Any] = {}
    for kind in KINDS:
        told = [
            (row.cached_tokens, row.input_tokens)
            for row in samples.rows
            if row.kind == kind and row.cached_tokens is not None and row.input_tokens
        ]
        if not told:
            report[kind] = None
            continue
        unexpected = sum(cached > tokens / 4 if kind == "cold" else cached == 0 for cached, tokens in told)
        report[kind] = {
            "requests": len(told),
            "input_tokens_mean": round(sum(tokens for _, tokens in told) / len(told), 1),
            "cached_token_share": round(sum(cached for cached, _ in told) / sum(tokens for _, tokens in told), 4),
            "unexpected": unexpected,
        }
    return report
