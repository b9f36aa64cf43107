"""One image's bytes to pixels: measured from its header first, then decoded by Pillow. Knows nothing of where they came from.

Converted as the reference converts (Transformers' `convert_to_rgb`, which is Pillow's `convert("RGB")`): alpha is dropped,
a palette looked up, CMYK turned to RGB, colour profiles and the EXIF orientation ignored. One exception: grey of 16 bits
keeps its high byte, where the reference clips at 255 and so sees almost every such picture as white.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from PIL import Image
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from serving.errors import InvalidRequestError
from serving.media.limits import RATIO_FREE_PIXELS, MediaLimits
from serving.media.refusal import Loc, beyond, refusal
from serving.media.sources import check_size

# Pillow holds RGB in 4 bytes a pixel, and beside it, while it converts, what it converts from.
DECODED_BYTES_PER_PIXEL = 8
# Each scan of a progressive JPEG goes over the whole image, and can take a few bytes. Encoders write about 10; a preview
# inside the file may add as many. Without a bound a file of a megabyte keeps a core busy for hours.
MAX_JPEG_SCANS = 100

_ORIENTATION_TAG = 0x0112
# Of EXIF's 8 orientations, what turns a stored image upright. 1 is upright.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_LIES_DOWN = frozenset({5, 6, 7, 8})

# The plugins themselves instead of `Image.open`, whose own limit on pixels is one for the whole process. The JPEG one is
# also right for a photo that carries others behind it (MPO): the first is the photo.
_PLUGINS: tuple[tuple[str, Callable[[bytes], bool], type[ImageFile]], ...] = (
    ("PNG", lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"), PngImageFile),
    ("JPEG", lambda data: data.startswith(b"\xff\xd8\xff"), JpegImageFile),
    ("WebP", lambda data: data.startswith(b"RIFF") and data[8:12] == b"WEBP", WebPImageFile),
    ("GIF", lambda data: data.startswith((b"GIF87a", b"GIF89a")), GifImageFile),
)
FORMATS = "PNG, JPEG, WebP and still GIF"


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageInfo:
    """What an image's header says: pixels as `decode_image` will return them, and the format's name."""

    width: int
    height: int
    format: str

    @property
    def decoded_bytes(self) -> int:
        """Memory to decode it."""
        return self.width * self.height * DECODED_BYTES_PER_PIXEL


def probe_image(data: bytes, limits: MediaLimits, loc: Loc, *, apply_exif_orientation: bool = False) -> ImageInfo:
    """Measure an image without decoding a pixel of it.

    Raises:
        InvalidRequestError: it is of another format, animated, damaged, or beyond a limit.
    """
    name, image = _open(data, limits, loc)
    width, height = image.size
    if apply_exif_orientation and _orientation(image) in _LIES_DOWN:
        width, height = height, width
    return ImageInfo(width=width, height=height, format=name)


def decode_image(data: bytes, limits: MediaLimits, loc: Loc, *, apply_exif_orientation: bool = False) -> Image.Image:
    """The image in mode RGB.

    Raises:
        InvalidRequestError: as `probe_image`, or its pixels are damaged.
    """
    name, image = _open(data, limits, loc)
    try:
        image.load()
        pixels = _rgb(image)
    except MemoryError:
        raise
    except Exception as err:  # whatever a decoder makes of hostile bytes, the bytes are at fault
        raise _damaged(loc, name) from err
    if apply_exif_orientation and (turn := _UPRIGHT.get(_orientation(image))) is not None:
        pixels = pixels.transpose(turn)
    return pixels


def check_shape(width: int, height: int, limits: MediaLimits, loc: Loc) -> None:
    """Raise InvalidRequestError if an image or a frame has a side too short, or is too long for its width."""
    shortest, longest = min(width, height), max(width, height)
    if shortest < limits.min_image_side:
        raise beyond(loc, f"is {width} x {height} pixels", limits, "min_image_side", "media_too_small")
    if longest > limits.max_aspect_ratio * shortest:
        raise beyond(
            loc,
            f"is {width} x {height} pixels, {longest / shortest:.4g} to 1",
            limits,
            "max_aspect_ratio",
            unit=" to 1",
        )


def _open(data: bytes, limits: MediaLimits, loc: Loc) -> tuple[str, ImageFile]:
    """The format's name and Pillow's reader with the header read, checked against all limits."""
    check_size(data, kind="image", limits=limits, loc=loc)
    name, plugin = _plugin(data, loc)
    if name == "WebP" and (canvas := _webp_canvas(data)):
        # Pillow's reader allocates the canvas when it is made.
        _check_size_of(canvas, len(data), limits, loc)
    if name == "JPEG" and (scans := data.count(b"\xff\xda")) > MAX_JPEG_SCANS:
        message = f"is a JPEG of {scans} scans; at most {MAX_JPEG_SCANS} are decoded"
        raise refusal(loc, message, "media_too_large")
    try:
        image = plugin(BytesIO(data))
        animated = bool(getattr(image, "is_animated", False))
    except Image.DecompressionBombError as err:  # a frame of a GIF beyond its screen
        message = "has more pixels than any image may"
        raise beyond(loc, message, limits, "max_image_pixels") from err
    except MemoryError:
        raise
    except Exception as err:  # as in `decode_image`
        raise _damaged(loc, name) from err
    _check_size_of(image.size, len(data), limits, loc)
    if animated:
        raise refusal(loc, f"is an animated {name}, and only still images are read; {FORMATS} are", "media_format")
    return name, image


def _plugin(data: bytes, loc: Loc) -> tuple[str, type[ImageFile]]:
    for name, accepts, plugin in _PLUGINS:
        if accepts(data):
            return name, plugin
    raise refusal(loc, f"is no image of a format that is read, which are {FORMATS}", "media_format")


def _webp_canvas(data: bytes) -> tuple[int, int] | None:
    """Width and height in a WebP's first chunk. Source: RFC 9649, sections 2.5 to 2.7 and 3.4."""
    kind, body = data[12:16], data[20:30]
    if len(body) < 10:
        return None
    if kind == b"VP8X":
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack("<HH", body[6:10])
    return width & 0x3FFF, height & 0x3FFF


def _check_size_of(size: tuple[int, int], length: int, limits: MediaLimits, loc: Loc) -> None:
    width, height = size
    pixels = width * height
    if pixels > limits.max_image_pixels:
        raise beyond(loc, f"has {pixels} pixels ({width} x {height})", limits, "max_image_pixels")
    if max(size) > limits.max_image_side:
        raise beyond(loc, f"is {width} x {height} pixels", limits, "max_image_side")
    check_shape(width, height, limits, loc)
    if pixels > RATIO_FREE_PIXELS and pixels > limits.max_pixels_per_byte * length:
        what = f"has {pixels} pixels ({width} x {height}) in {length} bytes, {pixels // length} a byte"
        raise beyond(loc, what, limits, "max_pixels_per_byte")


def _orientation(image: ImageFile) -> int:
    """The EXIF orientation, 1 to 8; 1 if there is none, or none to be made sense of."""
    exif = Image.Exif()
    try:
        exif.load(image.info.get("exif", b""))
        orientation = exif.get(_ORIENTATION_TAG)
    except Exception:  # noqa: BLE001 - as in `decode_image`; viewers show an image with broken EXIF as it is stored
        return 1
    return orientation if isinstance(orientation, int) and orientation in _UPRIGHT else 1


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


def _damaged(loc: Loc, name: str) -> InvalidRequestError:
    return refusal(loc, f"is a {name} that is damaged or cut short", "media_damaged")
