"""Where a release comes from, and what is said when it cannot be had; tests/launch/test_hub.py has the hub."""

import re
from pathlib import Path
from typing import Any

import pytest

from launch import checkpoint_source
from launch.checkpoint_source import CheckpointSourceError, find_checkpoint
from model_plugin.checkpoint import read_release


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


def test_without_a_model_it_is_clef_mini_which_comes_with_the_package() -> None:
    found = find(None)
    assert (found.name, found.revision, found.demonstration) == ("clef-mini", None, True)
    assert found.path == checkpoint_source.MINI_DIRECTORY
    assert read_release(found.path).context_tokens == 65_536
