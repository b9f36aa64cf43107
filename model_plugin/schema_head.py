"""The joint schema head: options gather evidence from the whole prompt, questions attend to each other, one logit an option.

Plain PyTorch, one pass for many requests of different length. It knows nothing of caches, chunks or parallelism: it is given
each token's memory row and the mean vectors of the spans. Parameter names follow the checkpoint (`joint_head.safetensors`).

Shapes: R requests, M memory rows of all requests back to back, Q questions, O options, D the backbone's hidden size,
W the head's width, A attention heads, P = W / A.
"""

import itertools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model_plugin.checkpoint import HeadConfig

# exp() of a larger scale is cut off, as in the reference (joint_schema_model.py, JointSchemaHead.forward).
_MAX_LOG_SCALE = math.log(100.0)


@dataclass(frozen=True, kw_only=True)
class HeadInputs:
    """What the head reads of a batch of complete prompts. Vectors are in the model's type; lengths are on the host."""

    memory_MW: Tensor
    memory_lengths_R: list[int]
    last_RD: Tensor  # the normalized hidden state of each prompt's last token
    question_QD: Tensor  # mean normalized hidden state of each question's span
    option_OD: Tensor  # mean normalized hidden state of each option's span
    lexical_OD: Tensor  # mean LM-head row of each option's tokens
    question_types_Q: list[int]
    questions_R: list[int]  # questions of each request
    options_Q: list[int]  # options of each question


class EvidenceRoutingLayer(nn.Module):
    """Options read the prompt's memory, then a feedforward; both residual."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        width = config.width
        self.query_norm, self.memory_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, config.heads, batch_first=True)
        self.feedforward_norm = nn.LayerNorm(width)
        # Dropout layers of the checkpoint's module tree hold no weights; Identity keeps the numbering.
        self.feedforward = nn.Sequential(
            nn.Linear(width, config.feedforward),
            nn.GELU(),
            nn.Identity(),
            nn.Linear(config.feedforward, width),
        )

    def forward(self, routed: "_Ragged", memory: "_Ragged") -> "_Ragged":
        """One option a row, `[O, W]`, in sequences of one request each, as `memory` is."""
        # Keys and values of the memory are projected again for every request, cached rows included. At Clef-Flash's
        # width that is 6 layers x 4 x 1024^2 = 25 MFLOP a token, against 2 x 9e9 = 18 GFLOP for the backbone: 0.14%
        # (0.1% for Clef), while caching them would cost 6 x 2 rows a token instead of one.
        read = _attend(self.attention, routed.map(self.query_norm), memory.map(self.memory_norm))
        rows_OW = routed.values + read
        return _Ragged(rows_OW + self.feedforward(self.feedforward_norm(rows_OW)), routed.lengths)


class QuestionLayer(nn.Module):
    """Questions attend to each other, then to the prompt's memory, then a feedforward; all residual.

    The mathematics and the parameter names of `nn.TransformerDecoderLayer` with `norm_first` and GELU.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        width = config.width
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.self_attn = nn.MultiheadAttention(width, config.heads, batch_first=True)
        self.multihead_attn = nn.MultiheadAttention(width, config.heads, batch_first=True)
        self.linear1, self.linear2 = nn.Linear(width, config.feedforward), nn.Linear(config.feedforward, width)

    def forward(self, fields: "_Ragged", memory: "_Ragged") -> "_Ragged":
        """One question a row, `[Q, W]`, in sequences of one request each, as `memory` is."""
        lengths = fields.lengths
        normalized = fields.map(self.norm1)
        fields = _Ragged(fields.values + _attend(self.self_attn, normalized, normalized), lengths)
        fields = _Ragged(fields.values + _attend(self.multihead_attn, fields.map(self.norm2), memory), lengths)
        return _Ragged(fields.values + self.linear2(F.gelu(self.linear1(self.norm3(fields.values)))), lengths)


class JointSchemaHead(nn.Module):
    """Source: Cloudflare's `joint_schema_model.py`; tests compare logits with it."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        width, hidden = config.width, config.hidden_size
        self.hidden_norm = nn.LayerNorm(hidden)
        self.memory_projection = nn.Linear(hidden, width, bias=False)
        self.question_projection = nn.Linear(hidden, width, bias=False)
        self.option_question_projection = nn.Linear(hidden, width, bias=False)
        self.global_projection = nn.Linear(hidden, width, bias=False)
        self.option_context_projection = nn.Linear(hidden, width, bias=False)
        self.option_lexical_projection = nn.Linear(hidden, width, bias=False)
        self.type_embedding = nn.Embedding(3, width)
        self.evidence_layers = nn.ModuleList(EvidenceRoutingLayer(config) for _ in range(config.routing_layers))
        self.option_summary_norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(QuestionLayer(config) for _ in range(config.layers))
        self.field_norm, self.option_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.residual_scorer = nn.Sequential(nn.Linear(4 * width, width), nn.GELU(), nn.Identity(), nn.Linear(width, 1))
        self.prior_logit_scale = nn.Parameter(torch.zeros(()))
        self.joint_logit_scale = nn.Parameter(torch.zeros(()))
        self.residual_gate = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: HeadInputs) -> list[Tensor]:
        """One FP32 logit per option: a tensor per request, its questions' options in order."""
        device, dtype = inputs.memory_MW.device, inputs.memory_MW.dtype
        options_Q = torch.tensor(inputs.options_Q, device=device)
        questions_R = torch.tensor(inputs.questions_R, device=device)
        owner_O = torch.repeat_interleave(options_Q)  # the question of each option
        request_Q = torch.repeat_interleave(questions_R)
        starts = list(itertools.accumulate(inputs.options_Q, initial=0))
        ends_R = list(itertools.accumulate(inputs.questions_R))
        options_R = [starts[end] - starts[end - count] for end, count in zip(ends_R, inputs.questions_R, strict=True)]
        memory = _Ragged(inputs.memory_MW, inputs.memory_lengths_R)

        routed_OW = (
            self.option_context_projection(inputs.option_OD)
            + self.option_lexical_projection(inputs.lexical_OD)
            + self.option_question_projection(inputs.question_QD)[owner_O]
        )
        routed = _Ragged(routed_OW, options_R)
        for layer in self.evidence_layers:
            routed = layer(routed, memory)
        routed_OW = routed.values

        base_QW = self.question_projection(inputs.question_QD)
        scores_O = (routed_OW * base_QW[owner_O]).float().sum(-1) / math.sqrt(routed_OW.shape[-1])
        weights_O = _segment_softmax(scores_O, options_Q, owner_O).to(dtype)
        summary_QW = torch.segment_reduce((weights_O.unsqueeze(-1) * routed_OW).float(), "sum", lengths=options_Q)
        fields_QW = (
            base_QW
            + self.option_summary_norm(summary_QW.to(dtype))
            + self.global_projection(inputs.last_RD)[request_Q]
            + self.type_embedding(torch.tensor(inputs.question_types_Q, device=device))
        )
        fields = _Ragged(fields_QW, inputs.questions_R)
        for layer in self.layers:
            fields = layer(fields, memory)
        fields_OW = self.field_norm(fields.values)[owner_O]

        anchor_QD = F.normalize(inputs.question_QD + inputs.last_RD[request_Q], dim=-1)
        likeness_O = (F.normalize(inputs.lexical_OD, dim=-1) * anchor_QD[owner_O]).sum(-1)
        prior_O = _scale(self.prior_logit_scale) * likeness_O
        options_OW = self.option_norm(routed_OW)
        features = [fields_OW, options_OW, fields_OW * options_OW, (fields_OW - options_OW).abs()]
        residual_O = self.residual_scorer(torch.cat(features, dim=-1)).squeeze(-1)
        joint_O = _scale(self.joint_logit_scale) * F.cosine_similarity(fields_OW, options_OW, dim=-1) + residual_O
        logits_O = (prior_O + self.residual_gate.sigmoid() * joint_O).float()
        return list(logits_O.split(options_R))


@dataclass(frozen=True)
class _Ragged:
    """Sequences of different length back to back, with their lengths on the host."""

    values: Tensor
    lengths: list[int]

    def map(self, function: nn.Module) -> "_Ragged":
        return _Ragged(function(self.values), self.lengths)

    def bounds(self) -> Tensor:
        return torch.tensor([0, *itertools.accumulate(self.lengths)], dtype=torch.int32, device=self.values.device)


def _attend(module: nn.MultiheadAttention, queries: _Ragged, memory: _Ragged) -> Tensor:
    """`nn.MultiheadAttention` within each sequence of a ragged batch; `[rows, W]`."""
    width, heads = queries.values.shape[-1], module.num_heads
    weight, bias = module.in_proj_weight, module.in_proj_bias
    assert weight is not None
    query = F.linear(queries.values, weight[:width], bias[:width]).view(-1, heads, width // heads)
    key, value = (
        part.reshape(-1, heads, width // heads)
        for part in F.linear(memory.values, weight[width:], bias[width:]).chunk(2, dim=-1)
    )
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        attended = torch.ops.aten._flash_attention_forward(
            query,
            key,
            value,
            queries.bounds(),
            memory.bounds(),
            max(queries.lengths),
            max(memory.lengths),
            0.0,
            False,
            False,
        )[0]
    else:
        # Flash attention exists on CUDA in half precision only; elsewhere one call a request.
        pairs = zip(query.split(queries.lengths), key.split(memory.lengths), value.split(memory.lengths), strict=True)
        attended = torch.cat(
            [F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in pair)).transpose(0, 1) for pair in pairs]
        )
    projected: Tensor = module.out_proj(attended.reshape(-1, width))
    return projected


def _segment_softmax(scores: Tensor, lengths: Tensor, owner: Tensor) -> Tensor:
    """Softmax within consecutive segments of the given lengths."""
    weights = (scores - torch.segment_reduce(scores, "max", lengths=lengths)[owner]).exp()
    return weights / torch.segment_reduce(weights, "sum", lengths=lengths)[owner]


def _scale(log_scale: Tensor) -> Tensor:
    return log_scale.clamp(max=_MAX_LOG_SCALE).exp()
