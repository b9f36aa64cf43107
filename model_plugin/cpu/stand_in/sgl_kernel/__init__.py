"""Stands in for SGLang's compiled kernel package in CPU engine processes: the operators Qwen3.5 uses, in plain PyTorch.

Found first through PYTHONPATH (see `model_plugin.cpu.activate`), never on a CUDA machine. It has no
`convert_weight_packed`, so SGLang takes its paths without Intel AMX.
"""

from collections.abc import Callable
from typing import Any

import torch

from model_plugin.cpu import gated_delta_net, kernels


def prefill_only(*_: Any) -> Any:
    """Takes the place of kernels for decoding and speculation, which SGLang imports and a Clef request never reaches."""
    raise NotImplementedError("the CPU platform runs prefill only: a Clef request generates no token")


# Imported by name somewhere in SGLang when it runs on a CPU.
assign_draft_cache_locs_contiguous_cpu = prefill_only
assign_extend_cache_locs_cpu = prefill_only
assign_req_to_token_pool_cpu = prefill_only
build_tree_kernel_efficient_cpu = prefill_only
copy_all_layer_kv_cache_cpu = prefill_only
fill_accept_out_cache_loc_cpu = prefill_only
fill_bonus_tokens_cpu = prefill_only
rotate_input_ids_cpu = prefill_only
verify_tree_greedy_cpu = prefill_only

_OPERATORS: dict[str, Callable[..., Any]] = {
    "fused_sigmoid_mul_cpu(Tensor(a!) x, Tensor gate) -> ()": kernels.sigmoid_mul_,
    "fused_qk_gemma_rmsnorm_cpu(Tensor q, Tensor k, Tensor qw, Tensor kw, float eps, int head_dim) -> (Tensor, Tensor)": (
        kernels.qk_gemma_rms_norm
    ),
    "fused_qk_gemma_rmsnorm_with_gate_cpu(Tensor q, Tensor k, Tensor qw, Tensor kw, float eps, int head_dim, int num_heads)"
    " -> (Tensor, Tensor, Tensor)": kernels.qk_gemma_rms_norm_with_gate,
    "fused_qkvzba_split_reshape_cat_contiguous_cpu(Tensor qkvz, Tensor ba, int key_heads, int value_heads, int key_width,"
    " int value_width) -> (Tensor, Tensor, Tensor, Tensor)": kernels.split_qkvzba,
    "fused_gdn_gating_cpu(Tensor A_log, Tensor a, Tensor b, Tensor dt_bias) -> (Tensor, Tensor)": gated_delta_net.gates,
    "fused_sigmoid_gating_delta_rule_update_cpu(Tensor q) -> Tensor": prefill_only,
}

# Kept for the life of the process: dropping the library would unregister the operators.
_library = torch.library.Library("sgl_kernel", "DEF")
for _schema, _implementation in _OPERATORS.items():
    _library.define(_schema)
    _library.impl(_schema.split("(")[0], _implementation, "CPU")
