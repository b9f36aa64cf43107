"""Images are measured from headers, refused from them, and decoded as the reference decodes them."""

import base64
import io
import json
import resource
import struct
import subprocess
import sys
import tracemalloc
import zlib
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers.image_transforms import convert_to_rgb

from serving.errors import InvalidRequestError
from serving.media.images import MAX_JPEG_SCANS, ImageInfo, decode_image, probe_image
from serving.media.limits import MediaLimits
from tests.serving.media_samples import LOC, encoded, mutated, outcome, photo, png_chunk, png_header, refused

LIMITS = MediaLimits()
FORMATS = "PNG, JPEG, WebP and still GIF"
RGB = photo()
RGBA = RGB.copy()
RGBA.putalpha(RGB.convert("L"))
PALETTE = RGB.quantize(16)
EXIF = Image.Exif()
EXIF[0x0112] = 6

STILL: dict[str, tuple[bytes, str]] = {
    "png rgb": (encoded(RGB, "PNG"), "PNG"),
    "png rgba": (encoded(RGBA, "PNG"), "PNG"),
    "png grey": (encoded(RGB.convert("L"), "PNG"), "PNG"),
    "png grey and alpha": (encoded(RGBA.convert("LA"), "PNG"), "PNG"),
    "png one bit": (encoded(RGB.convert("1"), "PNG"), "PNG"),
    "png palette": (encoded(PALETTE, "PNG"), "PNG"),
    "png palette, one colour transparent": (encoded(PALETTE, "PNG", transparency=3), "PNG"),
    "png palette, all half transparent": (encoded(PALETTE, "PNG", transparency=b"\x80" * 16), "PNG"),
    "png with a profile": (encoded(RGB, "PNG", icc_profile=b"\0" * 200), "PNG"),
    "jpeg": (encoded(RGB, "JPEG"), "JPEG"),
    "jpeg progressive": (encoded(RGB, "JPEG", progressive=True), "JPEG"),
    "jpeg grey": (encoded(RGB.convert("L"), "JPEG"), "JPEG"),
    "jpeg cmyk": (encoded(RGB.convert("CMYK"), "JPEG"), "JPEG"),
    "jpeg with an orientation": (encoded(RGB, "JPEG", exif=EXIF), "JPEG"),
    "webp": (encoded(RGB, "WEBP"), "WebP"),
    "webp lossless": (encoded(RGB, "WEBP", lossless=True), "WebP"),
    "webp rgba": (encoded(RGBA, "WEBP"), "WebP"),
    "gif": (encoded(PALETTE, "GIF"), "GIF"),
    "gif, one colour transparent": (encoded(PALETTE, "GIF", transparency=3), "GIF"),
    "gif grey": (encoded(RGB.convert("L"), "GIF"), "GIF"),
}
TURNED = {"jpeg": "JPEG", "webp": "WEBP", "png": "PNG"}


@pytest.mark.parametrize(("data", "format"), STILL.values(), ids=STILL)
def test_measured_and_decoded_as_the_reference_does(data: bytes, format: str) -> None:
    assert probe_image(data, LIMITS, LOC) == ImageInfo(width=48, height=32, format=format)
    decoded = decode_image(data, LIMITS, LOC)
    assert decoded.mode == "RGB"
    assert np.array_equal(np.asarray(decoded), np.asarray(convert_to_rgb(Image.open(io.BytesIO(data)))))


def test_grey_of_16_bits_keeps_its_high_byte() -> None:
    grey = np.arange(0, 65536, 512, dtype=np.uint16).reshape(8, 16)
    decoded = np.asarray(decode_image(encoded(Image.fromarray(grey), "PNG"), LIMITS, LOC))
    assert np.array_equal(decoded, np.repeat((grey >> 8).astype(np.uint8)[..., None], 3, axis=2))


@pytest.mark.parametrize("format", TURNED.values(), ids=TURNED)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_only_when_asked(format: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(RGB, format, exif=exif)
    stored = Image.open(io.BytesIO(data)).convert("RGB")
    assert np.array_equal(np.asarray(decode_image(data, LIMITS, LOC)), np.asarray(stored))
    # Where row 0 and column 0 of the stored image are seen: table 6 of the EXIF standard.
    pixels = np.asarray(stored)
    upright = {
        1: pixels,
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: pixels.transpose(1, 0, 2),
        6: pixels.transpose(1, 0, 2)[:, ::-1],
        7: pixels.transpose(1, 0, 2)[::-1, ::-1],
        8: pixels.transpose(1, 0, 2)[::-1],
    }[orientation]
    turned = decode_image(data, LIMITS, LOC, apply_exif_orientation=True)
    assert np.array_equal(np.asarray(turned), upright)
    info = probe_image(data, LIMITS, LOC, apply_exif_orientation=True)
    assert (info.width, info.height) == turned.size


@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", b"Exif\0\0"])
def test_broken_exif_is_no_orientation(exif: bytes) -> None:
    data = encoded(RGB, "JPEG", exif=exif)
    assert decode_image(data, LIMITS, LOC, apply_exif_orientation=True).size == (48, 32)


OTHER: dict[str, bytes] = {
    "text": b"not an image at all",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
    "html": b"<html><img></html>",
    "bmp": encoded(RGB, "BMP"),
    "tiff": encoded(RGB, "TIFF"),
    "ico": encoded(RGB, "ICO"),
    "avif": encoded(RGB, "AVIF"),
    "jpeg 2000": encoded(RGB, "JPEG2000"),
    "ppm": encoded(RGB, "PPM"),
    "eps": encoded(RGB, "EPS"),
    "a riff that is no webp": b"RIFF\x24\0\0\0WAVEfmt ",
    "one byte": b"\x89",
}


@pytest.mark.parametrize("data", OTHER.values(), ids=OTHER)
def test_other_formats_are_refused(data: bytes) -> None:
    with refused(f"images.0 is no image of a format that is read, which are {FORMATS}", "media_format"):
        probe_image(data, LIMITS, LOC)


ANIMATED = {"GIF": {}, "PNG": {}, "WEBP": {"lossless": True}}


@pytest.mark.parametrize(("format", "options"), ANIMATED.items(), ids=ANIMATED)
def test_animations_are_refused(format: str, options: dict[str, Any]) -> None:
    frames = [photo(seed=seed) for seed in range(3)]
    data = encoded(frames[0], format, save_all=True, append_images=frames[1:], duration=100, **options)
    name = {"WEBP": "WebP"}.get(format, format)
    message = f"images.0 is an animated {name}, and only still images are read; {FORMATS} are"
    for read in (probe_image, decode_image):
        with refused(message, "media_format"):
            read(data, LIMITS, LOC)  # type: ignore[operator]


def webp_header(width: int, height: int) -> bytes:
    body = b"\0" * 4 + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    chunks = b"VP8X" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WEBP" + chunks


def lossless_webp_header(width: int, height: int) -> bytes:
    body = b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little") + b"\0" * 20
    chunks = b"VP8L" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WEBP" + chunks


def jpeg_header(width: int, height: int) -> bytes:
    data = bytearray(encoded(photo(), "JPEG"))
    start = data.index(b"\xff\xc0")
    struct.pack_into(">HH", data, start + 5, height, width)
    return bytes(data)


def gif_header(width: int, height: int) -> bytes:
    data = bytearray(encoded(PALETTE, "GIF"))
    struct.pack_into("<HH", data, 6, width, height)
    return bytes(data)


def gif_frame_beyond_its_screen(width: int, height: int) -> bytes:
    data = bytearray(encoded(PALETTE, "GIF"))
    frame = data.index(b",", 13 + 3 * 16)
    struct.pack_into("<HH", data, frame + 5, width, height)
    return bytes(data)


TOO_MANY = "images.0 has {} pixels ({} x {}); the limit max_image_pixels is 50000000"
BOMBS: dict[str, tuple[bytes, str]] = {
    "png of 900 Mpx": (png_header(30000, 30000), TOO_MANY.format(900000000, 30000, 30000)),
    "png of 200 Mpx": (png_header(20000, 10000), TOO_MANY.format(200000000, 20000, 10000)),
    "png of 2^62 pixels": (png_header(2**31 - 1, 2**31 - 1), TOO_MANY.format((2**31 - 1) ** 2, 2**31 - 1, 2**31 - 1)),
    "webp": (webp_header(30000, 30000), TOO_MANY.format(900000000, 30000, 30000)),
    "webp lossless": (lossless_webp_header(16383, 16383), TOO_MANY.format(16383**2, 16383, 16383)),
    "jpeg": (jpeg_header(60000, 60000), TOO_MANY.format(3600000000, 60000, 60000)),
    "gif": (gif_header(60000, 2000), TOO_MANY.format(120000000, 60000, 2000)),
    "gif frame": (
        gif_frame_beyond_its_screen(60000, 60000),
        "images.0 has more pixels than any image may; the limit max_image_pixels is 50000000",
    ),
}


@pytest.mark.parametrize(("data", "message"), BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_from_its_header(data: bytes, message: str) -> None:
    for read in (probe_image, decode_image):
        tracemalloc.start()
        with refused(message, "media_too_large"):
            read(data, LIMITS, LOC)  # type: ignore[operator]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**20


def test_bombs_take_no_memory_of_the_process() -> None:
    # Decoders allocate beyond the sight of tracemalloc: 200 MB more of address space would end this process.
    program = (
        "import base64, contextlib, json, resource, sys\n"
        "from serving.errors import InvalidRequestError\n"
        "from serving.media.images import decode_image\n"
        "from serving.media.limits import MediaLimits\n"
        "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size + 200 * 2**20, resource.RLIM_INFINITY))\n"
        "for data in json.load(sys.stdin):\n"
        "    with contextlib.suppress(InvalidRequestError):\n"
        "        decode_image(base64.b64decode(data), MediaLimits(), ('body',))\n"
    )
    bombs = json.dumps([base64.b64encode(data).decode() for data, _ in BOMBS.values()])
    subprocess.run([sys.executable, "-c", program], input=bombs.encode(), check=True, capture_output=True)


def test_a_compressed_profile_is_not_unpacked_without_end() -> None:
    profile = png_chunk(b"iCCP", b"x\0\0" + zlib.compress(b"\0" * 200 * 2**20))
    data = png_header(8, 8, profile)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidRequestError):
        decode_image(data, LIMITS, LOC)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024  # kilobytes


LIMITED: dict[str, tuple[bytes, dict[str, Any], str, str]] = {
    "bytes": (
        encoded(RGB, "PNG"),
        {"max_image_bytes": 100},
        f"images.0 has {len(encoded(RGB, 'PNG'))} bytes; the limit max_image_bytes is 100",
        "media_too_large",
    ),
    "pixels": (
        encoded(RGB, "PNG"),
        {"max_image_pixels": 48 * 32 - 1},
        "images.0 has 1536 pixels (48 x 32); the limit max_image_pixels is 1535",
        "media_too_large",
    ),
    "long side": (
        encoded(RGB, "PNG"),
        {"max_image_side": 47},
        "images.0 is 48 x 32 pixels; the limit max_image_side is 47",
        "media_too_large",
    ),
    "short side": (
        encoded(RGB, "PNG"),
        {"min_image_side": 33},
        "images.0 is 48 x 32 pixels; the limit min_image_side is 33",
        "media_too_small",
    ),
    "aspect": (
        encoded(Image.new("RGB", (201, 1)), "PNG"),
        {},
        "images.0 is 201 x 1 pixels, 201 to 1; the limit max_aspect_ratio is 200 to 1",
        "media_too_large",
    ),
    "compression": (
        encoded(Image.new("RGB", (4000, 2000)), "WEBP", lossless=True),
        {"max_pixels_per_byte": 1000},
        "",
        "media_too_large",
    ),
    "no pixels": (png_header(0, 5), {}, "images.0 is a PNG that is damaged or cut short", "media_damaged"),
}


@pytest.mark.parametrize(("data", "limits", "message", "kind"), LIMITED.values(), ids=LIMITED)
def test_limits_name_themselves_and_the_value(data: bytes, limits: dict[str, Any], message: str, kind: str) -> None:
    if not message:
        size, rate = len(data), 8_000_000 // len(data)
        message = (
            f"images.0 has 8000000 pixels (4000 x 2000) in {size} bytes, {rate} a byte; "
            "the limit max_pixels_per_byte is 1000"
        )
    with refused(message, kind):
        probe_image(data, MediaLimits(**limits), LOC)


@pytest.mark.parametrize(
    ("limit", "value"),
    [("max_image_pixels", 1536), ("max_image_side", 48), ("min_image_side", 32), ("max_aspect_ratio", 1.5)],
)
def test_limits_are_exact(limit: str, value: float) -> None:
    assert probe_image(encoded(RGB, "PNG"), MediaLimits(**{limit: value}), LOC).width == 48  # type: ignore[arg-type]


def test_a_blank_page_passes() -> None:
    for page in (Image.new("1", (2480, 3508), 1), Image.new("RGB", (1920, 1080))):
        for format in ("PNG", "WEBP"):
            data = encoded(page, format)
            assert (probe_image(data, LIMITS, LOC).width, len(data) < 60_000) == (page.width, True)


def test_a_jpeg_of_many_scans_is_refused() -> None:
    data = encoded(RGB, "JPEG", progressive=True)
    assert data.count(b"\xff\xda") < 20
    scan = data[data.rindex(b"\xff\xda") : -2]
    with refused(f"images.0 is a JPEG of 110 scans; at most {MAX_JPEG_SCANS} are decoded", "media_too_large"):
        probe_image(data[:-2] + scan * (110 - data.count(b"\xff\xda")) + data[-2:], LIMITS, LOC)


@pytest.mark.parametrize("name", ["png rgb", "jpeg", "jpeg progressive", "webp", "webp lossless", "gif"])
def test_every_truncation_is_refused(name: str) -> None:
    data, format = STILL[name]
    whole = np.asarray(decode_image(data, LIMITS, LOC))
    survivors = []
    for length in range(16, len(data), 7):
        cut = data[:length]
        if outcome(partial(decode_image, cut, LIMITS, LOC)) == "read":
            survivors.append(length)
            assert np.array_equal(np.asarray(decode_image(cut, LIMITS, LOC)), whole)
    # What follows the last pixel may be missing.
    assert all(length > len(data) - 30 for length in survivors)
    with refused(f"images.0 is a {format} that is damaged or cut short", "media_damaged"):
        decode_image(data[: len(data) * 2 // 3], LIMITS, LOC)


def test_damaged_pixels_are_refused() -> None:
    rows = zlib.compress(b"\0" * 10)
    data = png_header(40, 40).replace(png_chunk(b"IDAT", zlib.compress(b"")), png_chunk(b"IDAT", rows))
    assert probe_image(data, LIMITS, LOC).width == 40
    with refused("images.0 is a PNG that is damaged or cut short", "media_damaged"):
        decode_image(data, LIMITS, LOC)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", STILL)
def test_mutated_images_are_read_or_refused(name: str) -> None:
    outcomes = set()
    for seed in range(300):
        data = mutated(STILL[name][0], seed)
        for read in (probe_image, decode_image):
            outcomes.add(outcome(partial(read, data, LIMITS, LOC, apply_exif_orientation=True)))
    assert {"read", "media_damaged"} <= outcomes


BAD_LIMITS: dict[str, tuple[dict[str, Any], str]] = {
    "negative": ({"max_images": -1}, "max_images must be a whole number, at least 0, not -1"),
    "fraction": ({"max_image_bytes": 1.5}, "max_image_bytes must be a whole number, at least 1, not 1.5"),
    "boolean": ({"max_videos": True}, "max_videos must be a whole number, at least 0, not True"),
    "beyond Pillow": (
        {"max_image_pixels": 10**9},
        "max_image_pixels must be a whole number, 1 to 89478485, not 1000000000",
    ),
    "sides": (
        {"min_image_side": 20, "max_image_side": 10},
        "min_image_side must be a whole number, 1 to 10, not 20",
    ),
    "aspect": ({"max_aspect_ratio": 201}, "max_aspect_ratio must be a number, 1 to 200, not 201"),
    "not a number": ({"max_video_seconds": float("nan")}, "max_video_seconds must be a number, at least 0, not nan"),
}


@pytest.mark.parametrize(("values", "message"), BAD_LIMITS.values(), ids=BAD_LIMITS)
def test_limits_are_checked_when_built(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        MediaLimits(**values)


def test_every_limit_has_help() -> None:
    assert all(field.metadata["help"] for field in fields(MediaLimits))
