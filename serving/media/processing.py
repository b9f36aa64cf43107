"""Decoded media to the reference's prompt tokens and features, by the release's own Transformers processor.

Knows nothing of files, requests or engines. The text around the media is that of `_encode_media` in Cloudflare's
`joint_schema_model.py`: a placeholder for each image, then one for each video, then a line break. The processor expands
each placeholder to one token for each patch group; a video becomes a time stamp and a framed run for each pair of frames.

How a video is sampled (Transformers' `Qwen3VLVideoProcessor.sample_frames`, with the settings of the release): `fps` frames
for each second of the video, 2 by default, but at least `min_frames`, at most `max_frames` (4 and 768 by default) and never
more than it has, evenly spread from the first to the last. `num_frames` asks for that many instead. Time stamps count in the
whole video.
"""

import hashlib
import math
import secrets
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image

from model_plugin.schema_layout import Span
from serving.media.decoded import Video, VideoShape
from serving.media.processed import Features, ProcessedMedia

IMAGE_PLACEHOLDER = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO_PLACEHOLDER = "<|vision_start|><|video_pad|><|vision_end|>"
MEDIA_END = "\n"
# The options of a request that say how its videos are sampled.
SAMPLING_OPTIONS = ("fps", "num_frames", "do_sample_frames")
# The Hugging Face processor refuses a video with fewer frames: `smart_resize` in `video_processing_qwen3_vl.py`.
MIN_FRAMES = 2
# Part of every digest: nobody outside this process can look for two media with one digest.
_DIGEST_KEY = secrets.token_bytes(32)
# What a digest's bytes are: SGLang's full media identity.
_DIGEST_BYTES = 32


class MediaProcessor:
    """Runs one release's processor. Every method may be called from any thread.

    Attributes:
        end_tokens: the tokens after a prompt's last medium.

    Args:
        processor: what `AutoProcessor.from_pretrained` makes of the release, as the reference loads it.

    Raises:
        ValueError: the processor is not of the kind that Clef releases have.
    """

    def __init__(self, processor: Any) -> None:
        for part in ("image_processor", "video_processor", "replace_video_token", "image_token_id", "video_token_id"):
            if not hasattr(processor, part):
                raise ValueError(f"the release's processor ({type(processor).__name__}) has no {part}")
        self._processor = processor
        self._images = processor.image_processor
        self._videos = processor.video_processor
        self.end_tokens = self._count_text(MEDIA_END)
        # Left open, Transformers says at the first video that its default will change; the reference's is this one.
        cap = self._videos.cap_pixels_per_frame
        self._video_options = {"cap_pixels_per_frame": bool(cap)}

    def frames_to_sample(self, shape: VideoShape, options: Mapping[str, Any]) -> tuple[int, ...]:
        """Which frames of a video the model is to see, from 0, in order; one may be there twice.

        Args:
            options: of the request, `SAMPLING_OPTIONS` only.

        Raises:
            ValueError: an option is not one, or asks for too few or too many frames.
        """
        most = int(self._videos.max_frames)
        fps, num_frames, sample = _sampling(options, most=most)
        if not (self._videos.do_sample_frames if sample is None else sample):
            indices = range(min(shape.total_frames, most + 1))
        else:
            if fps is None and num_frames is None:
                fps, num_frames = self._videos.fps, self._videos.num_frames
            if fps is not None:
                fps = min(fps, 2 * shape.fps)  # no more is there to be seen, and a huge rate would overflow
            indices = self._videos.sample_frames(_metadata(shape, ()), num_frames=num_frames, fps=fps).tolist()
        if len(indices) < MIN_FRAMES:
            raise ValueError(f"{len(indices)} frame of it would be looked at, and a video needs at least {MIN_FRAMES}")
        if len(indices) > most:
            raise ValueError(f"it has {shape.total_frames} frames, and at most {most} are looked at without sampling")
        return tuple(indices)

    def image_tokens(self, width: int, height: int) -> int:
        """The tokens that `process` would make of an image, markers included, from its size in pixels alone.

        Raises:
            ValueError: it cannot be shown to the model, and why.
        """
        patches = self._images.get_number_of_image_patches(height, width, {})
        tokens: int = self._count_text(IMAGE_PLACEHOLDER) - 1 + patches // self._images.merge_size**2
        return tokens

    def video_tokens(self, shape: VideoShape, options: Mapping[str, Any]) -> int:
        """The same of a video, time stamps included.

        Args:
            options: of the request, `SAMPLING_OPTIONS` only.

        Raises:
            ValueError: it cannot be shown to the model, and why.
        """
        return self._count_video(shape, self.frames_to_sample(shape, options))

    def process(self, images: Sequence[Image.Image], videos: Sequence[Video]) -> ProcessedMedia:
        """The prompt tokens and features of media, at least one, whose tokens have been counted."""
        assert images or videos
        text = IMAGE_PLACEHOLDER * len(images) + VIDEO_PLACEHOLDER * len(videos) + MEDIA_END
        encoded = self._processor(
            text=[text],
            images=list(images) or None,
            videos=[video.frames for video in videos] or None,
            return_tensors="pt",
            videos_kwargs={
                # The frames are those that the processor itself would have sampled from the whole video.
                "do_sample_frames": False,
                "video_metadata": [_metadata(video.shape, video.indices) for video in videos] or None,
                # It would take frames 1 or 3 pixels high for colour planes.
                "input_data_format": "channels_last",
                **self._video_options,
            },
        )
        ids: list[int] = encoded["input_ids"][0].tolist()
        image_features = video_features = None
        if images:
            spans = _runs(ids, self._processor.image_token_id)
            image_features = _features("image", encoded["pixel_values"], encoded["image_grid_thw"], spans)
        if videos:
            spans = _runs(ids, self._processor.video_token_id)
            video_features = _features("video", encoded["pixel_values_videos"], encoded["video_grid_thw"], spans)
        whole = hashlib.blake2b(np.array(ids).tobytes(), key=_DIGEST_KEY, digest_size=_DIGEST_BYTES)
        for features in (image_features, video_features):
            for digest in features.digests if features else ():
                whole.update(digest)
        return ProcessedMedia(input_ids=ids, images=image_features, videos=video_features, digest=whole.digest())

    def _count_text(self, text: str) -> int:
        return len(self._processor.tokenizer(text).input_ids)

    def _count_video(self, shape: VideoShape, indices: Sequence[int]) -> int:
        patches = self._videos.get_num_of_video_patches(len(indices), shape.height, shape.width, self._video_options)
        runs = -(-len(indices) // self._videos.temporal_patch_size)
        # The processor's own text, with time stamps, of a video whose frames have one placeholder each.
        merge = self._videos.merge_size
        one_each = {
            "video_grid_thw": np.array([[runs, merge, merge]]),
            "video_metadata": [_metadata(shape, indices)],
        }
        text = self._processor.replace_video_token(one_each, 0)
        framed = VIDEO_PLACEHOLDER.replace(self._processor.video_token, text)
        tokens: int = self._count_text(framed) - runs + patches // merge**2
        return tokens


def _sampling(options: Mapping[str, Any], *, most: int) -> tuple[float | None, int | None, bool | None]:
    """`fps`, `num_frames` and `do_sample_frames` of a request, None where it does not say."""
    for name in options:
        if name not in SAMPLING_OPTIONS:
            raise ValueError(f"'{name}' is not an option of videos; these are {', '.join(SAMPLING_OPTIONS)}")
    fps, num_frames, sample = (options.get(name) for name in SAMPLING_OPTIONS)
    if fps is not None and num_frames is not None:
        raise ValueError("fps and num_frames exclude each other")
    if fps is not None and (isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < math.inf):
        raise ValueError("fps must be a number above 0")
    if num_frames is not None and (type(num_frames) is not int or not MIN_FRAMES <= num_frames <= most):
        raise ValueError(f"num_frames must be an integer from {MIN_FRAMES} to {most}")
    if sample is not None and type(sample) is not bool:
        raise ValueError("do_sample_frames must be true or false")
    return fps, num_frames, sample


def _metadata(shape: VideoShape, indices: Sequence[int]) -> Any:
    from transformers.video_utils import VideoMetadata  # it brings torch along: seconds, for who never sees a video

    return VideoMetadata(
        total_num_frames=shape.total_frames,
        fps=shape.fps,
        width=shape.width,
        height=shape.height,
        duration=shape.total_frames / shape.fps,
        frames_indices=list(indices),  # the processor pads this list to whole pairs
    )


def _runs(ids: list[int], token_id: int) -> tuple[Span, ...]:
    """Where the token stands, as runs."""
    edges = np.flatnonzero(np.diff(np.pad(np.array(ids) == token_id, 1).astype(np.int8))).tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))


def _features(kind: str, patches: Any, grids: Any, spans: tuple[Span, ...]) -> Features:
    bounds = [0, *np.cumsum(grids.prod(-1).tolist()).tolist()]
    assert bounds[-1] == len(patches), (bounds, patches.shape)
    values = patches.numpy()
    digests = tuple(
        _digest(kind, grid, values[start:end])
        for grid, (start, end) in zip(grids.tolist(), pairwise(bounds), strict=True)
    )
    return Features(patches=patches, grids=grids, digests=digests, spans=spans)


def _digest(kind: str, grid: list[int], values: Any) -> bytes:
    """Of the features and all that gives them a meaning: equal patches in another grid are another picture."""
    head = f"{kind} {grid} {values.dtype} {values.shape};".encode()
    digest = hashlib.blake2b(head, key=_DIGEST_KEY, digest_size=_DIGEST_BYTES)
    digest.update(np.ascontiguousarray(values).data)
    return digest.digest()
