"""The figures as lines of text and as JSON. Knows no server and does no arithmetic."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.quality.compare import Comparison
from benchmarks.quality.measuring import OVERALL, Confusion, Figure, Rules, Scope
from benchmarks.quality.sample import METRICS

MOST_NAMES = 12  # of a confusion table that fits a terminal
MOST_LISTED = 20  # flips, or confused pairs where there is no table
_IN_TABLE = ("accuracy", "macro_f1", "brier", "log_loss", "ece", "score_mae_levels", "coverage")


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of columns under a first row of headings."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    return [lines[0].rstrip(), "-" * len(lines[0]), *(line.rstrip() for line in lines[1:])]


def shown(figure: Figure | None, *, interval: bool = False) -> str:
    """Four digits, and if asked the interval."""
    if figure is None:
        return "-"
    if not interval or figure.interval is None:
        return f"{figure.value:.4f}"
    return f"{figure.value:.4f} [{figure.interval.low:.4f}, {figure.interval.high:.4f}]"


def figures_table(scopes: Mapping[str, Scope], rules: Rules) -> list[str]:
    """All metrics overall with their intervals, then a line for each scope."""
    overall = scopes[OVERALL]
    lines = [
        f"{metric:17} {shown(overall.figures.get(metric), interval=True)}"
        for metric in METRICS
        if metric in overall.figures
    ]
    rows: list[Sequence[str]] = [("", "records", "decisions", *_IN_TABLE, "threshold")]
    for name, scope in scopes.items():
        threshold = scope.automatic.threshold
        rows.append(
            (
                name,
                str(scope.records),
                str(len(scope.sample)),
                *(shown(scope.figures.get(metric)) for metric in _IN_TABLE),
                "-" if threshold is None else f"{threshold:.4f}",
            )
        )
    note = f"coverage: decided by a threshold on the top probability, {rules.target_precision:g} of it correctly"
    return [*lines, "", *aligned(rows), note]


def confusion_rows(confusion: Confusion) -> list[list[str]]:
    """A row for each label, a column for each answer."""
    header = ["label \\ answer", *confusion.names]
    body = [
        [label, *(str(confusion.counts.get((label, answer), 0)) for answer in confusion.names)]
        for label in confusion.names
    ]
    return [header, *body]


def confused_rows(confusion: Confusion, most: int) -> list[list[str]]:
    """The pairs of label and wrong answer, the most frequent first."""
    wrong = [(count, label, answer) for (label, answer), count in confusion.counts.items() if label != answer]
    wrong.sort(key=lambda pair: -pair[0])
    return [["label", "answer", "times"], *([label, answer, str(count)] for count, label, answer in wrong[:most])]


def confusion_lines(scopes: Mapping[str, Scope]) -> Iterator[str]:
    """For each question its table, or where that is too wide what is confused most."""
    for name, scope in scopes.items():
        if scope.confusion is None:
            continue
        small = len(scope.confusion.names) <= MOST_NAMES
        rows = confusion_rows(scope.confusion) if small else confused_rows(scope.confusion, MOST_LISTED)
        yield ""
        yield f"{name}, {'labels by answers' if small else 'what is confused most'}"
        yield from aligned(rows)


def comparison_lines(comparison: Comparison, differences: Mapping[str, Mapping[str, Figure]]) -> Iterator[str]:
    """Agreement, the differences of the metrics, and the flips with the largest margins."""
    agreement = "-" if comparison.agreement is None else f"{comparison.agreement:.4f}"
    yield f"{comparison.questions} questions answered by both, {comparison.one_sided} by one alone"
    yield f"same top option {agreement}, max |dp| {comparison.max_abs_dp:.2e}, mean |dp| {comparison.mean_abs_dp:.2e}"
    if overall := differences.get(OVERALL):
        yield "the second server less the first:"
        yield from (f"{metric:17} {shown(figure, interval=True)}" for metric, figure in overall.items())
    if comparison.flips:
        yield ""
        yield from aligned(flip_rows(comparison, MOST_LISTED))
    if len(comparison.flips) > MOST_LISTED:
        yield f"and {len(comparison.flips) - MOST_LISTED} more flips, with smaller margins"


def flip_rows(comparison: Comparison, most: int | None = None) -> list[list[str]]:
    """A row for each flip."""
    header = ["record", "question", "first", "margin", "second", "margin"]
    return [
        header,
        *(
            [
                flip.record_name,
                flip.question,
                flip.left,
                f"{flip.left_margin:.4f}",
                flip.right,
                f"{flip.right_margin:.4f}",
            ]
            for flip in comparison.flips[:most]
        ),
    ]


def figures_json(figures: Mapping[str, Figure]) -> dict[str, Any]:
    """By metric `value`, `low`, `high`."""
    return {
        metric: {
            "value": figure.value,
            "low": figure.interval and figure.interval.low,
            "high": figure.interval and figure.interval.high,
        }
        for metric, figure in figures.items()
    }


def scope_json(scope: Scope) -> dict[str, Any]:
    """One scope; its confusion as `[label, answer, times]` for each pair that occurs."""
    bins = scope.sample.reliability()
    found: dict[str, Any] = {
        "records": scope.records,
        "decisions": len(scope.sample),
        **figures_json(scope.figures),
        "automatic": asdict(scope.automatic),
        "reliability": {
            "decisions": bins.counts_N.tolist(),
            "mean_confidence": bins.confidence_N.tolist(),
            "accuracy": bins.accuracy_N.tolist(),
        },
    }
    if scope.confusion is not None:
        found["confusion"] = [[*pair, count] for pair, count in scope.confusion.counts.items()]
    return found


def comparison_json(comparison: Comparison, differences: Mapping[str, Mapping[str, Figure]]) -> dict[str, Any]:
    """All of it, every flip included."""
    return {
        "questions": comparison.questions,
        "one_sided": comparison.one_sided,
        "agreement": comparison.agreement,
        "max_abs_dp": comparison.max_abs_dp,
        "mean_abs_dp": comparison.mean_abs_dp,
        "flips": [asdict(flip) for flip in comparison.flips],
        "differences": {name: figures_json(figures) for name, figures in differences.items()},
    }
