"""TypeSafe's own Python client, by its base URL alone: answers, models, assets and compression."""

import asyncio
import base64
import gzip
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import typesafe_sdk
from typesafe_sdk import Choice, Image, Noul, Score, TypeSafeClient

from tests.cases.media import decoded
from tests.clients.sdk_server import QUESTIONS, REFUND, SDK_QUESTIONS, STATE, Server, assert_answers, fresh, sdk_server
from tests.serving.harness import SERVED_NAME, demo_processor, reference_body, reference_record
from tests.serving.media_samples import encoded, photo

LONG_STATE = "The parcel of Lindqvist Sails arrived broken. " * 50
PNG = encoded(photo(96, 64), "PNG")
JPEG = encoded(photo(64, 96, seed=1), "JPEG")
WEBP = encoded(photo(80, 80, seed=2), "WEBP")


@pytest.fixture(scope="module")
def _server() -> Iterator[Server]:
    with sdk_server() as server:
        yield server


@pytest.fixture
def server(_server: Server) -> Server:
    """Nothing was asked of it yet."""
    return fresh(_server)


def test_answers(server: Server) -> None:
    with server.client() as client:
        response = client.system_one(state=STATE, questions=SDK_QUESTIONS)
    assert_answers(response)
    (exchange,) = server.exchanges
    assert response.request_id == exchange.received["x-typesafe-request-id"]


@pytest.mark.asyncio
async def test_answers_asynchronously(server: Server) -> None:
    async with server.new_client() as client:
        responses = await asyncio.gather(*(client.system_one(state=STATE, questions=SDK_QUESTIONS) for _ in range(16)))
    for response in responses:
        assert_answers(response)
    assert len({response.request_id for response in responses}) == 16


def test_questions_as_dictionaries(server: Server) -> None:
    with server.client() as client:
        assert_answers(client.system_one(state=STATE, questions=QUESTIONS))


def assert_models(listed: typesafe_sdk.ListModelsResponse) -> None:
    assert [model.name for model in listed.models] == [SERVED_NAME, "clef-demo", "jev-latest", "clef", "clef-flash"]
    assert {model.release_date for model in listed.models} == {"1970-01-01"}
    assert all(model.description for model in listed.models)


def test_models(server: Server) -> None:
    with server.client() as client:
        assert_models(client.models.list())


@pytest.mark.asyncio
async def test_models_asynchronously(server: Server) -> None:
    async with server.new_client() as client:
        assert_models(await client.models.list())


# Assets.


def base64_asset(data: bytes) -> dict[str, Any]:
    return {"type": "image", "data_base64": base64.b64encode(data).decode()}


def ask_in_state(client: TypeSafeClient) -> Any:
    return client.system_one(state={"door": Image(PNG), "note": "broken"}, questions={"r": REFUND})


def ask_with_only_an_image(client: TypeSafeClient) -> Any:
    return client.system_one(state=Image(WEBP), questions={"r": REFUND})


def ask_in_instructions(client: TypeSafeClient) -> Any:
    return client.system_one(
        state="At the door.", questions={"r": Noul(instructions=["Is this a parcel?", Image(JPEG)])}
    )


def ask_in_criteria(client: TypeSafeClient) -> Any:
    first, second = Image(PNG), Image(JPEG)
    questions: dict[str, Any] = {
        "n": Noul(criteria={"true": {"like": first}}),
        "c": Choice(criteria={"a door": first, "a gate": None}),
        "s": Score(criteria=["clean", {"like": second}]),
    }
    return client.system_one(state="See.", questions=questions)


def ask_attached(client: TypeSafeClient) -> Any:
    photo_, unused = Image(PNG), Image(JPEG)
    with client.attach_assets([photo_, unused]):
        return client.system_one(state=f"Product: {photo_}.", questions={"r": REFUND})


def ask_by_alias(client: TypeSafeClient) -> Any:
    return client.system_one(
        state={"before": "the photo front", "after": ["the photo back"]},
        questions={"r": REFUND},
        assets={"photo front": Image(PNG), "photo back": Image(JPEG)},
    )


def ask_twice_the_same(client: TypeSafeClient) -> Any:
    photo_ = Image(PNG)
    return client.system_one(state=[photo_, photo_], questions={"r": Noul(instructions={"compare": photo_})})


def ask_the_same_by_two_names(client: TypeSafeClient) -> Any:
    photo_ = Image(PNG)
    return client.system_one(
        state="left.png, right.png", questions={"r": REFUND}, assets={"left.png": photo_, "right.png": photo_}
    )


def ask_base64(client: TypeSafeClient) -> Any:
    return client.system_one(
        state="See door.", questions={"r": REFUND}, extra_body={"assets": {"door": base64_asset(JPEG)}}
    )


def ask_base64_beside_images(client: TypeSafeClient) -> Any:
    return client.system_one(
        state="See door.",
        questions={"r": REFUND},
        extra_body={
            "images": [base64.b64encode(PNG).decode()],
            "assets": {"door": base64_asset(JPEG)},
        },
    )


R = {"r": QUESTIONS["refund"]}
# What is asked, and what the reference is to read of it: state, questions, images.
WITH_ASSETS: Mapping[str, tuple[Callable[[TypeSafeClient], Any], Any, dict[str, Any], list[bytes]]] = {
    "state": (ask_in_state, {"door": "<image 1>", "note": "broken"}, R, [PNG]),
    "whole-state": (ask_with_only_an_image, "<image 1>", R, [WEBP]),
    "instructions": (
        ask_in_instructions,
        "At the door.",
        {"r": {"type": "noul", "instructions": ["Is this a parcel?", "<image 1>"]}},
        [JPEG],
    ),
    "criteria": (
        ask_in_criteria,
        "See.",
        {
            "n": {"type": "noul", "criteria": {"true": {"like": "<image 1>"}}},
            "c": {"type": "choice", "criteria": {"a door": "<image 1>", "a gate": None}},
            "s": {"type": "score", "criteria": ["clean", {"like": "<image 2>"}]},
        },
        [PNG, JPEG],
    ),
    "attached": (ask_attached, "Product: <image 1>.", R, [PNG]),
    # Keys of an object are sorted in the prompt: "after" comes first.
    "aliases": (ask_by_alias, {"before": "the <image 2>", "after": ["the <image 1>"]}, R, [JPEG, PNG]),
    "the-same-twice": (
        ask_twice_the_same,
        ["<image 1>", "<image 1>"],
        {"r": {"type": "noul", "instructions": {"compare": "<image 1>"}}},
        [PNG],
    ),
    "one-by-two-names": (ask_the_same_by_two_names, "<image 1>, <image 2>", R, [PNG, PNG]),
    "base64": (ask_base64, "See <image 1>.", R, [JPEG]),
    "base64-beside-images": (ask_base64_beside_images, "See <image 2>.", R, [PNG, JPEG]),
}


@pytest.mark.parametrize("compression", [None, False], ids=["zstd", "identity"])
@pytest.mark.parametrize("name", WITH_ASSETS)
def test_assets(server: Server, name: str, compression: Any) -> None:
    ask, state, questions, images = WITH_ASSETS[name]
    with server.client(compression=compression) as client:
        response = ask(client)
    record = {"state": state, "questions": questions, "images": [decoded(data) for data in images]}
    expected = reference_record(record, processor=demo_processor())
    assert server.engine.requests[-1].input_ids == list(expected.input_ids)
    assert response.usage.input_tokens == len(expected.input_ids)
    answers = reference_body(record, processor=demo_processor())["answers"]
    assert list(response.answers) == list(answers)
    for question_id, noul in response.nouls.items():
        assert noul.noul == pytest.approx(answers[question_id]["noul"], abs=1e-12)
    (exchange,) = server.exchanges
    kind = "application/json" if name.startswith("base64") else "multipart/form-data"
    assert exchange.sent["content-type"].partition(";")[0] == kind
    assert exchange.sent.get("content-encoding") == (None if compression is False else "zstd")


@pytest.mark.asyncio
async def test_assets_asynchronously(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "door.jpg"
    file.write_bytes(JPEG)
    async with server.new_client() as client:
        response = await client.system_one(state=["See", Image(file)], questions={"r": REFUND})
    record = {"state": ["See", "<image 1>"], "questions": R, "images": [decoded(JPEG)]}
    assert response.usage.input_tokens == len(reference_record(record, processor=demo_processor()).input_ids)


def test_a_legend_quotes_the_reference_that_was_sent(server: Server) -> None:
    photo_ = Image(PNG)
    with server.client() as client:
        response = client.system_one(state="See.", questions={"s": Score(criteria=["clean", {"like": photo_}])})
    assert response.scores["s"].legend == {0: "clean", 1: {"like": str(photo_)}}


# Compression.


def test_long_bodies_come_as_zstd_and_mean_the_same(server: Server) -> None:
    with server.client() as client, server.client(compression=False) as plain:
        for asker in (client, plain):
            assert_answers(asker.system_one(state=LONG_STATE, questions=SDK_QUESTIONS), LONG_STATE)
    assert [exchange.sent.get("content-encoding") for exchange in server.exchanges] == ["zstd", None]


def test_gzip_bodies_mean_the_same(server: Server) -> None:
    request = {"state": LONG_STATE, "questions": QUESTIONS}
    plain = httpx.post(f"{server.url}/v1/systemone", json=request)
    body = gzip.compress(plain.request.content)
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    response = httpx.post(f"{server.url}/v1/systemone", content=body, headers=headers)
    assert response.status_code == 200
    assert response.content == plain.content
