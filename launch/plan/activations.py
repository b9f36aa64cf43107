"""What a forward pass needs besides weights and pools, estimated from the sizes. Nothing here was measured on a GPU.

Two numbers: our estimate of the largest set of tensors alive at once, and the reserve that SGLang's own rule keeps, which
is about ten times as much and which plans follow until someone has measured.
"""

from launch.plan.model_shape import ModelShape

MIB = 1 << 20
# One pass of the joint head reads at most this many memory rows (model_plugin/pooler.py, _ROWS_A_PASS), or one longer prompt.
HEAD_ROWS = 65_536
# Tokens between two states of the chunked delta rule (kernels/ops/attention/fla/chunk_delta_h.py, CHUNK_SIZE).
_DELTA_CHUNK = 64
# Kept for the vision encoder where images are served (arg_groups/memory_hook.py, adjust_mem_fraction_for_vlm: "a fixed
# 8 GiB of VLM headroom").
VISION_RESERVE_BYTES = 8 << 30
# The multimodal embedding cache, allocated after the pools are sized (SGLANG_VLM_CACHE_SIZE_MB).
MEDIA_CACHE_BYTES = 100 * MIB


def activation_estimate(shape: ModelShape, *, tp: int, chunk_tokens: int, element_bytes: int = 2) -> int:
    """Bytes on one rank: the largest of one MLP, one Gated DeltaNet layer, one attention layer and the joint head.

    Counted for each token of a chunk, in elements:
      all    residual stream and layer input, 2 D
      MLP    gate and up, 2 I / tp; their product, I / tp; output, D
      GDN    projection, convolution and its three parts, 3 C / tp + V / tp; w, u, new values and output,
             (K' + 3 V) / tp, K' keys spread over value heads; a state each 64 tokens, heads x dk x dv / tp
      attn   queries, gates, keys and values, (2 Q + 2 KV) / tp; output, Q / tp; projection, D
      head   of the chunk, normalized states and rows, D + W; of the rows read, gathered, concatenated, normalized, keys,
             values, and one copy, 6 W
    Left out: workspaces of attention and matrix products, the vision tower, fragmentation.
    """
    text, width = shape.text, shape.head.width
    hidden = text.hidden_size
    queries, keys = text.num_attention_heads * text.head_dim, text.num_key_value_heads * text.head_dim
    spread_keys = text.linear_num_value_heads * text.linear_key_head_dim
    state = text.linear_num_value_heads * text.linear_key_head_dim * text.linear_value_head_dim
    mlp = 3 * text.intermediate_size / tp + hidden
    delta = (3 * text.conv_width + 4 * text.value_width + spread_keys + state / _DELTA_CHUNK) / tp
    attention = (3 * queries + 2 * keys) / tp + hidden
    layer = chunk_tokens * (2 * hidden + max(mlp, delta, attention))
    head = chunk_tokens * (2 * hidden + width) + HEAD_ROWS * 6 * width
    return int(max(layer, head) * element_bytes)


def sglang_reserve(*, memory_mib: int, tp: int, chunk_tokens: int, graph_bytes: int = 0) -> int:
    """Bytes that SGLang keeps free for a forward pass.

    Source: arg_groups/memory_hook.py, handle_gpu_memory_settings: 512 MiB and 1.5 MiB a token of the chunk, 128 MiB a rank,
    graphs, and at least 10 GiB where the GPU has more than 60.
    """
    reserve = 512 + 1.5 * max(chunk_tokens, 2048) + tp / 8 * 1024 + graph_bytes / MIB
    if memory_mib > 60 * 1024:
        reserve = max(reserve, 10 * 1024)
    return int(reserve * MIB)


def prefill_graph_bytes(chunk_tokens: int) -> int:
    """What SGLang reserves for prefill graphs up to the chunk: 8 MiB a captured size.

    Source: arg_groups/memory_hook.py, reserve_for_graph_mb; the sizes are those of arg_groups/cuda_graph_hook.py,
    generate_prefill_cuda_graph_batch_sizes.
    """
    steps = (
        (4, 33, 4),
        (48, 257, 16),
        (288, 513, 32),
        (576, 1025, 64),
        (1280, 4097, 256),
        (4608, chunk_tokens + 1, 512),
    )
    sizes = [size for step in steps for size in range(*step) if size <= chunk_tokens]
    return 8 * MIB * len(sizes)
