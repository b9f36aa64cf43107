"""Labelled decisions as arrays, and every figure of quality over them, for the decisions as they are or drawn again.

Knows nothing of records, servers or reports. Shapes: D decisions, O options (padded with probability 0), C classes, B draws,
N bins. A drawing is a weight for each decision, so that one product of matrices takes the figures of many drawings at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.metrics import accuracy_score, brier_score_loss, f1_score, log_loss, mean_absolute_error

from benchmarks.quality.decisions import Decision

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Whether more is better. Shares are of 1; `score_mae_levels` is in levels.
METRICS: Mapping[str, bool] = {
    "accuracy": True,
    "macro_f1": True,
    "brier": False,
    "log_loss": False,
    "ece": False,
    "ece_equal_mass": False,
    "score_mae_levels": False,
    "coverage": True,
}


@dataclass(frozen=True, kw_only=True)
class Automatic:
    """What can be decided without a person: decisions whose confidence is at least the threshold."""

    decided: int
    threshold: float | None = None
    precision: float | None = None


@dataclass(frozen=True, kw_only=True)
class Bins:
    """A reliability diagram: for each bin of confidence that holds any, how many, their mean confidence and accuracy."""

    counts_N: Ints
    confidence_N: Floats
    accuracy_N: Floats


class Sample:
    """Decisions that all have a label.

    Confidence is the top option's probability. Source of the definitions:

    - `accuracy`: the top option is the label's. `macro_f1`: the mean of F1 over the classes that occur as label or answer; a
      class is an option of a question id, so that `yes` of two questions are two classes.
    - `brier`: the sum over options of (p - y)^2, from 0 to 2 (Brier 1950). `log_loss`: -ln p of the label.
    - `ece`: Guo et al. 2017, the mean of |accuracy - mean confidence| over bins of equal width, weighted by their decisions.
      `ece_equal_mass`: the same over bins of as nearly equal numbers of decisions as ties allow (Nguyen and O'Connor 2015).
    - `score_mae_levels`: |expected level - label| of score questions alone.
    - `coverage`: the largest share of decisions that a threshold on confidence picks with at least the target precision.
    """

    def __init__(self, decisions: Sequence[Decision], *, target_precision: float, bins: int) -> None:
        labels = [decision.label for decision in decisions]
        assert decisions, "a sample of nothing"
        assert None not in labels, "a sample is of labelled decisions"
        self.record_D: Ints = np.array([decision.record for decision in decisions])
        self.label_D: Ints = np.array(labels, dtype=np.int64)
        self.top_D: Ints = np.array([decision.top for decision in decisions])
        self.confidence_D: Floats = np.array([decision.confidence for decision in decisions])
        self.correct_D: Floats = (self.label_D == self.top_D).astype(np.float64)
        most = max(len(decision.options) for decision in decisions)
        self.p_DO: Floats = np.zeros((len(decisions), most))
        for row, decision in zip(self.p_DO, decisions, strict=True):
            row[: len(decision.probabilities)] = decision.probabilities
        self._is_score_D = np.array([decision.question_type == "score" for decision in decisions])
        classes: dict[tuple[str, str], int] = {}
        self._label_class_D, self._top_class_D = (
            np.array([classes.setdefault((one.question, one.options[index]), len(classes)) for one, index in pairs])
            for pairs in (
                list(zip(decisions, self.label_D.tolist(), strict=True)),
                list(zip(decisions, self.top_D.tolist(), strict=True)),
            )
        )
        self._classes = len(classes)
        right_DO = np.zeros_like(self.p_DO)
        right_DO[np.arange(len(decisions)), self.label_D] = 1
        self._brier_D: Floats = ((self.p_DO - right_DO) ** 2).sum(axis=1)
        # Bounded as scikit-learn does it, so that one impossible answer does not make the mean infinite.
        eps = float(np.finfo(np.float64).eps)
        self._log_loss_D: Floats = -np.log(np.clip((self.p_DO * right_DO).sum(axis=1), eps, 1 - eps))
        self._level_D: Floats = self.p_DO @ np.arange(most)
        self._target_precision = target_precision
        self._by_confidence_D: Ints = np.argsort(-self.confidence_D, kind="stable")
        # Where a threshold can be: the last, in that order, of those that are equally confident.
        ordered = self.confidence_D[self._by_confidence_D]
        self._ends: Ints = np.append(np.flatnonzero(np.diff(ordered)), len(decisions) - 1)
        self._edges = {
            "ece": np.linspace(0, 1, bins + 1),
            "ece_equal_mass": np.unique(np.quantile(self.confidence_D, np.linspace(0, 1, bins + 1))),
        }

    def __len__(self) -> int:
        return len(self.label_D)

    def figures(self) -> dict[str, float | None]:
        """Each of METRICS of the decisions as they are; None where there is no score question."""
        columns = range(self.p_DO.shape[1])
        score = self._is_score_D
        ones = np.ones((1, len(self)))
        return {
            "accuracy": float(accuracy_score(self.label_D, self.top_D)),
            "macro_f1": float(f1_score(self._label_class_D, self._top_class_D, average="macro")),
            "brier": float(brier_score_loss(self.label_D, self.p_DO, labels=columns, scale_by_half=False)),
            "log_loss": float(log_loss(self.label_D, self.p_DO, labels=columns)),
            "ece": float(self._calibration_error("ece", ones)[0]),
            "ece_equal_mass": float(self._calibration_error("ece_equal_mass", ones)[0]),
            "score_mae_levels": float(mean_absolute_error(self.label_D[score], self._level_D[score]))
            if score.any()
            else None,
            "coverage": float(self._coverage(ones)[0]),
        }

    def drawn(self, weights_BD: Floats) -> dict[str, Floats]:
        """Each of METRICS of each drawing, in which a decision counts as often as its weight says.

        NaN where a drawing has nothing to measure.
        """
        score = self._is_score_D.astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            total_B = weights_BD.sum(axis=1)
            return {
                "accuracy": weights_BD @ self.correct_D / total_B,
                "macro_f1": self._macro_f1(weights_BD),
                "brier": weights_BD @ self._brier_D / total_B,
                "log_loss": weights_BD @ self._log_loss_D / total_B,
                "ece": self._calibration_error("ece", weights_BD),
                "ece_equal_mass": self._calibration_error("ece_equal_mass", weights_BD),
                "score_mae_levels": weights_BD @ (score * np.abs(self._level_D - self.label_D)) / (weights_BD @ score),
                "coverage": self._coverage(weights_BD),
            }

    def automatic(self) -> Automatic:
        """The threshold behind `coverage`."""
        cut, precision = self._cuts(np.ones((1, len(self))))
        good = np.flatnonzero(precision[0] >= self._target_precision)
        if not good.size:
            return Automatic(decided=0)
        last = good[-1]
        return Automatic(
            decided=int(cut[0, last]),
            threshold=float(self.confidence_D[self._by_confidence_D][self._ends][last]),
            precision=float(precision[0, last]),
        )

    def reliability(self) -> Bins:
        """The bins of `ece` that hold a decision."""
        counts, confidence, correct = (total[0] for total in self._in_bins("ece", np.ones((1, len(self)))))
        held = counts > 0
        return Bins(
            counts_N=counts[held].astype(np.int64),
            confidence_N=confidence[held] / counts[held],
            accuracy_N=correct[held] / counts[held],
        )

    def precision_by_coverage(self) -> tuple[Floats, Floats]:
        """Share decided and its precision, at each threshold that can be set, the highest first."""
        cut, precision = self._cuts(np.ones((1, len(self))))
        return cut[0] / len(self), precision[0]

    def _cuts(self, weights_BD: Floats) -> tuple[Floats, Floats]:
        """How many a threshold at each of `_ends` decides, and with what precision."""
        ordered = weights_BD[:, self._by_confidence_D]
        decided = ordered.cumsum(axis=1)[:, self._ends]
        correct = (ordered * self.correct_D[self._by_confidence_D]).cumsum(axis=1)[:, self._ends]
        return decided, correct / decided

    def _coverage(self, weights_BD: Floats) -> Floats:
        decided, precision = self._cuts(weights_BD)
        coverage_B: Floats = np.where(precision >= self._target_precision, decided, 0).max(axis=1) / weights_BD.sum(
            axis=1
        )
        return coverage_B

    def _in_bins(self, edges: str, weights_BD: Floats) -> tuple[Floats, Floats, Floats]:
        """Decisions, their confidence and the correct ones, summed by bin; a bin is open below and closed above."""
        inner = self._edges[edges][1:-1]
        bin_D = np.searchsorted(inner, self.confidence_D)
        member_DN = np.zeros((len(self), len(inner) + 1))
        member_DN[np.arange(len(self)), bin_D] = 1
        return (
            weights_BD @ member_DN,
            weights_BD @ (member_DN * self.confidence_D[:, None]),
            weights_BD @ (member_DN * self.correct_D[:, None]),
        )

    def _calibration_error(self, edges: str, weights_BD: Floats) -> Floats:
        _, confidence, correct = self._in_bins(edges, weights_BD)
        return np.asarray(np.abs(correct - confidence).sum(axis=1) / weights_BD.sum(axis=1))

    def _macro_f1(self, weights_BD: Floats) -> Floats:
        def by_class(class_D: Ints, value_D: Floats) -> Floats:
            member_CD = csr_array((value_D, (class_D, np.arange(len(self)))), (self._classes, len(self)))
            return np.asarray((member_CD @ weights_BD.T).T)

        ones_D = np.ones(len(self))
        hits_BC = by_class(self._label_class_D, self.correct_D)
        occurs_BC = by_class(self._label_class_D, ones_D) + by_class(self._top_class_D, ones_D)
        f1_BC = np.divide(2 * hits_BC, occurs_BC, out=np.zeros_like(hits_BC), where=occurs_BC > 0)
        mean: Floats = f1_BC.sum(axis=1) / (occurs_BC > 0).sum(axis=1)
        return mean
