"""The random release: the layout of a Clef release, loadable by the reference, the same on every build."""

import hashlib
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import torch
from clef_finetune.jsm import load_jsm
from transformers import AutoProcessor, AutoTokenizer

from benchmarks.random_release import HEAD, MARKER_FILE, VOCABULARY_SIZE, build_random_release
from launch.demo_records import RECORDS
from launch.mini import release as release_files
from launch.mini.shape import CONTEXT_TOKENS
from model_plugin.checkpoint import read_release

SPECIAL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_random_release(tmp_path_factory.mktemp("demo") / "release")


@pytest.fixture(scope="module")
def tokenizer(release: Path) -> Any:
    return AutoTokenizer.from_pretrained(release)


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def test_it_holds_the_files_of_a_release_and_says_what_it_is(release: Path) -> None:
    assert {path.name for path in release.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "processor_config.json",
        "preprocessor_config.json",
        "chat_template.jinja",
        "joint_head_config.json",
        "joint_head.safetensors",
        MARKER_FILE,
    }
    assert "answers mean nothing" in (release / MARKER_FILE).read_text()
    assert sum(path.stat().st_size for path in release.iterdir()) < 10e6


def test_it_passes_the_check_of_a_release(release: Path) -> None:
    found = read_release(release)
    assert (found.head, found.context_tokens, found.vocabulary_size) == (HEAD, CONTEXT_TOKENS, VOCABULARY_SIZE)


def test_building_it_again_gives_the_same_bytes_and_leaves_torchs_random_state_alone(
    release: Path, tmp_path: Path
) -> None:
    state = torch.random.get_rng_state()
    assert digests(build_random_release(tmp_path / "again")) == digests(release)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [path.name for path in tmp_path.iterdir()] == ["again"]


def test_a_build_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(release_files, "save_head", fail)
    with pytest.raises(OSError, match="No space left"):
        build_random_release(tmp_path / "release")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("record", RECORDS)
def test_the_reference_implementation_loads_it_and_answers(release: Path, record: str) -> None:
    reference = load_jsm()
    model, processor = reference.load_release_model(str(release), device="cpu", dtype=torch.float32)
    asked = RECORDS[record]
    answered = reference.systemone(model, processor, asked)
    assert answered["answers"].keys() == asked["questions"].keys()
    assert 100 < answered["usage"]["input_tokens"] < 1500


def test_every_tensor_of_the_head_matters(release: Path) -> None:
    """A gate at zero would hide the joint path from every comparison with the reference."""
    reference = load_jsm()
    model, processor = reference.load_release_model(str(release), device="cpu", dtype=torch.float32)
    before = reference.systemone(model, processor, RECORDS["invoice"])["answers"]["status"]["probabilities"]
    with torch.no_grad():
        model.head.residual_scorer[3].weight.neg_()
    after = reference.systemone(model, processor, RECORDS["invoice"])["answers"]["status"]["probabilities"]
    assert max(abs(before[option] - after[option]) for option in before) > 1e-3


def test_special_tokens_are_one_token_each(tokenizer: Any) -> None:
    for text in SPECIAL_TOKENS:
        (token,) = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode([token]) == text
        assert text in tokenizer.all_special_tokens
    for text in ("<think>", "</think>"):
        (token,) = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode([token], skip_special_tokens=True) == text


@pytest.mark.parametrize(
    "text",
    ["Tickets routed to queue 17", "naïve café", "e\u0301", "日本語 ☕\n\n\t x", '{"a": [1, null]}', "I'LL it's"],
)
def test_text_survives_up_to_composition(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == unicodedata.normalize("NFC", text)


def test_token_counts_are_realistic(tokenizer: Any) -> None:
    """English costs about what it costs with a large vocabulary, and 255 options fit far below the context."""
    text = str(RECORDS["invoice"]["state"])
    assert len(tokenizer.encode(text)) < len(text.encode()) / 2
    options = "\n".join(f"Tickets routed to queue {number}" for number in range(255))
    assert len(tokenizer.encode(options)) < CONTEXT_TOKENS / 16


def test_images_go_through_its_processor(release: Path) -> None:
    processor = AutoProcessor.from_pretrained(release)
    pixels = torch.zeros(3, 64, 64, dtype=torch.uint8)
    encoded = processor(text=["<|vision_start|><|image_pad|><|vision_end|>"], images=[pixels], return_tensors="pt")
    image_token = processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    grid_cells = int(encoded["image_grid_thw"].prod()) // 4
    assert int((encoded["input_ids"] == image_token).sum()) == grid_cells > 0
