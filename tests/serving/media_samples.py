"""Images and videos made for the tests, small and always the same; and what a refusal says."""

import contextlib
import io
import os
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from serving.errors import InvalidRequestError

LOC = ("body", "images", 0)
VIDEO_LOC = ("body", "videos", 0)


@contextlib.contextmanager
def refused(msg: str, kind: str, loc: tuple[str | int, ...] = LOC) -> Iterator[None]:
    """The block is refused with exactly this fault."""
    with pytest.raises(InvalidRequestError) as caught:
        yield
    assert caught.value.faults == [{"loc": list(loc), "msg": msg, "type": kind}]


def outcome(read: Callable[[], Any]) -> str:
    """ "read", or the type of the one fault. Anything else that is raised fails the test."""
    try:
        read()
    except InvalidRequestError as err:
        (fault,) = err.faults
        return fault["type"]
    return "read"


def photo(width: int = 48, height: int = 32, seed: int = 0) -> Image.Image:
    """An RGB image with smooth and rough parts."""
    noise = np.random.default_rng(seed).integers(0, 64, (height, width, 3), dtype=np.uint8)
    ramp = np.linspace(0, 191, width, dtype=np.uint8)[None, :, None]
    return Image.fromarray(noise + ramp)


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    """The image as a file."""
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def png_chunk(kind: bytes, body: bytes) -> bytes:
    """A chunk with its length and checksum."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_header(width: int, height: int, *chunks: bytes) -> bytes:
    """A PNG that declares so many pixels and holds none; `chunks` stand before them."""
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + head
        + b"".join(chunks)
        + png_chunk(b"IDAT", zlib.compress(b""))
        + png_chunk(b"IEND", b"")
    )


def mutated(data: bytes, seed: int) -> bytes:
    """The bytes with a few of them changed, removed, doubled or cut off; half of that near the start."""
    chance = random.Random(seed)
    out = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 4, 16])):
        place = chance.randrange(len(out)) if chance.random() < 0.5 else chance.randrange(min(64, len(out)))
        match chance.randrange(6):
            case 0:
                out[place] ^= 1 << chance.randrange(8)
            case 1:
                out[place] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
            case 2:
                out[place : place + 4] = chance.choice([b"\0" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0\0\0\1"])
            case 3:
                del out[place : place + chance.randrange(1, 9)]
            case 4:
                out[place:place] = out[place : place + chance.randrange(1, 33)]
            case _:
                out = out[: max(place, 1)]
        if not out:
            return b"\0"
    return bytes(out)


def moving(frames: int, width: int = 64, height: int = 48) -> npt.NDArray[np.uint8]:
    """Frames `[frames, height, width, 3]` that compression keeps apart: each has a grey of its own, and a corner in red."""
    grey = 16 + np.arange(frames) * (200 // max(frames - 1, 1))
    video = np.broadcast_to(grey[:, None, None, None], (frames, height, width, 3)).astype(np.uint8)
    video[:, : height // 4, : width // 4] = (250, 20, 20)
    return video


@contextlib.contextmanager
def _scheduling_kept() -> Iterator[None]:
    """SVT-AV1's encoder makes the thread that calls it a real-time one (SCHED_FIFO, 99) if the user is root. All that it
    starts later, engines too, would inherit that, and share no core with anything."""
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, priority)


def video_file(
    frames: npt.NDArray[np.uint8],
    *,
    container: str = "mp4",
    codec: str = "libx264",
    fps: Fraction | int = 10,
    prepare: Callable[[Any], None] = lambda stream: None,
    **options: str,
) -> bytes:
    """The frames as a file. `prepare` is given the stream before the first frame."""
    out = io.BytesIO()
    with _scheduling_kept(), av.open(out, "w", format=container) as file:
        stream = file.add_stream(codec, rate=fps, options=options)
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        prepare(stream)
        for pixels in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        file.mux(stream.encode(None))
    return out.getvalue()
