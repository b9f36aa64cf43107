"""One video file's bytes to the frames asked for: measured from its container first, then decoded, each in a process apart.

Knows nothing of where the bytes came from, nor which frames a model wants to see. Frames, rate and rotation are those that
TorchCodec would report, with which the reference's processor reads video files: packets are counted, whatever the header
says, the rate is that number over the time they span, and frames are turned as the file says.
"""

import asyncio
import contextlib
import json
import logging
import mmap
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from serving.errors import InvalidRequestError
from serving.media.decoded import Video, VideoShape
from serving.media.images import check_shape
from serving.media.limits import MIB, MediaLimits
from serving.media.refusal import Loc, beyond, refusal
from serving.media.sources import check_size

logger = logging.getLogger("clef_serving.media")

# Frames as they are kept, and once more while the processor stacks them.
KEPT_BYTES_PER_PIXEL = 6
# What a decoder holds on to: up to 16 frames of 1.5 to 3 bytes a pixel, those in its threads, and one being converted.
DECODER_BYTES_PER_PIXEL = 96
# Whatever the size of a frame: stacks of its threads and its tables.
DECODER_BYTES = 64 * MIB
# For the container's tables, beside the file.
CONTAINER_BYTES = 256 * MIB

# Decoders of what browsers play. Any other codec's is never entered.
_CODECS = {
    "h264": "H.264",
    "hevc": "H.265",
    "mpeg4": "MPEG-4",
    "vp8": "VP8",
    "vp9": "VP9",
    "libdav1d": "AV1",
    "av1": "AV1",
}
FORMATS = f"MP4 and WebM with {', '.join(dict.fromkeys(_CODECS.values()))}"

_SCRIPT = Path(__file__).with_name("video_child.py")


def decoded_bytes(shape: VideoShape, frames: int) -> int:
    """Memory to decode so many frames of a video."""
    pixels = shape.width * shape.height
    return CONTAINER_BYTES + DECODER_BYTES + pixels * (frames * KEPT_BYTES_PER_PIXEL + DECODER_BYTES_PER_PIXEL)


async def probe_video(data: bytes, limits: MediaLimits, loc: Loc) -> VideoShape:
    """Measure a video: read its container through and decode one frame.

    Raises:
        InvalidRequestError: it is of another format, damaged, or beyond a limit.
    """
    found = await _run({}, data, limits, loc)
    width, height, seconds = found["width"], found["height"], found["seconds"]
    if seconds > limits.max_video_seconds:
        raise beyond(loc, f"is {seconds:.6g} seconds long", limits, "max_video_seconds")
    check_frame(width, height, limits, loc)
    pixels = width * height * found["frames"]
    if pixels > limits.max_video_pixels:
        what = f"has {pixels} pixels ({found['frames']} frames of {width} x {height})"
        raise beyond(loc, what, limits, "max_video_pixels")
    try:
        return VideoShape(total_frames=found["frames"], fps=found["fps"], width=width, height=height)
    except ValueError as err:
        raise refusal(loc, f"is damaged: {err}", "media_damaged") from err


async def decode_video(data: bytes, shape: VideoShape, indices: Sequence[int], limits: MediaLimits, loc: Loc) -> Video:
    """The chosen frames of a video that `probe_video` has measured.

    Args:
        indices: frames of the whole video, from 0, in order; one may be there twice.

    Raises:
        InvalidRequestError: a chosen frame is damaged, or too much work to reach.
    """
    assert list(indices) == sorted(indices), indices
    assert set(indices) <= set(range(shape.total_frames)), (indices, shape)
    size = (len(indices), shape.height, shape.width, 3)
    frames_fd = os.memfd_create("clef-video")
    try:
        os.ftruncate(frames_fd, int(np.prod(size)))
        job = {"indices": list(indices), "width": shape.width, "height": shape.height, "frames_fd": frames_fd}
        await _run(job, data, limits, loc, frames_fd)
        frames = np.frombuffer(mmap.mmap(frames_fd, 0), np.uint8).reshape(size)
    finally:
        os.close(frames_fd)
    return Video(frames=frames, indices=tuple(indices), shape=shape)


def check_frame(width: int, height: int, limits: MediaLimits, loc: Loc) -> None:
    """Raise InvalidRequestError if a video's frames have too many pixels or an odd shape."""
    if width * height > limits.max_frame_pixels:
        what = f"has frames of {width * height} pixels ({width} x {height})"
        raise beyond(loc, what, limits, "max_frame_pixels")
    check_shape(width, height, limits, loc)


async def _run(job: dict[str, Any], data: bytes, limits: MediaLimits, loc: Loc, *descriptors: int) -> dict[str, Any]:
    """What the process finds. Cancelling the call ends the process."""
    check_size(data, kind="video", limits=limits, loc=loc)
    job = {
        "format": _container(data, loc),
        "codecs": list(_CODECS),
        "max_pixels": 2 * limits.max_frame_pixels,  # codecs pad frames; what is shown is checked by `check_frame`
        "max_frames": limits.max_file_frames,
        "cpu_seconds": limits.max_video_cpu_seconds,
        "memory_bytes": CONTAINER_BYTES + 2 * len(data),
        "decoder_bytes": DECODER_BYTES,
        "decoder_bytes_per_pixel": DECODER_BYTES_PER_PIXEL,
        **job,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", _SCRIPT),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,  # FFmpeg's remarks on the file
        pass_fds=descriptors,
        start_new_session=True,  # Ctrl-C is for the server
    )
    try:
        output, _ = await process.communicate(json.dumps(job).encode() + b"\n" + data)
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if process.returncode == -signal.SIGXCPU:
        raise beyond(loc, "takes too long to decode", limits, "max_video_cpu_seconds", unit=" seconds")
    try:
        found: dict[str, Any] = json.loads(output)
    except ValueError as err:
        logger.warning("decoding a video ended its process with status %s", process.returncode)
        raise _refused("damaged", limits, loc) from err
    if "refused" in found:
        logger.info("a video was refused: %s %s", found["refused"], found.get("error", ""))
        raise _refused(found["refused"], limits, loc)
    return found


def _container(data: bytes, loc: Loc) -> str:
    """FFmpeg's name of the container, from its first bytes."""
    if data[4:8] == b"ftyp":
        return "mp4"
    if data.startswith(b"\x1a\x45\xdf\xa3"):
        return "webm"
    raise refusal(loc, f"is no video of a format that is read, which are {FORMATS}", "media_format")


def _refused(reason: str, limits: MediaLimits, loc: Loc) -> InvalidRequestError:
    match reason:
        case "no_video":
            return refusal(loc, "has no video in it", "media_format")
        case "codec":
            return refusal(loc, f"is in a codec that is not read; {FORMATS} are", "media_format")
        case "frame_size":
            return beyond(
                loc, "has frames of no readable size, or larger ones than allowed", limits, "max_frame_pixels"
            )
        case "frames":
            return beyond(loc, "has more frames than allowed", limits, "max_file_frames")
        case "memory":
            return refusal(loc, "takes more memory to read than a video of its size does", "media_damaged")
        case _:
            return refusal(loc, "is damaged or cut short", "media_damaged")
