"""What a Clef release holds on disk: its files, its head's configuration and the shape of every head tensor.

Reads JSON and safetensors headers only. Imports neither torch nor SGLang, so a laptop without either can check a release.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

HEAD_CONFIG_FILE = "joint_head_config.json"
HEAD_WEIGHTS_FILE = "joint_head.safetensors"
ARCHITECTURE = "Qwen3_5ForConditionalGeneration"


class CheckpointError(ValueError):
    """A directory is not a Clef release that can be served; the message names the file, what is wrong and the remedy."""


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """`joint_head_config.json`, checked. Widths count elements; `layers` counts decoder layers over the questions."""

    hidden_size: int
    width: int
    routing_layers: int
    layers: int
    heads: int
    feedforward: int
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("hidden_size", "width", "routing_layers", "layers", "heads", "feedforward"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise CheckpointError(f"{HEAD_CONFIG_FILE}: {name} must be a positive integer, not {value!r}")
        if self.width % self.heads:
            raise CheckpointError(f"{HEAD_CONFIG_FILE}: width {self.width} is not a multiple of heads {self.heads}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "HeadConfig":
        """Build from parsed JSON.

        Raises:
            CheckpointError: a key is missing or unknown, or a value is out of range.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        missing = sorted(known - set(values) - {"dropout"})
        if unknown or missing:
            raise CheckpointError(f"{HEAD_CONFIG_FILE}: missing keys {missing}, unknown keys {unknown}")
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Release:
    """A Clef release on disk. `context_tokens` is the backbone's `max_position_embeddings`."""

    path: Path
    head: HeadConfig
    context_tokens: int
    vocabulary_size: int
    key_value_heads: int


def head_tensor_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of `joint_head.safetensors`, by name, with its shape.

    Source: the module tree of Cloudflare's `joint_schema_model.py` (JointSchemaHead).
    """
    hidden, width, feedforward = config.hidden_size, config.width, config.feedforward
    shapes: dict[str, tuple[int, ...]] = {
        "type_embedding.weight": (3, width),
        "prior_logit_scale": (),
        "joint_logit_scale": (),
        "residual_gate": (),
    }

    def norm(name: str, size: int) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (size,)

    def linear(name: str, outputs: int, inputs: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outputs, inputs), (outputs,)

    def attention(name: str) -> None:
        shapes[f"{name}.in_proj_weight"], shapes[f"{name}.in_proj_bias"] = (3 * width, width), (3 * width,)
        linear(f"{name}.out_proj", width, width)

    norm("hidden_norm", hidden)
    for projection in ("memory", "question", "option_question", "global", "option_context", "option_lexical"):
        shapes[f"{projection}_projection.weight"] = (width, hidden)
    for index in range(config.routing_layers):
        layer = f"evidence_layers.{index}"
        for name in ("query_norm", "memory_norm", "feedforward_norm"):
            norm(f"{layer}.{name}", width)
        attention(f"{layer}.attention")
        linear(f"{layer}.feedforward.0", feedforward, width)
        linear(f"{layer}.feedforward.3", width, feedforward)
    for index in range(config.layers):
        layer = f"layers.{index}"
        for name in ("norm1", "norm2", "norm3"):
            norm(f"{layer}.{name}", width)
        attention(f"{layer}.self_attn")
        attention(f"{layer}.multihead_attn")
        linear(f"{layer}.linear1", feedforward, width)
        linear(f"{layer}.linear2", width, feedforward)
    for name in ("option_summary_norm", "field_norm", "option_norm"):
        norm(name, width)
    linear("residual_scorer.0", width, 4 * width)
    linear("residual_scorer.3", 1, width)
    return shapes


def read_release(path: str | Path) -> Release:
    """Read and check a release directory without loading a weight.

    Raises:
        CheckpointError: a file is missing or unreadable, the head does not fit the backbone or its own configuration,
            its LM head is quantized, or SGLang would fail later on this configuration.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is not a directory")
    config = _read_json(directory / "config.json")
    if config.get("architectures") != [ARCHITECTURE]:
        raise CheckpointError(
            f"config.json: architectures is {config.get('architectures')!r}, Clef needs [{ARCHITECTURE!r}]"
        )
    text, vision = config.get("text_config"), config.get("vision_config")
    if not isinstance(text, dict):
        raise CheckpointError("config.json: text_config is missing")
    if isinstance(vision, dict) and "deepstack_visual_indexes" not in vision:
        # Transformers does not write the key; SGLang then assumes three levels and the first image ends its scheduler.
        raise CheckpointError(
            'config.json: vision_config has no deepstack_visual_indexes; add "deepstack_visual_indexes": [] '
            "(Qwen3.5 has no deepstack levels), or the first image would end the engine"
        )
    head = HeadConfig.from_mapping(_read_json(directory / HEAD_CONFIG_FILE))
    if head.hidden_size != text.get("hidden_size"):
        raise CheckpointError(
            f"{HEAD_CONFIG_FILE}: hidden_size {head.hidden_size} differs from the backbone's {text.get('hidden_size')}"
        )
    _check_head_tensors(directory / HEAD_WEIGHTS_FILE, head)
    for file in sorted(directory.glob("*.safetensors")):
        check_lm_head({name: entry["dtype"] for name, entry in _safetensors_header(file).items()})
    try:
        return Release(
            path=directory,
            head=head,
            context_tokens=int(text["max_position_embeddings"]),
            vocabulary_size=int(text["vocab_size"]),
            key_value_heads=int(text["num_key_value_heads"]),
        )
    except KeyError as err:
        raise CheckpointError(f"config.json: text_config has no {err.args[0]}") from err


def check_lm_head(dtypes: Mapping[str, str]) -> None:
    """Refuse a quantized LM head: the joint head reads its rows as they are.

    Args:
        dtypes: safetensors type of each tensor, by name.

    Raises:
        CheckpointError: it is quantized.
    """
    for name, dtype in dtypes.items():
        if name.startswith("lm_head.") and (name != "lm_head.weight" or dtype not in ("BF16", "F16", "F32")):
            raise CheckpointError(
                f"{name} is quantized ({dtype}); the joint head reads rows of the LM head, so it must stay BF16: "
                "quantize again with lm_head among the layers to ignore"
            )


def has_vision(path: str | Path) -> bool:
    """Whether a release can look at media: its configuration describes the vision tower and holds weights for it.

    Without the one SGLang assumes another model's tower, and the first image ends its scheduler; without the other it
    computes with whatever memory held.

    Raises:
        CheckpointError: a file is missing or unreadable.
    """
    directory = Path(path)
    if not isinstance(_read_json(directory / "config.json").get("vision_config"), dict):
        return False
    return any("visual." in name for file in directory.glob("*.safetensors") for name in _safetensors_header(file))


def _check_head_tensors(path: Path, config: HeadConfig) -> None:
    expected = head_tensor_shapes(config)
    found = {name: tuple(entry["shape"]) for name, entry in _safetensors_header(path).items()}
    missing, leftover = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or leftover:
        raise CheckpointError(f"{path.name}: missing tensors {missing}, unknown tensors {leftover}")
    for name, shape in expected.items():
        if found[name] != shape:
            raise CheckpointError(f"{path.name}: {name} has shape {found[name]}, {HEAD_CONFIG_FILE} implies {shape}")


def _safetensors_header(path: Path) -> dict[str, Any]:
    """The JSON header: an unsigned little-endian 64-bit length, then that many bytes (safetensors format page)."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, 100_000_000)))
    except (OSError, struct.error, ValueError) as err:
        raise CheckpointError(f"{path.name} is missing or not a safetensors file: {err}") from err
    header.pop("__metadata__", None)
    return dict(header)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise CheckpointError(f"{path.name} is missing or not JSON: {err}") from err
    if not isinstance(value, dict):
        raise CheckpointError(f"{path.name}: expected a JSON object")
    return value
