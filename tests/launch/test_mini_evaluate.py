"""What clef-mini is measured by."""

import math

import pytest
import torch

from launch.mini import generate
from launch.mini.evaluate import Decisions, best_scale, decide, report, scale_logits
from tests.launch.mini_fakes import micro_trainer


def decisions(probabilities: list[list[float]], labels: list[int], types: list[str] | None = None) -> Decisions:
    return Decisions(
        logits_QN=torch.tensor(probabilities).log(),
        labels_Q=torch.tensor(labels),
        types=types or ["choice"] * len(labels),
        groups=["seen/x"] * len(labels),
    )


def test_accuracy_and_distance() -> None:
    found = decisions([[0.9, 0.1, 0.0], [0.25, 0.5, 0.25]], [0, 2])
    assert found.accuracy() == 0.5
    assert found.mean_absolute_error() == pytest.approx((0.1 + 1.0) / 2)


def test_calibration_error_is_the_gap_between_confidence_and_accuracy() -> None:
    assert decisions([[0.8, 0.2]] * 5, [0, 0, 0, 0, 1]).calibration_error() == pytest.approx(0.0, abs=1e-6)
    assert decisions([[0.8, 0.2]] * 5, [0, 0, 1, 1, 1]).calibration_error() == pytest.approx(0.4, abs=1e-6)
    # Bins are told apart: too sure here and too unsure there does not cancel out.
    assert decisions([[0.95, 0.05], [0.55, 0.45]], [1, 0]).calibration_error() == pytest.approx(0.7, abs=1e-6)


def test_the_best_scale_undoes_a_wrong_temperature() -> None:
    honest = [[0.75, 0.25]] * 4
    labels = [0, 0, 0, 1]
    found = decisions(honest, labels)
    sharp = Decisions(logits_QN=found.logits_QN * 3, labels_Q=found.labels_Q, types=found.types, groups=found.groups)
    assert best_scale(sharp) == pytest.approx(1 / 3, rel=1e-3)


def test_scaling_the_head_scales_every_logit() -> None:
    trainer = micro_trainer()
    prompt = trainer.encoder.encode(generate.record("heldout", 0)).prompt
    with torch.no_grad():
        before = torch.cat(trainer.network([prompt])[0])
        scale_logits(trainer.network, 1.7)
        after = torch.cat(trainer.network([prompt])[0])
    torch.testing.assert_close(after, before * 1.7, atol=1e-5, rtol=1e-4)


def test_a_report_covers_every_domain_and_split() -> None:
    trainer = micro_trainer()
    found = report(decide(trainer.network, [trainer.encoder.encode(one) for one in generate.records("heldout", 40)]))
    assert {name for name in found if "/" not in name} == {
        "choice_accuracy_seen",
        "choice_accuracy_unseen",
        "noul_accuracy",
        "score_mean_absolute_error",
        "expected_calibration_error",
        "questions",
    }
    assert {
        f"{split}/{domain}/choice"
        for split in ("seen", "unseen")
        for domain in ("tickets", "invoices", "alerts", "tools")
    } <= set(found)
    assert all(math.isfinite(value) for value in found.values())
