"""The generator of hostile bodies: the same for the same seed, sendable, varied, and its valid requests are valid."""

import itertools
import re
from collections import Counter

import pytest

from serving import strict_json
from serving.api_types import parse_request
from serving.request_body import BodyLimits, read_body
from tests.serving.raw_bodies import MAX_BODY_BYTES, SPOILERS, RawRequest, raw_requests
from tests.serving.test_request_body import request_of

SENDABLE = re.compile(r"|[!-~]([ -~]*[!-~])?")


def first(count: int, *, seed: int) -> list[RawRequest]:
    return list(itertools.islice(raw_requests(seed), count))


def test_the_same_seed_gives_the_same_requests() -> None:
    assert first(300, seed=1) == first(300, seed=1)
    assert first(300, seed=1) != first(300, seed=2)


def test_requests_are_sendable_and_of_every_kind() -> None:
    requests = first(3000, seed=3)
    for request in requests:
        assert len(request.body) <= MAX_BODY_BYTES
        assert all(SENDABLE.fullmatch(value) for value in request.headers.values()), request.headers
    steps = Counter(itertools.chain.from_iterable(request.spoilt for request in requests))
    assert set(steps) == {step.__name__.removeprefix("_") for _, step in SPOILERS}
    assert min(steps.values()) >= 50
    assert 30 <= sum(request.is_valid for request in requests) <= 90


@pytest.mark.asyncio
async def test_a_valid_request_is_valid() -> None:
    requests = [request for request in first(3000, seed=4) if request.is_valid]
    forms = set()
    for request in requests:
        body = await read_body(request_of([request.body], request.headers), BodyLimits())
        parsed = parse_request(strict_json.parse(body.document, max_depth=128))
        assert parsed.model in ("clef", "jev-latest")
        assert body.parts == {}
        is_multipart = request.headers.get("content-type", "").startswith("multipart/")
        forms.add((is_multipart, request.headers.get("content-encoding")))
    assert forms == {(is_multipart, coding) for is_multipart in (False, True) for coding in (None, "gzip", "zstd")}
