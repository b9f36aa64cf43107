"""Measures a network on labelled records: accuracy, distance of scores, calibration; and sets its one temperature.

Knows nothing of training. Shapes: Q questions, N the most options of one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from launch.mini.batches import Example, by_length
from launch.mini.losses import padded
from launch.mini.network import ClefNetwork

_BATCH_TOKENS = 8192
_BINS = 15


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """Logits, right options, and of each question its type and its record's id without the number."""

    logits_QN: Tensor
    labels_Q: Tensor
    types: list[str]
    groups: list[str]

    def of(self, kind: str, group: str) -> "Decisions":
        """Those of one type whose group begins so; an empty text means any."""
        kept = [
            index
            for index, (one, name) in enumerate(zip(self.types, self.groups, strict=True))
            if one.startswith(kind) and name.startswith(group)
        ]
        rows = torch.tensor(kept, dtype=torch.long)
        return Decisions(
            logits_QN=self.logits_QN[rows],
            labels_Q=self.labels_Q[rows],
            types=[self.types[index] for index in kept],
            groups=[self.groups[index] for index in kept],
        )

    def accuracy(self) -> float:
        """The share of questions whose most probable option is the right one."""
        return float((self.logits_QN.argmax(-1) == self.labels_Q).float().mean())

    def mean_absolute_error(self) -> float:
        """The mean distance of the expected level from the right one, in levels."""
        levels = torch.arange(self.logits_QN.shape[-1]).float()
        return float(((self.logits_QN.softmax(-1) * levels).sum(-1) - self.labels_Q).abs().mean())

    def calibration_error(self) -> float:
        """Expected calibration error of the most probable option over 15 equal bins of its probability."""
        surest_Q, option_Q = self.logits_QN.softmax(-1).max(-1)
        right_Q = (option_Q == self.labels_Q).float()
        bins_Q = (surest_Q * _BINS).long().clamp(max=_BINS - 1)
        gaps = torch.zeros(_BINS).index_add_(0, bins_Q, right_Q - surest_Q)
        return float(gaps.abs().sum() / len(surest_Q))


def decide(network: ClefNetwork, examples: Sequence[Example]) -> Decisions:
    """Ask the network every question."""
    logits: list[Tensor] = []
    asked: list[tuple[int, str, str]] = []
    with torch.no_grad():
        for batch in by_length(examples, _BATCH_TOKENS):
            for example, of_prompt in zip(batch, network([one.prompt for one in batch]), strict=True):
                logits += (values.float() for values in of_prompt)
                group = example.identity.rsplit("/", 1)[0]
                asked += ((label, kind, group) for label, kind in zip(example.labels, example.types, strict=True))
    labels, types, groups = zip(*asked, strict=True)
    return Decisions(logits_QN=padded(logits), labels_Q=torch.tensor(labels), types=list(types), groups=list(groups))


def report(decisions: Decisions) -> dict[str, float]:
    """The figures of the table in README.md, and each domain's, on held-out records."""
    found = {
        "choice_accuracy_seen": decisions.of("choice", "seen").accuracy(),
        "choice_accuracy_unseen": decisions.of("choice", "unseen").accuracy(),
        "noul_accuracy": decisions.of("noul", "").accuracy(),
        "score_mean_absolute_error": decisions.of("score", "").mean_absolute_error(),
        "expected_calibration_error": decisions.calibration_error(),
        "questions": len(decisions.types),
    }
    for kind, group in sorted(set(zip(decisions.types, decisions.groups, strict=True))):
        some = decisions.of(kind, group)
        name = f"{group}/{kind}"
        found[name] = some.mean_absolute_error() if kind == "score" else some.accuracy()
    return {name: round(value, 4) for name, value in found.items()}


def best_scale(decisions: Decisions) -> float:
    """What to multiply every logit by for the least cross-entropy; of records that are neither trained nor tested on."""

    def entropy(log_scale: float) -> float:
        return float(F.cross_entropy(decisions.logits_QN * math.exp(log_scale), decisions.labels_Q))

    low, high = math.log(0.25), math.log(4.0)
    for _ in range(40):  # cross-entropy is convex in the scale
        third = (high - low) / 3
        if entropy(low + third) < entropy(high - third):
            high -= third
        else:
            low += third
    return math.exp((low + high) / 2)


def scale_logits(network: ClefNetwork, scale: float) -> None:
    """Multiply every logit by `scale`, in the weights of the head."""
    head, last = network.head, network.head.residual_scorer[-1]
    assert isinstance(last, torch.nn.Linear)
    with torch.no_grad():
        head.prior_logit_scale.add_(math.log(scale))
        head.joint_logit_scale.add_(math.log(scale))
        last.weight.mul_(scale)
        last.bias.mul_(scale)
