"""The remaining compiled kernels that SGLang's Qwen3.5 calls on a CPU, in plain PyTorch.

Each function has the shape of the kernel it stands for; the norms compute in FP32 and return the input's type, as the
compiled ones do. T tokens, H query heads, G key heads, P head width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def gemma_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm over the last dimension with `1 + weight` (Gemma's convention, which Qwen3.5 uses)."""
    normalized = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (normalized * (1.0 + weight.float())).to(x.dtype)


def sigmoid_mul_(x: Tensor, gate: Tensor) -> None:
    """`x *= sigmoid(gate)` in place."""
    x.copy_((x.float() * gate.float().sigmoid()).view_as(x))


def qk_gemma_rms_norm(
    q: Tensor, k: Tensor, q_weight_P: Tensor, k_weight_P: Tensor, eps: float, head_dim: int
) -> tuple[Tensor, Tensor]:
    """Per-head norms of queries and keys, `[T * heads, P]` each."""
    return (
        gemma_rms_norm(q.reshape(-1, head_dim), q_weight_P, eps),
        gemma_rms_norm(k.reshape(-1, head_dim), k_weight_P, eps),
    )


def qk_gemma_rms_norm_with_gate(
    q_gate: Tensor, k: Tensor, q_weight_P: Tensor, k_weight_P: Tensor, eps: float, head_dim: int, num_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same where each head's query is followed by its output gate; returns queries, keys and gates `[T * H, P]`."""
    q_THP, gate_THP = q_gate.reshape(-1, num_heads, 2, head_dim).unbind(2)
    q, k = qk_gemma_rms_norm(q_THP, k, q_weight_P, k_weight_P, eps, head_dim)
    return q, k, gate_THP.reshape(-1, head_dim).contiguous()


def split_qkvzba(
    qkvz: Tensor, ba: Tensor, key_heads: int, value_heads: int, key_width: int, value_width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`[q|k|v|z]` and `[b|a]` of each token into `qkv [T, D]`, `z [T, H, V]`, `b [T, H]`, `a [T, H]`."""
    channels = 2 * key_heads * key_width + value_heads * value_width
    z_THV = qkvz[:, channels:].reshape(-1, value_heads, value_width)
    b_TH, a_TH = ba[:, :value_heads].contiguous(), ba[:, value_heads : 2 * value_heads].contiguous()
    return qkvz[:, :channels].contiguous(), z_THV.contiguous(), b_TH, a_TH


def gated_rms_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    is_rms_norm: bool = False,
    activation: str = "swish",
) -> Tensor:
    """`rms_norm(x) * weight * silu(z)`, the form Qwen3.5 uses of SGLang's `layernorm_fn`.

    Raises:
        NotImplementedError: another form was asked for.
    """
    if not (is_rms_norm and norm_before_gate and bias is None and z is not None and activation in ("swish", "silu")):
        raise NotImplementedError("the CPU platform implements the gated RMS norm of Qwen3.5 only")
    if group_size not in (None, x.shape[-1]):
        raise NotImplementedError("the CPU platform implements the gated RMS norm over one group only")
    normalized = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps) * weight.float()
    return (normalized * F.silu(z.reshape(x.shape).float())).to(x.dtype)


def causal_attention_after_prefix(q_THP: Tensor, k_SGP: Tensor, v_SGP: Tensor, scale: float | None) -> Tensor:
    """Attention of a sequence's last T tokens to all its S tokens so far, causal among the T; `[T, H, P]`.

    The prefix needs no mask and the rest is square, so both parts run in PyTorch's fused kernel, at a cost of T x S; they are
    joined by their log-sum-exp, as in "FlashAttention" (arXiv:2205.14135), section 3.1.
    """
    tokens, heads = q_THP.shape[:2]
    prefix = len(k_SGP) - tokens
    q, k, v = (
        x.transpose(0, 1).repeat_interleave(heads // x.shape[1], dim=0).unsqueeze(0) for x in (q_THP, k_SGP, v_SGP)
    )

    def part(keys: slice, causal: bool) -> tuple[Tensor, Tensor]:  # [1, H, T, P] and log-sum-exp [1, H, T, 1]
        out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k[:, :, keys], v[:, :, keys], 0.0, causal, scale=scale
        )
        return out.float(), log_sum.float().unsqueeze(-1)

    own, own_log_sum = part(slice(prefix, None), causal=True)
    if prefix:
        before, before_log_sum = part(slice(prefix), causal=False)
        own = own + (before - own) * torch.sigmoid(before_log_sum - own_log_sum)
    return own[0].transpose(0, 1).to(q_THP.dtype)
