"""Training clef-mini: reproducible, resumable, and learning."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from launch.mini.losses import LABEL_SMOOTHING, decision_loss, padded
from launch.mini.train import CURVE_FILE, STATE_FILE, Trainer, train
from tests.launch.mini_fakes import MICRO_RECIPE, micro_trainer


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return trainer.network.state_dict()


def equal(one: Trainer, other: Trainer) -> bool:
    return all(torch.equal(tensor, weights(other)[name]) for name, tensor in weights(one).items())


def test_two_trainings_are_equal_and_learn_something() -> None:
    one, other = micro_trainer(), micro_trainer()
    start = micro_trainer()
    assert equal(one, start)
    for _ in range(3):
        assert one.advance() == other.advance()
    assert equal(one, other)
    assert not equal(one, start)


def test_a_training_that_was_ended_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    whole, ended = micro_trainer(), micro_trainer()
    for _ in range(4):
        whole.advance()
    for _ in range(2):
        ended.advance()
    ended.save(tmp_path / STATE_FILE)
    resumed = micro_trainer()
    resumed.load(tmp_path / STATE_FILE)
    assert resumed.step == 2
    for _ in range(2):
        resumed.advance()
    assert equal(resumed, whole)
    assert [path.name for path in tmp_path.iterdir()] == [STATE_FILE]


def test_the_number_of_steps_may_change_before_the_learning_rate_falls(tmp_path: Path) -> None:
    trainer = micro_trainer()
    for _ in range(2):
        trainer.advance()
    trainer.save(tmp_path / STATE_FILE)
    longer = micro_trainer(replace(MICRO_RECIPE, steps=20))
    longer.load(tmp_path / STATE_FILE)
    with pytest.raises(ValueError, match="of another recipe"):
        micro_trainer(replace(MICRO_RECIPE, steps=2)).load(tmp_path / STATE_FILE)
    with pytest.raises(ValueError, match="of another recipe"):
        micro_trainer(replace(MICRO_RECIPE, seed=2)).load(tmp_path / STATE_FILE)


def test_the_learning_rate_rises_stays_and_falls_to_nothing() -> None:
    trainer = micro_trainer(replace(MICRO_RECIPE, steps=10, warmup_steps=2, declining=0.4))
    rates = []
    for trainer.step in range(11):
        rates.append(trainer._learning_rate())
    assert rates == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]


def test_over_the_last_steps_the_learning_rate_falls_once_more() -> None:
    trainer = micro_trainer(replace(MICRO_RECIPE, steps=24, last_steps=2, last_learning_rate=0.4, declining=0.5))
    rates = []
    for trainer.step in range(20, 25):
        rates.append(trainer._learning_rate())
    assert rates == pytest.approx([2 / 11, 1 / 11, 0.4, 0.2, 0.0])


def test_a_training_is_reported_ends_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    recipe = replace(MICRO_RECIPE, steps=3)
    straight = train(tmp_path / "straight", recipe, micro_trainer, say=said.append)
    assert "step 3/3" in said[-1]
    assert "min left" in said[-1]

    class EndedError(Exception):
        pass

    def end(trainer: Trainer, path: Path) -> None:
        save(trainer, path)
        raise EndedError

    save = Trainer.save
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "save", end)
        with pytest.raises(EndedError):
            train(tmp_path / "ended", recipe, micro_trainer, save_every=2, say=said.append)
    resumed = train(tmp_path / "ended", recipe, micro_trainer, save_every=2, say=said.append)
    assert "going on after step 2" in said
    assert equal(straight, resumed)
    curves = [(tmp_path / name / CURVE_FILE).read_text().splitlines() for name in ("straight", "ended")]
    assert [[json.loads(line)["step"] for line in curve] for curve in curves] == [[3], [3]]


def test_processes_share_a_training(tmp_path: Path) -> None:
    recipe = replace(MICRO_RECIPE, steps=4)
    start = parameters_to_vector(micro_trainer(recipe).network.parameters())
    alone = parameters_to_vector(train(tmp_path / "alone", recipe, micro_trainer).network.parameters())
    shared = parameters_to_vector(train(tmp_path / "shared", recipe, micro_trainer, processes=2).network.parameters())
    # Sums differ in their last digits, which Adam makes much of where a gradient is almost nothing.
    assert (shared - alone).norm().item() < 0.01 * (alone - start).norm().item()
    lines = [(tmp_path / name / CURVE_FILE).read_text() for name in ("alone", "shared")]
    one, other = (json.loads(line) for line in lines)
    assert one == pytest.approx(other, abs=1e-3, nan_ok=True)


def test_the_loss_is_smoothed_cross_entropy_plus_brier() -> None:
    logits = [torch.tensor([2.0, 0.0]), torch.tensor([0.0, 1.0, -1.0])]
    expected = 0.0
    for values, label in zip(logits, (0, 2), strict=True):
        wanted = torch.nn.functional.one_hot(torch.tensor(label), len(values)).float()
        entropy = torch.nn.functional.cross_entropy(values, torch.tensor(label), label_smoothing=LABEL_SMOOTHING)
        expected += float(entropy + (values.softmax(-1) - wanted).square().sum()) / 2
    found = decision_loss(padded(logits), torch.tensor([0, 2]))
    assert float(found) == pytest.approx(expected, abs=1e-6)


def test_the_loss_has_finite_gradients_where_options_are_padded() -> None:
    logits = [torch.tensor([50.0, -50.0], requires_grad=True), torch.zeros(5, requires_grad=True)]
    decision_loss(padded(logits), torch.tensor([1, 0])).backward()
    assert all(values.grad is not None and values.grad.isfinite().all() for values in logits)
