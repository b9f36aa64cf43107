"""SGLang as it is, on a CPU: the kernels it lacks there and nothing else of ours. For comparisons only; no product uses it.

`_sides` makes SGLang load `register` as its only plugin, in each of its processes.
"""

import itertools
import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model_plugin.sglang_hooks import Hook

ENTRY_POINT = "clef_benchmark_stock_cpu"


def register() -> None:
    """Put the hooks of the CPU reference platform in place, and what SGLang's own joint schema head lacks.

    Raises:
        SystemExit: SGLang is another version, our product's hooks are there too, or a hook did not apply.
    """
    import sglang

    import model_plugin
    from model_plugin import sglang_hooks
    from model_plugin.cpu.hooks import CPU_HOOKS

    if sglang.__version__ not in sglang_hooks.SUPPORTED_SGLANG:
        raise SystemExit(f"the comparison knows SGLang {sglang_hooks.SUPPORTED_SGLANG}, not {sglang.__version__}")
    if model_plugin.installed() or "model_plugin.models.clef" in sys.modules:
        raise SystemExit("stock SGLang was asked for, and the clef plugin is in place")
    sglang_hooks.apply((*CPU_HOOKS, HEAD_HOOK))


def head_attention(
    module: nn.MultiheadAttention,
    queries: Tensor,
    keys: Tensor | None,
    query_bounds: tuple[Tensor, int],
    key_bounds: tuple[Tensor, int],
) -> Tensor:
    """Full (not causal) attention within each of several sequences that lie back to back, `[rows, width]`.

    Each bound is a pair of cumulative lengths that start with 0, and the longest length; without keys, queries attend to
    themselves.
    """
    width, heads = queries.shape[-1], module.num_heads
    assert module.in_proj_weight is not None
    query_weight, key_value_weight = module.in_proj_weight.split([width, 2 * width])
    query_bias, key_value_bias = module.in_proj_bias.split([width, 2 * width])
    query = F.linear(queries, query_weight, query_bias)
    key, value = F.linear(queries if keys is None else keys, key_value_weight, key_value_bias).chunk(2, dim=-1)
    query_HTP, key_HSP, value_HSP = (x.view(-1, heads, width // heads).transpose(0, 1) for x in (query, key, value))
    attended_HTP = torch.empty_like(query_HTP)
    sequences = (itertools.pairwise(bounds.tolist()) for bounds, _ in (query_bounds, key_bounds))
    for rows, memory in zip(*sequences, strict=True):
        mine, theirs = slice(*rows), slice(*memory)
        attended_HTP[:, mine] = F.scaled_dot_product_attention(
            query_HTP[:, mine], key_HSP[:, theirs], value_HSP[:, theirs]
        )
    projected: Tensor = module.out_proj(attended_HTP.transpose(0, 1).reshape(-1, width))
    return projected


HEAD_HOOK = Hook(
    target="sglang.srt.layers.joint_schema_head._attention",
    parameters=("module", "queries", "keys", "query_bounds", "key_bounds"),
    kind="REPLACE",
    function=head_attention,
    reason="the joint schema head calls a flash-attention operator that exists on CUDA only",
)
