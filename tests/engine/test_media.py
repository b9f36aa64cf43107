"""Images and videos through the real engine, already processed: prompts and answers equal the reference's, cold and cached."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from benchmarks.random_release import build_random_release
from tests import tolerances
from tests.engine.media import MAX_PROMPT_TOKENS, Answered, Asked, Clip, Engine, clip, engine, picture, plain
from tests.engine.records import TEAM, URGENCY, text
from tests.engine.served import GRID, Reference, distance

pytestmark = pytest.mark.engine

QUESTIONS = {"u": URGENCY, "t": TEAM}
KINDS = {
    "an image": Asked(state=text(1, 300), questions=QUESTIONS, images=[picture(1)]),
    "three images of different sizes": Asked(
        state=text(2, 300), questions=QUESTIONS, images=[picture(2, 640, 480), picture(3, 40, 200), picture(4, 33, 35)]
    ),
    "eight frames, one a second": Asked(state=text(3, 300), questions=QUESTIONS, clips=[clip(3, 8, 1)]),
    "24 frames, 24 a second": Asked(state=text(4, 300), questions=QUESTIONS, clips=[clip(4, 24, 24)]),
    "seven frames of a video at a rate that was asked for": Asked(
        state=text(5, 300), questions=QUESTIONS, clips=[clip(5, 30, 12.5, 64, 96)], options={"fps": 3}
    ),
    "an image and two videos": Asked(
        state=text(6, 300), questions=QUESTIONS, images=[picture(6)], clips=[clip(6, 8, 2), clip(7, 5, 1, 128, 32)]
    ),
    "an image before a long state": Asked(state=text(8, 8000), questions=QUESTIONS, images=[picture(8)]),
    "a video, no state": Asked(state="", questions=QUESTIONS, clips=[clip(9, 12, 4)]),
}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # It has rotary sections for time, height and width, as Qwen3.5 does; the tiny releases do not.
    return build_random_release(tmp_path_factory.mktemp("release") / "demo")


@pytest.fixture(scope="module")
def reference(release: Path) -> Reference:
    return Reference(release, torch.float32)


@pytest.fixture(scope="module")
def served(release: Path) -> Iterator[Engine]:
    # Chunks so short that edges fall inside an image, a video and a state.
    with engine(release, "--chunked-prefill-size", "192") as started:
        yield started


def check(asked: Asked, answered: Answered, reference: Reference) -> None:
    record = asked.record()
    assert answered.input_ids == list(reference.encode(record).input_ids)
    assert distance(answered.probabilities, reference.probabilities(record)) <= tolerances.FP32


@pytest.mark.parametrize("kind", KINDS)
def test_media_are_answered_as_by_the_reference_and_again_from_the_cache(
    served: Engine, reference: Reference, kind: str
) -> None:
    asked = KINDS[kind]
    other_question = replace(asked, questions={"again": URGENCY})
    without = replace(asked, images=[], clips=[])
    expected = reference.probabilities(asked.record())
    assert distance(expected, reference.probabilities(without.record())) > 10 * tolerances.FP32, "media do not matter"
    cold, again, other = served.ask(asked), served.ask(asked), served.ask(other_question)
    check(asked, cold, reference)
    check(asked, again, reference)
    check(other_question, other, reference)
    assert cold.cached <= cold.media_start
    assert again.cached == other.cached == cold.state_end // GRID * GRID


def begins_like(image: Image.Image) -> Image.Image:
    """The same picture but for its last pixel, so that far more than the first 64 KiB of the features are the same."""
    other = image.copy()
    other.putpixel(
        (image.width - 1, image.height - 1), tuple(255 - v for v in image.getpixel((image.width - 1, image.height - 1)))
    )
    return other


LARGE = picture(20, 256, 192)
SHARED_FRAMES = clip(21, 8, 2)
DIFFERENT = {
    "another picture": (picture(22), picture(23)),
    "the same pixels in another shape": (plain(128, 64), plain(64, 128)),
    "the last pixel": (LARGE, begins_like(LARGE)),
    "frames of another order": (SHARED_FRAMES, replace(SHARED_FRAMES, frames=SHARED_FRAMES.frames[::-1].copy())),
    "a picture and a video of it": (picture(24), Clip(frames=np.stack([np.array(picture(24))] * 4), fps=2)),
}


def showing(shown: Image.Image | Clip, salt: str) -> Asked:
    asked = Asked(state=text(20, 300), questions=QUESTIONS, cache_salt=salt)
    return replace(asked, clips=[shown]) if isinstance(shown, Clip) else replace(asked, images=[shown])


@pytest.mark.parametrize("difference", DIFFERENT)
def test_different_media_share_nothing(served: Engine, reference: Reference, difference: str) -> None:
    one, other = (showing(shown, difference) for shown in DIFFERENT[difference])
    assert distance(*(reference.probabilities(asked.record()) for asked in (one, other))) > 10 * tolerances.FP32
    for asked in (one, other):
        answered = served.ask(asked)
        check(asked, answered, reference)
        assert answered.cached <= answered.media_start + 1
    for asked in (one, other):
        answered = served.ask(asked)
        check(asked, answered, reference)
        assert answered.cached == answered.state_end // GRID * GRID


def test_equal_first_pictures_share_nothing_past_a_second_that_differs(served: Engine, reference: Reference) -> None:
    first, *seconds = picture(30, 320, 320), picture(31), picture(32)
    asked = [Asked(state=text(30, 300), questions=QUESTIONS, images=[first, second]) for second in seconds]
    for one in asked:
        answered = served.ask(one)
        check(one, answered, reference)
        # A marker, the first picture, and two more markers are the same.
        assert answered.cached <= answered.media_start + 1 + 320 * 320 // 32**2 + 2


def test_requests_with_different_media_in_one_batch(served: Engine, reference: Reference) -> None:
    state = text(40, 200)
    known = Asked(state=state, questions=QUESTIONS, images=[picture(40)])
    served.ask(known)
    asked = [
        known,
        replace(known, images=[picture(41)]),
        replace(known, images=[], clips=[clip(42, 8, 2)]),
        replace(known, images=[picture(43, 64, 128), picture(40)], clips=[clip(42, 8, 2)]),
        replace(known, images=[]),
        replace(known, questions={"u": URGENCY}),
        replace(known, clips=[clip(44, 6, 1)], state=text(41, 900)),
        replace(known, images=[plain(96, 64)]),
    ]
    for one, answered in zip(asked, served.together(asked), strict=True):
        check(one, answered, reference)


def test_a_prompt_that_media_make_too_long_is_refused_and_the_engine_goes_on(
    served: Engine, reference: Reference
) -> None:
    shown = Asked(state="", questions=QUESTIONS, images=[picture(50, 1024, 960)])
    tokens = len(reference.encode(shown.record()).input_ids)
    assert tokens > 500
    fitting = Asked(state=text(50, 100), questions=QUESTIONS)
    longer = fitting
    while len(reference.encode(longer.record()).input_ids) < MAX_PROMPT_TOKENS - 400:
        longer = replace(longer, state=longer.state + text(51, 500))
    refused = served.refused(replace(longer, images=shown.images))
    assert refused.startswith("EngineRefusedError: the prompt has ")
    check(fitting, served.ask(fitting), reference)


def test_a_release_without_a_vision_tower_refuses_media_and_answers_the_rest(
    release: Path, reference: Reference, tmp_path: Path
) -> None:
    """SGLang would put another model's tower there, and its scheduler would end with the first image."""
    text_only = Path(shutil.copytree(release, tmp_path / "text-only"))
    config = json.loads((text_only / "config.json").read_text())
    del config["vision_config"]
    (text_only / "config.json").write_text(json.dumps(config))
    weights = load_file(text_only / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if "visual" not in name}
    assert len(kept) < len(weights)
    save_file(kept, text_only / "model.safetensors", metadata={"format": "pt"})
    asked = Asked(state=text(60, 200), questions=QUESTIONS)
    with engine(text_only) as started:
        for _ in range(2):
            refused = started.refused(replace(asked, images=[picture(60)]))
            assert refused == "EngineRefusedError: the release has no vision tower, and the request has media"
            check(asked, started.ask(asked), reference)
