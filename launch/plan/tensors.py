"""The weights of a release, tensor by tensor: read from its safetensors headers, or listed from its sizes.

Reads no weight. Knows names, shapes and types; where a tensor ends up, `weight_plan` knows.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from launch.plan.model_shape import ModelShape, TextShape, VisionShape
from model_plugin.checkpoint import HEAD_WEIGHTS_FILE, check_lm_head, head_tensor_shapes

WeightsFormat = Literal["bf16", "fp8", "nvfp4", "int4"]
FORMATS: tuple[str, ...] = get_args(WeightsFormat)
INDEX_FILE = "model.safetensors.index.json"
# Bits of an element by safetensors type.
_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8}
_BITS |= {"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4}
# Weights that hold several 4-bit numbers an element: name's end and type, numbers an element, format.
_PACKED: dict[tuple[str, str], tuple[int, WeightsFormat]] = {
    ("weight_packed", "I32"): (8, "int4"),
    ("qweight", "I32"): (8, "int4"),
    ("weight_packed", "U8"): (2, "nvfp4"),
    ("weight", "U8"): (2, "nvfp4"),
}
# In a quantized release the first two names of a pair are too narrow for a quantized product and stay as they are.
_NARROW = ("in_proj_a", "in_proj_b")
INT4_GROUP = 128
NVFP4_GROUP = 16
_TEXT = "model.language_model."
_VISION = "model.visual."


class WeightsError(ValueError):
    """The weights cannot be read or are incomplete; the message names the file."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor as it is stored. `dtype` is a safetensors type."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def stored_bytes(self) -> int:
        return self.elements * _BITS[self.dtype] // 8

    @property
    def is_weight(self) -> bool:
        """Whether it holds a weight, rather than a scale, zero point or permutation of quantized ones."""
        end = self.name.rpartition(".")[2]
        return (end, self.dtype) in _PACKED or not any(
            word in end
            for word in ("scale", "qzeros", "zero_point", "g_idx", "weight_shape", "qweight", "weight_packed")
        )

    @property
    def format(self) -> WeightsFormat:
        """How the weight is stored."""
        end = self.name.rpartition(".")[2]
        if (end, self.dtype) in _PACKED:
            return _PACKED[end, self.dtype][1]
        return "fp8" if self.dtype.startswith("F8") and end == "weight" else "bf16"

    @property
    def parameters(self) -> int:
        """How many numbers of the model it holds; 0 for a scale."""
        end = self.name.rpartition(".")[2]
        return self.elements * _PACKED.get((end, self.dtype), (1, ""))[0] if self.is_weight else 0


def read_tensors(directory: Path) -> list[Tensor]:
    """Every tensor of a release's safetensors files, head included.

    Raises:
        WeightsError: a file is missing or unreadable, or the index names a tensor that its file does not hold.
    """
    index = directory / INDEX_FILE
    if index.is_file():
        try:
            placed: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        except (OSError, ValueError, KeyError) as err:
            raise WeightsError(f"{INDEX_FILE} is not an index of safetensors files: {err}") from err
        files = sorted(set(placed.values()))
    else:
        placed = {}
        files = sorted(path.name for path in directory.glob("*.safetensors") if path.name != HEAD_WEIGHTS_FILE)
    if not files:
        raise WeightsError(f"{directory} has no safetensors files")
    backbone = {tensor.name: tensor for file in files for tensor in _header(directory / file)}
    if missing := sorted(placed.keys() - backbone.keys()):
        raise WeightsError(
            f"{INDEX_FILE} names tensors that its files do not hold: {missing[:3]} ({len(missing)} in all)"
        )
    return [*backbone.values(), *_header(directory / HEAD_WEIGHTS_FILE)]


def _header(path: Path) -> Iterator[Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                part = file.get_slice(name)
                yield Tensor(name=name, shape=tuple(part.get_shape()), dtype=part.get_dtype())
    except (OSError, SafetensorError) as err:
        raise WeightsError(f"{path.name} is missing, cut short or not a safetensors file: {err}") from err


def listed_tensors(shape: ModelShape, weights: WeightsFormat) -> list[Tensor]:
    """What a release of these sizes holds, with its text layers' products in the given format.

    Quantized releases differ in what they leave in BF16. Listed here: all linear layers of the text layers are
    quantized but the two narrow ones of Gated DeltaNet; embeddings, LM head, vision tower and joint head are not.
    FP8 has a scale an output channel (compressed-tensors), int4 groups of 128 with zero points, NVFP4 groups of 16.
    """
    plain: list[tuple[str, tuple[int, ...]]] = [("lm_head.weight", (shape.text.vocab_size, shape.text.hidden_size))]
    plain += [(f"{_TEXT}{name}", size) for name, size in _text(shape.text)]
    tensors = []
    for name, size in plain:
        quantized = len(size) == 2 and ".layers." in name and not any(f".{narrow}." in name for narrow in _NARROW)
        tensors += _stored(name, size, weights if quantized else "bf16")
    tensors += [Tensor(name=f"{_VISION}{name}", shape=size, dtype="BF16") for name, size in _vision(shape.vision)]
    head = head_tensor_shapes(shape.head.checked())
    return tensors + [Tensor(name=name, shape=size, dtype="BF16") for name, size in head.items()]


def _stored(name: str, size: tuple[int, ...], weights: WeightsFormat) -> list[Tensor]:
    if weights == "bf16":
        return [Tensor(name=name, shape=size, dtype="BF16")]
    outputs, inputs = size
    stem = name.removesuffix("weight")
    parts: list[tuple[str, tuple[int, ...], str]]
    if weights == "fp8":
        parts = [("weight", size, "F8_E4M3"), ("weight_scale", (outputs, 1), "BF16")]
    elif weights == "int4":
        groups = -(-inputs // INT4_GROUP)
        parts = [("weight_packed", (outputs, inputs // 8), "I32"), ("weight_scale", (outputs, groups), "BF16")]
        parts += [("weight_zero_point", (outputs // 8, groups), "I32")]
    else:
        parts = [("weight_packed", (outputs, inputs // 2), "U8")]
        parts += [("weight_scale", (outputs, -(-inputs // NVFP4_GROUP)), "F8_E4M3")]
        parts += [("weight_global_scale", (1,), "F32"), ("input_global_scale", (1,), "F32")]
    return [Tensor(name=stem + end, shape=part, dtype=dtype) for end, part, dtype in parts]


def _text(text: TextShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Source: the module tree of Transformers' `Qwen3_5TextModel`; a test compares it with a saved release."""
    hidden = text.hidden_size
    yield "embed_tokens.weight", (text.vocab_size, hidden)
    yield "norm.weight", (hidden,)
    for index in range(text.num_hidden_layers):
        layer = f"layers.{index}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}.{norm}.weight", (hidden,)
        for name in ("gate_proj", "up_proj"):
            yield f"{layer}.mlp.{name}.weight", (text.intermediate_size, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, text.intermediate_size)
        mixer = _attention(text) if (index + 1) % text.full_attention_interval == 0 else _delta_net(text)
        for name, size in mixer:
            yield f"{layer}.{name}", size


def _attention(text: TextShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    queries, keys = text.num_attention_heads * text.head_dim, text.num_key_value_heads * text.head_dim
    # Twice the queries: the second half gates the output.
    for name, outputs in (("q_proj", 2 * queries), ("k_proj", keys), ("v_proj", keys)):
        yield f"self_attn.{name}.weight", (outputs, text.hidden_size)
    yield "self_attn.o_proj.weight", (text.hidden_size, queries)
    for name in ("q_norm", "k_norm"):
        yield f"self_attn.{name}.weight", (text.head_dim,)


def _delta_net(text: TextShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    heads = text.linear_num_value_heads
    for name, outputs in (
        ("in_proj_qkv", text.conv_width),
        ("in_proj_z", text.value_width),
        ("in_proj_a", heads),
        ("in_proj_b", heads),
    ):
        yield f"linear_attn.{name}.weight", (outputs, text.hidden_size)
    yield "linear_attn.out_proj.weight", (text.hidden_size, text.value_width)
    yield "linear_attn.conv1d.weight", (text.conv_width, 1, text.linear_conv_kernel_dim)
    yield "linear_attn.A_log", (heads,)
    yield "linear_attn.dt_bias", (heads,)
    yield "linear_attn.norm.weight", (text.linear_value_head_dim,)


def _vision(vision: VisionShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Source: the module tree of Transformers' `Qwen3_5VisionModel`; a test compares it with a saved release."""
    width = vision.hidden_size

    def linear(name: str, outputs: int, inputs: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", (outputs, inputs)
        yield f"{name}.bias", (outputs,)

    def norm(name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", (width,)
        yield f"{name}.bias", (width,)

    patch = (vision.in_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size)
    yield "patch_embed.proj.weight", (width, *patch)
    yield "patch_embed.proj.bias", (width,)
    yield "pos_embed.weight", (vision.num_position_embeddings, width)
    for index in range(vision.depth):
        block = f"blocks.{index}"
        yield from norm(f"{block}.norm1")
        yield from norm(f"{block}.norm2")
        yield from linear(f"{block}.attn.qkv", 3 * width, width)
        yield from linear(f"{block}.attn.proj", width, width)
        yield from linear(f"{block}.mlp.linear_fc1", vision.intermediate_size, width)
        yield from linear(f"{block}.mlp.linear_fc2", width, vision.intermediate_size)
    merged = width * vision.spatial_merge_size**2
    yield from norm("merger.norm")
    yield from linear("merger.linear_fc1", merged, merged)
    yield from linear("merger.linear_fc2", vision.out_hidden_size, merged)


def format_of(tensors: list[Tensor]) -> WeightsFormat:
    """How most of the text layers' weights are stored.

    Raises:
        CheckpointError: the LM head is quantized.
    """
    check_lm_head({tensor.name: tensor.dtype for tensor in tensors})
    held = dict.fromkeys(FORMATS, 0)
    for tensor in tensors:
        if ".layers." in tensor.name and not tensor.name.startswith("layers."):
            held[tensor.format] += tensor.parameters
    counts: dict[WeightsFormat, int] = {
        "bf16": held["bf16"],
        "fp8": held["fp8"],
        "nvfp4": held["nvfp4"],
        "int4": held["int4"],
    }
    return max(counts, key=lambda name: counts[name])
