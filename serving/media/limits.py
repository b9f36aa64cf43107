"""How many media, how large, one request may bring, checked when it is built. Knows nothing of formats or of the engine.

Two kinds of bounds: on what is sent, so that reading it stays cheap, and on what it unpacks to, which a header of a few
bytes can make a million times as much. All are checked before a pixel is decoded.
"""

import math
from dataclasses import dataclass, field

MIB = 2**20
# Pillow warns above this many pixels, and stops at twice as many, whatever our limit.
PILLOW_PIXELS = 89_478_485
# The Hugging Face processor refuses more: `smart_resize` in `image_processing_qwen2_vl.py`.
MOST_ASPECT_RATIO = 200
# A blank page compresses without end, and is harmless at this size.
RATIO_FREE_PIXELS = 4_000_000


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass(frozen=True, kw_only=True)
class MediaLimits:
    """Limits of the media of one request.

    Raises:
        ValueError: a value is out of range; the message names the limit and the value.
    """

    max_images: int = field(default=16, metadata=_help("most images in a request"))
    max_videos: int = field(default=4, metadata=_help("most videos in a request"))
    # A phone's photo is 3 to 12 MB, a minute of its video about 60 MB.
    max_image_bytes: int = field(
        default=20 * MIB, metadata=_help("largest image, or frame of a list, as sent, in bytes")
    )
    max_video_bytes: int = field(default=64 * MIB, metadata=_help("largest video file, as sent, in bytes"))
    max_media_bytes: int = field(
        default=128 * MIB, metadata=_help("all media of a request together, as sent or fetched, in bytes")
    )
    # Phones take 50 megapixels. The model is shown less than that in any case.
    max_image_pixels: int = field(
        default=50_000_000, metadata=_help("largest image, in pixels: width times height, as its header says")
    )
    max_image_side: int = field(default=16_384, metadata=_help("longest side of an image, in pixels"))
    min_image_side: int = field(default=1, metadata=_help("shortest side of an image or a video's frame, in pixels"))
    max_aspect_ratio: float = field(
        default=MOST_ASPECT_RATIO,
        metadata=_help("longest side of an image or a video's frame over its shortest; the model takes up to 200"),
    )
    # A blank page of one bit a pixel takes a byte for about 8,000 pixels as PNG, a photo one for 1 to 20.
    max_pixels_per_byte: int = field(
        default=10_000,
        metadata=_help("strongest compression of an image over 4 megapixels, in pixels for each byte sent"),
    )
    max_frame_pixels: int = field(default=4096 * 2160, metadata=_help("largest frame of a video, in pixels"))
    max_file_frames: int = field(
        default=54_000, metadata=_help("most frames in a video file (30 minutes at 30 a second)")
    )
    max_video_seconds: float = field(default=1800.0, metadata=_help("longest video file, in seconds"))
    # To reach a frame, those before it are decoded: at this size 20 to 60 seconds of a core.
    max_video_pixels: int = field(
        default=10_000_000_000,
        metadata=_help("largest video file, in pixels of all its frames (1080p at 30 a second: 160 seconds)"),
    )
    max_video_cpu_seconds: int = field(
        default=120, metadata=_help("longest time to measure or to decode a video file, in seconds of a core")
    )
    # The reference's processor samples 768 at most.
    max_video_frames: int = field(
        default=768, metadata=_help("most frames looked at in one video, sampled from a file or sent as a list")
    )
    # Two minutes of 1080p at the reference's two frames a second.
    max_decoded_bytes: int = field(
        default=2048 * MIB, metadata=_help("memory for decoding all media of a request, in bytes")
    )

    def __post_init__(self) -> None:
        for name, least, most in (
            ("max_images", 0, None),
            ("max_videos", 0, None),
            ("max_image_bytes", 1, None),
            ("max_video_bytes", 1, None),
            ("max_media_bytes", 1, None),
            ("max_image_pixels", 1, PILLOW_PIXELS),
            ("max_image_side", 1, None),
            ("min_image_side", 1, self.max_image_side),
            ("max_pixels_per_byte", 1, None),
            ("max_frame_pixels", 1, PILLOW_PIXELS),
            ("max_file_frames", 1, None),
            ("max_video_pixels", 1, None),
            ("max_video_cpu_seconds", 1, None),
            ("max_video_frames", 1, None),
            ("max_decoded_bytes", 1, None),
        ):
            value = getattr(self, name)
            if type(value) is not int or value < least or (most is not None and value > most):
                span = f"at least {least}" if most is None else f"{least} to {most}"
                raise ValueError(f"{name} must be a whole number, {span}, not {value!r}")
        for name, floor, ceiling in (
            ("max_aspect_ratio", 1.0, float(MOST_ASPECT_RATIO)),
            ("max_video_seconds", 0.0, math.inf),
        ):
            value = getattr(self, name)
            if type(value) not in (int, float) or not floor <= value <= ceiling:
                span = f"at least {floor:g}" if ceiling == math.inf else f"{floor:g} to {ceiling:g}"
                raise ValueError(f"{name} must be a number, {span}, not {value!r}")
