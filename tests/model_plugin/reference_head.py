"""A random joint schema head in both implementations, random prompts for it, and what the reference answers to each.

Random heads have random norms, biases and scales too: with their initial values, zeros and ones, half the mathematics
would not show.
"""

import random
from dataclasses import dataclass
from typing import Any

import torch
from clef_finetune.jsm import load_jsm
from torch import Tensor

from model_plugin.checkpoint import HeadConfig
from model_plugin.schema_head import JointSchemaHead
from model_plugin.schema_layout import QUESTION_TYPES, PromptLayout, QuestionSpans

VOCABULARY = 100


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The same weights in the reference (FP32) and in ours, and an LM head `[VOCABULARY, D]`."""

    config: HeadConfig
    reference: Any
    ours: JointSchemaHead
    output_VD: Tensor

    def local_rows(self, token_ids: Tensor) -> Tensor:
        """The LM head as the pooler reads it where there is one rank."""
        return self.output_VD[token_ids]

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        return values

    @torch.no_grad()
    def expected(self, prompt: "Prompt") -> Tensor:
        """The reference's FP32 logits of one prompt alone, all options in order."""
        module = load_jsm()
        questions = tuple(
            module.EncodedQuestion("id", QUESTION_TYPES.index(spans.question_type), spans.question, spans.options, ())
            for spans in prompt.layout.questions
        )
        record = module.EncodedRecord(
            input_ids=tuple(prompt.token_ids_T.tolist()), questions=questions, record_id="record"
        )
        ids = prompt.token_ids_T[None]
        logits = self.reference(
            prompt.hidden_TD[None].float(), ids, torch.ones_like(ids), [record], self.output_VD.float()
        )
        return torch.cat(logits[0])


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt as the head sees it: the backbone's final hidden states, the tokens, and where the spans are."""

    layout: PromptLayout
    hidden_TD: Tensor
    token_ids_T: Tensor

    def __len__(self) -> int:
        return self.layout.prompt_tokens


def random_heads(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: int) -> Heads:
    """Heads of a small configuration with some values changed; weights are rounded to `dtype` in the reference too."""
    values = {"hidden_size": 48, "width": 32, "routing_layers": 2, "layers": 2, "heads": 4, "feedforward": 64} | changes
    torch.manual_seed(seed)
    reference = load_jsm().JointSchemaHead(**values).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.dim() < 2:
                parameter.add_(torch.randn_like(parameter) * 0.3)
            parameter.copy_(parameter.to(dtype))
    ours = JointSchemaHead(HeadConfig(**values))
    ours.load_state_dict(reference.state_dict(), strict=True)
    return Heads(
        config=HeadConfig(**values),
        reference=reference,
        ours=ours.to(dtype),
        output_VD=torch.randn(VOCABULARY, values["hidden_size"]).to(dtype),
    )


def random_prompts(heads: Heads, count: int, seed: int = 0) -> list[Prompt]:
    """Ragged prompts: 1 to 4 questions of every type, 1 to 30 options, spans of 1 to 9 tokens with gaps or without."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    dtype = heads.output_VD.dtype
    prompts = []
    for _ in range(count):
        state_end = at = rng.randint(1, 150)

        def span(longest: int) -> tuple[int, int]:
            nonlocal at
            start = at + rng.randint(0, 2)
            at = start + rng.randint(1, longest)
            return start, at

        questions = []
        for _ in range(rng.randint(1, 4)):
            question_type = rng.choice(QUESTION_TYPES)
            question = span(9)
            options = 2 if question_type == "noul" else rng.randint(1, 30)
            questions.append(
                QuestionSpans(
                    question_type=question_type, question=question, options=tuple(span(6) for _ in range(options))
                )
            )
        tokens = at + rng.randint(0, 4)
        prompts.append(
            Prompt(
                layout=PromptLayout(prompt_tokens=tokens, questions=tuple(questions), state_end=state_end),
                hidden_TD=torch.randn(tokens, heads.config.hidden_size).to(dtype),
                token_ids_T=torch.randint(0, VOCABULARY, (tokens,)),
            )
        )
    return prompts


def probabilities(layout: PromptLayout, logits_O: Tensor) -> Tensor:
    """A softmax per question, back to back."""
    return torch.cat([part.softmax(-1) for part in logits_O.split([len(q.options) for q in layout.questions])])


def distance(layout: PromptLayout, logits_O: Tensor, expected_O: Tensor) -> float:
    """max |dp| over all options of all questions."""
    assert logits_O.shape == expected_O.shape
    return float((probabilities(layout, logits_O) - probabilities(layout, expected_O)).abs().max())
