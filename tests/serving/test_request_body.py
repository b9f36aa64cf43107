"""Bodies as they reach the server: media types, limits to the byte, memory, slow and leaving clients, and a fuzz."""

import asyncio
import gzip
import hashlib
import itertools
import json
import queue
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from backports import zstd
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from typesafe_sdk._core.multipart import Part, encode_multipart

from serving.errors import (
    BodyTooLargeError,
    ClientClosedError,
    InvalidRequestError,
    MalformedBodyError,
    RequestError,
    UnsupportedEncodingError,
    UnsupportedMediaTypeError,
    error_response,
    outcome_of,
)
from serving.request_body import BodyLimits, RequestBody, read_body
from tests.serving.harness import running_server
from tests.serving.raw_bodies import raw_requests
from tests.serving.test_content_encoding import zstd_bomb

LIMITS = BodyLimits(max_wire_bytes=2**16, max_body_bytes=2**17, max_parts=8)
DOCUMENT = b'{"state": "The parcel of Lindqvist & Sons arrived broken.", "questions": {}}'
COMPRESS = {"gzip": gzip.compress, "zstd": zstd.compress}
PICTURE = bytes(range(256)) * 8
SDK_PARTS = [Part("request", "application/json", DOCUMENT), Part("asset-0", "image/png", PICTURE, "asset-0")]


def request_of(chunks: Sequence[bytes], headers: Mapping[str, str] | None = None, *, leaves: bool = False) -> Request:
    """A request whose body comes in these chunks, after which the client leaves or the body ends."""
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages.append({"type": "http.disconnect"} if leaves else {"type": "http.request", "body": b""})
    waiting = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(waiting)

    raw = [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": raw}, receive)


async def read(body: bytes, headers: Mapping[str, str] | None = None, limits: BodyLimits = LIMITS) -> RequestBody:
    return await read_body(request_of([body], headers), limits)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "application/json",
        "application/json;charset=utf-8",
        'Application/JSON; charset="UTF-8"',
        "application/json; charset=us-ascii",
        "application/vnd.example+json",
    ],
)
async def test_a_json_body(content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    assert await read(DOCUMENT, headers) == RequestBody(document=DOCUMENT, parts={})


@pytest.mark.asyncio
@pytest.mark.parametrize("encoding", COMPRESS)
async def test_a_compressed_body(encoding: str) -> None:
    assert await read(COMPRESS[encoding](DOCUMENT), {"content-encoding": encoding}) == RequestBody(
        document=DOCUMENT, parts={}
    )


@pytest.mark.asyncio
@pytest.mark.parametrize("encoding", [None, *COMPRESS])
async def test_what_the_sdk_sends(encoding: str | None) -> None:
    content_type, body = encode_multipart(SDK_PARTS)
    headers = {"content-type": content_type}
    if encoding is not None:
        headers["content-encoding"] = encoding
        body = COMPRESS[encoding](body)
    expected = RequestBody(document=DOCUMENT, parts={"asset-0": PICTURE})
    assert await read(body, headers) == expected
    single_bytes = [body[at : at + 1] for at in range(len(body))]
    assert await read_body(request_of(single_bytes, headers), LIMITS) == expected


async def refusal(body: bytes, headers: Mapping[str, str] | None = None, limits: BodyLimits = LIMITS) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await read(body, headers, limits)
    return caught.value


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("headers", "message"),
    [
        (
            {"content-type": "text/plain"},
            "content-type 'text/plain' is not supported; send application/json or multipart/form-data",
        ),
        (
            {"content-type": "multipart/mixed; boundary=b"},
            "content-type 'multipart/mixed' is not supported; send application/json or multipart/form-data",
        ),
        (
            {"content-type": "application/json; charset=iso-8859-1"},
            "charset 'iso-8859-1' is not supported; JSON is sent in UTF-8",
        ),
        (
            {"content-encoding": "br"},
            "content-encoding 'br' is not supported; send the body in one of gzip, zstd, or uncompressed",
        ),
    ],
    ids=["text", "mixed", "charset", "coding"],
)
async def test_media_types_that_are_not_read(headers: dict[str, str], message: str) -> None:
    error = await refusal(DOCUMENT, headers)
    expected = UnsupportedEncodingError if "content-encoding" in headers else UnsupportedMediaTypeError
    assert (type(error), str(error)) == (expected, message)


@pytest.mark.asyncio
async def test_several_content_encoding_headers_are_one_list() -> None:
    request = request_of([gzip.compress(zstd.compress(DOCUMENT))])
    request.scope["headers"] += [(b"content-encoding", b"zstd"), (b"content-encoding", b"gzip")]
    with pytest.raises(UnsupportedEncodingError, match="'zstd, gzip' is not supported"):
        await read_body(request, LIMITS)


@pytest.mark.asyncio
async def test_a_multipart_body_needs_its_document() -> None:
    content_type, body = encode_multipart(SDK_PARTS[1:])
    error = await refusal(body, {"content-type": content_type})
    assert isinstance(error, InvalidRequestError)
    message = "the multipart body has no part 'request'; it holds the JSON document"
    assert error.faults == [{"loc": ["body", "request"], "msg": message, "type": "missing"}]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("part_type", "message"),
    [
        ("text/plain", "part 'request': content-type 'text/plain' is not supported; send application/json"),
        (
            "application/json; charset=utf-16",
            "part 'request': charset 'utf-16' is not supported; JSON is sent in UTF-8",
        ),
    ],
)
async def test_the_document_of_a_multipart_body_is_json(part_type: str, message: str) -> None:
    content_type, body = encode_multipart([Part("request", part_type, DOCUMENT)])
    error = await refusal(body, {"content-type": content_type})
    assert (type(error), str(error)) == (UnsupportedMediaTypeError, message)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"content-encoding": "zstd"}, "the body is not valid zstd with a window of at most 8388608 bytes: "),
        ({"content-encoding": "gzip"}, "the body is not valid gzip: "),
        (
            {"content-type": "multipart/form-data"},
            "the content-type of a multipart/form-data body must name its boundary",
        ),
        (
            {"content-type": "multipart/form-data; boundary=b"},
            "the multipart framing is broken before the first part: ",
        ),
    ],
)
async def test_a_plain_body_said_to_be_something_else_is_broken(headers: dict[str, str], message: str) -> None:
    error = await refusal(DOCUMENT, headers)
    assert type(error) is MalformedBodyError
    assert str(error).startswith(message)


@pytest.mark.asyncio
@pytest.mark.parametrize("excess", [0, 1])
@pytest.mark.parametrize(
    ("limit", "encoding", "declared", "message"),
    [
        ("max_wire_bytes", None, True, "the body has {size} bytes and the limit is {limit} (max_wire_bytes)"),
        ("max_body_bytes", None, True, "the body has {size} bytes and the limit is {limit} (max_body_bytes)"),
        ("max_wire_bytes", "gzip", True, "the body has {size} bytes and the limit is {limit} (max_wire_bytes)"),
        ("max_wire_bytes", None, False, "the body has more than {limit} bytes, which is the limit (max_wire_bytes)"),
        ("max_body_bytes", None, False, "the body has more than {limit} bytes, which is the limit (max_body_bytes)"),
        ("max_wire_bytes", "zstd", False, "the body has more than {limit} bytes, which is the limit (max_wire_bytes)"),
        (
            "max_body_bytes",
            "zstd",
            True,
            "the decompressed body has more than {limit} bytes, which is the limit (max_body_bytes)",
        ),
        (
            "max_body_bytes",
            "gzip",
            False,
            "the decompressed body has more than {limit} bytes, which is the limit (max_body_bytes)",
        ),
    ],
)
async def test_limits_are_exact(limit: str, encoding: str | None, declared: bool, message: str, excess: int) -> None:
    document = DOCUMENT * 3000  # several steps of decoding
    body = COMPRESS[encoding](document) if encoding else document
    size = len(body if limit == "max_wire_bytes" else document)
    limits = BodyLimits(**{"max_wire_bytes": 2**30, "max_body_bytes": 2**30, limit: size - excess})
    headers = {"content-length": str(len(body))} if declared else {}
    if encoding:
        headers["content-encoding"] = encoding
    if not excess:
        assert (await read(body, headers, limits)).document == document
        return
    error = await refusal(body, headers, limits)
    assert (type(error), str(error)) == (BodyTooLargeError, message.format(size=size, limit=size - 1))


@pytest.mark.asyncio
@pytest.mark.parametrize("declared", ["", "-1", "+5", "1e3", "\u00b2", "9" * 5000])
async def test_a_content_length_that_no_server_passes_on_is_not_believed(declared: str) -> None:
    assert (await read(DOCUMENT, {"content-length": declared})).document == DOCUMENT


@pytest.mark.asyncio
async def test_a_body_over_the_limit_is_read_no_further() -> None:
    taken = 0

    async def receive() -> dict[str, Any]:
        nonlocal taken
        taken += 1
        return {"type": "http.request", "body": b" " * 1000, "more_body": True}

    with pytest.raises(BodyTooLargeError):
        await read_body(Request({"type": "http", "headers": []}, receive), LIMITS)
    assert taken == 66


@pytest.mark.asyncio
async def test_others_get_their_turn_while_a_body_is_decoded() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    body = zstd_bomb(blocks=1024)  # one chunk of 4 KB; 128 MiB, which no machine decodes within a turn or two
    await read(body, {"content-encoding": "zstd"}, BodyLimits(max_body_bytes=2**27))
    counting.cancel()
    assert turns > 2


@pytest.mark.asyncio
async def test_a_client_that_leaves() -> None:
    for encoding in ("identity", "gzip", "zstd"):
        with pytest.raises(ClientClosedError, match="the client left while sending"):
            await read_body(request_of([b"", b""], {"content-encoding": encoding}, leaves=True), LIMITS)


@pytest.mark.parametrize("name", ["max_wire_bytes", "max_body_bytes", "max_parts"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1"])
def test_limits_are_checked(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a whole number, at least 1, not {value!r}"):
        BodyLimits(**{name: value})


# The decompressors' own memory is seen by the operating system only, hence a process for each, and its peak.
MEASURE = """
import asyncio, json, resource, sys, zlib
from serving.errors import BodyTooLargeError
from serving.request_body import BodyLimits
from tests.serving.test_content_encoding import zstd_bomb
from tests.serving.test_request_body import in_chunks, read_body, request_of

def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

async def outcome_of(body, encoding):
    chunks = list(in_chunks(body, 2**16))
    before = peak_mib()
    try:
        read = await read_body(request_of(chunks, {"content-encoding": encoding}), limits)
        outcome = len(read.document)
    except BodyTooLargeError as error:
        outcome = str(error)
    return {"sent": len(body), "outcome": outcome, "grown_mib": peak_mib() - before}

name, mib = sys.argv[1], 2**20
limits = BodyLimits(max_wire_bytes=32 * mib, max_body_bytes=32 * mib)
stream = zlib.compressobj(wbits=31)
encoding, body = {
    "zstd": lambda: ("zstd", zstd_bomb(blocks=1000)),
    "zstd-4-gib": lambda: ("zstd", zstd_bomb(blocks=32768)),
    "gzip": lambda: ("gzip", b"".join(stream.compress(b" " * mib) for _ in range(64)) + stream.flush()),
    "whole": lambda: ("zstd", zstd_bomb(blocks=256)),
}[name]()
print(json.dumps(asyncio.run(outcome_of(body, encoding))))
"""
TOO_LARGE = "the decompressed body has more than 33554432 bytes, which is the limit (max_body_bytes)"


@pytest.mark.parametrize(
    ("name", "most_bytes", "outcome"),
    [
        ("zstd", 4100, TOO_LARGE),
        ("zstd-4-gib", 132_000, TOO_LARGE),
        ("gzip", 70_000, TOO_LARGE),
        ("whole", 1100, 32 * 2**20),
    ],
    ids=["zstd-of-4-KB", "zstd-of-4-GiB", "gzip", "exactly-the-limit"],
)
def test_the_memory_that_a_bomb_takes_is_bounded(name: str, most_bytes: int, outcome: str | int) -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE, name], capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout)
    assert measured["sent"] <= most_bytes
    assert measured["outcome"] == outcome
    # The limit and an eighth are 36 MiB, a decoder's window at most 8.
    assert measured["grown_mib"] < 46


async def echo(request: Request) -> Response:
    try:
        body = await read_body(request, LIMITS)
    except RequestError as error:
        request.app.state.outcomes.put(outcome_of(error).error_type)
        return error_response(error)
    request.app.state.outcomes.put("answered")
    parts = {name: hashlib.sha256(part).hexdigest() for name, part in body.parts.items()}
    return JSONResponse({"document": hashlib.sha256(body.document).hexdigest(), "parts": parts})


@pytest.fixture(scope="module")
def outcomes() -> "queue.Queue[str]":
    return queue.Queue()


@pytest.fixture(scope="module")
def url(outcomes: "queue.Queue[str]") -> Iterator[str]:
    app: Any = Starlette(routes=[Route("/", echo, methods=["POST"])])
    app.state.outcomes, app.state.lifecycle = outcomes, SimpleNamespace(phase="ready")
    with running_server(app) as url:
        yield url


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def in_chunks(body: bytes, size: int) -> Iterator[bytes]:
    return (body[at : at + size] for at in range(0, len(body), size))


@pytest.mark.parametrize("encoding", [None, *COMPRESS])
@pytest.mark.parametrize("size", [1, 700, 10**6], ids=["bytes", "chunks", "whole"])
def test_bodies_without_a_length_over_a_socket(url: str, encoding: str | None, size: int) -> None:
    content_type, body = encode_multipart(SDK_PARTS)
    headers = {"content-type": content_type}
    if encoding:
        headers["content-encoding"], body = encoding, COMPRESS[encoding](body)
    response = httpx.post(url, content=in_chunks(body, size), headers=headers)
    assert response.request.headers["transfer-encoding"] == "chunked"
    assert response.json() == {"document": digest(DOCUMENT), "parts": {"asset-0": digest(PICTURE)}}


@pytest.mark.parametrize(
    ("body", "encoding", "limit"),
    [
        (b" " * (2**16 + 1), "identity", "the body has 65537 bytes and the limit is 65536 (max_wire_bytes)"),
        (
            zstd_bomb(blocks=1000),
            "zstd",
            "the decompressed body has more than 131072 bytes, which is the limit (max_body_bytes)",
        ),
    ],
    ids=["declared", "bomb"],
)
def test_the_connection_of_a_refused_body_stays_usable(url: str, body: bytes, encoding: str, limit: str) -> None:
    with httpx.Client(base_url=url) as client:
        refused = client.post("/", content=body, headers={"content-encoding": encoding})
        assert refused.status_code == 413
        assert refused.json() == {"detail": {"error_type": "body_too_large", "message": limit}}
        assert client.post("/", content=DOCUMENT).json() == {"document": digest(DOCUMENT), "parts": {}}


def test_a_slow_sender_keeps_nobody_waiting(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    body = gzip.compress(DOCUMENT)
    head = f"POST / HTTP/1.1\r\nhost: {host}\r\ncontent-encoding: gzip\r\ncontent-length: {len(body)}\r\n"
    with socket.create_connection((host, int(port)), timeout=10) as slow:
        slow.sendall(head.encode() + b"connection: close\r\n\r\n")
        for byte in in_chunks(body, 1):
            slow.sendall(byte)
            if byte == body[20:21]:
                assert httpx.post(url, content=DOCUMENT).status_code == 200
        answer = b"".join(iter(lambda: slow.recv(2**16), b""))
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"document": digest(DOCUMENT), "parts": {}}


@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
def test_a_client_that_leaves_in_the_middle(url: str, outcomes: "queue.Queue[str]", encoding: str) -> None:
    while not outcomes.empty():
        outcomes.get()
    host, port = url.removeprefix("http://").split(":")
    start = COMPRESS.get(encoding, bytes)(DOCUMENT)[:20]
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST / HTTP/1.1\r\nhost: x\r\ncontent-encoding: {encoding}\r\ncontent-length: 1000\r\n\r\n"
        connection.sendall(head.encode() + start)
    assert outcomes.get(timeout=10) == "client_closed"


async def read_all(count: int, *, seed: int) -> AsyncIterator[Any]:
    for number, request in enumerate(itertools.islice(raw_requests(seed), count)):
        chunks = list(in_chunks(request.body, 1 + len(request.body) // (1 + number % 5)))
        try:
            yield request, await read_body(request_of(chunks, request.headers), LIMITS)
        except RequestError as error:
            yield request, error


@pytest.mark.asyncio
async def test_hostile_bodies_raise_request_errors_only() -> None:
    """20,000 inputs. Anything but a body or a RequestError fails the test by being raised."""
    outcomes: dict[str, int] = {}
    async for request, outcome in read_all(20_000, seed=20_000):
        kind = "read" if isinstance(outcome, RequestBody) else type(outcome).__name__
        outcomes[kind] = outcomes.get(kind, 0) + 1
        assert kind == "read" or not request.is_valid, (request, outcome)
    assert outcomes.keys() == {
        "read",
        "MalformedBodyError",
        "UnsupportedMediaTypeError",
        "UnsupportedEncodingError",
        "BodyTooLargeError",
        "InvalidRequestError",
    }
    assert min(outcomes.values()) > 100, outcomes
