"""The forms in which a request may hold a medium, turned into the medium's own bytes. Knows nothing of what is in them.

Taken: the bytes themselves (a part of a multipart body), base64, and a data URL (RFC 2397) in base64. Both alphabets of
RFC 4648 are read, but not mixed; white space is skipped and padding may be missing, as browsers have it. An address of a
remote host is told apart here and fetched elsewhere. Files of this machine are never opened.
"""

import binascii
import re
from typing import Literal
from urllib.parse import unquote_to_bytes

from serving.errors import InvalidRequestError
from serving.media.limits import MediaLimits
from serving.media.refusal import Loc, beyond, refusal

MediaKind = Literal["image", "video"]

_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]{0,31}):")
_MEDIA_TYPE = re.compile(r"(application|audio|font|image|message|model|multipart|text|video)/[a-z0-9.+-]{1,40}")
_MAX_DATA_URL_HEADER = 1000  # characters before the comma
_BLANKS = b" \t\r\n\f\v"
_FORMS = "a data URL or base64"
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


def size_limit(kind: MediaKind) -> str:
    """The name of the limit on one medium's bytes."""
    return "max_image_bytes" if kind == "image" else "max_video_bytes"


def remote_url(source: str | bytes) -> str | None:
    """The address, if the source is one of a remote host."""
    return source.strip() if isinstance(source, str) and _scheme(source) in ("http", "https") else None


def inline_bytes(source: str | bytes, *, kind: MediaKind, limits: MediaLimits, loc: Loc) -> bytes:
    """The bytes that a source other than a remote address holds.

    Raises:
        InvalidRequestError: it is no such source, holds nothing or too much.
    """
    data = source if isinstance(source, bytes) else _decoded(source, kind, limits, loc)
    check_size(data, kind=kind, limits=limits, loc=loc)
    return data


def check_size(data: bytes, *, kind: MediaKind, limits: MediaLimits, loc: Loc) -> None:
    """Raise InvalidRequestError if these bytes of a medium are none or too many."""
    if not data:
        raise refusal(loc, "is empty", "media_source")
    if len(data) > getattr(limits, size_limit(kind)):
        raise _too_long(len(data), kind, limits, loc)


def _decoded(source: str, kind: MediaKind, limits: MediaLimits, loc: Loc) -> bytes:
    scheme = _scheme(source)
    if scheme is None:
        return _from_base64(source, kind, limits, loc)
    if scheme == "data":
        return _from_data_url(source.lstrip()[len("data:") :], kind, limits, loc)
    if scheme == "file":
        raise refusal(loc, f"names a file of this machine, and none is ever opened; send {_FORMS}", "media_source")
    raise refusal(loc, f"is a URL of the scheme '{scheme}', which is not fetched; send {_FORMS}", "media_source")


def _scheme(source: str) -> str | None:
    found = _SCHEME.match(source)
    return found[1].lower() if found else None


def _from_data_url(rest: str, kind: MediaKind, limits: MediaLimits, loc: Loc) -> bytes:
    comma = rest.find(",", 0, _MAX_DATA_URL_HEADER)
    if comma < 0:
        raise refusal(loc, "is a data URL without a comma after its type", "media_source")
    declared, *parameters = (part.strip().lower() for part in rest[:comma].split(";"))
    # What the bytes are, they say themselves; a sender who says that they are none of this kind means something else.
    if declared and declared != "application/octet-stream" and declared.partition("/")[0] != kind:
        said = declared if _MEDIA_TYPE.fullmatch(declared) else "another"  # whatever stands there may be anything
        raise refusal(loc, f"is a data URL of the type {said}, and {_article(kind)} is wanted", "media_format")
    if parameters[-1:] != ["base64"]:
        raise refusal(loc, "is a data URL that is not in base64", "media_source")
    return _from_base64(rest[comma + 1 :], kind, limits, loc, percent=True)


def _from_base64(text: str, kind: MediaKind, limits: MediaLimits, loc: Loc, *, percent: bool = False) -> bytes:
    try:
        raw = text.encode("ascii")
    except UnicodeEncodeError:
        raise _not_base64(loc) from None  # its context would hold the text
    if percent and b"%" in raw:
        raw = unquote_to_bytes(raw)
    raw = raw.translate(None, _BLANKS)
    digits = raw.rstrip(b"=")
    padding = -len(digits) % 4
    if len(raw) - len(digits) not in (0, padding) or padding == 3:
        raise _not_base64(loc)
    if len(digits) * 3 // 4 > getattr(limits, size_limit(kind)):
        raise _too_long(len(digits) * 3 // 4, kind, limits, loc)
    if (b"-" in digits or b"_" in digits) and not (b"+" in digits or b"/" in digits):
        digits = digits.translate(_URL_SAFE)
    try:
        return binascii.a2b_base64(digits + b"=" * padding, strict_mode=True)
    except binascii.Error as err:
        raise _not_base64(loc) from err


def _not_base64(loc: Loc) -> InvalidRequestError:
    message = f"is neither {_FORMS} nor an http or https URL; a path of a file is never opened"
    return refusal(loc, message, "media_source")


def _too_long(length: int, kind: MediaKind, limits: MediaLimits, loc: Loc) -> InvalidRequestError:
    return beyond(loc, f"has {length} bytes", limits, size_limit(kind))


def _article(kind: MediaKind) -> str:
    return "an image" if kind == "image" else "a video"
