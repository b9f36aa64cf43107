"""Where a release comes from, and what is said when it cannot be had; tests/launch/test_hub.py has the hub."""

import re
from pathlib import Path
from typing import Any

import pytest

from launch import checkpoint_source
from launch.checkpoint_source import CheckpointSourceError, demo_directory, find_checkpoint
from launch.mini.build import MARKER_FILE


def find(model: str | None, **changes: Any) -> checkpoint_source.FoundCheckpoint:
    return find_checkpoint(model, **{"revision": None, "device": "cpu", "say": lambda message: None} | changes)


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
