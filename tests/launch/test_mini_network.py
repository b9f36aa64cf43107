"""clef-mini's network is Qwen3.5 and the joint schema head: equal to Transformers and to the reference."""

from pathlib import Path

import pytest
import torch
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextModel, torch_chunk_gated_delta_rule

from launch.mini import generate
from launch.mini.export import export_release, load_network, rounded
from launch.mini.network import Backbone, gated_delta_rule
from tests.launch.mini_checks import difference, probabilities, reference_probabilities
from tests.launch.mini_fakes import micro_trainer


@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 130])
@pytest.mark.parametrize("repeat", [1, 2])
def test_the_gated_delta_rule_and_its_gradients_are_those_of_transformers(tokens: int, repeat: int) -> None:
    torch.manual_seed(tokens)
    query, key = torch.randn(2, tokens, 2, 8), torch.randn(2, tokens, 2, 8)
    value, beta = torch.randn(2, tokens, 2 * repeat, 4), torch.rand(2, tokens, 2 * repeat)
    decay = -3 * torch.rand(2, tokens, 2 * repeat)
    inputs = [x.requires_grad_() for x in (query, key, value, decay, beta)]
    ours = gated_delta_rule(query, key, value, decay, beta)
    theirs, _ = torch_chunk_gated_delta_rule(
        query.repeat_interleave(repeat, dim=2),
        key.repeat_interleave(repeat, dim=2),
        value,
        g=decay,
        beta=beta,
        use_qk_l2norm_in_kernel=True,
    )
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    weights = torch.randn_like(ours)
    for one, other in zip(
        torch.autograd.grad((ours * weights).sum(), inputs),
        torch.autograd.grad((theirs * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_keys_that_repeat_do_not_blow_up() -> None:
    key = torch.ones(1, 200, 1, 8).requires_grad_()
    value = torch.randn(1, 200, 1, 4)
    seen = gated_delta_rule(key, key, value, torch.zeros(1, 200, 1), torch.ones(1, 200, 1))
    torch.testing.assert_close(seen, value * 8**-0.5)
    seen.sum().backward()
    assert key.grad is not None
    assert key.grad.isfinite().all()


def test_the_backbone_is_that_of_transformers() -> None:
    config = Qwen3_5TextConfig(**micro_trainer().network.backbone.config.to_dict())
    torch.manual_seed(0)
    theirs = Qwen3_5TextModel(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    ours = Backbone(config)
    ours.load_state_dict(theirs.state_dict())
    ids = torch.randint(0, config.vocab_size, (2, 100))
    with torch.no_grad():
        torch.testing.assert_close(
            ours(ids), theirs(input_ids=ids, use_cache=False).last_hidden_state, atol=1e-4, rtol=1e-3
        )


def test_an_exported_release_answers_in_the_reference_as_the_trained_network_does(tmp_path: Path) -> None:
    trainer = micro_trainer()
    for _ in range(2):
        trainer.advance()
    rounded(trainer.network)
    export_release(trainer.network, trainer.tokenizer, trainer.head, tmp_path / "release")
    records = list(generate.records("heldout", 6))
    loaded, _ = load_network(tmp_path / "release")
    theirs = reference_probabilities(tmp_path / "release", records)
    for record, expected in zip(records, theirs, strict=True):
        for network in (trainer.network, loaded):
            assert difference(probabilities(network, trainer.encoder, record), expected) < 1e-5
    assert len({tuple(question) for record in theirs for question in record}) > 6  # not all alike


def test_an_export_takes_the_place_of_the_former(tmp_path: Path) -> None:
    trainer = micro_trainer()
    for _ in range(2):
        export_release(trainer.network, trainer.tokenizer, trainer.head, tmp_path / "release")
    assert [path.name for path in tmp_path.iterdir()] == ["release"]
