"""From labelled decisions to figures: overall, by type, by group and by question. Knows no server and no form of output."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.metrics import confusion_matrix

from benchmarks.quality.compare import in_both
from benchmarks.quality.decisions import Decision
from benchmarks.quality.intervals import Drawings, Interval
from benchmarks.quality.sample import METRICS, Automatic, Sample

DEFAULT_TARGET_PRECISION = 0.99
DEFAULT_BINS = 10
DEFAULT_DRAWINGS = 1000
OVERALL = "overall"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the figures depend on beside the answers.

    Attributes:
        target_precision: of what is decided without a person, a share of 1.
        bins: of the calibration error.
        drawings: of the bootstrap.
        seed: of its drawings.
    """

    target_precision: float = DEFAULT_TARGET_PRECISION
    bins: int = DEFAULT_BINS
    drawings: int = DEFAULT_DRAWINGS
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A value with the interval it may as well have."""

    value: float
    interval: Interval | None


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """How often each label got each answer, those that occur; `names` in the order in which the questions list them."""

    names: Sequence[str]
    counts: Mapping[tuple[str, str], int]


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The figures of some decisions. `confusion` is that of a scope of one question."""

    records: int
    sample: Sample
    figures: Mapping[str, Figure]
    automatic: Automatic
    confusion: Confusion | None = None


def measure(decisions: Sequence[Decision], rules: Rules) -> dict[str, Scope]:
    """The figures of each scope: `overall`, `type:T`, `group:G`, `group:G/type:T`, `question:ID`.

    Args:
        decisions: those with a label are measured, and there must be one.
    """
    labelled = [decision for decision in decisions if decision.label is not None]
    drawings = _drawings(labelled, rules)
    return {name: _scope(name, members, rules, drawings) for name, members in _scopes(labelled)}


def differences(left: Sequence[Decision], right: Sequence[Decision], rules: Rules) -> dict[str, Mapping[str, Figure]]:
    """By scope, each metric of the right side less that of the left, over the questions that both answered.

    The intervals are of the difference: each drawing takes the same records on both sides.
    """
    ours, theirs = in_both(left, right)
    labelled = [decision for decision in ours if decision.label is not None]
    if not labelled:
        return {}
    drawings = _drawings(labelled, rules)
    others = dict(_scopes([decision for decision in theirs if decision.label is not None]))
    found: dict[str, Mapping[str, Figure]] = {}
    for name, members in _scopes(labelled):
        one, other = _sample(members, rules), _sample(others[name], rules)
        before, after = one.figures(), other.figures()
        intervals = drawings.intervals_of_difference(one, other)
        found[name] = {
            metric: Figure(value=new - old, interval=intervals[metric])
            for metric in METRICS
            if (old := before[metric]) is not None and (new := after[metric]) is not None
        }
    return found


def _scopes(decisions: Sequence[Decision]) -> Iterator[tuple[str, list[Decision]]]:
    yield OVERALL, list(decisions)
    yield from _by_type("", decisions)
    for group in sorted({one.group for one in decisions if one.group is not None}):
        members = [one for one in decisions if one.group == group]
        yield f"group:{group}", members
        yield from _by_type(f"group:{group}/", members)
    for question in dict.fromkeys(one.question for one in decisions):
        yield f"question:{question}", [one for one in decisions if one.question == question]


def _by_type(prefix: str, decisions: Sequence[Decision]) -> Iterator[tuple[str, list[Decision]]]:
    for kind in sorted({one.question_type for one in decisions}):
        yield f"{prefix}type:{kind}", [one for one in decisions if one.question_type == kind]


def _scope(name: str, members: Sequence[Decision], rules: Rules, drawings: Drawings) -> Scope:
    sample = _sample(members, rules)
    intervals = drawings.intervals(sample)
    return Scope(
        records=len(np.unique(sample.record_D)),
        sample=sample,
        figures={
            metric: Figure(value=value, interval=intervals[metric])
            for metric, value in sample.figures().items()
            if value is not None
        },
        automatic=sample.automatic(),
        confusion=_confusion(members) if name.startswith("question:") else None,
    )


def _confusion(members: Sequence[Decision]) -> Confusion:
    names = list(dict.fromkeys(option for one in members for option in one.options))
    labels = [one.options[one.label] for one in members if one.label is not None]
    table = confusion_matrix(labels, [one.answer for one in members], labels=names)
    rows, columns = np.nonzero(table)
    return Confusion(
        names=names,
        counts={
            (names[row], names[column]): int(table[row, column]) for row, column in zip(rows, columns, strict=True)
        },
    )


def _sample(decisions: Sequence[Decision], rules: Rules) -> Sample:
    return Sample(decisions, target_precision=rules.target_precision, bins=rules.bins)


def _drawings(decisions: Sequence[Decision], rules: Rules) -> Drawings:
    records = np.array([decision.record for decision in decisions])
    return Drawings(records, drawings=rules.drawings, seed=rules.seed)
