"""Counting and processing media: prompts and features are those of the reference's own code, without an engine."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from clef_finetune.jsm import load_jsm
from PIL import Image
from transformers import AutoProcessor

from benchmarks.random_release import build_random_release
from serving.media.decoded import Video, VideoShape
from serving.media.processing import MediaProcessor, ProcessedMedia

jsm = load_jsm()


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The release's processor, loaded as the reference loads it."""
    return AutoProcessor.from_pretrained(build_random_release(tmp_path_factory.mktemp("media") / "release"))


@pytest.fixture(scope="module")
def processor(released: Any) -> MediaProcessor:
    return MediaProcessor(released)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(noise(height, width, 3, seed=seed))


def shape_of(frames: np.ndarray, fps: float) -> VideoShape:
    return VideoShape(total_frames=len(frames), fps=fps, width=frames.shape[2], height=frames.shape[1])


def sampled(processor: MediaProcessor, frames: np.ndarray, fps: float, options: dict[str, Any] | None = None) -> Video:
    shape = shape_of(frames, fps)
    indices = processor.frames_to_sample(shape, options or {})
    return Video(frames=frames[list(indices)], indices=indices, shape=shape)


def reference(
    released: Any,
    images: Sequence[Image.Image],
    videos: Sequence[np.ndarray] = (),
    fps: float = 0,
    options: dict[str, Any] | None = None,
) -> tuple[list[int], dict[str, Any]]:
    """Token ids and features by `_encode_media`, which is given whole videos."""
    kwargs = dict(options or {})
    if "num_frames" in kwargs:
        kwargs["fps"] = None  # it takes a number of frames only where the release's own rate is taken back
    if videos:
        kwargs["video_metadata"] = [{"total_num_frames": len(frames), "fps": fps} for frames in videos]
    if kwargs.get("do_sample_frames") is False:
        for metadata in kwargs["video_metadata"]:
            metadata["frames_indices"] = list(range(metadata["total_num_frames"]))
    record = {"images": list(images), "videos": list(videos), "media_kwargs": kwargs}
    ids, media = jsm._encode_media(released, record)
    return ids, media


def check(processed: ProcessedMedia, expected: tuple[list[int], dict[str, Any]]) -> None:
    ids, media = expected
    assert processed.input_ids == ids
    for features, patches, grids in (
        (processed.images, "pixel_values", "image_grid_thw"),
        (processed.videos, "pixel_values_videos", "video_grid_thw"),
    ):
        assert (features is None) == (patches not in media)
        if features is not None:
            np.testing.assert_array_equal(features.patches.numpy(), media[patches].numpy())
            assert features.grids.tolist() == media[grids].tolist()


# Pictures.


@pytest.mark.parametrize("mode", ["RGB", "L", "LA", "RGBA", "P", "CMYK", "1", "I;16"])
def test_a_picture_of_any_mode_becomes_what_the_reference_makes_of_it(
    mode: str, processor: MediaProcessor, released: Any
) -> None:
    image = picture(70, 50).convert("L").convert(mode) if mode == "I;16" else picture(70, 50).convert(mode)
    check(processor.process([image], []), reference(released, [image]))


SIZES = [
    (1, 1),
    (3, 5),
    (28, 28),
    (31, 33),
    (32, 32),
    (100, 1),
    (1, 150),
    (199, 640),
    (640, 480),
    (1500, 1100),
    (64, 12800),
]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "{}x{}".format(*size))
def test_a_picture_is_counted_as_it_is_processed(size: tuple[int, int], processor: MediaProcessor) -> None:
    image = Image.new("RGB", size)
    counted = processor.image_tokens(*size)
    processed = processor.process([image], [])
    assert counted == len(processed.input_ids) - processor.end_tokens
    assert processor.end_tokens == 1


def test_what_is_too_long_and_narrow_is_refused_before_it_is_decoded(processor: MediaProcessor) -> None:
    with pytest.raises(ValueError, match="^absolute aspect ratio must be smaller than 200, got 201"):
        processor.image_tokens(201, 1)
    with pytest.raises(ValueError, match="^absolute aspect ratio must be smaller than 200, got 250"):
        processor.video_tokens(VideoShape(total_frames=9, fps=1, width=500, height=2), {})


# Videos.

LENGTHS = [2, 3, 4, 5, 8, 24, 61, 200]
RATES = [0.1, 1, 2, 12.5, 24, 29.97, 60, 1000]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"fps": 1},
    {"fps": 7.5},
    {"fps": 1e300},
    {"num_frames": 2},
    {"num_frames": 7},
    {"num_frames": 300},
    {"do_sample_frames": False},
    {"do_sample_frames": True, "fps": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_frames_are_sampled_as_by_the_reference(
    options: dict[str, Any], processor: MediaProcessor, released: Any
) -> None:
    for total, fps in itertools.product(LENGTHS, RATES):
        frames = np.zeros((total, 1, 1, 3), dtype=np.uint8)
        frames[:, 0, 0, 0], frames[:, 0, 0, 1] = np.arange(total) % 256, np.arange(total) // 256
        _, metadata = released.video_processor._decode_and_sample_videos(
            [frames],
            [{"total_num_frames": total, "fps": fps}],
            do_sample_frames=options.get("do_sample_frames", True),
            sample_indices_fn=lambda metadata: released.video_processor.sample_frames(
                metadata, num_frames=options.get("num_frames"), fps=options.get("fps")
            ),
        )
        expected = metadata[0].frames_indices
        found = processor.frames_to_sample(shape_of(frames, fps), options)
        assert found == tuple(range(total) if expected is None else expected), (total, fps)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_video_becomes_what_the_reference_makes_of_the_whole_of_it(
    options: dict[str, Any], processor: MediaProcessor, released: Any
) -> None:
    for total, fps in [(2, 1), (5, 2), (8, 1), (24, 24), (25, 3)]:
        frames = noise(total, 32, 48, 3, seed=total)
        processed = processor.process([], [sampled(processor, frames, fps, options)])
        check(processed, reference(released, [], [frames], fps, options))
        counted = processor.video_tokens(shape_of(frames, fps), options)
        assert counted == len(processed.input_ids) - processor.end_tokens


@pytest.mark.parametrize(
    ("total", "width", "height"),
    [(2, 8, 8), (7, 3, 3), (9, 640, 360), (16, 33, 1280), (4, 1, 1), (12, 16, 3200), (31, 300, 2)],
)
def test_a_video_of_any_size_is_counted_as_it_is_processed(
    total: int, width: int, height: int, processor: MediaProcessor
) -> None:
    frames = np.zeros((total, height, width, 3), dtype=np.uint8)
    for fps in (0.01, 3, 29.97):
        processed = processor.process([], [sampled(processor, frames, fps)])
        counted = processor.video_tokens(shape_of(frames, fps), {})
        assert counted == len(processed.input_ids) - processor.end_tokens


@pytest.mark.parametrize(
    ("total", "options", "message"),
    [
        (1, {}, "1 frame of it would be looked at, and a video needs at least 2"),
        (9, {"size": 4}, "'size' is not an option of videos; these are fps, num_frames, do_sample_frames"),
        (9, {"fps": 1, "num_frames": 4}, "fps and num_frames exclude each other"),
        (9, {"fps": 0}, "fps must be a number above 0"),
        (9, {"fps": float("nan")}, "fps must be a number above 0"),
        (9, {"fps": True}, "fps must be a number above 0"),
        (9, {"fps": "2"}, "fps must be a number above 0"),
        (9, {"num_frames": 1}, "num_frames must be an integer from 2 to 768"),
        (9, {"num_frames": 769}, "num_frames must be an integer from 2 to 768"),
        (9, {"num_frames": 4.0}, "num_frames must be an integer from 2 to 768"),
        (9, {"do_sample_frames": 0}, "do_sample_frames must be true or false"),
        (769, {"do_sample_frames": False}, "it has 769 frames, and at most 768 are looked at without sampling"),
        (
            10**15,
            {"do_sample_frames": False},
            f"it has {10**15} frames, and at most 768 are looked at without sampling",
        ),
    ],
)
def test_what_no_video_can_be_sampled_by_is_refused(
    total: int, options: dict[str, Any], message: str, processor: MediaProcessor
) -> None:
    shape = VideoShape(total_frames=total, fps=1, width=40, height=30)
    with pytest.raises(ValueError, match=rf"^{message}$"):
        processor.video_tokens(shape, options)


def test_a_header_s_claim_costs_nothing(processor: MediaProcessor) -> None:
    shape = VideoShape(total_frames=10**15, fps=1e-6, width=64, height=64)
    assert len(processor.frames_to_sample(shape, {"fps": 10**400})) == 768


@pytest.mark.parametrize(
    "values", [{"total_frames": 0}, {"width": 0}, {"height": -1}, {"fps": 0.0}, {"fps": float("inf")}, {"fps": 1e-9}]
)
def test_what_is_no_video_has_no_shape(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a video"):
        VideoShape(**{"total_frames": 8, "fps": 1.0, "width": 4, "height": 4, **values})


def test_time_stamps_count_in_the_whole_video(processor: MediaProcessor, released: Any) -> None:
    processed = processor.process([], [sampled(processor, noise(24, 32, 32, 3), 24)])
    shown = released.tokenizer.decode(processed.input_ids).replace("<|video_pad|>", "")
    frame = "<|vision_start|><|vision_end|>"
    assert shown == f"<|vision_start|><0.2 seconds>{frame}<0.8 seconds>{frame}<|vision_end|>\n"


# Pictures and videos together.


def test_several_of_both_become_what_the_reference_makes_of_them(processor: MediaProcessor, released: Any) -> None:
    images = [picture(64, 96, seed=1), picture(200, 40, seed=2), picture(33, 35, seed=3)]
    videos = [noise(8, 32, 48, 3, seed=4), noise(5, 64, 32, 3, seed=5)]
    processed = processor.process(images, [sampled(processor, frames, 2) for frames in videos])
    check(processed, reference(released, images, videos, 2))
    counted = sum(processor.image_tokens(*image.size) for image in images) + processor.end_tokens
    counted += sum(processor.video_tokens(shape_of(frames, 2), {}) for frames in videos)
    assert counted == len(processed.input_ids)


def test_spans_are_the_placeholders_and_hold_one_token_for_each_feature(
    processor: MediaProcessor, released: Any
) -> None:
    images = [picture(64, 96, seed=1), picture(200, 40, seed=2)]
    videos = [sampled(processor, noise(8, 32, 48, 3), 2), sampled(processor, noise(5, 64, 32, 3), 2)]
    processed = processor.process(images, videos)
    for features, token in (
        (processed.images, released.image_token_id),
        (processed.videos, released.video_token_id),
    ):
        assert features is not None
        inside = [place for start, end in features.spans for place in range(start, end)]
        assert inside == [place for place, found in enumerate(processed.input_ids) if found == token]
        assert 4 * len(inside) == len(features.patches)
    assert processed.images is not None
    assert [end - start for start, end in processed.images.spans] == [
        int(grid.prod()) // 4 for grid in processed.images.grids
    ]


# Digests.


def digest(processor: MediaProcessor, image: Image.Image) -> bytes:
    features = processor.process([image], []).images
    assert features is not None
    (found,) = features.digests
    return found


def test_equal_media_have_equal_digests_wherever_they_stand(processor: MediaProcessor) -> None:
    one, other = picture(64, 96, seed=1), picture(64, 96, seed=2)
    frames = noise(8, 32, 48, 3)
    together = processor.process([other, one.copy(), other], [sampled(processor, frames, 2)])
    assert together.images is not None
    assert together.images.digests == (*[digest(processor, other), digest(processor, one)], digest(processor, other))
    again = processor.process([other, one, other.copy()], [sampled(processor, frames.copy(), 2)])
    assert again.digest == together.digest
    assert {len(found) for found in (together.digest, *together.images.digests)} == {32}


def last_pixel(image: Image.Image) -> Image.Image:
    changed = image.copy()
    changed.putpixel((image.width - 1, image.height - 1), (0, 0, 0))
    return changed


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(picture(64, 64, seed=1), picture(64, 64, seed=2), id="pixels"),
        pytest.param(Image.new("RGB", (128, 64)), Image.new("RGB", (64, 128)), id="the-same-patches-in-another-grid"),
        pytest.param(Image.new("RGB", (64, 64)), Image.new("RGB", (96, 64)), id="more-of-the-same"),
        pytest.param(picture(640, 480), last_pixel(picture(640, 480)), id="the-last-pixel"),
    ],
)
def test_different_pictures_have_different_digests(
    one: Image.Image, other: Image.Image, processor: MediaProcessor
) -> None:
    assert digest(processor, one) != digest(processor, other)
    assert processor.process([one], []).digest != processor.process([other], []).digest


def test_the_whole_digest_tells_order_and_time_stamps_apart(processor: MediaProcessor) -> None:
    one, other = picture(64, 64, seed=1), picture(64, 64, seed=2)
    frames = noise(4, 32, 48, 3)
    wholes = [
        processor.process([one, other], []).digest,
        processor.process([other, one], []).digest,
        processor.process([], [sampled(processor, frames, 1)]).digest,
        processor.process([], [sampled(processor, frames, 2)]).digest,
    ]
    assert len(set(wholes)) == 4


# What it is built of.


def test_a_processor_of_another_kind_is_refused(released: Any) -> None:
    with pytest.raises(ValueError, match=r"the release's processor \(\w+\) has no image_processor"):
        MediaProcessor(released.tokenizer)


@pytest.mark.parametrize("spoil", [lambda v: {"frames": v.frames[1:]}, lambda v: {"frames": v.frames / 255.0}])
def test_a_video_that_is_not_what_its_shape_says_is_our_fault(
    spoil: Callable[[Video], dict[str, Any]], processor: MediaProcessor
) -> None:
    video = sampled(processor, noise(8, 32, 48, 3), 2)
    with pytest.raises(AssertionError):
        dataclasses.replace(video, **spoil(video))


def test_it_works_from_several_threads_at_once(processor: MediaProcessor) -> None:
    from concurrent.futures import ThreadPoolExecutor

    images = [picture(64 + 16 * seed, 96, seed=seed) for seed in range(8)]
    alone = [processor.process([image], []).digest for image in images]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda image: processor.process([image], []).digest, images * 3)) == alone * 3
