"""Cloudflare's reference implementation, loaded by path: what it says of a record. Knows nothing of servers.

Loading it runs the file, and whoever wrote the file is trusted with that.
"""

import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from launch.hub import REFERENCE_FILE

if TYPE_CHECKING:
    from PIL.Image import Image

# The whole prompt, always: cutting it is no part of the comparison.
MAX_TOKENS = 1_000_000
CALLED = ("load_release_model", "encode_record", "collate_records")
Probabilities = dict[str, dict[str, float]]


class UnusableReferenceError(ValueError):
    """The reference cannot be run; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """For each question the probability of each option, and how many tokens the prompt has."""

    probabilities: Probabilities
    tokens: int


class Reference:
    """The model of a release under a reference implementation.

    Args:
        release: the directory with weights and configurations.
        source: the file to run, which has the functions of CALLED; see `reference_file`.
        dtype: of weights and arithmetic; FP32 takes 4 bytes a parameter.

    Raises:
        UnusableReferenceError: see there.
    """

    def __init__(
        self, release: Path, source: Path, *, device: Literal["cpu", "cuda"], dtype: Literal["float32", "bfloat16"]
    ) -> None:
        import torch

        self._module = _run(source)
        try:
            self._model, self._processor = self._module.load_release_model(
                release, device=device, dtype=getattr(torch, dtype)
            )
        except (OSError, ValueError, RuntimeError, KeyError, ImportError) as err:
            raise UnusableReferenceError(f"the reference cannot load {release}: {err}") from err
        self._device = torch.device(device)

    def ask(self, record: dict[str, Any], images: Sequence["Image"] = ()) -> Said:
        """What it says of a record's `state` and `questions`, with these images before the state."""
        import torch

        asked = {"state": record["state"], "questions": record["questions"], "images": list(images)}
        tokenizer = self._processor.tokenizer
        encoded = self._module.encode_record(tokenizer, asked, max_length=MAX_TOKENS, processor=self._processor)
        batch = self._module.collate_records([encoded], tokenizer.pad_token_id, self._device)
        with torch.inference_mode():
            logits = self._model(batch)[0]
        probabilities = {
            question.question_id: dict(zip(question.option_ids, scores.float().softmax(-1).tolist(), strict=True))
            for question, scores in zip(encoded.questions, logits, strict=True)
        }
        return Said(probabilities=probabilities, tokens=len(encoded.input_ids))


def reference_file(release: Path, *, named: Path | None, trust_release_code: bool) -> Path:
    """The file to run: the one named, else the release's own, where the user trusts it.

    Raises:
        UnusableReferenceError: there is none, or the user has not said so.
    """
    if named is not None:
        if not named.is_file():
            raise UnusableReferenceError(f"--reference {named} is not a file")
        return named
    own = release / REFERENCE_FILE
    if not own.is_file():
        raise UnusableReferenceError(f"{release} has no {REFERENCE_FILE}; name one with --reference PATH")
    if not trust_release_code:
        raise UnusableReferenceError(
            f"verify would run {own}, which is whatever whoever made the release wrote: read it, then say "
            "--trust-release-code, or name a file you trust with --reference PATH"
        )
    return own


def has_vision(release: Path) -> bool:
    """Whether the release takes images.

    Raises:
        UnusableReferenceError: its configuration cannot be read.
    """
    try:
        config = json.loads((release / "config.json").read_text(encoding="utf-8"))
        return isinstance(config["vision_config"], dict) if "vision_config" in config else False
    except (OSError, ValueError, TypeError) as err:
        raise UnusableReferenceError(f"{release / 'config.json'} is missing or not JSON: {err}") from err


def _run(source: Path) -> ModuleType:
    name = f"clef_reference_{source.stem}"
    spec = importlib.util.spec_from_file_location(name, source)
    if spec is None or spec.loader is None:
        raise UnusableReferenceError(f"{source} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as err:
        raise UnusableReferenceError(f"{source} cannot be run: {type(err).__name__}: {err}") from err
    if absent := [called for called in CALLED if not callable(getattr(module, called, None))]:
        raise UnusableReferenceError(f"{source} is no reference implementation: it has no {', '.join(absent)}")
    return module
