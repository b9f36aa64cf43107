"""Writes a release in the exact layout of Clef's: backbone, tokenizer, processor and head. Knows nothing of training."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_plugin.checkpoint import HEAD_CONFIG_FILE, HEAD_WEIGHTS_FILE, HeadConfig

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase, Qwen3_5ForConditionalGeneration

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_release(
    directory: Path,
    *,
    backbone: "Qwen3_5ForConditionalGeneration",
    tokenizer: "PreTrainedTokenizerBase",
    head: HeadConfig,
    head_tensors: "dict[str, torch.Tensor]",
) -> None:
    """Write every file of a release into an empty directory. Weights are stored in the type they come in."""
    from transformers import Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

    _quietly(backbone.save_pretrained, directory)
    media: dict[str, Any] = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}
    processor = Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(**media),
        video_processor=Qwen3VLVideoProcessor(**media),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
    )
    processor.save_pretrained(directory)
    processor.image_processor.save_pretrained(directory)
    _declare_no_deepstack(directory / "config.json")
    save_head(directory, head, head_tensors)


def save_head(directory: Path, head: HeadConfig, tensors: "dict[str, torch.Tensor]") -> None:
    """Write the head's configuration and weights."""
    from safetensors.torch import save_file

    save_file(tensors, directory / HEAD_WEIGHTS_FILE)
    values = {name: value for name, value in vars(head).items() if name != "dropout"}
    (directory / HEAD_CONFIG_FILE).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    for path in directory.glob("*.safetensors"):
        path.chmod(0o644)  # safetensors writes files for the owner alone


def _declare_no_deepstack(path: Path) -> None:
    """Transformers leaves the key out, and SGLang would then assume three levels of vision features."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config["vision_config"]["deepstack_visual_indexes"] = []
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _quietly(save: Any, release: Path) -> None:
    """Save without Transformers' progress bar, which would run through our own progress lines."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        save(release)
    finally:
        if shown:
            logging.enable_progress_bar()
