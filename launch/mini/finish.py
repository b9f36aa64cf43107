"""Makes a release of a trained network: sets its temperature, rounds it, exports it and measures it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from launch.mini import generate
from launch.mini.evaluate import best_scale, decide, report, scale_logits
from launch.mini.export import export_release, rounded
from launch.mini.train import CURVE_FILE, Trainer

HELD_OUT_RECORDS = 1000
_VALIDATION_RECORDS = 1000
RELEASE_DIRECTORY = "release"
FIGURES_FILE = "held_out.json"


def finish(trainer: Trainer, directory: Path, *, say: Callable[[str], None] = print) -> dict[str, float]:
    """Export to `directory`/release, with the learning curve and the held-out figures beside; the figures.

    The temperature is fitted on records that are neither trained nor tested on. Figures are of the rounded weights in FP32.
    """
    network = trainer.network.eval()
    validation = [trainer.encoder.encode(one) for one in generate.records("validation", _VALIDATION_RECORDS)]
    scale = best_scale(decide(network, validation))
    scale_logits(network, scale)
    rounded(network)
    held_out = [trainer.encoder.encode(one) for one in generate.records("heldout", HELD_OUT_RECORDS)]
    figures = report(decide(network, held_out))
    release = directory / RELEASE_DIRECTORY
    export_release(network, trainer.tokenizer, trainer.head, release)
    shutil.copyfile(directory / CURVE_FILE, release / CURVE_FILE)
    (release / FIGURES_FILE).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    say(f"scaled logits by {scale:.3f}; {json.dumps(figures)}")
    return figures
