"""Finds the Clef release to serve: a directory, a Hugging Face repository, or this project's demonstration release.

Knows where releases come from, not what must be in one (model_plugin.checkpoint) nor how a demonstration one is made
(launch.mini.build).
"""

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from launch.device import Device
from launch.hub import fetch, find_in_cache
from launch.hub_errors import CheckpointSourceError as CheckpointSourceError  # callers take it from here
from launch.hub_errors import HubUnavailableError

ROOT = Path(__file__).resolve().parent.parent
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
DEMO_NAME = "clef-demo"
DOWNLOAD_HELP = """\
Download a Clef release from the Hugging Face hub into its cache, as an init container does, and print its directory.

Status 0: it is whole, on this disk. 1: it could not be fetched now, and the same command may succeed later (network, hub,
disk space). 2: what was asked for cannot be had (name, revision, access). 130 and 143: stopped by Ctrl-C or SIGTERM.
"""


@dataclass(frozen=True, kw_only=True)
class FoundCheckpoint:
    """A release on disk. `revision` is the commit it was downloaded at, where known."""

    path: Path
    name: str
    revision: str | None = None
    demonstration: bool = False


def find_checkpoint(
    model: str | None, *, revision: str | None, device: Device, say: Callable[[str], None]
) -> FoundCheckpoint:
    """The release to serve, on this disk; downloads or builds it if need be.

    Args:
        model: a directory or a repository; None is the demonstration release, on a CPU only.
        revision: branch, tag or commit of a repository.
        device: what it will be served on.
        say: takes a line of progress.

    Raises:
        CheckpointSourceError: see there.
    """
    if model is None:
        if device != "cpu":
            raise CheckpointSourceError(
                "no model given; name one with --model, such as --model Cloudflare/clef-flash, or try the small "
                "demonstration checkpoint with --device cpu"
            )
        if revision is not None:
            raise CheckpointSourceError("--revision needs --model REPO")
        return _demonstration(say)
    directory = Path(model).expanduser()
    if directory.is_dir():
        if revision is not None:
            raise CheckpointSourceError(f"--revision is for repositories, and {model} is a directory")
        return FoundCheckpoint(path=directory.resolve(), name=directory.resolve().name)
    check_repository_name(model)
    snapshot = fetch(model, revision=revision, say=say)
    return FoundCheckpoint(path=snapshot.path, name=model, revision=snapshot.commit)


def find_on_disk(model: str, *, revision: str | None, cache_dir: Path | None = None) -> FoundCheckpoint:
    """The release of a directory, or of a repository that has been downloaded. Never asks the network.

    Raises:
        CheckpointSourceError: it is not there, or not whole.
    """
    directory = Path(model).expanduser()
    if directory.is_dir():
        return FoundCheckpoint(path=directory.resolve(), name=directory.resolve().name)
    check_repository_name(model)
    snapshot = find_in_cache(model, revision=revision, cache_dir=cache_dir)
    return FoundCheckpoint(path=snapshot.path, name=model, revision=snapshot.commit)


def check_repository_name(model: str) -> None:
    """Raise CheckpointSourceError unless it reads OWNER/NAME."""
    if not _REPOSITORY.fullmatch(model):
        raise CheckpointSourceError(f"{model} is neither a directory here nor a repository name like OWNER/NAME")


def _demonstration(say: Callable[[str], None]) -> FoundCheckpoint:
    path = demo_directory(os.environ)
    if not path.is_dir():
        say(f"building the demonstration checkpoint (random weights; a few seconds, 10 MB) in {path}")
        from launch.mini.build import build_demo_release

        build_demo_release(path)
    return FoundCheckpoint(path=path, name=DEMO_NAME, demonstration=True)


def demo_directory(environ: Mapping[str, str]) -> Path:
    """Where the demonstration release lives: in this checkout if it is one, else in the user's cache.

    The name carries a fingerprint of the code that builds it, so that an outdated release is never served.
    """
    if (ROOT / "pyproject.toml").is_file() and os.access(ROOT, os.W_OK):
        cache = ROOT / ".cache"
    else:
        cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256()
    for source in sorted((Path(__file__).parent / "mini").glob("*.py")):
        digest.update(source.read_bytes())
    return cache / "clef-serving" / f"demo-release-{digest.hexdigest()[:12]}"


def add_download_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `clef-serve download` takes, for `download_command`."""
    parser.add_argument("--model", required=True, metavar="REPO", help="repository, such as Cloudflare/clef-flash")
    parser.add_argument("--revision", metavar="R", help="branch, tag or commit [default: its main branch]")
    parser.add_argument(
        "--cache-dir",
        type=Path,
        metavar="PATH",
        help="the hub's cache [HF_HUB_CACHE; default: ~/.cache/huggingface/hub]",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one object with repository, revision (the commit) and path"
    )


def download_command(options: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Fetch a release; the exit status, as DOWNLOAD_HELP has it. The last line on standard output is where it lies."""
    try:
        check_repository_name(options.model)
        snapshot = fetch(options.model, revision=options.revision, say=say, cache_dir=options.cache_dir)
    except CheckpointSourceError as err:
        say(f"error: {err}")
        return 1 if isinstance(err, HubUnavailableError) else 2
    if options.revision != snapshot.commit:
        say(f"to serve exactly this from now on, pin it: --revision {snapshot.commit}")
    found = {"repository": options.model, "revision": snapshot.commit, "path": str(snapshot.path)}
    print(json.dumps(found) if options.json else found["path"])
    sys.stdout.flush()
    return 0
