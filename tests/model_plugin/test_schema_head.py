"""The joint schema head alone against Cloudflare's: the same weights, many prompts at once against one at a time."""

import pytest
import torch
from torch import Tensor

from model_plugin.checkpoint import HeadConfig, head_tensor_shapes
from model_plugin.schema_head import HeadInputs, JointSchemaHead
from model_plugin.schema_layout import QUESTION_TYPES
from tests import tolerances
from tests.model_plugin.reference_head import Heads, Prompt, distance, random_heads, random_prompts

CONFIGS = {
    "plain": {},
    "one head, one layer each": {"heads": 1, "layers": 1, "routing_layers": 1},
    "wider than hidden": {"width": 64, "heads": 8, "feedforward": 32},
    "deep, as Clef": {"hidden_size": 64, "width": 16, "heads": 16, "layers": 4, "feedforward": 64},
}


def head_inputs(heads: Heads, prompts: list[Prompt]) -> HeadInputs:
    """What the head is given, computed span by span."""
    normalized = [heads.ours.hidden_norm(prompt.hidden_TD) for prompt in prompts]
    spans = [(index, spans) for index, prompt in enumerate(prompts) for spans in prompt.layout.questions]

    def mean(values: Tensor, span: tuple[int, int]) -> Tensor:
        return values[span[0] : span[1]].float().mean(0).to(values.dtype)

    options = [(index, option) for index, question in spans for option in question.options]
    return HeadInputs(
        memory_MW=heads.ours.memory_projection(torch.cat(normalized)),
        memory_lengths_R=[len(prompt) for prompt in prompts],
        last_RD=torch.stack([values[-1] for values in normalized]),
        question_QD=torch.stack([mean(normalized[index], question.question) for index, question in spans]),
        option_OD=torch.stack([mean(normalized[index], option) for index, option in options]),
        lexical_OD=torch.stack(
            [mean(heads.output_VD[prompts[index].token_ids_T], option) for index, option in options]
        ),
        question_types_Q=[QUESTION_TYPES.index(question.question_type) for _, question in spans],
        questions_R=[len(prompt.layout.questions) for prompt in prompts],
        options_Q=[len(question.options) for _, question in spans],
    )


@torch.no_grad()
def answers(heads: Heads, prompts: list[Prompt]) -> list[Tensor]:
    logits: list[Tensor] = heads.ours(head_inputs(heads, prompts))
    assert len(logits) == len(prompts)
    return logits


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS.keys())
def test_the_parameters_are_the_checkpoints(changes: dict[str, int]) -> None:
    config = HeadConfig(
        **{"hidden_size": 48, "width": 32, "routing_layers": 2, "layers": 2, "heads": 4, "feedforward": 64, **changes}
    )
    shapes = {name: tuple(tensor.shape) for name, tensor in JointSchemaHead(config).state_dict().items()}
    assert shapes == head_tensor_shapes(config)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_ragged_batch_equals_the_reference_one_at_a_time(changes: dict[str, int], seed: int) -> None:
    heads = random_heads(seed, **changes)
    prompts = random_prompts(heads, 6, seed)
    for prompt, logits in zip(prompts, answers(heads, prompts), strict=True):
        expected = heads.expected(prompt)
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
        assert distance(prompt.layout, logits, expected) <= tolerances.FP32


def test_a_batch_equals_the_same_prompts_in_another_order() -> None:
    heads = random_heads()
    prompts = random_prompts(heads, 5)
    backwards = answers(heads, prompts[::-1])[::-1]
    for prompt, one, other in zip(prompts, answers(heads, prompts), backwards, strict=True):
        assert distance(prompt.layout, one, other) <= tolerances.FP32


@pytest.mark.parametrize("seed", range(3))
def test_bfloat16_stays_near_the_reference(seed: int) -> None:
    heads = random_heads(seed, torch.bfloat16)
    prompts = random_prompts(heads, 6, seed)
    for prompt, logits in zip(prompts, answers(heads, prompts), strict=True):
        assert logits.dtype == torch.float32
        assert distance(prompt.layout, logits, heads.expected(prompt)) <= tolerances.BF16


@pytest.mark.parametrize("name", ["prior_logit_scale", "joint_logit_scale"])
def test_a_scale_is_cut_off_where_the_reference_does(name: str) -> None:
    heads = random_heads()
    for head in (heads.ours, heads.reference):
        getattr(head, name).data.fill_(6.0)  # exp(6) is past 100
    prompts = random_prompts(heads, 2)
    for prompt, logits in zip(prompts, answers(heads, prompts), strict=True):
        torch.testing.assert_close(logits, heads.expected(prompt), atol=1e-4, rtol=0)


def test_every_parameter_matters() -> None:
    """A weight that is loaded and never read would be a formula left out, which two equal zeros would hide."""
    heads = random_heads()
    heads.ours.zero_grad()
    logits = heads.ours(head_inputs(heads, random_prompts(heads, 4)))
    sum((part.square().sum() for part in logits), torch.zeros(())).backward()
    unused = [name for name, value in heads.ours.named_parameters() if value.grad is None or not value.grad.any()]
    assert unused == []
