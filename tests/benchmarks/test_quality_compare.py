"""Two sets of answers: flips, distances, and what a gate on paths of computation says of them."""

from collections.abc import Sequence

import pytest

from benchmarks.quality.compare import Flip, compare, in_both, what_differs
from benchmarks.quality.decisions import Decision
from benchmarks.quality.measuring import Rules, differences


def decision(
    record: int, probabilities: Sequence[float], *, question: str = "team", label: int | None = None
) -> Decision:
    return Decision(
        record=record,
        record_name=f"r{record}",
        question=question,
        question_type="choice",
        options=("sales", "billing", "legal")[: len(probabilities)],
        probabilities=tuple(probabilities),
        label=label,
    )


LEFT = [decision(0, [0.6, 0.4]), decision(1, [0.502, 0.498]), decision(2, [0.2, 0.3, 0.5]), decision(3, [1.0, 0.0])]
RIGHT = [decision(0, [0.25, 0.75]), decision(1, [0.497, 0.503]), decision(2, [0.2, 0.3, 0.5])]


def test_flips_come_with_both_answers_and_margins_the_largest_first() -> None:
    found = compare(LEFT, RIGHT)
    assert found.flips == [
        Flip(
            record_name="r0",
            question="team",
            left="sales",
            right="billing",
            left_margin=pytest.approx(0.2),
            right_margin=pytest.approx(0.5),
        ),
        Flip(
            record_name="r1",
            question="team",
            left="sales",
            right="billing",
            left_margin=pytest.approx(0.004),
            right_margin=pytest.approx(0.006),
        ),
    ]
    assert [flip.margin for flip in found.flips] == pytest.approx([0.5, 0.006])
    assert (found.questions, found.one_sided, found.agreement) == (3, 1, pytest.approx(1 / 3))
    assert found.max_abs_dp == pytest.approx(0.35)
    assert found.mean_abs_dp == pytest.approx((2 * 0.35 + 2 * 0.005 + 0) / 7)


def test_nothing_in_common_has_no_agreement() -> None:
    found = compare(LEFT[:1], RIGHT[1:])
    assert (found.questions, found.one_sided, found.agreement, found.max_abs_dp, found.mean_abs_dp) == (
        0,
        3,
        None,
        0,
        0,
    )


def test_other_options_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="r2, question team: the two sides have other options"):
        compare(LEFT, [decision(2, [0.5, 0.5])])


def test_answers_that_both_have_are_paired_in_the_order_of_the_first() -> None:
    left, right = in_both(LEFT, list(reversed(RIGHT)))
    assert [one.record for one in left] == [one.record for one in right] == [0, 1, 2]


def test_paths_differ_where_the_top_option_does_beyond_the_margin() -> None:
    paths = {"cold": LEFT[:3], "cached": RIGHT, "batched": LEFT[:3]}
    assert what_differs(paths, margin=0.01) == [
        "cached: r0, team: billing (ahead by 0.5000), on cold sales (ahead by 0.2000)"
    ]
    assert what_differs(paths, margin=0.5) == []
    assert len(what_differs(paths, margin=0.001)) == 2


def test_a_path_that_lacks_an_answer_differs() -> None:
    assert what_differs({"cold": LEFT, "cached": LEFT[1:]}, margin=0.01) == [
        "cached: 1 questions have no answer here, or none on cold"
    ]


def test_differences_are_of_the_second_less_the_first_over_what_both_answered() -> None:
    left = [decision(record, [0.9, 0.1], label=int(record < 2)) for record in range(5)]
    right = [decision(record, [0.1, 0.9], label=int(record < 2)) for record in range(4)]
    found = differences(left, right, Rules(drawings=50))
    assert list(found) == ["overall", "type:choice", "question:team"]
    # Of the four records that both answered the first side has two right, and the second the other two.
    assert found["overall"]["accuracy"].value == 0
    assert "score_mae_levels" not in found["overall"]
    interval = found["overall"]["accuracy"].interval
    assert interval is not None
    assert (interval.low, interval.high) != (0, 0)


def test_without_labels_there_are_no_differences() -> None:
    assert differences(LEFT, RIGHT, Rules(drawings=5)) == {}
