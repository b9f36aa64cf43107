"""How two sets of answers to the same questions differ. Knows no server, no label and no tolerance but the caller's.

A *flip* is a question whose top option differs. Its margin is how far the top option is ahead on the side where it is
further ahead: a flip with a small margin is a near tie that rounding decided.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.quality.decisions import Decision


@dataclass(frozen=True, kw_only=True)
class Flip:
    """A question that the two sides answer differently."""

    record_name: str
    question: str
    left: str
    right: str
    left_margin: float
    right_margin: float

    @property
    def margin(self) -> float:
        """The larger of the two."""
        return max(self.left_margin, self.right_margin)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Both sides, question by question.

    Attributes:
        questions: how many both sides answered.
        one_sided: how many only one of them did.
        flips: the largest margin first.
        max_abs_dp, mean_abs_dp: |p - p'| over all options of all questions; 0 of none.
    """

    questions: int
    one_sided: int
    flips: Sequence[Flip]
    max_abs_dp: float
    mean_abs_dp: float

    @property
    def agreement(self) -> float | None:
        """The share of questions with the same top option."""
        return 1 - len(self.flips) / self.questions if self.questions else None


def compare(left: Sequence[Decision], right: Sequence[Decision]) -> Comparison:
    """Compare the answers to the same records.

    Raises:
        ValueError: a question has other options on the two sides.
    """
    ours, theirs = _by_question(left), _by_question(right)
    flips, differences = [], []
    for key in ours.keys() & theirs.keys():
        one, other = ours[key], theirs[key]
        if one.options != other.options:
            raise ValueError(f"{one.record_name}, question {one.question}: the two sides have other options")
        differences += [abs(p - q) for p, q in zip(one.probabilities, other.probabilities, strict=True)]
        if one.top != other.top:
            flips.append(
                Flip(
                    record_name=one.record_name,
                    question=one.question,
                    left=one.answer,
                    right=other.answer,
                    left_margin=one.margin,
                    right_margin=other.margin,
                )
            )
    return Comparison(
        questions=len(ours.keys() & theirs.keys()),
        one_sided=len(ours.keys() ^ theirs.keys()),
        flips=sorted(flips, key=lambda flip: (-flip.margin, flip.record_name, flip.question)),
        max_abs_dp=max(differences, default=0.0),
        mean_abs_dp=sum(differences) / len(differences) if differences else 0.0,
    )


def in_both(left: Sequence[Decision], right: Sequence[Decision]) -> tuple[list[Decision], list[Decision]]:
    """The decisions on questions that both sides answered, in the order of the left side."""
    ours, theirs = _by_question(left), _by_question(right)
    shared = [key for key in ours if key in theirs]
    return [ours[key] for key in shared], [theirs[key] for key in shared]


def what_differs(paths: Mapping[str, Sequence[Decision]], *, margin: float) -> list[str]:
    """A line for each way in which answers differ from those of the first path, beyond near ties.

    For a test that one checkpoint answers the same on every path of computation. Nothing differs if every path answers the
    questions that the first does, with the same top option wherever that is ahead by more than `margin` on either path.

    Args:
        paths: the answers to the same records, by what the path is called, such as `cold` and `cached`.
        margin: a difference of probabilities.
    """
    (reference_name, reference), *others = paths.items()
    lines = []
    for name, decisions in others:
        found = compare(reference, decisions)
        if found.one_sided:
            lines.append(f"{name}: {found.one_sided} questions have no answer here, or none on {reference_name}")
        lines += [
            f"{name}: {flip.record_name}, {flip.question}: {flip.right} (ahead by {flip.right_margin:.4f}), "
            f"on {reference_name} {flip.left} (ahead by {flip.left_margin:.4f})"
            for flip in found.flips
            if flip.margin > margin
        ]
    return lines


def _by_question(decisions: Sequence[Decision]) -> dict[tuple[int, str], Decision]:
    found = {(decision.record, decision.question): decision for decision in decisions}
    assert len(found) == len(decisions), "a question is decided twice"
    return found
