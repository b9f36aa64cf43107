"""Clef's network in plain PyTorch, differentiable, for training on a CPU: a Qwen3.5 text backbone below the schema head.

Parameter names are those of a release's files, so that its state dict is the release. Computes the same function as
Transformers' `Qwen3_5TextModel`; the difference is a chunk-parallel Gated DeltaNet, several times as fast on a CPU.
Knows nothing of text, records or losses.

Shapes: B prompts padded on the right to T tokens, D hidden size, H value heads, G key heads, K key width, V value width,
A attention heads, P width of an attention head, C chunks of L tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model_plugin.checkpoint import HeadConfig
from model_plugin.schema_head import HeadInputs, JointSchemaHead
from model_plugin.schema_layout import QUESTION_TYPES, QuestionSpans

CHUNK_TOKENS = 32
_NORM_EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt's tokens and the spans of its questions."""

    input_ids: Sequence[int]
    questions: Sequence[QuestionSpans]


class Norm(nn.Module):
    """Root mean square norm whose weight counts from one, as Qwen3.5's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], 1.0 + self.weight, _NORM_EPSILON)


class GatedNorm(nn.Module):
    """Root mean square norm, then a gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        gated: Tensor = F.rms_norm(x, x.shape[-1:], self.weight, _NORM_EPSILON) * F.silu(gate)
        return gated


class GatedDeltaNet(nn.Module):
    """Linear attention with a forgetting, self-correcting state."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.value_heads, self.key_heads = config.linear_num_value_heads, config.linear_num_key_heads
        self.key_width, self.value_width = config.linear_key_head_dim, config.linear_value_head_dim
        keys, values = self.key_width * self.key_heads, self.value_width * self.value_heads
        self.sizes = [keys, keys, values]
        self.taps = config.linear_conv_kernel_dim
        self.conv1d = nn.Conv1d(sum(self.sizes), sum(self.sizes), self.taps, groups=sum(self.sizes), bias=False)
        self.dt_bias = nn.Parameter(torch.zeros(self.value_heads))
        self.A_log = nn.Parameter(torch.zeros(self.value_heads))
        self.norm = GatedNorm(self.value_width)
        self.out_proj = nn.Linear(values, hidden, bias=False)
        self.in_proj_qkv = nn.Linear(hidden, sum(self.sizes), bias=False)
        self.in_proj_z = nn.Linear(hidden, values, bias=False)
        self.in_proj_b = nn.Linear(hidden, self.value_heads, bias=False)
        self.in_proj_a = nn.Linear(hidden, self.value_heads, bias=False)

    def forward(self, x_BTD: Tensor, _rotary: "Rotary") -> Tensor:
        batch, tokens, _ = x_BTD.shape
        mixed = F.pad(self.in_proj_qkv(x_BTD).mT, (self.taps - 1, 0))
        mixed = F.silu(F.conv1d(mixed, self.conv1d.weight, groups=mixed.shape[1])).mT
        query, key, value = mixed.split(self.sizes, dim=-1)
        query = query.reshape(batch, tokens, self.key_heads, self.key_width)
        key = key.reshape(batch, tokens, self.key_heads, self.key_width)
        value = value.reshape(batch, tokens, self.value_heads, self.value_width)
        log_decay_BTH = -self.A_log.exp() * F.softplus(self.in_proj_a(x_BTD) + self.dt_bias)
        beta_BTH = self.in_proj_b(x_BTD).sigmoid()
        seen = gated_delta_rule(query, key, value, log_decay_BTH, beta_BTH)
        gate = self.in_proj_z(x_BTD).view(batch, tokens, self.value_heads, self.value_width)
        projected: Tensor = self.out_proj(self.norm(seen, gate).flatten(2))
        return projected


def gated_delta_rule(q_BTGK: Tensor, k_BTGK: Tensor, v_BTHV: Tensor, log_decay_BTH: Tensor, beta_BTH: Tensor) -> Tensor:
    """The gated delta rule from an empty state, chunk-parallel and differentiable; `[B, T, H, V]`.

    Source: Yang et al., "Gated Delta Networks" (arXiv:2412.06464), section 3. Queries and keys are L2-normalized here.
    """
    tokens, heads = v_BTHV.shape[1], v_BTHV.shape[2]
    repeat = heads // q_BTGK.shape[2]

    def chunked(x: Tensor) -> Tensor:  # [B, T, H, X] -> [B, H, C, L, X], zeros where padded
        x = F.pad(x, (0, 0, 0, 0, 0, -tokens % CHUNK_TOKENS))
        return x.reshape(x.shape[0], -1, CHUNK_TOKENS, *x.shape[2:]).permute(0, 3, 1, 2, 4)

    if repeat > 1:
        q_BTGK, k_BTGK = (x.repeat_interleave(repeat, dim=2) for x in (q_BTGK, k_BTGK))
    q = chunked(_l2_normalized(q_BTGK) * q_BTGK.shape[-1] ** -0.5)
    k = chunked(_l2_normalized(k_BTGK))
    v = chunked(v_BTHV)
    beta = chunked(beta_BTH.unsqueeze(-1))
    decay = chunked(log_decay_BTH.unsqueeze(-1)).squeeze(-1).cumsum(-1)  # log decay since the chunk's start

    ones = torch.ones(CHUNK_TOKENS, CHUNK_TOKENS, dtype=torch.bool)
    between = (decay.unsqueeze(-1) - decay.unsqueeze(-2)).masked_fill(ones.triu(1), float("-inf")).exp()
    since = decay.exp().unsqueeze(-1)
    until = (decay[..., -1:] - decay).exp().unsqueeze(-1)
    whole = decay[..., -1].exp()[..., None, None]

    interaction = ((beta * k) @ k.mT * between).masked_fill(ones.triu(), 0.0)
    rhs = torch.cat([beta * v, beta * since * k], dim=-1)
    # Forward substitution: keys that come again and again make the powers of this matrix large, and its inverse inexact.
    # (I + strictly lower interaction) x = rhs; `unitriangular` reads the diagonal as ones.
    solved = torch.linalg.solve_triangular(interaction, rhs, upper=False, unitriangular=True)
    value, key = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    local = q @ k.mT * between
    query, write = since * q, (until * k).mT

    state = v.new_zeros((*v.shape[:2], k.shape[-1], v.shape[-1]))
    seen = []
    for chunk in range(v.shape[2]):
        written = value[:, :, chunk] - key[:, :, chunk] @ state
        seen.append(query[:, :, chunk] @ state + local[:, :, chunk] @ written)
        state = whole[:, :, chunk] * state + write[:, :, chunk] @ written
    return torch.stack(seen, dim=2).permute(0, 2, 3, 1, 4).flatten(1, 2)[:, :tokens]


def _l2_normalized(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


@dataclass(frozen=True)
class Rotary:
    """Cosines and sines of the rotary position, `[T, R]` for the first R elements of a head."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, config: Any, tokens: int) -> "Rotary":
        rope = config.rope_parameters
        width = int(config.head_dim * rope["partial_rotary_factor"])
        frequencies = rope["rope_theta"] ** (-torch.arange(0, width, 2).float() / width)
        # Text has the same position in time, height and width, so Qwen's interleaving of the three changes nothing.
        angles = torch.arange(tokens).float().unsqueeze(-1) * frequencies
        angles = torch.cat([angles, angles], dim=-1)
        return cls(angles.cos(), angles.sin())

    def apply(self, x_BATP: Tensor) -> Tensor:
        width = self.cos.shape[-1]
        turned, rest = x_BATP[..., :width], x_BATP[..., width:]
        first, second = turned.chunk(2, dim=-1)
        turned = turned * self.cos + torch.cat([-second, first], dim=-1) * self.sin
        return torch.cat([turned, rest], dim=-1)


class Attention(nn.Module):
    """Causal attention with grouped keys, normalized queries and keys, and an output gate."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, width = config.hidden_size, config.head_dim
        self.heads, self.key_heads, self.width = config.num_attention_heads, config.num_key_value_heads, width
        self.q_proj = nn.Linear(hidden, self.heads * width * 2, bias=False)
        self.k_proj = nn.Linear(hidden, self.key_heads * width, bias=False)
        self.v_proj = nn.Linear(hidden, self.key_heads * width, bias=False)
        self.o_proj = nn.Linear(self.heads * width, hidden, bias=False)
        self.q_norm, self.k_norm = Norm(width), Norm(width)

    def forward(self, x_BTD: Tensor, rotary: Rotary) -> Tensor:
        batch, tokens, _ = x_BTD.shape
        query, gate = self.q_proj(x_BTD).view(batch, tokens, self.heads, 2 * self.width).chunk(2, dim=-1)
        key = self.k_proj(x_BTD).view(batch, tokens, self.key_heads, self.width)
        value = self.v_proj(x_BTD).view(batch, tokens, self.key_heads, self.width).transpose(1, 2)
        query = rotary.apply(self.q_norm(query).transpose(1, 2))
        key = rotary.apply(self.k_norm(key).transpose(1, 2))
        repeat = self.heads // self.key_heads
        key, value = key.repeat_interleave(repeat, dim=1), value.repeat_interleave(repeat, dim=1)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        projected: Tensor = self.o_proj((attended.transpose(1, 2) * gate.sigmoid()).flatten(2))
        return projected


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, wide = config.hidden_size, config.intermediate_size
        self.gate_proj, self.up_proj = nn.Linear(hidden, wide, bias=False), nn.Linear(hidden, wide, bias=False)
        self.down_proj = nn.Linear(wide, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """A mixer of tokens and a feedforward, both residual."""

    def __init__(self, config: Any, kind: str) -> None:
        super().__init__()
        self.mixer_name = "self_attn" if kind == "full_attention" else "linear_attn"
        self.add_module(self.mixer_name, Attention(config) if kind == "full_attention" else GatedDeltaNet(config))
        self.mlp = FeedForward(config)
        self.input_layernorm, self.post_attention_layernorm = Norm(config.hidden_size), Norm(config.hidden_size)

    def forward(self, x_BTD: Tensor, rotary: Rotary) -> Tensor:
        x_BTD = x_BTD + self.get_submodule(self.mixer_name)(self.input_layernorm(x_BTD), rotary)
        out: Tensor = x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))
        return out


class Backbone(nn.Module):
    """The text model: token ids `[B, T]` in, the final normalized hidden states `[B, T, D]` out."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, kind) for kind in config.layer_types)
        self.norm = Norm(config.hidden_size)

    def forward(self, ids_BT: Tensor) -> Tensor:
        rotary = Rotary.of(self.config, ids_BT.shape[1])
        hidden_BTD = self.embed_tokens(ids_BT)
        for layer in self.layers:
            hidden_BTD = layer(hidden_BTD, rotary)
        out: Tensor = self.norm(hidden_BTD)
        return out

    def layer(self, index: int) -> Layer:
        """One of the layers, typed."""
        layer = self.layers[index]
        assert isinstance(layer, Layer)
        return layer


class ClefNetwork(nn.Module):
    """Prompts in, one logit per option out.

    Args:
        text_config: the release's `text_config`, a Transformers `Qwen3_5TextConfig`.
        head_config: the release's head.
    """

    def __init__(self, text_config: Any, head_config: HeadConfig) -> None:
        super().__init__()
        self.backbone = Backbone(text_config)
        self.lm_head = nn.Linear(text_config.hidden_size, text_config.vocab_size, bias=False)
        self.head = JointSchemaHead(head_config)

    def forward(self, prompts: Sequence[Prompt]) -> list[list[Tensor]]:
        """For each prompt and question a vector of logits, one an option, in scoring order."""
        lengths = [len(prompt.input_ids) for prompt in prompts]
        longest = max(lengths)
        # A causal model never looks to the right, so any token pads.
        ids_BT = torch.tensor([[*prompt.input_ids, *[0] * (longest - len(prompt.input_ids))] for prompt in prompts])
        hidden_BTD = self.head.hidden_norm(self.backbone(ids_BT))
        hidden_MD = torch.cat([row[:length] for row, length in zip(hidden_BTD, lengths, strict=True)])
        ids_M = torch.cat([row[:length] for row, length in zip(ids_BT, lengths, strict=True)])
        starts = [sum(lengths[:index]) for index in range(len(lengths))]
        questions = [
            spans.shifted(start) for prompt, start in zip(prompts, starts, strict=True) for spans in prompt.questions
        ]
        options = [span for spans in questions for span in spans.options]
        logits = self.head(
            HeadInputs(
                memory_MW=self.head.memory_projection(hidden_MD),
                memory_lengths_R=lengths,
                last_RD=hidden_MD[torch.tensor(starts) + torch.tensor(lengths) - 1],
                question_QD=_span_means(hidden_MD, [spans.question for spans in questions]),
                option_OD=_span_means(hidden_MD, options),
                lexical_OD=_span_means(F.embedding(ids_M, self.lm_head.weight), options),
                question_types_Q=[QUESTION_TYPES.index(spans.question_type) for spans in questions],
                questions_R=[len(prompt.questions) for prompt in prompts],
                options_Q=[len(spans.options) for spans in questions],
            )
        )
        return [
            list(values.split([len(spans.options) for spans in prompt.questions]))
            for values, prompt in zip(logits, prompts, strict=True)
        ]


def _span_means(rows_MD: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
    """The mean row of each span, `[spans, D]`."""
    lengths = torch.tensor([end - start for start, end in spans])
    taken = torch.cat([torch.arange(start, end) for start, end in spans])
    owner = torch.repeat_interleave(lengths)
    sums = rows_MD.new_zeros((len(spans), rows_MD.shape[-1])).index_add_(0, owner, rows_MD[taken])
    return sums / lengths.unsqueeze(-1)
