"""The least time one request can take on a GPU: its arithmetic and the bytes it must move, counted from the release's sizes.

A bound, no forecast: kernels at their datasheet rate, each byte moved once, work perfectly divided over ranks and
communication for free. Left out, all of which only adds time: activations, norms, the head's work on questions and options
(it depends on their number), media, and everything on the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from launch.plan.gpu import Gpu
from launch.plan.model_shape import ModelShape
from launch.plan.tensors import Tensor
from launch.plan.token_memory import TokenMemory

Rate = Literal["bf16", "fp8", "fp4"]
# What multiplies weights of each storage format: FP8 and NVFP4 releases quantize activations too, int4 ones do not.
_RATES: dict[str, Rate] = {"bf16": "bf16", "fp8": "fp8", "nvfp4": "fp4", "int4": "bf16"}


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a request asks of all ranks together.

    Attributes:
        flop_by_rate: floating-point operations by the rate of tensor cores they run at.
        bytes_moved: to and from GPU memory.
        computed_tokens: that pass through the backbone; the others come from the cache.
    """

    flop_by_rate: dict[Rate, float]
    bytes_moved: float
    computed_tokens: int

    @property
    def flop(self) -> float:
        return sum(self.flop_by_rate.values())


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Seconds. The request takes at least `least_s`, the longer of the two."""

    compute_s: float
    memory_s: float

    @property
    def least_s(self) -> float:
        return max(self.compute_s, self.memory_s)

    @property
    def limit(self) -> Literal["compute", "memory"]:
        return "compute" if self.compute_s >= self.memory_s else "memory"


def request_work(
    shape: ModelShape, tensors: Sequence[Tensor], memory: TokenMemory, *, cached_tokens: int, new_tokens: int
) -> Work:
    """The work of one request alone, `new_tokens` after `cached_tokens` from the cache.

    Args:
        memory: sizes on one rank with `tp` 1.

    A product of a token with a matrix of n weights is 2 n operations. Softmax attention between a query and a key is
    4 x heads x head size (a score and a weighted sum). A step of the delta rule is 6 x key size x value size a head: the
    state is read, updated and read again; the chunked form computes more. The head projects a row of every token, and keys
    and values of every token's row again in each of its layers.
    """
    text, head = shape.text, shape.head
    pairs = new_tokens * cached_tokens + new_tokens * (new_tokens + 1) // 2
    flop: dict[Rate, float] = {"bf16": 0.0, "fp8": 0.0, "fp4": 0.0}
    weight_bytes = 0
    for tensor in tensors:
        if not _multiplies_tokens(tensor):
            continue
        flop[_RATES[tensor.format]] += 2.0 * tensor.parameters * new_tokens
        weight_bytes += tensor.stored_bytes
    flop["bf16"] += 4.0 * text.num_attention_heads * text.head_dim * text.attention_layers * pairs
    delta = 6 * text.linear_key_head_dim * text.linear_value_head_dim * text.linear_num_value_heads
    flop["bf16"] += float(delta * text.linear_layers * new_tokens)
    flop["bf16"] += 2.0 * head.hidden_size * head.width * new_tokens
    layers = head.routing_layers + head.layers
    flop["bf16"] += 4.0 * head.width**2 * layers * (cached_tokens + new_tokens)

    tokens = cached_tokens + new_tokens
    moved = weight_bytes + 2.0 * head.width * (head.hidden_size + 4 * head.width * layers)
    moved += 2.0 * text.hidden_size * new_tokens  # embedding rows
    moved += (memory.kv_bytes + memory.row_bytes) * tokens  # written or read once
    # The state a cached prefix begins with is read; the running one and the checkpoint are written.
    moved += memory.state_bytes * ((1 if cached_tokens else 0) + 2)
    return Work(flop_by_rate=flop, bytes_moved=moved, computed_tokens=new_tokens)


def _multiplies_tokens(tensor: Tensor) -> bool:
    """Matrices of the text layers and what goes with them; a request that generates nothing needs no LM head."""
    return tensor.name.startswith("model.") and ".layers." in tensor.name


def bound(work: Work, gpu: Gpu, *, tp: int) -> Bound:
    """The least time on `tp` such GPUs.

    Raises:
        ValueError: the weights are in FP4, for which the GPU has no tensor cores.
    """
    if work.flop_by_rate["fp4"] and gpu.fp4_tflop_s is None:
        raise ValueError(f"{gpu.name} has no FP4 tensor cores")
    rates = {"bf16": gpu.bf16_tflop_s, "fp8": gpu.fp8_tflop_s, "fp4": gpu.fp4_tflop_s or 1.0}
    compute = sum(flop / (rates[rate] * 1e12) for rate, flop in work.flop_by_rate.items())
    return Bound(compute_s=compute / tp, memory_s=work.bytes_moved / (gpu.bandwidth_tb_s * 1e12) / tp)
