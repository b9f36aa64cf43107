"""Multipart bodies: the SDK's and curl's own, every way to cut them, and each fault with the answer it gets."""

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typesafe_sdk._core.multipart import Part as SdkPart
from typesafe_sdk._core.multipart import encode_multipart

from serving.errors import (
    BodyTooLargeError,
    InvalidRequestError,
    MalformedBodyError,
    RequestError,
    UnsupportedMediaTypeError,
)
from serving.multipart_body import MultipartBody, Part, boundary_of

MAX_PARTS = 4
DOCUMENT = b'{"state": "x", "assets": {"door": {"type": "image", "part": "asset-0"}}}'


def take_apart(chunks: Iterable[bytes], boundary: bytes = b"b", max_parts: int = MAX_PARTS) -> dict[str, Part]:
    body = MultipartBody(boundary, max_parts=max_parts)
    for chunk in chunks:
        body.write(chunk)
    return body.finish()


def part(name: str = "request", content: bytes = b"{}", headers: str = "Content-Type: application/json\r\n") -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n{headers}\r\n'.encode() + content + b"\r\n"


def single_bytes(body: bytes) -> list[bytes]:
    return [body[at : at + 1] for at in range(len(body))]


def test_what_the_sdk_sends() -> None:
    picture = bytes(range(256)) * 3
    content_type, body = encode_multipart(
        [
            SdkPart("request", "application/json", DOCUMENT),
            SdkPart("asset-0", "image/png", picture, "asset-0"),
            SdkPart("asset-1", "application/octet-stream", b"", "asset-1"),
        ]
    )
    assert take_apart([body], boundary_of(content_type)) == {
        "request": Part(content_type="application/json", content=DOCUMENT),
        "asset-0": Part(content_type="image/png", content=picture),
        "asset-1": Part(content_type="application/octet-stream", content=b""),
    }


@given(
    contents=st.lists(
        st.binary(max_size=100)
        | st.lists(st.sampled_from([b"\r", b"\n", b"-", b"--", b"a", b"\r\n--", b"\r\n--a"]), max_size=9).map(b"".join),
        max_size=MAX_PARTS,
    ),
    cuts=st.lists(st.integers(0, 2**20), max_size=8),
)
def test_the_way_a_body_is_cut_changes_nothing(contents: list[bytes], cuts: list[int]) -> None:
    boundary = "aaaa-boundary"
    parts = [SdkPart(f"asset-{number}", "image/png", content) for number, content in enumerate(contents)]
    body = encode_multipart(parts)[1]
    body = body.replace(body[2:34], boundary.encode()) if parts else f"--{boundary}--\r\n".encode()
    ends = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    taken = take_apart((body[start:end] for start, end in itertools.pairwise(ends)), boundary.encode())
    assert [(name, value.content) for name, value in taken.items()] == [
        (f"asset-{number}", content) for number, content in enumerate(contents)
    ]


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (b"--b--\r\n", {}),
        (b"--b--", {}),
        (part() + b"--b--", {"request": ("application/json", b"{}")}),
        (part(headers="") + b"--b--\r\n", {"request": ("", b"{}")}),
        (
            part(headers="CONTENT-TYPE:\t text/json\r\nX-Other: 1\r\nContent-Transfer-Encoding: Binary\r\n") + b"--b--",
            {"request": ("text/json", b"{}")},
        ),
        (part("Straße") + part('a\\"b;c') + b"--b--", {"Straße": ("application/json", b"{}"), 'a"b;c': ...}),
        (part(content=b"\r\n--c\r\n-- b\n--b\r--b") + b"--b--", {"request": (..., b"\r\n--c\r\n-- b\n--b\r--b")}),
        (part("1") + part("2") + part("3") + part("4") + b"--b--", {"1": ..., "2": ..., "3": ..., "4": ...}),
    ],
    ids=[
        "no-part",
        "no-part-bare",
        "no-last-crlf",
        "no-type",
        "header-form",
        "names",
        "almost-boundaries",
        "most-parts",
    ],
)
def test_other_clients(body: bytes, parts: dict[str, object]) -> None:
    for chunks in ([body], single_bytes(body)):
        taken = take_apart(chunks)
        assert list(taken) == list(parts)
        for name, wanted in parts.items():
            if isinstance(wanted, tuple):
                content_type, content = wanted
                assert content_type in (..., taken[name].content_type)
                assert taken[name].content == content


FRAMING = (
    "the multipart framing is broken {}: lines must end in CRLF, the body must start with its boundary, "
    "and a part may have 8 header fields of 1024 bytes each"
)
CUT_SHORT = "the multipart body ends before its closing boundary, {}"
NO_NAME = 'part 1 of the multipart body has no content-disposition: form-data; name="..."'
INNER = "a line inside a part of the multipart body, or after the last, is a boundary"
GOES_ON = "the multipart body goes on after its closing boundary"
END = b"--b--\r\n"
FAULTS: dict[str, tuple[bytes, type[RequestError], str]] = {
    "empty": (b"", MalformedBodyError, CUT_SHORT.format("before the first part")),
    "json": (DOCUMENT, MalformedBodyError, FRAMING.format("before the first part")),
    "preamble": (b"hello\r\n" + part() + END, MalformedBodyError, FRAMING.format("before the first part")),
    "other-boundary": (b"--c\r\n\r\n--c--", MalformedBodyError, FRAMING.format("before the first part")),
    "lf-only": ((part() + END).replace(b"\r", b""), MalformedBodyError, FRAMING.format("before the first part")),
    "lf-in-headers": (part().replace(b"\r\nC", b"\nC"), MalformedBodyError, FRAMING.format("before the first part")),
    "no-final-boundary": (part() + part("a"), MalformedBodyError, CUT_SHORT.format("in part 2")),
    "one-hyphen": (part() + b"--b-", MalformedBodyError, CUT_SHORT.format("in part 1")),
    "cut-in-headers": (b"--b\r\nContent-Dis", MalformedBodyError, CUT_SHORT.format("in part 1")),
    "epilogue": (part() + END + b"more", MalformedBodyError, GOES_ON),
    "blank-epilogue": (part() + END + b"\r\n", MalformedBodyError, GOES_ON),
    "two-bodies": (part() + END + part("a") + END, MalformedBodyError, INNER),
    "boundary-in-content": (part(content=b"x\r\n--bx") + END, MalformedBodyError, INNER),
    "boundary-in-headers": (part(headers="--bx: 1\r\n") + END, MalformedBodyError, INNER),
    "no-blank-line": (
        b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n--b\r\n' + END,
        MalformedBodyError,
        INNER,
    ),
    "padded-boundary": (
        part() + b"--b  \r\n" + part("a")[5:] + END,
        MalformedBodyError,
        "a boundary of the multipart body is followed by blanks",
    ),
    "too-many": (
        b"".join(part(str(number)) for number in range(MAX_PARTS + 1)) + END,
        BodyTooLargeError,
        "the multipart body has more than 4 parts, which is the limit (max_parts)",
    ),
    "long-header": (part(headers="A: " + "x" * 1024 + "\r\n") + END, MalformedBodyError, FRAMING.format("in part 1")),
    "many-headers": (
        part(headers="".join(f"A{number}: 1\r\n" for number in range(8))) + END,
        MalformedBodyError,
        FRAMING.format("in part 1"),
    ),
    "odd-header": (part(headers="A B: 1\r\n") + END, MalformedBodyError, FRAMING.format("in part 1")),
    "header-twice": (
        part(headers="Content-Disposition: form-data; name=a\r\n") + END,
        MalformedBodyError,
        "part 1 of the multipart body has a header field twice",
    ),
    "no-headers": (b"--b\r\n\r\n{}\r\n" + END, MalformedBodyError, NO_NAME),
    "no-name": (b"--b\r\nContent-Disposition: form-data\r\n\r\n\r\n" + END, MalformedBodyError, NO_NAME),
    "empty-name": (part("") + END, MalformedBodyError, NO_NAME),
    "attachment": (part().replace(b"form-data", b"attachment") + END, MalformedBodyError, NO_NAME),
    "name-not-utf-8": (
        b'--b\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n\r\n' + END,
        MalformedBodyError,
        "the name of part 1 of the multipart body is not UTF-8",
    ),
    "name-twice": (part("a") + part() + part("a") + END, InvalidRequestError, "part 'a' appears twice"),
    "base64": (
        part(headers="Content-Transfer-Encoding: base64\r\n") + END,
        UnsupportedMediaTypeError,
        "part 'request': content-transfer-encoding 'base64' is not supported; send the bytes as they are",
    ),
}


@pytest.mark.parametrize(("body", "error", "message"), FAULTS.values(), ids=FAULTS)
def test_faults(body: bytes, error: type[RequestError], message: str) -> None:
    for chunks in ([body], single_bytes(body)):
        with pytest.raises(error) as caught:
            take_apart(chunks)
        assert type(caught.value) is error
        assert str(caught.value) == message


def test_a_body_cut_short_is_broken_wherever_it_is_cut() -> None:
    body = part() + part("asset-0", b"\x89PNG") + b"--b--"
    for end in range(len(body)):
        with pytest.raises(MalformedBodyError, match="the multipart body ends before its closing boundary"):
            take_apart([body[:end]])


def test_boundaries_that_lead_nowhere_are_refused_before_they_are_parsed() -> None:
    with pytest.raises(BodyTooLargeError, match="more than 4 parts"):
        MultipartBody(b"b", max_parts=MAX_PARTS).write(part(content=b"\r\n--bx" * 100))


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/form-data; boundary=b", b"b"),
        ('Multipart/Form-Data; charset=utf-8; BOUNDARY="a:b c"', b"a:b c"),
        ("multipart/form-data; boundary=" + "x" * 70, b"x" * 70),
    ],
)
def test_boundary(content_type: str, boundary: bytes) -> None:
    assert boundary_of(content_type) == boundary


@pytest.mark.parametrize(
    ("parameters", "shown"),
    [
        ("", ""),
        ("; boundary=", ""),
        ('; boundary=""', ""),
        ("; boundary=" + "x" * 71, "x" * 71),
        ("; boundary=" + "x" * 300, "x" * 80 + "…"),
        ('; boundary="x "', "x "),
        ("; boundary=caf\u00e9", "caf\u00e9"),
        ("; boundary=a\r\nb", "a\r\nb"),
    ],
    ids=["absent", "empty", "quoted-empty", "71", "300", "ends-in-space", "latin-1", "crlf"],
)
def test_boundaries_that_are_none(parameters: str, shown: str) -> None:
    with pytest.raises(MalformedBodyError) as caught:
        boundary_of("multipart/form-data" + parameters)
    assert str(caught.value) == (
        "the content-type of a multipart/form-data body must name its boundary, 1 to 70 letters, digits and "
        f"'()+_,-./:=? ; it names '{shown}'"
    )
