"""From a trained network to a release and back. What a release holds is rounded to BF16, as Clef's weights are."""

import tempfile
from pathlib import Path
from typing import Any

import torch

from launch.mini.network import ClefNetwork
from launch.mini.release import write_release
from launch.mini.shape import backbone_config
from model_plugin.checkpoint import HEAD_WEIGHTS_FILE, HeadConfig, read_release

_BACKBONE = "model.language_model."
_VISION_SEED = 20260117


def export_release(network: ClefNetwork, tokenizer: Any, head: HeadConfig, directory: Path) -> None:
    """Write the release whole, in the place of what was there. Its vision tower is random: nothing trains it.

    Raises:
        OSError: the directory's parent cannot be written.
    """
    from transformers import Qwen3_5ForConditionalGeneration

    text = network.backbone.config.to_dict()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_VISION_SEED)
        backbone = Qwen3_5ForConditionalGeneration(backbone_config(tokenizer, **text))
    trained = {f"{_BACKBONE}{name}": value for name, value in network.backbone.state_dict().items()}
    trained["lm_head.weight"] = network.lm_head.weight
    missing, unexpected = backbone.load_state_dict(trained, strict=False)
    assert not unexpected, unexpected
    assert all(name.startswith("model.visual.") for name in missing), missing
    tensors = {name: value.to(torch.bfloat16) for name, value in network.head.state_dict().items()}
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".exporting-") as temporary:
        fresh = Path(temporary) / "release"
        fresh.mkdir(mode=0o755)
        write_release(fresh, backbone=backbone.to(torch.bfloat16), tokenizer=tokenizer, head=head, head_tensors=tensors)
        read_release(fresh)  # what we write, we could serve
        if directory.exists():
            directory.rename(Path(temporary) / "former")
        fresh.rename(directory)


def load_network(directory: Path) -> tuple[ClefNetwork, Any]:
    """The network of a release in FP32, and its tokenizer.

    Raises:
        CheckpointError: it is no release.
    """
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoTokenizer

    release = read_release(directory)
    network = ClefNetwork(AutoConfig.from_pretrained(directory).text_config, release.head)
    held = load_file(directory / "model.safetensors")
    backbone = {name.removeprefix(_BACKBONE): value for name, value in held.items() if name.startswith(_BACKBONE)}
    network.backbone.load_state_dict(backbone)
    network.lm_head.load_state_dict({"weight": held["lm_head.weight"]})
    network.head.load_state_dict(load_file(directory / HEAD_WEIGHTS_FILE))
    return network.float(), AutoTokenizer.from_pretrained(directory)


def rounded(network: ClefNetwork) -> None:
    """Round every weight to BF16, in place, so that what is measured is what a release holds."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).float())
