"""Hostile bodies and broken HTTP, 20,000 and more, against a real server: no 5xx, and the same answers afterwards."""

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from serving.openapi import ASKED
from tests import tolerances
from tests.engine.records import RECORDS, questions, text
from tests.engine.served import Served, distance, probabilities, serving
from tests.serving.documented import Documented
from tests.serving.raw_bodies import RawRequest, raw_requests

pytestmark = pytest.mark.engine

REQUESTS = 20_000
CONNECTIONS = 16
# One in so many requests is followed by an exchange whose HTTP itself is broken, on the same connection.
BROKEN_ONE_IN = 20
ANSWER_TIMEOUT_S = 60
LIMITS = {"--max-prompt-tokens": 4096, "--max-body-bytes": 2**20}
# The record with 255 options is too long for that.
ASKED_BEFORE_AND_AFTER = {**RECORDS, "many-options": {"state": text(1, 2000), "questions": questions(1)}}
SYSTEMONE = ASKED[0]


@pytest.fixture(scope="module")
def served(release: Callable[[int], Path]) -> Iterator[Served]:
    with serving(release(1), *(str(word) for limit in LIMITS.items() for word in limit)) as started:
        yield started


@dataclass
class Seen:
    """What came of everything that was sent."""

    documented: Documented
    statuses: Counter[int] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    valid: int = 0

    def answer(self, request: RawRequest, response: httpx.Response) -> None:
        self.statuses[response.status_code] += 1
        assert response.status_code < 500, (request, response.text)
        self.documented.check("post", SYSTEMONE, response)
        if request.is_valid:
            self.valid += 1
            assert response.status_code == 200, (request, response.text)


def test_the_engine_is_alive_and_correct_after_hostile_requests(served: Served) -> None:
    before = {name: probabilities(served.ask(record)) for name, record in ASKED_BEFORE_AND_AFTER.items()}
    assert len(before) == 12
    seen = Seen(Documented(served.client.get("/openapi.json").json()))
    asyncio.run(_attack(served.url, seen))
    assert seen.statuses.total() >= REQUESTS
    assert {200, 400, 413, 415, 422} <= set(seen.statuses) <= {200, 400, 404, 413, 415, 422}
    assert seen.valid >= REQUESTS // 100
    assert set(seen.broken) == {kind.__name__ for kind in BROKEN}
    assert served.client.get("/readyz").status_code == 200
    for name, record in ASKED_BEFORE_AND_AFTER.items():
        assert distance(probabilities(served.ask(record)), before[name]) <= tolerances.FP32


async def _attack(url: str, seen: Seen) -> None:
    requests = itertools.islice(raw_requests(7), REQUESTS)
    async with asyncio.TaskGroup() as group:
        for seed in range(CONNECTIONS):
            group.create_task(_one_connection(url, random.Random(seed), requests, seen))


async def _one_connection(url: str, rng: random.Random, requests: Iterator[RawRequest], seen: Seen) -> None:
    while True:
        async with _connected(url) as wire:
            for request in requests:
                seen.answer(request, await wire.ask(_message(request)))
                if rng.randrange(BROKEN_ONE_IN) == 0:
                    kind = rng.choice(BROKEN)
                    seen.broken[kind.__name__] += 1
                    await kind(wire, rng, request, seen)
                    break  # what state the connection is in is not known
            else:
                return


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, *pieces: bytes) -> None:
        """The pieces, each as it is; nobody may be there to take them."""
        with contextlib.suppress(OSError):
            for piece in pieces:
                self._writer.write(piece)
                await self._writer.drain()

    def say_no_more(self) -> None:
        """Close our half of the connection, unless the server has closed all of it."""
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    async def ask(self, message: bytes) -> httpx.Response:
        await self.send(message)
        return await self.answer()

    async def answer(self) -> httpx.Response:
        """The next response; raises IncompleteReadError if the server closes the connection instead."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            head = await self._reader.readuntil(b"\r\n\r\n")
            status_line, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
            headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
            status = int(status_line.split(" ", 2)[1])
            if status < 200:
                return await self.answer()
            length = httpx.Headers(headers).get("content-length")
            content = await (self._reader.read() if length is None else self._reader.readexactly(int(length)))
        return httpx.Response(status, headers=headers, content=content)

    async def answer_or_end(self) -> None:
        """The server refuses what was sent, or ends the connection; it neither fails nor waits for ever."""
        try:
            response = await self.answer()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        assert 400 <= response.status_code < 500, response.text


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Wire]:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


def _message(request: RawRequest, *, framing: str | None = None, body: bytes | None = None) -> bytes:
    """A whole HTTP message, its length stated as it is unless `framing` says otherwise."""
    framing = f"content-length: {len(request.body)}" if framing is None else framing
    lines = [f"POST {SYSTEMONE} HTTP/1.1", "host: front", framing]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    head = "\r\n".join(lines) + "\r\n\r\n"
    return head.encode("latin-1") + (request.body if body is None else body)


def _chunked(body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


# Each takes a connection on which everything was answered so far.


async def good_chunks(wire: Wire, rng: random.Random, request: RawRequest, seen: Seen) -> None:
    """Nothing is wrong with these: the answer is the same."""
    body = _chunked(request.body, rng.choice([50, 1000, 70_000]))
    seen.answer(request, await wire.ask(_message(request, framing="transfer-encoding: chunked", body=body)))


async def pipelined(wire: Wire, rng: random.Random, request: RawRequest, seen: Seen) -> None:
    """Nor with these."""
    count = rng.randint(2, 5)
    await wire.send(_message(request) * count)
    for _ in range(count):
        seen.answer(request, await wire.answer())


async def waits_to_be_asked(wire: Wire, rng: random.Random, request: RawRequest, seen: Seen) -> None:
    del rng
    framing = f"content-length: {len(request.body)}\r\nexpect: 100-continue"
    seen.answer(request, await wire.ask(_message(request, framing=framing)))


async def bad_chunks(wire: Wire, rng: random.Random, request: RawRequest, seen: Seen) -> None:
    del seen
    sizes = [b"zz", b"-5", b"", b"0x10", b"f" * 17, b"f" * 5000, b"5;" + b"x" * 100_000, b"5 5", b"\x00"]
    body = _chunked(request.body, 100).removesuffix(b"0\r\n\r\n") + rng.choice(sizes) + b"\r\nhello\r\n0\r\n\r\n"
    await wire.send(_message(request, framing="transfer-encoding: chunked", body=body))
    wire.say_no_more()
    await wire.answer_or_end()


async def early_close(wire: Wire, rng: random.Random, request: RawRequest, seen: Seen) -> None:
    """The connection ends inside head or body; nobody waits for an answer."""
    del seen
    message = _message(request)
    await wire.send(message[: rng.randrange(len(message))])


async def closed_half(wire: Wire, rng: random.Random, request: RawRequest, seen: Seen) -> None:
    del seen
    await wire.send(_message(request, framing=f"content-length: {len(request.body) + rng.choice([1, 10**6])}"))
    wire.say_no_more()
    await wire.answer_or_end()


async def bad_length(wire: Wire, rng: random.Random, request: RawRequest, seen: Seen) -> None:
    del seen
    lengths = [
        "-1",
        "+5",
        "1e3",
        "9" * 30,
        "5, 6",
        "5\r\ncontent-length: 6",
        "5\r\ntransfer-encoding: gzip",
        "",
        "\x01",
    ]
    await wire.send(_message(request, framing=f"content-length: {rng.choice(lengths)}"))
    wire.say_no_more()
    await wire.answer_or_end()


async def huge_head(wire: Wire, rng: random.Random, request: RawRequest, seen: Seen) -> None:
    del seen
    more = rng.choice(["x: " + "y" * 200_000, "\r\n".join(["x: y"] * 50_000), "z" * 200_000 + ": y"])
    await wire.send(_message(request, framing=f"content-length: 0\r\n{more}", body=b""))
    await wire.answer_or_end()


async def no_http(wire: Wire, rng: random.Random, request: RawRequest, seen: Seen) -> None:
    del request, seen
    texts = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(200),  # a TLS client
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /v1/models\r\n\r\n",
        b"POST /v1/systemone HTTP/9.9\r\nhost: front\r\n\r\n",
        b"POST /v1/systemone HTTP/1.1\r\n\r\n",
        b"POST /v1/systemone HTTP/1.1\r\nhost: front\r\nno colon here\r\n\r\n",
        b"POST /v1/systemone HTTP/1.1\r\nhost: front\r\n folded: x\r\n\r\n",
        b"P\x00ST / HTTP/1.1\r\nhost: front\r\n\r\n",
        b"\r\n" * 1000,
        rng.randbytes(3000),
    ]
    await wire.send(rng.choice(texts))
    wire.say_no_more()
    await wire.answer_or_end()


async def other_targets(wire: Wire, rng: random.Random, request: RawRequest, seen: Seen) -> None:
    del request, seen
    targets = [
        "/v1/systemone/..",
        "//v1/systemone",
        "/%",
        "/%ff%fe",
        "/v1/systemone%00",
        "/" + "a" * 30_000,
        "*",
        "/?" * 9,
    ]
    method = rng.choice(["POST", "GET", "PUT", "OPTIONS", "DELETE", "PATCH", "TRACE", "BREW"])
    await wire.send(f"{method} {rng.choice(targets)} HTTP/1.1\r\nhost: front\r\ncontent-length: 0\r\n\r\n".encode())
    await wire.answer_or_end()


async def upgrades(wire: Wire, rng: random.Random, request: RawRequest, seen: Seen) -> None:
    """An offer that is not taken changes nothing."""
    offer = rng.choice(["h2c", "websocket\r\nsec-websocket-key: AAAA\r\nsec-websocket-version: 13", "TLS/1.0"])
    framing = f"content-length: {len(request.body)}\r\nconnection: upgrade\r\nupgrade: {offer}"
    seen.answer(request, await wire.ask(_message(request, framing=framing)))


BROKEN = [
    good_chunks,
    pipelined,
    waits_to_be_asked,
    bad_chunks,
    early_close,
    closed_half,
    bad_length,
    huge_head,
    no_http,
]
BROKEN += [other_targets, upgrades]
