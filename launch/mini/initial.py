"""The weights that training starts from: they already find the words of an option again in the state, and no more.

A network of this size would need most of its hour to discover that equal words are to be compared. So tokens that are
spelled alike start with vectors alike, and digits in the order of their values; a Gated DeltaNet head starts by marking where
the schema begins; and an attention head starts by telling, for each token, how much of what it finds again stands before that
mark. What words mean, and what to make of a match, is left to training.

The first elements of the hidden state are reserved for this; `_CONSTANT` and those after it name them.
"""

import math
import zlib

import torch
from torch import Tensor, nn

from launch.mini.network import Attention, ClefNetwork, GatedDeltaNet

_CONSTANT, _SCAFFOLD, _IN_SCHEMA, _FOUND, _DIGIT, _VALUE = range(6)
_RESERVED = 16  # the rest of them tells tokens apart that are in most prompts
_GRAMS = 16_384  # rows of the table that n-grams of letters are hashed into
_SHARED = 0.9  # of the square of a token's vector, what it shares with tokens of like spelling
_COMMON = 0.5  # in more prompts than this a token says nothing
_SCAFFOLDING = {"SCHEMA", "FIELD", "FIELDS", "OPTION", "OPTIONS", "INSTRUCTION", "ALLOWED", "TYPE", "ID"}


def initialise(network: ClefNetwork, tokens: list[str], commonness_V: Tensor, seed: int) -> None:
    """Fill every weight, the same on every call.

    Args:
        tokens: the text of every row of the vocabulary; empty for rows without one.
        commonness_V: the share of prompts that hold each token.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Linear):
                module.weight.copy_(_normal(module.weight, generator) * module.in_features**-0.5)
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.Embedding):
                module.weight.copy_(_normal(module.weight, generator) * 0.1)
        vectors = _spelled(tokens, commonness_V, network.lm_head.in_features, generator)
        network.backbone.embed_tokens.weight.copy_(vectors)
        # What is in every prompt says nothing of an option.
        network.lm_head.weight.copy_(vectors * (1 - commonness_V).clamp(min=0.05).unsqueeze(1))
        for index in range(len(network.backbone.layers)):
            layer = network.backbone.layer(index)
            _start_mixer(layer.get_submodule(layer.mixer_name), generator)
            layer.mlp.down_proj.weight.mul_(0.3)
        _mark_schema(network)
        _tell_found(network)
        _start_head(network, generator)


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator)


def _spelled(tokens: list[str], commonness_V: Tensor, width: int, generator: torch.Generator) -> Tensor:
    """One vector a token, `[V, D]`: for words mostly by the n-grams of their letters, case and blanks aside."""
    table = torch.randn(_GRAMS, width, generator=generator)
    own = torch.randn(len(tokens), width, generator=generator)
    vectors = own.clone()
    for index, token in enumerate(tokens):
        word = token.strip(" _\"'{-/.").lower()
        if len(word) > 1 and word.isalpha():
            marked = f"<{word}>"
            grams = [marked, marked[:-1]]
            grams += [marked[at : at + size] for size in (3, 4) for at in range(len(marked) - size + 1)]
            rows = torch.tensor([zlib.crc32(gram.encode()) % _GRAMS for gram in grams])
            shared = table[rows].sum(0)
            shared = shared / shared.square().mean().sqrt()
            vectors[index] = shared * _SHARED**0.5 + own[index] * (1 - _SHARED) ** 0.5
        vectors[index, :_RESERVED] = 0.0
        if commonness_V[index] > _COMMON and not token.strip().isdigit():
            vectors[index] = 0.0
            vectors[index, _VALUE + 1 : _RESERVED] = 3.0 * own[index, _VALUE + 1 : _RESERVED]
        if token.isdecimal() and token.isascii() and len(token) == 1:
            vectors[index, _DIGIT] = 4.0
            vectors[index, _VALUE] = float(token) - 4.5
        vectors[index, _SCAFFOLD] = 3.0 if token.strip() in _SCAFFOLDING else 0.0
        # All of one length, or the norm of the first layer would make the constant differ from token to token.
        vectors[index] *= width**0.5 / vectors[index].norm()
        vectors[index, _CONSTANT] = 2.0
    return vectors


def _start_mixer(mixer: nn.Module, generator: torch.Generator) -> None:
    if isinstance(mixer, Attention):
        mixer.o_proj.weight.mul_(0.3)
        mixer.k_proj.weight[:, :_RESERVED] = 0.0
        queries = mixer.q_proj.weight.view(mixer.heads, 2, mixer.width, -1)
        keys = mixer.k_proj.weight.view(mixer.key_heads, mixer.width, -1)
        # Every second head looks for its own token; the others start at random.
        repeat = mixer.heads // mixer.key_heads
        for head in range(0, mixer.heads, 2):
            queries[head, 0].copy_(keys[head // repeat])
        mixer.q_norm.weight.fill_(0.25)
        mixer.k_norm.weight.fill_(0.25)
        return
    assert isinstance(mixer, GatedDeltaNet)
    mixer.out_proj.weight.mul_(0.3)
    mixer.conv1d.weight.copy_(_normal(mixer.conv1d.weight, generator) * 0.3)
    mixer.conv1d.weight[:, 0, -1].add_(0.7)
    mixer.in_proj_a.weight.mul_(0.1)
    mixer.A_log.copy_(torch.linspace(1.0, 4.0, mixer.value_heads).log())
    # A step from a thousandth to a tenth: heads that forget within tens of tokens beside heads that keep all.
    steps = torch.logspace(-3, -1, mixer.value_heads)
    mixer.dt_bias.copy_(steps + torch.log(-torch.expm1(-steps)))


def _mark_schema(network: ClefNetwork) -> None:
    """The first layer's first head writes once it meets the schema's scaffolding, and every later token reads it."""
    layer = network.backbone.layer(0)
    mixer = layer.linear_attn
    assert isinstance(mixer, GatedDeltaNet)
    query, key, value = mixer.in_proj_qkv.weight.split(mixer.sizes)
    taps = mixer.conv1d.weight[:, 0].split(mixer.sizes)
    for rows, kernel, width, element in (
        (query, taps[0], mixer.key_width, _CONSTANT),
        (key, taps[1], mixer.key_width, _CONSTANT),
        (value, taps[2], mixer.value_width, _SCAFFOLD),
    ):
        rows[:width] = 0.0
        rows[0, element] = 1.0
        kernel[:width] = 0.0
        kernel[:width, -1] = 1.0
    for gate, weights in (
        (mixer.in_proj_b.weight, {_CONSTANT: -4.0, _SCAFFOLD: 6.0}),
        (mixer.in_proj_a.weight, {}),
        (mixer.in_proj_z.weight, {_CONSTANT: 1.0}),
    ):
        gate[0] = 0.0
        for element, weight in weights.items():
            gate[0, element] = weight
    mixer.dt_bias[0] = math.log(math.expm1(1e-4))
    mixer.out_proj.weight[: _FOUND + 1] = 0.0
    mixer.out_proj.weight[_IN_SCHEMA, 0] = 0.3
    layer.mlp.down_proj.weight[: _FOUND + 1] = 0.0


def _tell_found(network: ClefNetwork) -> None:
    """The first attention layer's first head tells how much of its attention falls on tokens before the schema."""
    layer = network.backbone.layer(1)
    mixer = layer.self_attn
    assert isinstance(mixer, Attention)
    last = mixer.width - 1
    mixer.v_proj.weight[last] = 0.0
    mixer.v_proj.weight[last, _CONSTANT] = 0.5
    mixer.v_proj.weight[last, _IN_SCHEMA] = -0.34
    gate = mixer.q_proj.weight.view(mixer.heads, 2, mixer.width, -1)[0, 1, last]
    gate.zero_()
    gate[_CONSTANT] = 1.0
    mixer.o_proj.weight[: _FOUND + 1] = 0.0
    mixer.o_proj.weight[_FOUND, last] = 12.0
    layer.mlp.down_proj.weight[: _FOUND + 1] = 0.0


def _start_head(network: ClefNetwork, generator: torch.Generator) -> None:
    head = network.head
    seen = head.memory_projection.weight
    head.option_lexical_projection.weight.copy_(seen)
    head.option_context_projection.weight.copy_(seen)
    head.question_projection.weight.copy_(seen)
    head.option_question_projection.weight.mul_(0.3)
    for module in head.modules():
        if isinstance(module, nn.MultiheadAttention):
            assert module.in_proj_weight is not None
            width = module.embed_dim
            module.in_proj_weight.copy_(_normal(module.in_proj_weight, generator) * width**-0.5)
            module.in_proj_weight[: 2 * width].mul_(0.3)
            module.in_proj_weight[:width].add_(torch.eye(width))
            module.in_proj_weight[width : 2 * width].add_(torch.eye(width))
            module.in_proj_bias.zero_()
    # What the head reads is the state: the mark of the schema, in memory element 0, lowers a token's score.
    seen[0] = 0.0
    seen[0, _IN_SCHEMA] = 1.0
    for layer in head.evidence_layers:
        _prefer_state(layer.get_submodule("attention"))
    for layer in head.layers:
        _prefer_state(layer.get_submodule("multihead_attn"))
    # exp(2) = 7.4 and exp(1.5) = 4.5 times a cosine, and an open gate: both paths start with a voice.
    head.prior_logit_scale.fill_(2.0)
    head.joint_logit_scale.fill_(1.5)
    head.residual_gate.fill_(2.0)


def _prefer_state(attention: nn.Module) -> None:
    """A token that carries the mark scores about 3 less in every head, whatever asks."""
    assert isinstance(attention, nn.MultiheadAttention)
    assert attention.in_proj_weight is not None
    width = attention.embed_dim
    for row in range(0, width, attention.head_dim):
        attention.in_proj_weight[row] = 0.0
        attention.in_proj_bias[row] = -8.0
        attention.in_proj_weight[width + row] = 0.0
        attention.in_proj_weight[width + row, 0] = 1.0
