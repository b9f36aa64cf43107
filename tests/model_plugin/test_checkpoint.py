"""The check of a release: shapes against the reference's own head, and every reason to refuse one."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clef_finetune.jsm import load_jsm
from clef_finetune.tiny import TINY_HEAD

from benchmarks.random_release import build_random_release
from model_plugin.checkpoint import (
    HEAD_CONFIG_FILE,
    HEAD_WEIGHTS_FILE,
    CheckpointError,
    HeadConfig,
    has_vision,
    head_tensor_shapes,
    read_release,
)

# The head of Clef and Clef-Flash, at a width that costs no memory here, and heads that differ in one number each.
HEADS = [
    TINY_HEAD,
    {"hidden_size": 80, "width": 64, "routing_layers": 2, "layers": 4, "heads": 16, "feedforward": 256},
    {"hidden_size": 48, "width": 32, "routing_layers": 3, "layers": 1, "heads": 4, "feedforward": 40},
    {"hidden_size": 8, "width": 8, "routing_layers": 1, "layers": 2, "heads": 1, "feedforward": 16, "dropout": 0.1},
]
VALID = {"hidden_size": 8, "width": 8, "routing_layers": 1, "layers": 1, "heads": 2, "feedforward": 8}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_random_release(tmp_path_factory.mktemp("checkpoint") / "release")


@pytest.fixture
def release(built: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(built, tmp_path / "release"))


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def edit_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a safetensors header and leave the data as it is; the check reads headers only."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    change(header)
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + content[8 + length :])


@pytest.mark.parametrize("values", HEADS, ids=lambda values: f"width{values['width']}")
def test_the_shapes_are_those_of_the_references_own_head(values: dict[str, Any]) -> None:
    reference = load_jsm().JointSchemaHead(**values)
    expected = {name: tuple(tensor.shape) for name, tensor in reference.state_dict().items()}
    assert head_tensor_shapes(HeadConfig.from_mapping(values)) == expected


def test_a_release_is_read_without_a_change(release: Path) -> None:
    found = read_release(str(release))
    config = json.loads((release / "config.json").read_text())["text_config"]
    assert found.path == release
    assert found.context_tokens == config["max_position_embeddings"]
    assert found.vocabulary_size == config["vocab_size"]
    assert found.key_value_heads == config["num_key_value_heads"]


@pytest.mark.parametrize("name", ["hidden_size", "width", "routing_layers", "layers", "heads", "feedforward"])
@pytest.mark.parametrize("value", [0, -1, 1.0, "8", None, True])
def test_a_size_that_is_no_positive_whole_number_is_refused(name: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=f"{name} must be a positive integer, not {value!r}"):
        HeadConfig.from_mapping(VALID | {name: value})


def test_a_width_that_the_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(CheckpointError, match="width 8 is not a multiple of heads 3"):
        HeadConfig.from_mapping(VALID | {"heads": 3})


def test_a_missing_and_an_unknown_key_are_named() -> None:
    with pytest.raises(CheckpointError, match=r"missing keys \['layers'\], unknown keys \['depth'\]"):
        HeadConfig.from_mapping({**{key: value for key, value in VALID.items() if key != "layers"}, "depth": 1})


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (
            "config.json",
            lambda c: c.update(architectures=["Qwen3ForCausalLM"]),
            r"architectures is \['Qwen3ForCausalLM'\]",
        ),
        ("config.json", lambda c: c.pop("text_config"), "text_config is missing"),
        ("config.json", lambda c: c["vision_config"].pop("deepstack_visual_indexes"), "no deepstack_visual_indexes"),
        ("config.json", lambda c: c["text_config"].update(hidden_size=64), "hidden_size 128 differs from .* 64"),
        ("config.json", lambda c: c["text_config"].pop("max_position_embeddings"), "text_config has no max_position"),
        ("config.json", lambda c: c["text_config"].pop("vocab_size"), "text_config has no vocab_size"),
        (
            "config.json",
            lambda c: c["text_config"].pop("num_key_value_heads"),
            "text_config has no num_key_value_heads",
        ),
        (HEAD_CONFIG_FILE, lambda c: c.update(layers=3), r"joint_head.safetensors: missing tensors \['layers.2."),
        (HEAD_CONFIG_FILE, lambda c: c.update(layers=1), r"missing tensors \[\], unknown tensors \['layers.1."),
        (
            HEAD_CONFIG_FILE,
            lambda c: c.update(feedforward=256),
            r"feedforward.0.weight has shape \(128, 64\), .* \(256, 64\)",
        ),
    ],
    ids=[
        *("architecture", "no text", "deepstack", "hidden size", "no context", "no vocabulary", "no heads"),
        *("missing tensors", "leftover tensors", "shape"),
    ],
)
def test_a_release_that_does_not_fit_together_is_refused(
    release: Path, file: str, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit(release / file, change)
    with pytest.raises(CheckpointError, match=message):
        read_release(release)


def test_a_renamed_tensor_is_both_missing_and_left_over(release: Path) -> None:
    edit_header(release / HEAD_WEIGHTS_FILE, lambda header: header.update(spare=header.pop("residual_gate")))
    with pytest.raises(CheckpointError, match=r"missing tensors \['residual_gate'\], unknown tensors \['spare'\]"):
        read_release(release)


@pytest.mark.parametrize("file", ["config.json", HEAD_CONFIG_FILE, HEAD_WEIGHTS_FILE])
@pytest.mark.parametrize("content", [None, b"", b"nonsense", b"[1]"], ids=["missing", "empty", "nonsense", "a list"])
def test_a_file_that_is_missing_or_unreadable_is_named(release: Path, file: str, content: bytes | None) -> None:
    (release / file).unlink()
    if content is not None:
        (release / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"^{file}"):
        read_release(release)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("lm_head.weight", "F8_E4M3"), ("lm_head.weight_scale", "BF16"), ("lm_head.qweight", "I32")],
    ids=["FP8", "a scale", "packed"],
)
def test_a_quantized_lm_head_is_refused(release: Path, name: str, dtype: str) -> None:
    def quantize(header: dict[str, Any]) -> None:
        header[name] = header.pop("lm_head.weight") | {"dtype": dtype}

    edit_header(release / "model.safetensors", quantize)
    with pytest.raises(CheckpointError, match=rf"^{name} is quantized \({dtype}\); .* layers to ignore$"):
        read_release(release)


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a directory"):
        read_release(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        pytest.param(lambda release: None, True, id="whole"),
        pytest.param(
            lambda release: edit(release / "config.json", lambda config: config.pop("vision_config")),
            False,
            id="no-configuration",
        ),
        pytest.param(
            lambda release: edit_header(
                release / "model.safetensors",
                lambda header: [header.pop(name) for name in list(header) if "visual" in name],
            ),
            False,
            id="no-weights",
        ),
        pytest.param(
            lambda release: (release / "model.safetensors").rename(release / "model-00001-of-00002.safetensors"),
            True,
            id="sharded",
        ),
    ],
)
def test_a_release_has_vision_if_it_describes_and_holds_it(
    release: Path, spoil: Callable[[Path], object], expected: bool
) -> None:
    spoil(release)
    assert has_vision(release) is expected
