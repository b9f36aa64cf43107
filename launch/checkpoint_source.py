"""Finds the Clef release to serve: a directory, a Hugging Face repository, or clef-mini, which comes with this project.

Knows where releases come from, not what must be in one (model_plugin.checkpoint) nor how clef-mini is made (launch.mini).
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from launch.device import Device
from launch.hub import fetch, find_in_cache
from launch.hub_errors import CheckpointSourceError as CheckpointSourceError  # callers take it from here
from launch.hub_errors import HubUnavailableError

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
MINI_NAME = "clef-mini"
MINI_DIRECTORY = Path(__file__).resolve().parent / "mini" / "release"
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
    """The release to serve, on this disk; downloads it if need be.

    Args:
        model: a directory or a repository; None is clef-mini, on a CPU only.
        revision: branch, tag or commit of a repository.
        device: what it will be served on.
        say: takes a line of progress.

    Raises:
        CheckpointSourceError: see there.
    """
    if model is None:
        if device != "cpu":
            raise CheckpointSourceError(
                "no model given; name one with --model, such as --model Cloudflare/clef-flash, or try "
                "clef-mini with --device cpu"
            )
        if revision is not None:
            raise CheckpointSourceError("--revision needs --model REPO")
        return mini()
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


def mini() -> FoundCheckpoint:
    """clef-mini, the demonstration release."""
    return FoundCheckpoint(path=MINI_DIRECTORY, name=MINI_NAME, demonstration=True)


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
