"""Builds a release with random weights for a benchmark: the random release's tokenizer and files, other sizes.

Answers mean nothing; what they cost does. Knows nothing of engines. `python -m benchmarks._release SHAPE CACHE DEVICE` prints
the directory; the process that builds it gives its memory back by ending.
"""

import hashlib
import json
import math
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, Qwen3_5ForConditionalGeneration

from benchmarks.random_release import build_random_release, head_tensors
from launch.mini.release import save_head
from model_plugin.checkpoint import HeadConfig, read_release

SEED = 20260117


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a release: what replaces the random release's `text_config`, and the head's configuration."""

    text: dict[str, Any]
    head: HeadConfig


def _layers(count: int) -> dict[str, Any]:
    kinds = ["full_attention" if (index + 1) % 4 == 0 else "linear_attention" for index in range(count)]
    return {"num_hidden_layers": count, "full_attention_interval": 4, "layer_types": kinds}


def _rotary(head_dim: int) -> dict[str, Any]:
    """A quarter of each head turns; its pairs are divided over time, height and width in the proportion 11 : 11 : 10."""
    pairs = head_dim // 8
    height = math.ceil(pairs * 11 / 32)
    return {
        "rope_type": "default",
        "rope_theta": 10_000_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [height, height, pairs - 2 * height],
        "mrope_interleaved": True,
    }


SHAPES = {
    # Clef-Flash's proportions at an eighth of its width, head included, and a quarter of its depth, with heads of 64: a
    # prompt of 4k tokens takes seconds on 2 cores.
    "small": Shape(
        text={
            "hidden_size": 512,
            "intermediate_size": 1536,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 8,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "rope_parameters": _rotary(64),
            **_layers(8),
        },
        head=HeadConfig(hidden_size=512, width=128, routing_layers=2, layers=4, heads=2, feedforward=512),
    ),
    # Clef-Flash itself, 9 billion parameters.
    "clef-flash": Shape(
        text={
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "vocab_size": 248_320,
            "rope_parameters": _rotary(256),
            **_layers(32),
        },
        head=HeadConfig(hidden_size=4096, width=1024, routing_layers=2, layers=4, heads=16, feedforward=4096),
    ),
}


def random_release(name: str, cache: Path, device: str) -> Path:
    """The release of that shape under `cache`, built on `device` unless it is there. BF16 weights."""
    sizes = hashlib.blake2b(repr(SHAPES[name]).encode(), digest_size=4).hexdigest()
    directory = cache / f"random-{name}-{sizes}"
    if directory.is_dir():
        return directory
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".building-") as temporary:
        release = Path(temporary) / "release"
        _write(release, SHAPES[name], device)
        read_release(release)
        release.rename(directory)
    return directory


def _write(release: Path, shape: Shape, device: str) -> None:
    build_random_release(release)
    for weights in release.glob("*.safetensors"):
        weights.unlink()
    config = json.loads((release / "config.json").read_text(encoding="utf-8"))
    config["text_config"] |= shape.text
    config["vision_config"]["out_hidden_size"] = shape.text["hidden_size"]
    written = json.dumps(config, indent=2) + "\n"
    (release / "config.json").write_text(written, encoding="utf-8")
    torch.manual_seed(SEED)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            backbone = Qwen3_5ForConditionalGeneration(AutoConfig.from_pretrained(release))
            head = head_tensors(shape.head)
    finally:
        torch.set_default_dtype(before)
    with tempfile.TemporaryDirectory(dir=release.parent) as saved:
        backbone.save_pretrained(saved)
        for path in Path(saved).glob("*.safetensors*"):
            shutil.move(path, release / path.name)
    save_head(release, shape.head, {key: tensor.cpu().contiguous() for key, tensor in head.items()})


if __name__ == "__main__":
    print(random_release(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
