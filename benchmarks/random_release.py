"""Builds the exact layout of a Clef release, small, with random weights: for benchmarks and tests. Downloads nothing.

Its answers mean nothing, and differ clearly from one prompt to the next. Knows nothing of serving.
"""

import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.corpus import lines
from launch.mini.release import write_release
from launch.mini.shape import CONTEXT_TOKENS, backbone_config
from launch.mini.tokenizer import learn_tokenizer
from model_plugin.checkpoint import HeadConfig, head_tensor_shapes, read_release

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase, Qwen3_5Config

SEED = 20260117
MARKER_FILE = "RANDOM_WEIGHTS.txt"
VOCABULARY_SIZE = 4096  # a multiple of 64, as a vocabulary-parallel LM head wants
CORPUS_LINES = 6000

HEAD = HeadConfig(hidden_size=128, width=64, routing_layers=2, layers=2, heads=4, feedforward=128)
# The joint path would vanish in a random head whose gate is as small as an untrained one's.
HEAD_SCALARS = {"prior_logit_scale": 0.0, "joint_logit_scale": 1.0, "residual_gate": 0.5}


def build_random_release(directory: Path) -> Path:
    """Build the release in `directory`, whole or not at all, and return it. A few seconds on 2 cores.

    The same bytes on every call with the same versions of torch, transformers and tokenizers.

    Raises:
        OSError: the directory's parent cannot be written.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".building-") as temporary:
        release = Path(temporary) / "release"
        release.mkdir(mode=0o755)
        _write_release(release)
        read_release(release)  # what we build, we could serve
        try:
            release.rename(directory)
        except OSError:
            # Another process was faster, and built the same.
            if not (directory / MARKER_FILE).is_file():
                raise
    return directory


def _write_release(release: Path) -> None:
    import torch
    from transformers import Qwen3_5ForConditionalGeneration

    tokenizer = _tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        backbone = Qwen3_5ForConditionalGeneration(_backbone_config(tokenizer)).to(torch.bfloat16)
        head = {name: tensor.to(torch.bfloat16) for name, tensor in head_tensors(HEAD).items()}
    write_release(release, backbone=backbone, tokenizer=tokenizer, head=HEAD, head_tensors=head)
    note = "Randomly initialised: its answers mean nothing. Not a Clef model.\n"
    (release / MARKER_FILE).write_text(note, encoding="utf-8")


def _tokenizer() -> "PreTrainedTokenizerBase":
    """A vocabulary learned from the corpus, so that token counts are realistic."""
    return learn_tokenizer(lines(CORPUS_LINES), vocabulary_size=VOCABULARY_SIZE, context_tokens=CONTEXT_TOKENS)


def _backbone_config(tokenizer: "PreTrainedTokenizerBase") -> "Qwen3_5Config":
    """Qwen3.5's proportions at a hundredth of its width: three Gated DeltaNet layers, then one of full attention."""
    return backbone_config(
        tokenizer,
        intermediate_size=256,
        full_attention_interval=4,
        layer_types=["linear_attention"] * 3 + ["full_attention"],
        linear_num_key_heads=2,
        vocab_size=VOCABULARY_SIZE,
    )


def head_tensors(config: HeadConfig) -> "dict[str, torch.Tensor]":
    """Norms at identity, matrices with unit gain, everything else zero or as HEAD_SCALARS says; in torch's default type."""
    import torch

    tensors: dict[str, torch.Tensor] = {}
    for name, shape in sorted(head_tensor_shapes(config).items()):
        if name in HEAD_SCALARS:
            tensors[name] = torch.tensor(HEAD_SCALARS[name])
        elif len(shape) == 2:
            tensors[name] = torch.randn(shape) / math.sqrt(shape[1])
        elif name.endswith("weight"):
            tensors[name] = torch.ones(shape)
        else:
            tensors[name] = torch.zeros(shape)
    return tensors


if __name__ == "__main__":
    import sys

    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m benchmarks.random_release DIRECTORY")
    print(build_random_release(Path(sys.argv[1])))
