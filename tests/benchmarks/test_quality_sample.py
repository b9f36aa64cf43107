"""Figures on cases small enough to work out by hand, against scikit-learn, and against the plainest code there is."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve

from benchmarks.quality.decisions import Decision
from benchmarks.quality.intervals import Drawings
from benchmarks.quality.sample import METRICS, Sample


def decision(
    probabilities: Sequence[float], label: int, *, kind: str = "choice", question: str = "q", record: int = 0
) -> Decision:
    return Decision(
        record=record,
        record_name=f"r{record}",
        question=question,
        question_type=kind,
        options=tuple(str(index) for index in range(len(probabilities))),
        probabilities=tuple(probabilities),
        label=label,
    )


def sample(decisions: Sequence[Decision], *, target: float = 0.99, bins: int = 10) -> Sample:
    return Sample(decisions, target_precision=target, bins=bins)


HAND = [
    decision([0.8, 0.2], 0, kind="noul", question="urgent", record=0),
    decision([0.3, 0.7], 0, kind="noul", question="urgent", record=1),
    decision([0.5, 0.25, 0.25], 0, kind="score", question="level", record=0),
    decision([0.25, 0.25, 0.5], 1, kind="score", question="level", record=1),
]


def test_figures_worked_out_by_hand() -> None:
    assert sample(HAND, target=0.5).figures() == pytest.approx(
        {
            "accuracy": 2 / 4,
            # urgent: true is right in 1 of 2, false is never meant; level: 0 is right, 1 never answered, 2 never meant
            "macro_f1": (2 / 3 + 0 + 1 + 0 + 0) / 5,
            "brier": (0.08 + 0.98 + 0.375 + 0.875) / 4,
            "log_loss": -(math.log(0.8) + math.log(0.3) + math.log(0.5) + math.log(0.25)) / 4,
            # 0.8 and 0.7 lie in bins of their own, the two of 0.5 in one, of which one is right
            "ece": (0.2 + 0.7 + 2 * abs(0.5 - 0.5)) / 4,
            "ece_equal_mass": (0.2 + 0.7 + 0) / 4,
            # levels expected: 0.75 for 0, and 1.25 for 1
            "score_mae_levels": (0.75 + 0.25) / 2,
            # by confidence right, wrong, then one right and one wrong: half are right of all four, too
            "coverage": 1.0,
        }
    )


def test_without_score_questions_there_is_no_error_in_levels() -> None:
    assert sample(HAND[:2]).figures()["score_mae_levels"] is None


def test_a_certain_and_wrong_answer_has_a_finite_log_loss() -> None:
    assert sample([decision([1, 0], 1)]).figures()["log_loss"] == pytest.approx(-math.log(np.finfo(float).eps))


def test_the_first_of_equals_is_the_answer() -> None:
    assert [one.answer for one in (decision([0.5, 0.5], 1), decision([0.2, 0.4, 0.4], 1))] == ["0", "1"]


def test_one_option_of_two_questions_is_two_classes() -> None:
    right = decision([0.9, 0.1], 0, question="a")
    wrong = decision([0.1, 0.9], 0, question="b")
    assert sample([right, wrong]).figures()["macro_f1"] == pytest.approx((1 + 0 + 0) / 3)


@pytest.mark.parametrize(
    ("target", "decided", "threshold", "precision"),
    [(1.0, 1, 0.9, 1.0), (0.75, 4, 0.7, 0.75), (0.8, 1, 0.9, 1.0), (0.6, 5, 0.6, 0.6)],
)
def test_the_threshold_decides_the_most_at_the_target_precision(
    target: float, decided: int, threshold: float, precision: float
) -> None:
    # Equally confident decisions are decided together: of the two of 0.8 one is wrong.
    pairs = [(0.9, True), (0.8, True), (0.8, False), (0.7, True), (0.6, False)]
    found = sample([decision([p, 1 - p], 0 if right else 1) for p, right in pairs], target=target)
    automatic = found.automatic()
    assert (automatic.decided, automatic.threshold, automatic.precision) == (decided, threshold, precision)
    assert found.figures()["coverage"] == decided / 5


def test_where_the_surest_answer_is_wrong_nothing_is_decided() -> None:
    found = sample([decision([0.9, 0.1], 1), decision([0.6, 0.4], 0)])
    assert (found.automatic().decided, found.automatic().threshold, found.figures()["coverage"]) == (0, None, 0)


grid = st.integers(0, 8)
spreads = st.lists(grid, min_size=2, max_size=4).filter(any).map(lambda parts: [part / sum(parts) for part in parts])
decisions_strategy = st.lists(
    st.builds(
        lambda spread, label, kind, question, record: decision(
            spread, label % len(spread), kind=kind, question=f"{kind}{question}", record=record
        ),
        spreads,
        grid,
        st.sampled_from(["choice", "score"]),
        st.integers(0, 1),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=12,
)
targets = st.sampled_from([0.5, 0.75, 0.9, 1.0])


@given(decisions=decisions_strategy, target=targets)
def test_coverage_is_what_trying_every_threshold_finds(decisions: list[Decision], target: float) -> None:
    shares = [0.0]
    for threshold in {one.confidence for one in decisions}:
        decided = [one for one in decisions if one.confidence >= threshold]
        if sum(one.top == one.label for one in decided) / len(decided) >= target:
            shares.append(len(decided) / len(decisions))
    assert sample(decisions, target=target).figures()["coverage"] == max(shares)


@given(decisions=decisions_strategy)
def test_the_reliability_diagram_is_scikit_learns(decisions: list[Decision]) -> None:
    bins = sample(decisions, bins=5).reliability()
    correct = [one.top == one.label for one in decisions]
    accuracy, confidence = calibration_curve(correct, [one.confidence for one in decisions], n_bins=5, pos_label=True)
    assert bins.accuracy_N == pytest.approx(accuracy)
    assert bins.confidence_N == pytest.approx(confidence)
    assert sum(bins.counts_N) == len(decisions)


@given(decisions=decisions_strategy, target=targets, data=st.data())
def test_a_drawing_has_the_figures_of_the_decisions_it_holds(
    decisions: list[Decision], target: float, data: st.DataObject
) -> None:
    counts = data.draw(
        st.lists(st.integers(0, 3), min_size=len(decisions), max_size=len(decisions)).filter(any), label="counts"
    )
    whole = sample(decisions, target=target)
    drawn = whole.drawn(np.array([counts, [1] * len(decisions)], dtype=float))
    held = [one for one, count in zip(decisions, counts, strict=True) for _ in range(count)]
    for row, figures in ((0, sample(held, target=target).figures()), (1, whole.figures())):
        for metric in METRICS:
            if metric == "ece_equal_mass" and row == 0:
                continue  # its bins are those of all decisions
            expected = figures[metric]
            assert drawn[metric][row] == pytest.approx(math.nan if expected is None else expected, nan_ok=True), metric


def test_calibrated_answers_have_a_small_calibration_error() -> None:
    generator = np.random.default_rng(0)
    spread_DO = generator.dirichlet([0.6] * 4, size=20_000)
    labels = [int(generator.choice(4, p=spread)) for spread in spread_DO]
    figures = sample([decision(spread, label) for spread, label in zip(spread_DO, labels, strict=True)]).figures()
    sure = sample(
        [decision(spread**3 / sum(spread**3), label) for spread, label in zip(spread_DO, labels, strict=True)]
    )
    assert figures["ece"] is not None
    assert figures["ece_equal_mass"] is not None
    # In 10 bins of 2,000 decisions chance alone gives about 0.01.
    assert max(figures["ece"], figures["ece_equal_mass"]) < 0.015
    assert (sure.figures()["ece"] or 0) > 0.1


def test_intervals_are_the_same_for_the_same_seed_and_hold_the_value() -> None:
    generator = np.random.default_rng(1)
    decisions = [decision([0.8, 0.2], int(generator.random() < 0.2), record=record) for record in range(400)]
    found = sample(decisions)
    first, again, other = (
        Drawings(found.record_D, drawings=500, seed=seed).intervals(found)["accuracy"] for seed in (3, 3, 4)
    )
    assert first == again != other
    assert first is not None
    # Normal approximation of the same interval.
    accuracy = found.figures()["accuracy"]
    assert accuracy is not None
    half = 1.96 * math.sqrt(accuracy * (1 - accuracy) / 400)
    assert (first.low, first.high) == pytest.approx((accuracy - half, accuracy + half), abs=0.01)


def test_records_are_drawn_and_not_their_questions() -> None:
    # Ten questions of a record are right or wrong together, so they say no more than one.
    alone = [decision([0.9, 0.1], record % 2, record=record) for record in range(50)]
    together = [
        decision([0.9, 0.1], record % 2, record=record, question=str(n)) for record in range(50) for n in range(10)
    ]
    first, second = (
        Drawings(found.record_D, drawings=200, seed=0).intervals(found)["accuracy"]
        for found in (sample(alone), sample(together))
    )
    assert first == second


def test_a_difference_is_taken_within_each_drawing() -> None:
    left = [decision([0.9, 0.1], int(record < 30), record=record) for record in range(100)]
    right = [decision([0.9, 0.1], int(record < 30), record=record) for record in range(100)]
    drawings = Drawings(sample(left).record_D, drawings=100, seed=0)
    same = drawings.intervals_of_difference(sample(left), sample(right))["accuracy"]
    assert same is not None
    assert (same.low, same.high) == (0, 0)


def test_a_figure_that_no_drawing_has_has_no_interval() -> None:
    found = sample(HAND[:2])
    assert Drawings(found.record_D, drawings=20, seed=0).intervals(found)["score_mae_levels"] is None
