"""What is said of a release that is not there, not whole, or not pinned."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.random_release import build_random_release
from launch import checkpoint_source
from launch.check.release import check_configuration, check_files, check_location, size_problem, weights_files
from launch.checkpoint_source import mini
from launch.hub import Snapshot
from launch.hub_errors import CheckpointSourceError
from launch.settings import UpSettings

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_random_release(tmp_path_factory.mktemp("check") / "demo")


@pytest.fixture
def release(built: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(built, tmp_path / "release"))


def write_shard(path: Path, tensors: dict[str, int], *, cut: int = 0) -> None:
    """Tensors of so many bytes, whole but for the last `cut` bytes."""
    header, offset = {}, 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + bytes(offset)
    path.write_bytes(content[: len(content) - cut])


def split_in_shards(release: Path) -> None:
    (release / "model.safetensors").unlink()
    write_shard(release / "a.safetensors", {"x": 10})
    write_shard(release / "b.safetensors", {"y": 20, "z": 5})
    placed = {"x": "a.safetensors", "y": "b.safetensors", "z": "b.safetensors"}
    (release / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))


def test_a_whole_release_passes(release: Path) -> None:
    result = check_files(release)
    assert (result.status, result.remedy) == ("ok", "")
    assert result.line == "all there; 163 tensors, 4.5 MB of weights"
    split_in_shards(release)
    assert check_files(release).status == "ok"
    assert [file.name for file in weights_files(release)] == ["a.safetensors", "b.safetensors"]
    assert check_configuration(release, None).line == (
        "a head of width 64 and 2 layers fits the backbone; prompts up to 65536 tokens"
    )


def cut_shard(release: Path) -> None:
    write_shard(release / "b.safetensors", {"y": 20, "z": 5}, cut=1)


def lengthen_shard(release: Path) -> None:
    with (release / "a.safetensors").open("ab") as file:
        file.write(b"x")


def forget_tensor(release: Path) -> None:
    write_shard(release / "b.safetensors", {"y": 20})


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "no-shard": (lambda release: (release / "b.safetensors").unlink(), "b.safetensors is missing"),
    "cut-off": (cut_shard, "b.safetensors is cut off: 156 bytes of 157"),
    "too-long": (lengthen_shard, "a.safetensors is too long: 81 bytes of 80"),
    "no-tensor": (forget_tensor, "names tensors that its files do not hold: ['z']"),
    "no-header": (
        lambda release: (release / "a.safetensors").write_bytes(b"short"),
        "a.safetensors is not a safetensors file",
    ),
    "page-instead": (
        lambda release: (release / "a.safetensors").write_bytes(b"<!DOCTYPE html><html>"),
        "a.safetensors is cut off: 21 bytes, and its header alone has",
    ),
    "no-index": (
        lambda release: (release / "model.safetensors.index.json").write_text("[]"),
        "model.safetensors.index.json is not an index of weights",
    ),
    "no-head": (lambda release: (release / "joint_head.safetensors").unlink(), "joint_head.safetensors is missing"),
    "no-tokenizer": (lambda release: (release / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "no-tokenizer-config": (
        lambda release: (release / "tokenizer_config.json").unlink(),
        "tokenizer_config.json is missing",
    ),
    "no-image-processor": (
        lambda release: [(release / name).unlink() for name in ("preprocessor_config.json", "processor_config.json")],
        "preprocessor_config.json is missing, and the release takes images",
    ),
}


@pytest.mark.parametrize(("spoil", "said"), SPOILT.values(), ids=SPOILT)
def test_what_is_not_whole_is_named(release: Path, spoil: Callable[[Path], object], said: str) -> None:
    split_in_shards(release)
    spoil(release)
    result = check_files(release)
    assert result.status == "failed"
    assert said in result.line
    assert "\n" not in result.line
    assert result.remedy == "fetch the release again (clef-serve download), or copy these files again"


def test_many_problems_stay_one_line(release: Path) -> None:
    for file in release.iterdir():
        file.unlink()
    assert check_files(release).line == (
        "model.safetensors is missing; joint_head.safetensors is missing; tokenizer_config.json is missing; and 1 more"
    )


def test_a_release_without_vision_needs_no_image_processor(release: Path) -> None:
    config = json.loads((release / "config.json").read_text())
    del config["vision_config"]
    (release / "config.json").write_text(json.dumps(config))
    for name in ("preprocessor_config.json", "processor_config.json"):
        (release / name).unlink()
    assert check_files(release).status == "ok"


def test_the_length_of_a_file_follows_from_its_header(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    write_shard(file, {})
    assert size_problem(file) is None
    file.write_bytes(struct.pack("<Q", 2) + b"[]")
    assert (
        size_problem(file)
        == "x.safetensors is not a safetensors file: AttributeError 'list' object has no attribute 'items'"
    )


def test_a_head_for_another_backbone_fails(release: Path) -> None:
    path = release / "joint_head_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_size": 64}))
    result = check_configuration(release, None)
    assert (result.status, result.line) == (
        "failed",
        "joint_head_config.json: hidden_size 64 differs from the backbone's 128",
    )


def test_longer_prompts_than_the_checkpoint_has_positions_fail(release: Path) -> None:
    result = check_configuration(release, 65_537)
    assert (result.status, result.remedy) == ("failed", "ask for fewer with --max-prompt-tokens")
    assert "65537 exceeds the checkpoint's context of 65536" in result.line


def test_a_directory_needs_no_revision(release: Path) -> None:
    results, found = check_location(UpSettings(model=str(release)), "cpu")
    assert [(result.name, result.status) for result in results] == [("release", "ok"), ("revision", "ok")]
    assert found is not None
    assert found.path == release
    results, found = check_location(UpSettings(model=str(release), revision="main"), "cpu")
    assert [(result.status, result.remedy) for result in results] == [("failed", "leave --revision out")]
    assert found is None


@pytest.mark.parametrize(
    ("revision", "status", "line", "remedy"),
    [
        (COMMIT, "ok", f"pinned to commit {COMMIT}", ""),
        (
            None,
            "warning",
            f"the main branch may move to another commit; in the cache it is {COMMIT}",
            f"pin it: --revision {COMMIT}",
        ),
        (
            "v1",
            "warning",
            f"--revision v1 may move to another commit; in the cache it is {COMMIT}",
            f"pin it: --revision {COMMIT}",
        ),
    ],
    ids=["commit", "none", "tag"],
)
def test_a_repository_should_be_pinned(
    release: Path, monkeypatch: pytest.MonkeyPatch, revision: str | None, status: str, line: str, remedy: str
) -> None:
    monkeypatch.setattr(
        checkpoint_source, "find_in_cache", lambda *arguments, **options: Snapshot(path=release, commit=COMMIT)
    )
    results, found = check_location(UpSettings(model="nordwind/clef", revision=revision), "cuda")
    assert found is not None
    assert (found.revision, results[0].status) == (COMMIT, "ok")
    assert (results[1].status, results[1].line, results[1].remedy) == (status, line, remedy)


def test_what_has_not_been_downloaded_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(*arguments: object, **options: object) -> Snapshot:
        raise CheckpointSourceError("nordwind/clef is not whole in /cache")

    monkeypatch.setattr(checkpoint_source, "find_in_cache", not_there)
    ((result,), found) = check_location(UpSettings(model="nordwind/clef"), "cuda")
    assert (result.status, result.line, found) == ("failed", "nordwind/clef is not whole in /cache", None)


def test_without_a_model_a_cpu_demonstrates_and_a_gpu_fails() -> None:
    ((result,), found) = check_location(UpSettings(), "cpu")
    assert found == mini()
    assert (result.status, result.line) == ("ok", f"clef-mini, the demonstration release, in {found.path}")
    assert check_files(found.path).status == "ok"
    ((result,), found) = check_location(UpSettings(), "cuda")
    assert (result.status, result.line, found) == ("failed", "no model is named", None)
