"""Finds the Clef release to serve: a directory, a Hugging Face repository, or this project's demonstration release.

Knows where releases come from, not what must be in one (model_plugin.checkpoint) nor how a demonstration one is made
(launch.mini.build).
"""

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from launch.device import Device

ROOT = Path(__file__).resolve().parent.parent
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# A snapshot of a repository lies in a directory named by its commit.
_COMMIT = re.compile(r"[0-9a-f]{40}")
DEMO_NAME = "clef-demo"


class CheckpointSourceError(ValueError):
    """The release asked for could not be had; the message says why and what to do."""


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
    if not _REPOSITORY.fullmatch(model):
        raise CheckpointSourceError(f"{model} is neither a directory here nor a repository name like OWNER/NAME")
    return _download(model, revision, say)


def _download(repository: str, revision: str | None, say: Callable[[str], None]) -> FoundCheckpoint:
    from huggingface_hub import errors, snapshot_download

    at = f"{repository} at revision {revision or 'main'}"
    say(f"fetching {at} from the Hugging Face hub (resumes what is already here; HF_HUB_OFFLINE=1 only looks here)")
    try:
        path = Path(snapshot_download(repository, revision=revision))
    # Order matters: a gated repository is a kind of missing one, an offline miss a kind of missing entry.
    except errors.GatedRepoError as err:
        raise CheckpointSourceError(
            f"{repository} is gated: accept its terms on its page, then put an access token into HF_TOKEN "
            "or run `hf auth login`"
        ) from err
    except errors.RepositoryNotFoundError as err:
        raise CheckpointSourceError(
            f"there is no repository {repository}, or it is private: check the name, or put an access token "
            "into HF_TOKEN"
        ) from err
    except errors.RevisionNotFoundError as err:
        raise CheckpointSourceError(f"{repository} has no revision {revision}") from err
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as err:
        raise CheckpointSourceError(
            f"{at} is not in the local cache and the hub cannot be reached (or HF_HUB_OFFLINE is set); "
            "download it where there is a network, or give a directory as --model"
        ) from err
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as err:
        raise CheckpointSourceError(f"{at} could not be downloaded: {err}") from err
    commit = path.name if _COMMIT.fullmatch(path.name) else None
    return FoundCheckpoint(path=path, name=repository, revision=commit)


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
