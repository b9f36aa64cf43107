"""What a token and a recurrent state occupy on one tensor-parallel rank, in bytes. Knows nothing of pools or GPUs."""

from dataclasses import dataclass
from typing import Literal

from launch.plan.model_shape import ModelShape, StateType, TextShape

StateFormat = Literal["float32", "bfloat16", "int8"]
ELEMENT_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, kw_only=True)
class TokenMemory:
    """Bytes on one rank.

    Attributes:
        kv_bytes: keys and values of a token in all layers with softmax attention.
        row_bytes: the joint head's memory row of a token, which every rank keeps in full.
        conv_bytes: convolution windows of one recurrent state, in all Gated DeltaNet layers.
        temporal_bytes: matrices of one recurrent state, in all Gated DeltaNet layers.
        int8_bytes: one state in SGLang's int8 checkpoint pool, scales and windows included.
    """

    kv_bytes: int
    row_bytes: int
    conv_bytes: int
    temporal_bytes: int
    int8_bytes: int

    @property
    def cell_bytes(self) -> int:
        """What a KV slot costs where SGLang sizes its pools: our plugin adds the row (sglang_hooks.count_memory_rows)."""
        return self.kv_bytes + self.row_bytes

    @property
    def state_bytes(self) -> int:
        return self.conv_bytes + self.temporal_bytes


def token_memory(
    shape: ModelShape, *, tp: int, state: StateType, dtype: StateType = "bfloat16", conv: StateType | None = None
) -> TokenMemory:
    """Sizes for an engine of type `dtype`.

    Args:
        state: type of the states' matrices; SGLang's default is the checkpoint's `mamba_ssm_dtype`, else FP32.
        conv: type of their convolution windows; `dtype` by default, as our CPU platform sets it and as SGLang's own
            default, BF16, is for a BF16 engine.

    Source: model_executor/pool_configurator.py, DefaultPoolConfigurator._compute_cell_size; configs/mamba_utils.py,
    BaseLinearStateParams.mamba_cache_per_req and Mamba2StateShape.create; mem_cache/mamba_checkpoint_pool.py,
    MambaCheckpointPool.estimate_mem_usage_bytes; our memory_pool.row_bytes.
    """
    text, element = shape.text, ELEMENT_BYTES[dtype]
    layers, heads = text.linear_layers, text.linear_num_value_heads // tp
    keys, values = text.linear_key_head_dim, text.linear_value_head_dim
    windows = layers * _window_elements(text, tp) * ELEMENT_BYTES[conv or dtype]
    matrices = layers * heads * values * keys
    scales = layers * heads * keys
    return TokenMemory(
        kv_bytes=text.num_key_value_heads // tp * 2 * text.head_dim * text.attention_layers * element,
        row_bytes=shape.head.width * element,
        conv_bytes=windows,
        temporal_bytes=matrices * ELEMENT_BYTES[state],
        int8_bytes=matrices + scales * ELEMENT_BYTES[state] + windows,
    )


def _window_elements(text: TextShape, tp: int) -> int:
    return text.conv_width // tp * (text.linear_conv_kernel_dim - 1)
