"""Requests of the shape that the documents of SGLang, llama.cpp and Ollama show for `/v1/systemone`, sent by `curl` itself.

The shapes are theirs: field names, forms of images, curl's arguments. Texts and pictures are made here. What they ask for
that has no meaning here is refused in words, and stands below as such.
"""

import base64
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from serving.fake_engine import FakeEngine
from tests.cases.case import fault
from tests.cases.media import data_url, decoded
from tests.serving.harness import demo_processor, make_app, reference_body, running_server, same
from tests.serving.media_samples import encoded, photo

CURL_TIMEOUT_S = 60
JSON_HEADER = ["-H", "Content-Type: application/json"]
PNG = encoded(photo(96, 64), "PNG")
JPEG = encoded(photo(64, 64, seed=1), "JPEG")
TABLE = {"has_table": {"type": "noul", "instructions": "Is there a table in the picture?"}}


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A body that is answered as the reference answers what is left of it: its state, questions and images."""

    body: dict[str, Any]
    images: list[bytes] = field(default_factory=list)

    @property
    def expected(self) -> dict[str, Any]:
        record = {name: self.body[name] for name in ("state", "questions")}
        return reference_body(record | {"images": [decoded(data) for data in self.images]}, processor=demo_processor())


ANSWERED = {
    # Ollama, docs/capabilities/decision.mdx
    "ollama-choice": Answered(
        body={
            "model": "nimble",
            "state": "The label printer of Norwick Tools has printed blanks since Tuesday.",
            "questions": {
                "label": {
                    "type": "choice",
                    "instructions": "Which label fits?",
                    "criteria": {
                        "billing": "Invoices and refunds",
                        "hardware": "Devices that fail",
                        "account": "Logins and permissions",
                    },
                }
            },
        }
    ),
    "ollama-several": Answered(
        body={
            "model": "nimble",
            "state": {"ticket": "Two invoices for one delivery. Please return the money of one."},
            "questions": {
                "refund": {
                    "type": "noul",
                    "instructions": "Is money asked back?",
                    "criteria": {"false": "No money is asked back", "true": "Money is asked back"},
                },
                "urgency": {
                    "type": "score",
                    "instructions": "How soon must someone answer?",
                    "criteria": ["Any day: nobody waits", "Soon: someone waits", "Now: work has stopped"],
                },
            },
        }
    ),
    "ollama-image-as-base64": Answered(
        body={
            "model": "clef-flash",
            "state": "A colleague sent this picture without a word.",
            "images": [base64.b64encode(PNG).decode()],
            "questions": {
                "noise": {"type": "noul", "instructions": "Is it noise?"},
                "colour": {
                    "type": "choice",
                    "instructions": "Which colour?",
                    "criteria": {"red": "Red", "grey": "Grey"},
                },
            },
        },
        images=[PNG],
    ),
    "ollama-keep-alive": Answered(body={"model": "clef", "state": "x", "keep_alive": "10m", "questions": TABLE}),
    # llama.cpp, tools/server/README.md
    "llama.cpp-no-model": Answered(
        body={
            "state": "Halden Freight: nobody has answered our letter about the double charge.",
            "questions": {
                "route": {
                    "type": "choice",
                    "instructions": "Who should answer?",
                    "criteria": {"billing": None, "shipping": None, "technical": None},
                },
                "angry": {"type": "noul", "instructions": "Are they angry?"},
                "urgency": {
                    "type": "score",
                    "instructions": "How urgent?",
                    "criteria": ["later", "this week", "today"],
                },
            },
        }
    ),
    "llama.cpp-image-as-data-url": Answered(
        body={
            "state": "Came in the morning's mail.",
            "images": [data_url(JPEG, "image/jpeg")],
            "questions": TABLE,
        },
        images=[JPEG],
    ),
    # SGLang, its documents of Clef
    "sglang-image-as-object": Answered(
        body={"model": "clef", "state": "x", "images": [{"url": data_url(PNG)}], "questions": TABLE}, images=[PNG]
    ),
    "sglang-image-with-detail": Answered(
        body={
            "model": "clef",
            "state": "x",
            "images": [{"url": data_url(PNG), "detail": "auto"}, data_url(JPEG, "image/jpeg")],
            "questions": TABLE,
        },
        images=[PNG, JPEG],
    ),
    "sglang-chat-template-kwargs": Answered(
        body={"model": "clef", "state": "x", "chat_template_kwargs": {}, "questions": TABLE}
    ),
    # Cloudflare's form of an image, and of a model's name
    "cloudflare-image": Answered(
        body={
            "model": "@cf/cloudflare/clef",
            "state": "x",
            "images": [{"content_type": "image/png", "base64": base64.b64encode(PNG).decode()}],
            "questions": TABLE,
        },
        images=[PNG],
    ),
    "cloudflare-upper-case-scheme": Answered(
        body={"model": "clef", "state": "x", "images": ["DATA" + data_url(PNG)[4:]], "questions": TABLE}, images=[PNG]
    ),
}


MESSAGE = {
    "role": "user",
    "content": [
        {"type": "image_url", "image_url": {"url": data_url(JPEG, "image/jpeg")}},
        {"type": "text", "text": "?"},
    ],
}
REFUSED: dict[str, tuple[dict[str, Any], int, Any]] = {
    # It reads an image where it stands in a conversation; Clef reads all images before the state.
    "llama.cpp-image-in-a-message": (
        {"state": [MESSAGE], "questions": TABLE},
        422,
        fault(
            ["state", 0, "content", 0, "image_url", "url"],
            "state.0.content.0.image_url.url is a data URL of a medium; media are sent in images, videos or assets",
            "inline_media",
        ),
    ),
    "llama.cpp-files": (
        {"state": "x", "files": [data_url(JPEG, "image/jpeg")], "questions": TABLE},
        422,
        fault(["files"], "files is refused: media are sent in images, videos or assets", "field_not_supported"),
    ),
    # Clef was trained on one size rule.
    "sglang-detail-high": (
        {"state": "x", "images": [{"url": data_url(PNG), "detail": "high"}], "questions": TABLE},
        422,
        fault(["images", 0, "detail"], "images.0.detail must be 'auto'", "literal_error"),
    ),
    # A model goes by the names in /v1/models, character for character.
    "cloudflare-model-with-blanks": (
        {"model": " clef ", "state": "x", "questions": TABLE},
        404,
        {
            "error_type": "model_not_found_error",
            "message": "no model ' clef ' is served here; the names are Example/clef-demo, clef-demo, clef, clef-flash, nimble",
        },
    ),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    # Their examples name their own models, which an operator may give to this one as further names.
    aliases = ("clef", "clef-flash", "nimble")
    with running_server(make_app(FakeEngine(), processor=demo_processor(), model_aliases=aliases)) as url:
        yield f"{url}/v1/systemone"


def curl(*arguments: str, stdin: bytes | None = None) -> tuple[int, Any]:
    """The status and the JSON that curl got."""
    command = ["curl", "-q", "-s", "--noproxy", "*", "-w", "\n%{http_code}", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=CURL_TIMEOUT_S, check=True)
    body, _, status = done.stdout.rpartition(b"\n")
    return int(status), json.loads(body)


@pytest.mark.parametrize("name", ANSWERED)
def test_examples_are_answered(url: str, name: str) -> None:
    example = ANSWERED[name]
    status, answered = curl(
        "-X", "POST", url, *JSON_HEADER, "-d", "@-", stdin=json.dumps(example.body, indent=2).encode()
    )
    assert status == 200, answered
    assert same(answered, example.expected)


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_meaning_here_is_refused(url: str, name: str) -> None:
    body, expected_status, detail = REFUSED[name]
    status, answered = curl(url, *JSON_HEADER, "-d", "@-", stdin=json.dumps(body).encode())
    assert (status, answered) == (expected_status, {"detail": detail})


@pytest.mark.parametrize("way", ["argument", "file", "with-a-key", "compressed-answer", "http-1.0"])
def test_ways_to_send(url: str, tmp_path: Path, way: str) -> None:
    example = ANSWERED["llama.cpp-no-model"]
    text = json.dumps(example.body, indent=2)
    (tmp_path / "request.json").write_text(text)
    arguments = {
        "argument": [*JSON_HEADER, "-d", text],
        "file": [*JSON_HEADER, "-d", f"@{tmp_path}/request.json"],
        "with-a-key": [*JSON_HEADER, "-H", "Authorization: Bearer any", "-d", text],
        "compressed-answer": ["--compressed", *JSON_HEADER, "-d", text],
        "http-1.0": ["--http1.0", *JSON_HEADER, "-d", text],
    }[way]
    status, answered = curl(url, *arguments)
    assert status == 200, answered
    assert same(answered, example.expected)


def test_large_bodies_wait_for_the_server_s_word(url: str) -> None:
    """Above a megabyte curl sends `Expect: 100-continue`, and the body once it was told to go on."""
    body = {"state": "x", "note": "-" * 2**21, "questions": TABLE}
    status, answered = curl(url, *JSON_HEADER, "--expect100-timeout", "30", "-d", "@-", stdin=json.dumps(body).encode())
    assert status == 200
    assert same(answered, Answered(body=body).expected)


def test_data_without_a_content_type_is_told_to_name_one(url: str) -> None:
    """`curl -d` alone says that it sends a form."""
    status, answered = curl(url, "-d", json.dumps(ANSWERED["llama.cpp-no-model"].body))
    assert status == 415
    assert answered == {
        "detail": {
            "error_type": "unsupported_media_type",
            "message": "content-type 'application/x-www-form-urlencoded' is not supported; "
            "send application/json or multipart/form-data",
        }
    }


def test_a_form_with_files(url: str, tmp_path: Path) -> None:
    """The multipart form of the published API, by curl's own means."""
    (tmp_path / "door.png").write_bytes(PNG)
    questions = {"r": {"type": "noul", "instructions": "Is the door open?"}}
    request = {"state": "Look at door.png.", "questions": questions, "assets": {"door.png": {"part": "picture"}}}
    status, answered = curl(
        url,
        *("-F", f"request={json.dumps(request)};type=application/json"),
        *("-F", f"picture=@{tmp_path}/door.png;type=image/png"),
    )
    assert status == 200, answered
    record = {"state": "Look at <image 1>.", "questions": questions, "images": [decoded(PNG)]}
    assert same(answered, reference_body(record, processor=demo_processor()))
