"""What is promised of a server: `p99<200ms`, `errors<0.1%`, `cold.p95<=2s`. Reads promises and holds samples to them."""

import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load.intervals import binomial_bounds, share_interval
from benchmarks.load.samples import KINDS, Samples

_TERM = re.compile(
    r"(?:(?P<kind>[a-z]+)\.)?(?:p(?P<percent>[0-9]+(?:\.[0-9]+)?)|(?P<errors>errors))"
    r"\s*(?P<sign><=?)\s*(?P<limit>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>us|ms|s|%)"
)
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, kw_only=True)
class Term:
    """One promise: of `kind` (None: all requests) at most `allowed` of 1 may miss.

    A request misses if it is not answered with 200 within `limit_s`; without a limit, if it is not answered with 200.
    `strictly` is `<` in place of `<=`: of the latency, or of the share of errors.
    """

    text: str
    kind: str | None
    limit_s: float | None
    allowed: float
    strictly: bool

    def missed_by(self, latency_s: float) -> bool:
        """Whether a request misses that took so long; infinite: it was not answered."""
        if self.limit_s is None:
            return math.isinf(latency_s)
        return latency_s >= self.limit_s if self.strictly else latency_s > self.limit_s

    def misses(self, samples: Samples) -> list[bool]:
        """Which requests miss, in order of time."""
        return [self.missed_by(latency) for latency in samples.latency_s[samples.of_kind(self.kind)].tolist()]


@dataclass(frozen=True, kw_only=True)
class TermResult:
    """What became of one promise. `certain`: the confidence interval of the share of misses lies on one side."""

    term: Term
    requests: int
    misses: int
    share: float
    low: float
    high: float
    met: bool
    certain: bool

    @property
    def near_the_edge(self) -> bool:
        """Whether more requests would help: it is not certain, and something missed."""
        return not self.certain and self.misses > 0

    def report(self) -> dict[str, Any]:
        """For the JSON object. Shares of 1."""
        return {
            "term": self.term.text,
            "met": self.met,
            "certain": self.certain,
            "requests": self.requests,
            "misses": self.misses,
            "miss_share": self.share,
            "miss_share_interval": [self.low, self.high],
            "allowed_share": self.term.allowed,
        }


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether all promises are met, by what was seen; `certain` by the confidence intervals too."""

    met: bool
    certain: bool
    near_the_edge: bool = False


@dataclass(frozen=True, kw_only=True)
class Slo:
    """Promises that hold together."""

    terms: tuple[Term, ...]

    @property
    def tightest_s(self) -> float | None:
        """The lowest limit of a latency."""
        limits = [term.limit_s for term in self.terms if term.limit_s is not None]
        return min(limits, default=None)

    def judge(self, samples: Samples, confidence: float) -> list[TermResult]:
        """Each promise held to these samples."""
        return [_judge(term, samples, confidence) for term in self.terms]


class Watch:
    """Counts misses while a slice runs, and knows when a promise about all requests cannot be met any more."""

    def __init__(self, slo: Slo, planned: int, confidence: float) -> None:
        self._terms = [term for term in slo.terms if term.kind is None]
        self._misses = [0] * len(self._terms)
        self._too_many = [_too_many(term.allowed, planned, confidence) for term in self._terms]

    def add(self, latency_s: float) -> None:
        """One request more; infinite: not answered."""
        for number, term in enumerate(self._terms):
            self._misses[number] += term.missed_by(latency_s)

    @property
    def lost(self) -> bool:
        """Whether even with all the others in time the interval of the share of misses would lie above what is allowed."""
        return any(misses >= most for misses, most in zip(self._misses, self._too_many, strict=True))


def _too_many(allowed: float, planned: int, confidence: float) -> float:
    for misses in range(int(allowed * planned), planned + 1):
        if binomial_bounds(misses, planned, confidence)[0] > allowed:
            return misses
    return math.inf


def verdict_of(results: Sequence[TermResult]) -> Verdict:
    """All terms together: certainly missed if one is, certainly met if all are."""
    missed_for_certain = any(result.certain and not result.met for result in results)
    met = all(result.met for result in results)
    certain = missed_for_certain or all(result.certain for result in results)
    return Verdict(
        met=met, certain=certain, near_the_edge=not certain and any(result.near_the_edge for result in results)
    )


def _judge(term: Term, samples: Samples, confidence: float) -> TermResult:
    misses = term.misses(samples)
    interval = share_interval(misses, confidence)
    count, missed = len(misses), sum(misses)
    # A percentile at the nearest rank is within its limit exactly if at most this many are not.
    within = missed <= round(term.allowed * count, 9)
    if term.limit_s is None and term.strictly:
        within = missed < round(term.allowed * count, 9) or missed == 0
    met = within and count > 0
    return TermResult(
        term=term,
        requests=count,
        misses=missed,
        share=interval.value,
        low=interval.low,
        high=interval.high,
        met=met,
        certain=count > 0 and (interval.high <= term.allowed if met else interval.low > term.allowed),
    )


def parse_slo(text: str) -> Slo:
    """Terms separated by commas.

    Raises:
        ValueError: a term is not understood; the message names it.
    """
    terms = tuple(_term(part.strip()) for part in text.split(",") if part.strip())
    if not terms:
        raise ValueError("an SLO needs a term, such as p99<200ms")
    return Slo(terms=terms)


def _term(text: str) -> Term:
    found = _TERM.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no SLO: expected something like p99<200ms, errors<0.1% or cold.p95<=2s")
    if found["kind"] is not None and found["kind"] not in KINDS:
        raise ValueError(f"{text!r}: {found['kind']} is none of {', '.join(KINDS)}")
    limit = float(found["limit"])
    if found["errors"]:
        if found["unit"] != "%" or limit >= 100:
            raise ValueError(f"{text!r}: a share of errors is a percentage below 100")
        return Term(text=text, kind=found["kind"], limit_s=None, allowed=limit / 100, strictly=found["sign"] == "<")
    percent = float(found["percent"])
    if found["unit"] == "%" or not 0 < percent < 100 or limit == 0:
        raise ValueError(f"{text!r}: a percentile between 0 and 100 has a limit above 0 in us, ms or s")
    return Term(
        text=text,
        kind=found["kind"],
        limit_s=limit * _SECONDS[found["unit"]],
        allowed=round(1 - percent / 100, 12),
        strictly=found["sign"] == "<",
    )


def read_slo(path: Path) -> Slo:
    """The SLO in a TOML file: `slo = ["p99<200ms", ...]`, and what it is for in `description`.

    Raises:
        ValueError: it is no such file.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as err:
        raise ValueError(f"{path}: {err}") from err
    terms = document.pop("slo", None)
    document.pop("description", None)
    if document or not isinstance(terms, list) or not all(isinstance(term, str) for term in terms):
        raise ValueError(f'{path}: expected slo, a list of texts such as "p99<200ms", and description, nothing else')
    return parse_slo(",".join(terms))
