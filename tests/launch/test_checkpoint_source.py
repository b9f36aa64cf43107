"""Where a release comes from, and what is said when it cannot be had."""

import re
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub import errors

from launch import checkpoint_source
from launch.checkpoint_source import CheckpointSourceError, demo_directory, find_checkpoint
from launch.mini.build import MARKER_FILE

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def find(model: str | None, **changes: Any) -> checkpoint_source.FoundCheckpoint:
    return find_checkpoint(model, **{"revision": None, "device": "cpu", "say": lambda message: None} | changes)


def hub_error(kind: type[errors.HfHubHTTPError]) -> Exception:
    response = httpx.Response(404, request=httpx.Request("GET", "http://hub.invalid"))
    return kind("the hub's own long message", response=response)


def hub_raises(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def snapshot_download(repository: str, *, revision: str | None) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)


def test_a_directory_is_served_under_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my-clef").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for model in (str(tmp_path / "my-clef"), "my-clef", "./my-clef/", "~/my-clef"):
        found = find(model)
        assert (found.path, found.name, found.revision, found.demonstration) == (
            tmp_path / "my-clef",
            "my-clef",
            None,
            False,
        )


def test_a_repository_is_served_at_the_commit_it_was_downloaded_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def snapshot_download(repository: str, *, revision: str | None) -> str:
        asked.append((repository, revision))
        return str(tmp_path / "snapshots" / COMMIT)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    found = find("Cloudflare/clef-flash", revision="v1")
    assert asked == [("Cloudflare/clef-flash", "v1")]
    assert (found.path.name, found.name, found.revision) == (COMMIT, "Cloudflare/clef-flash", COMMIT)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (hub_error(errors.GatedRepoError), "x/y is gated: accept its terms"),
        (hub_error(errors.RepositoryNotFoundError), "there is no repository x/y, or it is private"),
        (hub_error(errors.RevisionNotFoundError), "x/y has no revision r"),
        (errors.LocalEntryNotFoundError("nothing here"), "x/y at revision r is not in the local cache"),
        (errors.OfflineModeIsEnabled("offline"), "x/y at revision r is not in the local cache"),
        (hub_error(errors.HfHubHTTPError), "x/y at revision r could not be downloaded: the hub's own"),
        (OSError(28, "No space left on device"), "x/y at revision r could not be downloaded: .*No space left"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_what_the_hub_refuses_is_explained(monkeypatch: pytest.MonkeyPatch, error: Exception, message: str) -> None:
    hub_raises(monkeypatch, error)
    with pytest.raises(CheckpointSourceError, match=message) as caught:
        find("x/y", revision="r")
    assert caught.value.__cause__ is error


def test_offline_mode_is_honoured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointSourceError, match="HF_HUB_OFFLINE is set"):
        find("clef-serving-tests/no-such-repository")


@pytest.mark.parametrize("model", ["/no/such/directory", "clef", "a/b/c", "./x", "a b/c", "-x/y"])
def test_what_is_neither_a_directory_nor_a_repository_name_is_refused(model: str) -> None:
    with pytest.raises(
        CheckpointSourceError, match=f"^{re.escape(model)} is neither a directory here nor a repository"
    ):
        find(model)


def test_a_gpu_needs_a_model() -> None:
    with pytest.raises(CheckpointSourceError, match="name one with --model"):
        find(None, device="cuda")


def test_a_revision_needs_a_repository(tmp_path: Path) -> None:
    with pytest.raises(CheckpointSourceError, match="--revision needs --model"):
        find(None, revision="main")
    with pytest.raises(CheckpointSourceError, match="--revision is for repositories"):
        find(str(tmp_path), revision="main")


def test_the_demonstration_release_is_built_once_and_labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_source, "ROOT", tmp_path)  # not a checkout, so the user's cache is used
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    said: list[str] = []
    first = find(None, say=said.append)
    assert first.demonstration
    assert first.path.is_relative_to(tmp_path / "cache")
    assert (first.path / MARKER_FILE).is_file()
    assert len(said) == 1
    assert "random weights" in said[0]
    assert find(None, say=said.append) == first
    assert len(said) == 1


def test_in_a_checkout_the_demonstration_release_lies_in_its_ignored_cache() -> None:
    directory = demo_directory({"XDG_CACHE_HOME": "/elsewhere"})
    assert directory.parent == checkpoint_source.ROOT / ".cache" / "clef-serving"
