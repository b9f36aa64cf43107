"""Undoes the compression of a request body while it arrives, in small steps; knows neither HTTP nor what a body holds.

gzip (RFC 1952, several members too) and zstd (RFC 8878, several frames too). Memory is one step and, for zstd, the window:
at most 8 MiB, which RFC 9659 makes the bound of zstd as a content coding.
"""

import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

from backports import zstd

from serving.errors import ACCEPTED_ENCODINGS, MalformedBodyError, UnsupportedEncodingError
from serving.strict_json import shorten

# A step of either is well under a millisecond, so that a caller who pauses between steps holds nobody up.
INPUT_STEP_BYTES = 16 * 2**10
OUTPUT_STEP_BYTES = 64 * 2**10

ZSTD_WINDOW_LOG = 23
# Each frame costs a decoder of its own, and an empty one has few bytes. 64 KiB blocks of block gzip fit 256 MiB into it.
MAX_FRAMES = 4096


class _Frame(Protocol):
    """One gzip member or zstd frame, in the terms of Python's own incremental decompressors."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: memoryview | bytes, max_length: int) -> bytes: ...


class _GzipMember:
    """zlib's decompressor, which hands back what it did not get to instead of keeping it, in the terms of the others."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def decompress(self, data: memoryview | bytes, max_length: int) -> bytes:
        piece = self._stream.decompress(data or self._stream.unconsumed_tail, max_length)
        # zlib may have taken all input and still hold output, but then the piece is full.
        self.needs_input = len(piece) < max_length and not self._stream.unconsumed_tail
        return piece


def _zstd_frame() -> _Frame:
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG})


_FRAMES: dict[str, Callable[[], _Frame]] = {"gzip": _GzipMember, "x-gzip": _GzipMember, "zstd": _zstd_frame}


class ContentDecoder:
    """Decodes one body. Call `decode` for each chunk that arrives, then `finish`."""

    def __init__(self, content_encoding: str) -> None:
        """Take the value of a content-encoding header; several headers are joined by commas, none is "".

        Raises:
            UnsupportedEncodingError: a coding that is not read here, or several one upon the other.
        """
        codings = [coding.strip().lower() for coding in content_encoding.split(",")]
        codings = [coding for coding in codings if coding not in ("", "identity")]
        if len(codings) > 1 or any(coding not in _FRAMES for coding in codings):
            raise UnsupportedEncodingError(
                f"content-encoding '{shorten(', '.join(codings))}' is not supported; "
                f"send the body in one of {ACCEPTED_ENCODINGS}, or uncompressed"
            )
        self._coding = codings[0] if codings else None
        self._frame: _Frame | None = None
        self._frames = 0

    @property
    def is_identity(self) -> bool:
        """Whether the body is sent as it is."""
        return self._coding is None

    def decode(self, chunk: bytes) -> Iterator[bytes]:
        """What the chunk adds to the body, in pieces of at most `OUTPUT_STEP_BYTES`, some empty; each piece is one step.

        Whoever stops taking pieces stops the work: a chunk that expands without end costs what was taken of it.

        Raises:
            MalformedBodyError: the body is not what its content-encoding says, or has more than `MAX_FRAMES` frames.
        """
        view = memoryview(chunk)
        if self._coding is None:
            for start in range(0, len(view), OUTPUT_STEP_BYTES):
                yield bytes(view[start : start + OUTPUT_STEP_BYTES])
            return
        position = 0
        while position < len(view):
            step = INPUT_STEP_BYTES
            if self._frame is None:
                self._frame = self._next_frame()
                # Given a small frame whole, libzstd ignores the window limit; given its first byte alone it never does.
                step = 1
            taken = view[position : position + step]
            position += len(taken)
            yield self._step(self._frame, taken)
            while not (self._frame.eof or self._frame.needs_input):
                yield self._step(self._frame, b"")
            if self._frame.eof:
                position -= len(self._frame.unused_data)
                self._frame = None

    def finish(self) -> None:
        """Check that the body ended where its compression does.

        Raises:
            MalformedBodyError: it ended earlier.
        """
        if self._coding is not None and (self._frame is not None or not self._frames):
            raise MalformedBodyError(f"the body ends before its {self._coding} data does")

    def _next_frame(self) -> _Frame:
        assert self._coding is not None
        self._frames += 1
        if self._frames > MAX_FRAMES:
            raise MalformedBodyError(
                f"the body is {self._coding} in more than {MAX_FRAMES} frames one after the other, which is the limit"
            )
        return _FRAMES[self._coding]()

    def _step(self, frame: _Frame, data: memoryview | bytes) -> bytes:
        try:
            return frame.decompress(data, OUTPUT_STEP_BYTES)
        except (zlib.error, zstd.ZstdError) as err:
            window = f" with a window of at most {2**ZSTD_WINDOW_LOG} bytes" if self._coding == "zstd" else ""
            raise MalformedBodyError(f"the body is not valid {self._coding}{window}: {err}") from err
