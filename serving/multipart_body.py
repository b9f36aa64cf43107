"""Takes a multipart/form-data body apart while it arrives; knows nothing of what the parts are for.

The framing is python-multipart's work. It reads leniently; this module holds it to the form that HTTP clients write
(RFC 7578), so that a body means one thing: nothing before the first boundary or after the last, no boundary inside a part,
no name twice. That also bounds the work, which for boundaries that lead nowhere is slow.
"""

import logging
import re
from dataclasses import dataclass
from io import BytesIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from serving.errors import BodyTooLargeError, Fault, InvalidRequestError, MalformedBodyError, UnsupportedMediaTypeError
from serving.strict_json import shorten

MAX_BOUNDARY_CHARACTERS = 70
BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]")  # RFC 2046, section 5.1.1
MAX_HEADER_FIELDS = 8
MAX_HEADER_BYTES = 1024

# It warns of each malformed body; the response and the log line of the request say it already.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One part. `content_type` is its header's value, "" where it has none."""

    content_type: str
    content: bytes


def boundary_of(content_type: str) -> bytes:
    """The boundary that a multipart content-type names.

    Raises:
        MalformedBodyError: it names none, or one that RFC 2046 does not allow.
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not BOUNDARY.fullmatch(boundary):
        raise MalformedBodyError(
            "the content-type of a multipart/form-data body must name its boundary, 1 to "
            f"{MAX_BOUNDARY_CHARACTERS} letters, digits and '()+_,-./:=? ; it names '{shorten(boundary.decode('latin-1'))}'"
        )
    return boundary


class MultipartBody:
    """One body. Call `write` for each piece that arrives, then `finish`."""

    def __init__(self, boundary: bytes, *, max_parts: int) -> None:
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
            max_header_count=MAX_HEADER_FIELDS,
            max_header_size=MAX_HEADER_BYTES,
        )
        self._max_parts = max_parts
        self._delimiter = b"\r\n--" + boundary
        self._delimiters_seen = 0
        # The last bytes of the body so far, one closing delimiter's worth. A body begins as if after a line's end.
        self._tail = bytes(len(boundary) + 4) + b"\r\n"
        self._parts: dict[str, Part] = {}
        self._begun = 0
        self._ended = False
        self._start_part()

    def _start_part(self) -> None:
        self._headers: dict[bytes, bytes] = {}
        self._field = b""
        self._value = b""
        self._name = ""
        self._content = BytesIO()

    def write(self, piece: bytes) -> None:
        """Take the next bytes of the body.

        Raises:
            MalformedBodyError: the framing is broken, or a part has no name.
            BodyTooLargeError: there are more parts than `max_parts`.
            InvalidRequestError: two parts have the same name.
            UnsupportedMediaTypeError: a part is in a transfer encoding.
        """
        self._check_delimiters(piece)
        try:
            self._parser.write(piece)
        except FormParserError as err:
            raise MalformedBodyError(
                f"the multipart framing is broken {self._place()}: lines must end in CRLF, the body must start with its "
                f"boundary, and a part may have {MAX_HEADER_FIELDS} header fields of {MAX_HEADER_BYTES} bytes each"
            ) from err

    def finish(self) -> dict[str, Part]:
        """Every part by its name, in the order they came.

        Raises:
            MalformedBodyError: the body is cut short, goes on after its end, or has a boundary inside a part.
        """
        if not self._ended:
            raise MalformedBodyError(f"the multipart body ends before its closing boundary, {self._place()}")
        if self._delimiters_seen != len(self._parts) + 1:
            raise MalformedBodyError("a line inside a part of the multipart body, or after the last, is a boundary")
        closing = self._delimiter + b"--"
        if not self._tail.endswith((closing, closing + b"\r\n")):
            raise MalformedBodyError("the multipart body goes on after its closing boundary")
        return self._parts

    def _check_delimiters(self, piece: bytes) -> None:
        """Count the lines that start with the boundary, wherever the pieces were cut, before the parser sees them."""
        window = self._tail + piece
        # One that ends within the tail is counted already; it starts before the tail's last len(delimiter) - 1 bytes.
        fresh = len(self._tail) - len(self._delimiter) + 1
        self._delimiters_seen += window.count(self._delimiter, fresh)
        if self._delimiters_seen > self._max_parts + 1:
            raise BodyTooLargeError(
                f"the multipart body has more than {self._max_parts} parts, which is the limit (max_parts)"
            )
        if self._delimiter + b" " in window or self._delimiter + b"\t" in window:
            raise MalformedBodyError("a boundary of the multipart body is followed by blanks")
        self._tail = window[-len(self._delimiter + b"--\r\n") :]

    def _place(self) -> str:
        return f"in part {self._begun}" if self._begun else "before the first part"

    def _on_part_begin(self) -> None:
        self._begun += 1
        self._start_part()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        field, value = self._field.lower(), self._value.strip(b" \t")
        if field in self._headers:
            raise MalformedBodyError(f"part {self._begun} of the multipart body has a header field twice")
        self._headers[field] = value
        self._field = self._value = b""

    def _on_headers_finished(self) -> None:
        disposition, options = parse_options_header(self._headers.get(b"content-disposition"))
        try:
            self._name = options.get(b"name", b"").decode()
        except UnicodeDecodeError as err:
            raise MalformedBodyError(f"the name of part {self._begun} of the multipart body is not UTF-8") from err
        if disposition != b"form-data" or not self._name:
            raise MalformedBodyError(
                f'part {self._begun} of the multipart body has no content-disposition: form-data; name="..."'
            )
        if self._name in self._parts:
            message = f"part '{shorten(self._name)}' appears twice"
            raise InvalidRequestError([Fault(loc=["body", shorten(self._name)], msg=message, type="repeated_part")])
        encoding = self._headers.get(b"content-transfer-encoding", b"binary").decode("latin-1")
        if encoding.lower() not in ("binary", "8bit", "7bit"):  # the names of "as it is"
            raise UnsupportedMediaTypeError(
                f"part '{shorten(self._name)}': content-transfer-encoding '{shorten(encoding)}' is not supported; "
                "send the bytes as they are"
            )

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._content.write(memoryview(data)[start:end])

    def _on_part_end(self) -> None:
        # getvalue() shares the buffer: a part is never held twice.
        content_type = self._headers.get(b"content-type", b"").decode("latin-1")
        self._parts[self._name] = Part(content_type=content_type, content=self._content.getvalue())

    def _on_end(self) -> None:
        self._ended = True
