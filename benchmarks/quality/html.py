"""The figures as a page with reliability diagrams, coverage curves and confusion tables. Of a record it shows the id alone."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from markupsafe import Markup
from matplotlib.figure import Figure as Plot

from benchmarks._report import Section, Table, page, svg
from benchmarks.quality.asking import Failure
from benchmarks.quality.compare import Comparison
from benchmarks.quality.measuring import OVERALL, Figure, Rules, Scope
from benchmarks.quality.sample import METRICS, Sample
from benchmarks.quality.tables import confused_rows, confusion_rows, flip_rows, shown

MOST_NAMES = 20  # of a confusion table; where a question has more, the pairs confused most are listed
MOST_PAIRS = 50


def report(
    about: Mapping[str, str],
    scopes: Mapping[str, Scope],
    rules: Rules,
    *,
    failures: Sequence[Failure] = (),
    behind: Sequence[str] | None = None,
    compared: tuple[Comparison, Mapping[str, Mapping[str, Figure]]] | None = None,
) -> str:
    """The page.

    Args:
        about: what was asked of whom, in words.
        failures: records without answer.
        behind: what is worse than the baseline; None without one.
        compared: what another server answered instead.
    """
    sections = [Section(heading="What was asked", tables=[_table(["", ""], about.items())])]
    if failures:
        rows = [[failure.record_name, failure.reason] for failure in failures]
        sections.append(Section(heading="Records without answer", tables=[_table(["record", "reason"], rows)]))
    if behind is not None:
        said = behind or ["No figure is worse than the baseline's by more than its tolerance."]
        sections.append(Section(heading="Against the baseline", paragraphs=said))
    sections.append(_figures(scopes, rules))
    sections += _plots(scopes, rules)
    if compared is not None:
        sections.append(_compared(*compared))
    sections += _confusions(scopes)
    return page("Quality of answers", sections)


def _table(header: Sequence[object], rows: Iterable[Sequence[object]], caption: str = "") -> Table:
    return Table(header=header, rows=list(rows), caption=caption)


def _figures(scopes: Mapping[str, Scope], rules: Rules) -> Section:
    rows = [
        [
            name,
            scope.records,
            len(scope.sample),
            *(shown(scope.figures.get(metric), interval=True) for metric in METRICS),
            "-" if scope.automatic.threshold is None else f"{scope.automatic.threshold:.4f}",
        ]
        for name, scope in scopes.items()
    ]
    text = (
        f"In brackets 95% intervals, percentiles of {rules.drawings} bootstrap drawings of records. Confidence is the top "
        "option's probability. Accuracy and macro-F1 are of the top option, F1 over the options of each question id. Brier is "
        "the sum over options, from 0 to 2; log loss is in nats. ECE is the mean distance of confidence and accuracy over "
        f"{rules.bins} bins, of equal width or of equal numbers; on few decisions it is too large by chance. Score MAE is the "
        "distance of expected level and label, in levels. Coverage is the largest share of decisions that a threshold on "
        f"confidence, the last column, picks with a precision of {rules.target_precision:g} or more; it was chosen on these "
        "very decisions."
    )
    header = ["", "records", "decisions", *METRICS, "threshold"]
    return Section(heading="Figures", paragraphs=[text], tables=[_table(header, rows)])


def _plots(scopes: Mapping[str, Scope], rules: Rules) -> Iterator[Section]:
    for name, scope in scopes.items():
        if name == OVERALL or name.startswith(("type:", "group:")):
            plots = [_reliability(scope.sample), _coverage(scope.sample, rules)]
            yield Section(heading=f"Confidence and coverage, {name}", plots=plots)


def _reliability(sample: Sample) -> Markup:
    bins = sample.reliability()
    plot = Plot(figsize=(5.2, 4))
    axes = plot.add_subplot()
    axes.plot([0, 1], [0, 1], color="0.7", linestyle="--", linewidth=1)
    axes.plot(bins.confidence_N, bins.accuracy_N, marker="o")
    for confidence, accuracy, count in zip(bins.confidence_N, bins.accuracy_N, bins.counts_N, strict=True):
        axes.annotate(str(count), (confidence, accuracy), xytext=(4, -10), textcoords="offset points", fontsize=8)
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="mean confidence (decisions beside)", ylabel="accuracy")
    return svg(plot)


def _coverage(sample: Sample, rules: Rules) -> Markup:
    share, precision = sample.precision_by_coverage()
    plot = Plot(figsize=(5.2, 4))
    axes = plot.add_subplot()
    axes.plot(share, precision)
    axes.axhline(rules.target_precision, color="0.7", linestyle="--", linewidth=1)
    axes.set(xlim=(0, 1), ylim=(None, 1.01), xlabel="share decided", ylabel="precision")
    return svg(plot)


def _compared(comparison: Comparison, differences: Mapping[str, Mapping[str, Figure]]) -> Section:
    agreement = "-" if comparison.agreement is None else f"{comparison.agreement:.4f}"
    text = (
        f"{comparison.questions} questions were answered by both servers, {comparison.one_sided} by one alone. The share with "
        f"the same top option is {agreement}; max |dp| is {comparison.max_abs_dp:.2e}, mean |dp| {comparison.mean_abs_dp:.2e}."
    )
    rows = [
        [name, *(shown(figures.get(metric), interval=True) for metric in METRICS)]
        for name, figures in differences.items()
    ]
    header, *flips = flip_rows(comparison)
    tables = [
        _table(["", *METRICS], rows, "The second server less the first, with 95% intervals of the difference"),
        _table(header, flips, f"Flips: {len(flips)}"),
    ]
    return Section(heading="The two servers", paragraphs=[text], tables=tables)


def _confusions(scopes: Mapping[str, Scope]) -> Iterator[Section]:
    for name, scope in scopes.items():
        if scope.confusion is None:
            continue
        small = len(scope.confusion.names) <= MOST_NAMES
        header, *rows = confusion_rows(scope.confusion) if small else confused_rows(scope.confusion, MOST_PAIRS)
        kind = "Labels by answers" if small else "What is confused most"
        yield Section(heading=f"{kind}, {name}", tables=[_table(header, rows)])
