"""Downloads a Clef release from the Hugging Face hub at a commit, into the hub's own cache. Knows nothing of directories.

What is fetched is what serving reads and the reference code beside it. Finished files stay in the cache, so that a
download that was ended goes on at the files it had not finished; within one run a broken connection goes on where it broke.
"""

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.hub_errors import CheckpointSourceError, HubUnavailableError, explained, no_space
from model_plugin.checkpoint import HEAD_CONFIG_FILE, HEAD_WEIGHTS_FILE

if TYPE_CHECKING:
    from huggingface_hub import HfApi

Say = Callable[[str], None]

REFERENCE_FILE = "joint_schema_model.py"  # not run in serving; `clef-serve verify` compares with it
WANTED = ("*.json", "*.safetensors", "*.jinja", "*.txt", REFERENCE_FILE)
UNWANTED = ("*/*",)  # other formats and originals lie in folders
# Without these a repository is no Clef release, which should be said before gigabytes are fetched.
NEEDED = ("config.json", HEAD_CONFIG_FILE, HEAD_WEIGHTS_FILE)
LINE_INTERVAL_S = 30


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A release in the hub's cache, and the commit it is, 40 hexadecimal digits."""

    path: Path
    commit: str


def fetch(repository: str, *, revision: str | None, say: Say, cache_dir: Path | None = None) -> Snapshot:
    """A repository's release at a revision: the one in the cache if it is whole, else downloaded.

    With HF_HUB_OFFLINE=1 only the cache is looked at. Of HF_ENDPOINT, HF_TOKEN and HF_HUB_CACHE, huggingface_hub's own
    meaning holds.

    Args:
        repository: OWNER/NAME.
        revision: branch, tag or commit; None is the main branch. Resolved to a commit before anything is downloaded.
        say: takes a line of progress. On a terminal, bars are shown as well.
        cache_dir: in place of HF_HUB_CACHE.

    Raises:
        CheckpointSourceError: see there.
    """
    from huggingface_hub import HfApi, constants

    cache = Path(cache_dir or constants.HF_HUB_CACHE).expanduser()
    with explained(repository, revision, cache):
        if constants.HF_HUB_OFFLINE:
            path = _cached(repository, revision, cache)
            return Snapshot(path=path, commit=path.name)
        api = HfApi()
        commit = api.resolve_revision(repository, revision=revision, cache_dir=cache).resolved
        say(f"{repository} at revision {revision or 'main'} is commit {commit}")
        with contextlib.suppress(FileNotFoundError):
            return Snapshot(path=_known_whole(repository, commit, cache), commit=commit)
        size = _check(api, repository, commit, cache, say)
        with _ends_at_once(say):
            return Snapshot(path=_download(repository, commit, cache, _lines(say, size)), commit=commit)


def find_in_cache(repository: str, *, revision: str | None, cache_dir: Path | None = None) -> Snapshot:
    """The same without any network.

    Raises:
        CheckpointSourceError: it is not in the cache, or not whole.
    """
    from huggingface_hub import constants, errors

    cache = Path(cache_dir or constants.HF_HUB_CACHE).expanduser()
    with explained(repository, revision, cache):
        try:
            path = _cached(repository, revision, cache)
        except errors.LocalEntryNotFoundError as err:
            raise CheckpointSourceError(
                f"{repository} at revision {revision or 'main'} is not whole in {cache}; fetch it with: "
                f"clef-serve download --model {repository}"
            ) from err
    return Snapshot(path=path, commit=path.name)


def _cached(repository: str, revision: str | None, cache: Path) -> Path:
    from huggingface_hub import snapshot_download

    found = snapshot_download(
        repository,
        revision=revision,
        cache_dir=cache,
        allow_patterns=list(WANTED),
        ignore_patterns=list(UNWANTED),
        local_files_only=True,
    )
    return Path(found)


def _known_whole(repository: str, commit: str, cache: Path) -> Path:
    """The snapshot, if the cache also holds the list of its files; without that, nobody knows whether some are missing.

    Raises:
        FileNotFoundError: it is not there, or not known to be whole.
    """
    from huggingface_hub import errors, get_cached_repo_tree

    try:
        get_cached_repo_tree(repository, revision=commit, cache_dir=cache)
    except errors.CachedRepoTreeNotFoundError as err:
        raise FileNotFoundError(repository) from err
    return _cached(repository, commit, cache)


def _check(api: "HfApi", repository: str, commit: str, cache: Path, say: Say) -> int:
    """How many bytes are to be fetched, having made sure that it is worth while to begin.

    Raises:
        CheckpointSourceError: it is no Clef release, or there is no room for it.
    """
    from huggingface_hub import RepoFile, try_to_load_from_cache

    listed = {f.path: f.size for f in api.list_repo_tree(repository, revision=commit) if isinstance(f, RepoFile)}
    if absent := [name for name in NEEDED if name not in listed]:
        raise CheckpointSourceError(
            f"{repository} at {commit} is not a Clef release: it has no {', '.join(absent)}; "
            "name one such as Cloudflare/clef-flash"
        )
    wanted = [name for name in listed if any(fnmatchcase(name, pattern) for pattern in WANTED)]
    missing = {
        name: listed[name]
        for name in wanted
        if not isinstance(try_to_load_from_cache(repository, name, cache_dir=cache, revision=commit), str)
    }
    size, here = sum(missing.values()), sum(listed[name] for name in wanted) - sum(missing.values())
    say(f"fetching {len(missing)} files, {_bytes(size)}, into {cache} ({_bytes(here)} are here already)")
    existing = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
    if (free := shutil.disk_usage(existing).free) < size:
        raise HubUnavailableError(no_space(cache, f"{_bytes(size)} are needed, {_bytes(free)} are free"))
    return size


def _download(repository: str, commit: str, cache: Path, progress: type[Any] | None) -> Path:
    from huggingface_hub import snapshot_download

    path = snapshot_download(
        repository,
        revision=commit,
        cache_dir=cache,
        allow_patterns=list(WANTED),
        ignore_patterns=list(UNWANTED),
        tqdm_class=progress,
    )
    return Path(path)


def _lines(say: Say, size: int) -> type[Any] | None:
    """What shows progress: on a terminal the hub's own bars (None), elsewhere a line now and then."""
    if sys.stderr.isatty():
        return None
    from huggingface_hub.utils.tqdm import tqdm

    started = said = time.monotonic()

    def report(fetched: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= LINE_INTERVAL_S:
            said = now
            say(f"fetched {_bytes(fetched)} of {_bytes(size)}, {_bytes(fetched / (now - started))} a second")

    class Lines(tqdm):
        """The hub opens three bars; the one of this name counts the bytes on disk."""

        def __init__(self, *args: Any, **options: Any) -> None:
            self._counts_bytes = options.get("name") == "huggingface_hub.snapshot_download"
            super().__init__(*args, **options | {"disable": False})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> Any:
            updated = super().update(n)
            if self._counts_bytes and not self.disable:
                report(self.n)
            return updated

        def display(self, *args: Any, **options: Any) -> bool:
            return True

        def close(self) -> None:
            self.disable = True  # it would write an empty line
            super().close()

    return Lines


@contextlib.contextmanager
def _ends_at_once(say: Say) -> Iterator[None]:
    """While the body runs, SIGTERM and Ctrl-C end the process at once, with status 128 + signal, and leave no litter.

    huggingface_hub itself would first finish every file it has begun, gigabytes each; a process that is simply ended
    leaves them half, under names that no later download looks for.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(signum: int, frame: object) -> None:
        del frame
        _remove_half_files()
        say("download stopped; what was finished stays, and the same command goes on from there")
        sys.stderr.flush()
        os._exit(128 + signum)

    before = {signum: signal.signal(signum, end) for signum in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _remove_half_files() -> None:
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = descriptor.readlink()
            if target.suffix == ".incomplete":
                target.unlink()


def _bytes(count: float) -> str:
    """In decimal units, as disks and the hub count."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
