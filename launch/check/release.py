"""Checks of the release to serve: where it is, whether its revision is pinned, and whether every file of it is whole."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launch.check.result import CheckResult, failed, passed, warning
from launch.checkpoint_source import (
    CheckpointSourceError,
    FoundCheckpoint,
    find_on_disk,
    mini,
)
from launch.device import Device
from launch.plan.tensors import INDEX_FILE, WeightsError, read_tensors
from launch.settings import UpSettings
from model_plugin.checkpoint import HEAD_WEIGHTS_FILE, CheckpointError, read_release

SINGLE_FILE = "model.safetensors"
# Each of these can stand for the files after it.
TOKENIZER_FILES = (("tokenizer.json",), ("vocab.json", "merges.txt"))
IMAGE_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
_SHOWN = 3


def check_location(settings: UpSettings, device: Device) -> tuple[list[CheckResult], FoundCheckpoint | None]:
    """Where the release is, and whether what is served can change by itself. Nothing is downloaded."""
    if settings.model is None:
        return _demonstration(settings, device)
    try:
        found = find_on_disk(settings.model, revision=settings.revision)
    except CheckpointSourceError as err:
        return [
            failed("release", str(err), "download it before the server starts, or give a directory as --model")
        ], None
    where = passed("release", f"{found.name} in {found.path}")
    if found.revision is None:
        if settings.revision is not None:
            problem = f"--revision {settings.revision} is for repositories, and {settings.model} is a directory"
            return [failed("release", problem, "leave --revision out")], None
        return [where, passed("revision", "a directory, which changes only when somebody changes it")], found
    if settings.revision == found.revision:
        return [where, passed("revision", f"pinned to commit {found.revision}")], found
    asked = f"--revision {settings.revision}" if settings.revision else "the main branch"
    line = f"{asked} may move to another commit; in the cache it is {found.revision}"
    return [where, warning("revision", line, f"pin it: --revision {found.revision}")], found


def _demonstration(settings: UpSettings, device: Device) -> tuple[list[CheckResult], FoundCheckpoint | None]:
    if device != "cpu":
        return [failed("release", "no model is named", "name one with --model, such as Cloudflare/clef-flash")], None
    if settings.revision is not None:
        return [failed("release", "--revision is given without --model", "name a repository with --model")], None
    found = mini()
    return [passed("release", f"{found.name}, the demonstration release, in {found.path}")], found


def check_files(path: Path) -> CheckResult:
    """Whether every file that serving reads is there, and every file of weights as long as its header says."""
    problems = [*_weights_problems(path), *_other_problems(path)]
    if not problems:
        try:
            tensors = read_tensors(path)
        except WeightsError as err:
            problems = [str(err)]
        else:
            return passed("files", f"all there; {len(tensors)} tensors, {_gb(_size(path))} of weights")
    shown = "; ".join(problems[:_SHOWN]) + (f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else "")
    return failed("files", shown, "fetch the release again (clef-serve download), or copy these files again")


def check_configuration(path: Path, max_prompt_tokens: int | None) -> CheckResult:
    """Whether head and backbone fit each other, and the prompts asked for fit the backbone."""
    from launch.up import prompt_limit

    try:
        release = read_release(path)
        limit = prompt_limit(max_prompt_tokens, release)
    except CheckpointError as err:
        return failed("configuration", str(err), "serve an unchanged release, or export this one again")
    except ValueError as err:
        return failed("configuration", str(err), "ask for fewer with --max-prompt-tokens")
    head = release.head
    line = f"a head of width {head.width} and {head.layers} layers fits the backbone; prompts up to {limit} tokens"
    return passed("configuration", line)


def weights_files(path: Path) -> list[Path]:
    """The backbone's files of weights, by its index where there is one.

    Raises:
        ValueError: the index cannot be read.
    """
    index = path / INDEX_FILE
    if not index.is_file():
        return [path / SINGLE_FILE]
    try:
        placed = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return [path / name for name in sorted(set(placed))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
        raise ValueError(f"{INDEX_FILE} is not an index of weights: {type(err).__name__} {err}") from err


def size_problem(file: Path) -> str | None:
    """Why a safetensors file is not whole, from its length and header alone; None if it is.

    Source: the format page of safetensors: 8 bytes of header length, the header, and the tensors without a gap, of which
    each `data_offsets` gives begin and end.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > size:
                return f"{file.name} is cut off: {size} bytes, and its header alone has {length}"
            header: dict[str, Any] = json.loads(opened.read(length))
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    except FileNotFoundError:
        return f"{file.name} is missing"
    except (OSError, struct.error, ValueError, LookupError, TypeError, AttributeError) as err:
        return f"{file.name} is not a safetensors file: {type(err).__name__} {err}"
    expected = 8 + length + end
    if size == expected:
        return None
    return f"{file.name} is {'cut off' if size < expected else 'too long'}: {size} bytes of {expected}"


def _weights_problems(path: Path) -> Iterator[str]:
    try:
        files = weights_files(path)
    except ValueError as err:
        yield str(err)
        files = []
    yield from filter(None, (size_problem(file) for file in (*files, path / HEAD_WEIGHTS_FILE)))


def _other_problems(path: Path) -> Iterator[str]:
    if not (path / "tokenizer_config.json").is_file():
        yield "tokenizer_config.json is missing"
    if not any(all((path / name).is_file() for name in names) for names in TOKENIZER_FILES):
        yield "tokenizer.json is missing"
    if _sees(path) and not any((path / name).is_file() for name in IMAGE_PROCESSOR_FILES):
        yield f"{IMAGE_PROCESSOR_FILES[0]} is missing, and the release takes images"


def _sees(path: Path) -> bool:
    try:
        return "vision_config" in json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False  # the check of the configuration says so


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in (*weights_files(path), path / HEAD_WEIGHTS_FILE))


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
