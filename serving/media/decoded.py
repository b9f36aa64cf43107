"""What decoding hands to the processor. Knows nothing of files, formats or tokens.

An image is a `PIL.Image.Image`, in whatever mode it was decoded to: the processor converts it. A video is the class here.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# Frames a second of a video that does not say. Source: Transformers' `Qwen3VLProcessor.replace_video_token`.
UNKNOWN_FPS = 24.0
# From a frame in eleven days to a microsecond a frame; outside, counting frames would overflow.
MIN_FPS, MAX_FPS = 1e-6, 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoShape:
    """What a container's header, or a list of frames, says of a video before a pixel is decoded.

    Attributes:
        total_frames: frames of the whole video.
        fps: its frames a second.
        width: of a frame, in pixels, as shown (rotation applied).
        height: likewise.

    Raises:
        ValueError: there is no such video.
    """

    total_frames: int
    fps: float
    width: int
    height: int

    def __post_init__(self) -> None:
        if min(self.total_frames, self.width, self.height) < 1:
            raise ValueError(f"a video of {self.total_frames} frames of {self.width} x {self.height} pixels is empty")
        if not MIN_FPS <= self.fps <= MAX_FPS:
            raise ValueError(f"a video has from {MIN_FPS:g} to {MAX_FPS:g} frames a second, not {self.fps}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Video:
    """The frames of one video that the model is to see, chosen by `MediaProcessor.frames_to_sample`.

    Attributes:
        frames: `[frames, height, width, 3]`, uint8, RGB: the chosen frames only, in order.
        indices: which frame of the whole video each of them is, from 0; one may be there twice.
        shape: of the whole video.
    """

    frames: npt.NDArray[Any]
    indices: tuple[int, ...]
    shape: VideoShape

    def __post_init__(self) -> None:
        expected = (len(self.indices), self.shape.height, self.shape.width, 3)
        assert self.frames.shape == expected, (self.frames.shape, expected)
        assert self.frames.dtype == np.uint8, self.frames.dtype
