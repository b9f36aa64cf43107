"""Reads a request's body as it arrives: media type, compression, limits. Knows nothing of what the JSON in it means.

Decoding runs in the event loop, in steps of at most 64 KiB and well under a millisecond, and after each millisecond others
get their turn; to hand every chunk to a thread and back would cost a small body more than decoding it.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, fields
from io import BytesIO
from types import MappingProxyType

from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect, Request

from serving.content_encoding import ContentDecoder
from serving.errors import BodyTooLargeError, ClientClosedError, Fault, InvalidRequestError, UnsupportedMediaTypeError
from serving.multipart_body import MultipartBody, boundary_of
from serving.strict_json import shorten

MULTIPART = "multipart/form-data"
TURN_S = 0.001  # longest work, in seconds, before others get their turn
REQUEST_PART = "request"  # what TypeSafe's SDK calls the part that holds the JSON document


@dataclass(frozen=True, kw_only=True)
class BodyLimits:
    """How much of a body is taken.

    Raises:
        ValueError: a limit is not a whole number of at least 1; the message names it and the value.
    """

    max_wire_bytes: int = field(
        default=32 * 2**20,
        metadata={"help": "largest request body as it is sent, in bytes, compressed or not; a larger one gets 413"},
    )
    max_body_bytes: int = field(
        default=32 * 2**20,
        metadata={"help": "largest request body once it is decompressed, in bytes; a larger one gets 413"},
    )
    max_parts: int = field(
        default=64, metadata={"help": "most parts of a multipart body, the one with the JSON included; more get 413"}
    )

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{limit.name} must be a whole number, at least 1, not {value!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestBody:
    """A body, decompressed and taken apart: the JSON document, and the other parts of a multipart body by their names."""

    document: bytes
    parts: Mapping[str, bytes]


def _anything(_: int) -> None: ...


async def read_body(request: Request, limits: BodyLimits, take: Callable[[int], None] = _anything) -> RequestBody:
    """The whole body. Of it, holds at most `max_body_bytes` and an eighth, the chunk that came last and a decoder's window.

    Each piece is announced to `take` before it is kept, in bytes, and what that raises ends the reading. To grow a buffer of
    many MiB, the C library may move it, and for that moment hold it twice.

    The document is one that says it is JSON, or does not say what it is: as curl users expect, that is taken for JSON.

    Raises:
        UnsupportedMediaTypeError: neither JSON in UTF-8 nor multipart/form-data, or in a coding that is not read here.
        MalformedBodyError: the compression or the multipart framing is broken.
        BodyTooLargeError: over a limit, by its own account or in fact.
        InvalidRequestError: a multipart body without the part `request`, or with two parts of one name.
        ClientClosedError: the client left while sending.
    """
    content_type = request.headers.get("content-type", "")
    decoder = ContentDecoder(", ".join(request.headers.getlist("content-encoding")))
    if parse_options_header(content_type)[0] == MULTIPART.encode():
        multipart = MultipartBody(boundary_of(content_type), max_parts=limits.max_parts)
        await _receive(request, decoder, multipart, limits, take)
        return _from_parts(multipart)
    _require_json(content_type, instead=f"application/json or {MULTIPART}")
    document = BytesIO()
    await _receive(request, decoder, document, limits, take)
    # getvalue() shares the buffer: the document is never held twice.
    return RequestBody(document=document.getvalue(), parts=MappingProxyType({}))


async def _receive(
    request: Request,
    decoder: ContentDecoder,
    sink: BytesIO | MultipartBody,
    limits: BodyLimits,
    take: Callable[[int], None],
) -> None:
    """Write the decoded body into the sink, within the limits."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and len(declared) < 20:  # a longer one is beyond what HTTP servers read
        names = ("max_wire_bytes", "max_body_bytes") if decoder.is_identity else ("max_wire_bytes",)
        for name in names:
            if int(declared) > getattr(limits, name):
                raise BodyTooLargeError(
                    f"the body has {declared} bytes and the limit is {getattr(limits, name)} ({name})"
                )
    wire_bytes = body_bytes = 0
    turn_ends = time.perf_counter() + TURN_S
    try:
        async with aclosing(request.stream()) as chunks:
            async for chunk in chunks:
                wire_bytes += len(chunk)
                if wire_bytes > limits.max_wire_bytes:
                    raise _too_large("the body", limits.max_wire_bytes, "max_wire_bytes")
                for piece in decoder.decode(chunk):
                    body_bytes += len(piece)
                    if body_bytes > limits.max_body_bytes:
                        what = "the body" if decoder.is_identity else "the decompressed body"
                        raise _too_large(what, limits.max_body_bytes, "max_body_bytes")
                    take(len(piece))
                    sink.write(piece)
                    if time.perf_counter() >= turn_ends:
                        await asyncio.sleep(0)
                        turn_ends = time.perf_counter() + TURN_S
    except ClientDisconnect as err:
        raise ClientClosedError("the client left while sending") from err
    decoder.finish()


def _too_large(what: str, limit: int, name: str) -> BodyTooLargeError:
    return BodyTooLargeError(f"{what} has more than {limit} bytes, which is the limit ({name})")


def _from_parts(multipart: MultipartBody) -> RequestBody:
    parts = multipart.finish()
    request = parts.pop(REQUEST_PART, None)
    if request is None:
        message = f"the multipart body has no part '{REQUEST_PART}'; it holds the JSON document"
        raise InvalidRequestError([Fault(loc=["body", REQUEST_PART], msg=message, type="missing")])
    _require_json(request.content_type, instead="application/json", where=f"part '{REQUEST_PART}': ")
    return RequestBody(
        document=request.content, parts=MappingProxyType({name: part.content for name, part in parts.items()})
    )


def _require_json(content_type: str, *, instead: str, where: str = "") -> None:
    """Refuse a content-type that is neither JSON in UTF-8 nor absent."""
    raw_type, parameters = parse_options_header(content_type)
    media_type = raw_type.decode("latin-1")
    if media_type and media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMediaTypeError(f"{where}content-type '{shorten(media_type)}' is not supported; send {instead}")
    charset = parameters.get(b"charset", b"utf-8").decode("latin-1")
    if charset.lower() not in ("utf-8", "utf8", "us-ascii"):
        raise UnsupportedMediaTypeError(f"{where}charset '{shorten(charset)}' is not supported; JSON is sent in UTF-8")
