"""What has to be patched in SGLang for the CPU platform; applied and checked by `model_plugin.sglang_hooks`."""

from typing import Any

from torch import Tensor

from model_plugin.cpu import kernels
from model_plugin.sglang_hooks import Hook


def supports_state_snapshots() -> bool:
    """Yes: our chunked delta rule returns the state before every chunk."""
    return True


def extend_attention(
    backend: Any,
    query: Tensor,
    output: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_prefix_lens: Tensor,
    extend_seq_lens: Tensor,
    encoder_lens: Tensor | None = None,
    scaling: float | None = None,
    enable_gqa: bool = False,
    causal: bool = False,
    is_cross_attn: bool = False,
    sliding_window_size: int | None = None,
) -> Tensor:
    """Write into `output [T, H, P]` the attention of each sequence's new tokens to its cached and new ones."""
    if not causal or is_cross_attn or encoder_lens is not None or sliding_window_size is not None:
        raise NotImplementedError("the CPU platform implements the causal attention of Qwen3.5 only")
    start = 0
    for row, length, new in zip(req_pool_indices, seq_lens.tolist(), extend_seq_lens.tolist(), strict=True):
        slots, part = req_to_token[row, :length], slice(start, start + new)
        k, v = k_cache[slots].to(query.dtype), v_cache[slots].to(query.dtype)
        output[part] = kernels.causal_attention_after_prefix(query[part], k, v, scaling)
        start += new
    return output


def without_pynccl(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Leave NCCL out of a tensor-parallel group; gloo carries it on a CPU."""
    return args, {**kwargs, "use_pynccl": False}


CPU_HOOKS = (
    Hook(
        target="sglang.kernels.ops.attention.fla.layernorm_gated.layernorm_fn",
        parameters=(
            "x",
            "weight",
            "bias",
            "z",
            "eps",
            "group_size",
            "norm_before_gate",
            "is_rms_norm",
            "activation",
        ),
        kind="REPLACE",
        function=kernels.gated_rms_norm,
        reason="the gated RMS norm of Gated DeltaNet is a Triton kernel, and its CPU branch needs Intel AMX",
    ),
    Hook(
        target="sglang.srt.arg_groups.mamba_hook._platform_supports_mamba_cache_extra_buffer",
        parameters=(),
        kind="REPLACE",
        function=supports_state_snapshots,
        reason="SGLang lists the platforms that can snapshot Gated DeltaNet states, and a CPU is not among them",
    ),
    Hook(
        target="sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend._run_sdpa_forward_extend",
        parameters=(
            "self",
            "query",
            "output",
            "k_cache",
            "v_cache",
            "req_to_token",
            "req_pool_indices",
            "seq_lens",
            "extend_prefix_lens",
            "extend_seq_lens",
            "encoder_lens",
            "scaling",
            "enable_gqa",
            "causal",
            "is_cross_attn",
            "sliding_window_size",
        ),
        kind="REPLACE",
        function=extend_attention,
        reason="SGLang's computes attention for the cached tokens too, so that a chunk or a hit costs as much as a miss",
    ),
    Hook(
        target="sglang.srt.distributed.parallel_state.GroupCoordinator.__init__",
        parameters=(
            "self",
            "group_ranks",
            "local_rank",
            "torch_distributed_backend",
            "use_pynccl",
            "use_mscclpp",
            "use_custom_allreduce",
            "use_torch_symm_mem_all_reduce",
            "use_hpu_communicator",
            "use_xpu_communicator",
            "use_message_queue_broadcaster",
            "group_name",
            "gloo_timeout",
            "recovered_rank",
            "rank_offset",
            "max_world_size",
        ),
        kind="BEFORE",
        function=without_pynccl,
        reason="SGLang sets up NCCL for every group of more than one rank, whatever the device",
    ),
)
