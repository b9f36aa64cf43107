"""Stands in for `sgl_kernel.mamba` in CPU engine processes; see the package."""

from typing import Any

from torch import Tensor

from model_plugin.cpu import gated_delta_net
from sgl_kernel import prefill_only as causal_conv1d_update_cpu

__all__ = ["causal_conv1d_fn_cpu", "causal_conv1d_update_cpu", "chunk_gated_delta_rule_cpu"]


def causal_conv1d_fn_cpu(
    mixed_qkv_transposed: Tensor,
    conv_weights: Tensor,
    bias: Tensor | None,
    activation: str | None,
    conv_states: Tensor,
    has_initial_state: Tensor,
    cache_indices: Tensor,
    query_start_loc: Tensor,
    seq_lens_cpu: Any,
) -> Tensor:
    """SGLang's signature for `gated_delta_net.causal_conv1d`; `[D, T]` in and out."""
    return gated_delta_net.causal_conv1d(
        mixed_qkv_transposed,
        conv_weights,
        bias,
        activation,
        conv_states,
        has_initial_state,
        cache_indices.long(),
        query_start_loc,
    )


def chunk_gated_delta_rule_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    head_first: bool,
    use_qk_l2norm_in_kernel: bool,
    initial_state_indices: Tensor,
) -> tuple[Tensor, None, Tensor]:
    """SGLang's signature for `gated_delta_net.chunk_gated_delta_rule`, with the per-chunk states that prefix checkpoints need.

    SGLang's own CPU wrapper returns None in their place, with which no checkpoint inside a prefill can be kept.
    """
    assert not head_first
    assert use_qk_l2norm_in_kernel
    out_THV, before_CHVK = gated_delta_net.chunk_gated_delta_rule(
        q[0], k[0], v[0], g[0], beta[0], initial_state, initial_state_indices.long(), cu_seqlens
    )
    return out_THV.unsqueeze(0), None, before_CHVK.unsqueeze(0)
