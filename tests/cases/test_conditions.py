"""Cases that are a condition rather than a request: limits met exactly, photos that lie on their side, keys, overload."""

import asyncio
import base64
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

import launch.server
from serving.auth import KeyRing
from serving.fake_engine import FakeEngine
from serving.media.limits import MediaLimits
from serving.prompt import MAX_CHARACTERS_PER_TOKEN
from tests.cases.case import REFUND, STATE
from tests.cases.media import data_url, decoded
from tests.serving.harness import (
    MAX_PROMPT_TOKENS,
    client_of,
    demo_processor,
    key_ring,
    make_app,
    reference_body,
    reference_record,
    same,
)
from tests.serving.media_samples import encoded, photo

PNG = encoded(photo(256, 256, seed=1), "PNG")
# Long enough that the warm-up, which must fit any limit, is shorter.
LONG_STATE = f"{STATE} " * 40


async def ask(client: httpx.AsyncClient, **request: Any) -> httpx.Response:
    return await client.post("/v1/systemone", json=request)


@pytest.mark.asyncio
@pytest.mark.parametrize(("lines", "said_by"), [(4_000, "request"), (4_000, "server"), (40_000, "request")])
async def test_len_001_a_state_is_cut_where_that_is_asked_for_and_said_how_far(lines: int, said_by: str) -> None:
    request = {"state": "Another line of the log. " * lines, "questions": {"refund": REFUND}}
    engine = FakeEngine()
    app = make_app(engine, over_limit="truncate" if said_by == "server" else "refuse")
    async with client_of(app) as client:
        response = await ask(client, **request, **({"over_limit": "truncate"} if said_by == "request" else {}))
    cut = reference_record(request, max_length=MAX_PROMPT_TOKENS)
    assert len(cut.input_ids) == MAX_PROMPT_TOKENS
    assert engine.requests[-1].input_ids == list(cut.input_ids)
    # The tiny tokenizer has a token for each byte. What is far too long is counted to a bound, and said to be cut so far.
    characters = len(request["state"])
    room = MAX_PROMPT_TOKENS - len(reference_record(request | {"state": ""}).input_ids)
    truncated = response.json()["usage"]["x_truncated_tokens"]
    least = min(characters, MAX_CHARACTERS_PER_TOKEN * MAX_PROMPT_TOKENS) - room
    assert least <= truncated <= characters - room
    expected = reference_body(request, max_length=MAX_PROMPT_TOKENS)
    expected["usage"]["x_truncated_tokens"] = truncated
    assert response.status_code == 200
    assert same(response.json(), expected)
    assert response.headers["x-truncated-tokens"] == str(truncated)


@pytest.mark.asyncio
@pytest.mark.parametrize("images", [[], [PNG]], ids=["text", "an-image"])
@pytest.mark.parametrize("spare", [1, 0, -1])
async def test_len_003_the_limit_is_exact(images: list[bytes], spare: int) -> None:
    request: dict[str, Any] = {"state": LONG_STATE, "questions": {"refund": REFUND}}
    record = request | {"images": [decoded(data) for data in images]}
    whole = reference_record(record, processor=demo_processor())
    limit = len(whole.input_ids) + spare
    engine = FakeEngine()
    async with client_of(make_app(engine, processor=demo_processor(), max_prompt_tokens=limit)) as client:
        asked_before = len(engine.requests)
        sent = request | {"images": [data_url(data) for data in images]}
        response, cut = await ask(client, **sent), await ask(client, **sent, over_limit="truncate")
    expected = reference_body(record, processor=demo_processor(), max_length=limit)
    if spare >= 0:
        assert response.status_code == 200
        assert same(response.json(), expected)
        assert same(cut.json(), expected)
        return
    text, asked, shown = (
        len(reference_record(part, processor=demo_processor()).input_ids)
        for part in (request, request | {"state": ""}, record | {"state": ""})
    )
    counts = rf"state {text - asked}, schema \d+, media {shown - asked}, fixed text \d+"
    assert response.status_code == 413
    assert response.json()["detail"]["error_type"] == "prompt_too_long"
    assert re.fullmatch(
        rf"the prompt has {limit + 1} tokens and the limit is {limit}: {counts}", response.json()["detail"]["message"]
    )
    assert cut.status_code == 200
    expected["usage"]["x_truncated_tokens"] = 1
    assert same(cut.json(), expected)
    assert [request.input_ids for request in engine.requests[asked_before:]] == [
        list(reference_record(record, processor=demo_processor(), max_length=limit).input_ids)
    ]


@pytest.mark.asyncio
async def test_img_001_equal_pixels_are_equally_many_tokens_in_every_format() -> None:
    pixels = photo(256, 256, seed=1)
    async with client_of(make_app(FakeEngine(), processor=demo_processor())) as client:
        responses = [
            await ask(
                client,
                state=STATE,
                questions={"r": REFUND},
                images=[data_url(encoded(pixels, kind), f"image/{kind.lower()}")],
            )
            for kind in ("PNG", "JPEG", "WEBP", "GIF")
        ]
    assert [response.status_code for response in responses] == [200] * 4
    assert len({response.json()["usage"]["input_tokens"] for response in responses}) == 1


@pytest.mark.asyncio
async def test_img_008_four_images_of_4_megapixels_where_four_are_the_limit() -> None:
    large = data_url(encoded(Image.new("RGB", (2000, 2000), "navy"), "PNG"))
    app = make_app(FakeEngine(), processor=demo_processor(), media=MediaLimits(max_images=4))
    async with client_of(app) as client:
        four, five = [
            await ask(client, state=STATE, questions={"r": REFUND}, images=[large] * number) for number in (4, 5)
        ]
    assert four.status_code == 200
    assert five.status_code == 422
    assert five.json()["detail"] == [
        {
            "loc": ["body", "images", 4],
            "msg": "images.4 is one of 5 images; the limit max_images is 4",
            "type": "media_count",
        }
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize("applied", [False, True], ids=["as-the-reference", "applied"])
async def test_img_009_exif_orientation(applied: bool) -> None:
    stored = photo(160, 96)
    files = []
    for orientation in (1, 6):
        exif = Image.Exif()
        exif[0x0112] = orientation
        files.append(encoded(stored, "JPEG", exif=exif))
    engine = FakeEngine()
    async with client_of(make_app(engine, processor=demo_processor(), apply_exif_orientation=applied)) as client:
        for file in files:
            response = await ask(client, state=STATE, questions={"r": REFUND}, images=[data_url(file, "image/jpeg")])
            assert response.status_code == 200
    upright, turned = engine.requests[-2:]
    for request, file, turn in ((upright, files[0], False), (turned, files[1], applied)):
        seen = decoded(file).transpose(Image.Transpose.ROTATE_270) if turn else decoded(file)
        record = {"state": STATE, "questions": {"r": REFUND}, "images": [seen]}
        expected = reference_record(record, processor=demo_processor())
        assert request.input_ids == list(expected.input_ids)
        assert request.media is not None
        assert request.media.images is not None
        assert request.media.images.patches.equal(expected.media["pixel_values"])
    # What caches go by is the picture as it is seen.
    assert upright.media is not None
    assert turned.media is not None
    assert (upright.media.digest == turned.media.digest) is not applied


KEY = "clef-0123456789abcdef"


@pytest.fixture
def keys(tmp_path: Path) -> KeyRing:
    return key_ring(tmp_path / "keys.toml", {KEY: ""})


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({}, "no API key was sent; send `authorization: Bearer KEY`"),
        ({"authorization": "Bearer another"}, "the API key is not known here"),
        ({"authorization": "Bearer "}, "the API key is empty; send `authorization: Bearer KEY`"),
        (
            {"authorization": f"Bearer {KEY} {KEY}"},
            "the API key holds a space or another character that no key has",
        ),
        (
            {"authorization": "Basic " + base64.b64encode(KEY.encode()).decode()},
            "the authorization scheme must be Bearer; send `authorization: Bearer KEY`",
        ),
    ],
    ids=["none", "wrong", "empty", "with-spaces", "another-scheme"],
)
async def test_ops_009_without_a_known_key(keys: KeyRing, headers: dict[str, str], message: str) -> None:
    engine = FakeEngine()
    async with client_of(make_app(engine, keys=keys)) as client:
        asked_before = len(engine.requests)
        response = await client.post(
            "/v1/systemone", json={"state": STATE, "questions": {"r": REFUND}}, headers=headers
        )
        open_to_all = [await client.get(path, headers=headers) for path in ("/livez", "/readyz", "/v1/models")]
    assert response.status_code == 401
    assert response.json() == {"detail": {"error_type": "authentication_error", "message": message}}
    assert response.headers["www-authenticate"] == "Bearer"
    assert [reply.status_code for reply in open_to_all] == [200] * 3
    assert all(len(reply.headers["x-typesafe-request-id"]) == 36 for reply in (response, *open_to_all))
    assert len(engine.requests) == asked_before


@pytest.mark.asyncio
async def test_ops_009_with_a_known_key(keys: KeyRing) -> None:
    request = {"state": STATE, "questions": {"r": REFUND}}
    async with client_of(make_app(FakeEngine(), keys=keys)) as client:
        response = await client.post("/v1/systemone", json=request, headers={"authorization": f"bearer  {KEY}"})
    assert same(response.json(), reference_body(request))


@pytest.mark.asyncio
async def test_ops_003_health_is_200_while_the_longest_prompts_are_answered() -> None:
    request = {"state": "", "questions": {"r": REFUND}}
    fixed = reference_body(request)["usage"]["input_tokens"]
    engine = FakeEngine(delay_s=0.05)
    async with client_of(make_app(engine, max_running_requests=2)) as client:
        asking = [
            asyncio.create_task(ask(client, **request | {"state": "x" * (MAX_PROMPT_TOKENS - fixed)}))
            for _ in range(12)
        ]
        polls = []
        while not all(task.done() for task in asking):
            polls += [(await client.get(path)).status_code for path in ("/livez", "/readyz")]
            await asyncio.sleep(0.005)
    assert [task.result().status_code for task in asking] == [200] * 12
    assert len(polls) > 10
    assert set(polls) == {200}


@pytest.mark.asyncio
async def test_ops_011_64_at_once_with_255_options_get_the_answer_of_one() -> None:
    criteria = {f"opt{number:03d}": f"case {number}" for number in range(255)}
    request = {"state": STATE, "questions": {"t": {"type": "choice", "instructions": "Pick", "criteria": criteria}}}
    expected = reference_body(request)
    async with client_of(make_app(FakeEngine(delay_s=0.01))) as client:
        for _ in range(3):
            responses = await asyncio.gather(*(ask(client, **request) for _ in range(64)))
            assert all(response.status_code == 200 and same(response.json(), expected) for response in responses)


class _ConfiguredError(Exception):
    pass


def test_ops_013_idle_connections_live_longer_than_in_the_sdk_s_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK keeps an idle connection for 30 seconds; the side that closes it first must not be the server."""
    given: dict[str, Any] = {}

    def configure(*_: Any, **settings: Any) -> None:
        given.update(settings)
        raise _ConfiguredError

    monkeypatch.setattr(launch.server.uvicorn, "Config", configure)
    with launch.server.bind("127.0.0.1", 0).listener as listener:
        server = launch.server.Server(launch.server.Address(listener=listener, host="127.0.0.1"), lambda: None)
        with pytest.raises(_ConfiguredError):
            server.run(make_app(FakeEngine()))
    assert given["timeout_keep_alive"] > 30


@pytest.mark.asyncio
async def test_ops_001_the_warm_up_shows_an_image_where_media_are_served() -> None:
    engine = FakeEngine()
    async with client_of(make_app(engine, processor=demo_processor())) as client:
        assert (await client.get("/readyz")).status_code == 200
    assert [request.media is not None for request in engine.requests] == [False, False, False, True]
