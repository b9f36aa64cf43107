"""The sizes of a release that memory and arithmetic follow from: from its two JSON files, or by name from `models.toml`.

Knows no weights, GPU or engine.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from launch.plan.data_file import DIRECTORY, Table, read_table
from model_plugin.checkpoint import ARCHITECTURE, HEAD_CONFIG_FILE, HeadConfig

KnownModel = Literal["clef-flash", "clef"]
StateType = Literal["float32", "bfloat16", "float16"]


class ShapeError(ValueError):
    """A release's configuration lacks what a plan needs; the message names file and key."""


class TextShape(Table):
    """`text_config`. Widths count elements.

    Every `full_attention_interval`-th layer has softmax attention, the others are Gated DeltaNet; SGLang reads this
    key and not `layer_types` (configs/qwen3_next.py, Qwen3NextConfig.layers_block_type).
    """

    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    full_attention_interval: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    linear_num_key_heads: int = Field(gt=0)
    linear_num_value_heads: int = Field(gt=0)
    linear_key_head_dim: int = Field(gt=0)
    linear_value_head_dim: int = Field(gt=0)
    linear_conv_kernel_dim: int = Field(gt=1)
    max_position_embeddings: int = Field(gt=0)
    mamba_ssm_dtype: StateType = "float32"

    @property
    def attention_layers(self) -> int:
        return self.num_hidden_layers // self.full_attention_interval

    @property
    def linear_layers(self) -> int:
        return self.num_hidden_layers - self.attention_layers

    @property
    def key_width(self) -> int:
        """Of all key heads of a Gated DeltaNet layer together."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_width(self) -> int:
        """Of all value heads of a Gated DeltaNet layer together."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_width(self) -> int:
        """Channels of the causal convolution: queries, keys and values."""
        return 2 * self.key_width + self.value_width


class VisionShape(Table):
    """`vision_config`."""

    depth: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_heads: int = Field(gt=0)
    in_channels: int = Field(gt=0)
    patch_size: int = Field(gt=0)
    temporal_patch_size: int = Field(gt=0)
    spatial_merge_size: int = Field(gt=0)
    num_position_embeddings: int = Field(gt=0)
    out_hidden_size: int = Field(gt=0)


class HeadShape(Table):
    """`joint_head_config.json`."""

    hidden_size: int
    width: int
    routing_layers: int
    layers: int
    heads: int
    feedforward: int

    def checked(self) -> HeadConfig:
        return HeadConfig(**self.model_dump())


class ModelShape(Table):
    """A release. `assumed` names what no document of the release itself states."""

    text: TextShape
    vision: VisionShape
    head: HeadShape
    repository: str | None = None
    source: str
    assumed: list[str] = Field(default_factory=list)


class _Models(Table):
    clef_flash: ModelShape = Field(alias="clef-flash")
    clef: ModelShape


@cache
def known_models() -> dict[str, ModelShape]:
    """The releases known by name."""
    table = read_table(DIRECTORY / "models.toml", _Models)
    return {"clef-flash": table.clef_flash, "clef": table.clef}


def shape_of_release(directory: Path) -> ModelShape:
    """Read `config.json` and `joint_head_config.json`.

    Raises:
        ShapeError: see there.
        CheckpointError: the head's configuration is not one.
    """
    config = _json(directory / "config.json")
    if config.get("architectures") != [ARCHITECTURE]:
        raise ShapeError(
            f"config.json: architectures is {config.get('architectures')!r}, Clef needs [{ARCHITECTURE!r}]"
        )
    head = HeadConfig.from_mapping(_json(directory / HEAD_CONFIG_FILE))
    values = {key: value for key, value in vars(head).items() if key != "dropout"}
    return ModelShape(
        text=_part(config, "text_config", TextShape),
        vision=_part(config, "vision_config", VisionShape),
        head=HeadShape(**values),
        source=str(directory),
    )


def named_like(shape: ModelShape) -> str | None:
    """The known release that has this backbone's width and depth, or None."""
    for name, known in known_models().items():
        if (known.text.hidden_size, known.text.num_hidden_layers) == (
            shape.text.hidden_size,
            shape.text.num_hidden_layers,
        ):
            return name
    return None


def _part(config: Mapping[str, Any], key: str, table: type[Any]) -> Any:
    part = config.get(key)
    if not isinstance(part, dict):
        raise ShapeError(f"config.json: {key} is missing")
    try:
        return table.model_validate({name: part[name] for name in table.model_fields if part.get(name) is not None})
    except ValidationError as err:
        faults = (f"config.json: {key}.{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in err.errors())
        raise ShapeError("\n".join(faults)) from err


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise ShapeError(f"{path.name} is missing or not JSON: {err}") from err
    if not isinstance(value, dict):
        raise ShapeError(f"{path.name}: expected a JSON object")
    return value
