"""The whole server on the real engine, over HTTP: media in every form, keys and tenants, cutting, against the reference."""

import base64
import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
from PIL import Image
from typesafe_sdk import Image as SdkImage
from typesafe_sdk import Noul, TypeSafeClient

from benchmarks.random_release import build_random_release
from tests import tolerances
from tests.engine.media import Asked, Clip, clip, picture
from tests.engine.records import TEAM, URGENCY, text
from tests.engine.served import GRID, Served, cached, distance, probabilities, serving

pytestmark = pytest.mark.engine

QUESTIONS = {"u": URGENCY, "t": TEAM}
KEYS = {"orders": "clef_orders-key", "fleet": "clef_fleet-key", "fleet-next": "clef_fleet-key-2"}
TENANTS = {"orders": "orders-team", "fleet": "fleet-team", "fleet-next": "fleet-team"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("service")
    key_file = directory / "keys.toml"
    key_file.write_text(
        "".join(
            f'[[keys]]\nname = "{name}"\ntenant = "{TENANTS[name]}"\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n'
            for name, key in KEYS.items()
        ),
        encoding="utf-8",
    )
    release = build_random_release(directory / "demo")
    arguments = ("--api-keys", str(key_file), "--max-prompt-tokens", "8192", "--", "--chunked-prefill-size", "512")
    with serving(release, *arguments) as started:
        started.client.headers["authorization"] = f"Bearer {KEYS['orders']}"
        yield started


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def data_url(image: Image.Image, kind: str = "png", **options: Any) -> str:
    return f"data:image/{kind};base64," + base64.b64encode(encoded(image, kind, **options)).decode()


def film(frames: np.ndarray, fps: int) -> bytes:
    """An MP4 file of these frames."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=fps, options={"crf": "12"})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()


def shown(file: bytes) -> np.ndarray:
    """Every frame of a video file."""
    with av.open(io.BytesIO(file)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def check(served: Served, asked: Asked, **fields: Any) -> dict[str, Any]:
    """Ask twice, without and with the cache; both answers are the reference's. Returns the second."""
    body = {"state": asked.state, "questions": asked.questions, **fields}
    expected = served.reference.probabilities(asked.record())
    first, second = served.ask(body), served.ask(body)
    prompt_tokens = len(served.reference.encode(asked.record()).input_ids)
    for answered in (first, second):
        assert answered["usage"]["input_tokens"] == prompt_tokens
        assert distance(probabilities(answered), expected) <= tolerances.FP32
    assert cached(second) >= (served.reference.state_end(asked.record()) // GRID) * GRID
    return second


@pytest.mark.parametrize(
    ("kind", "options"), [("png", {}), ("jpeg", {"quality": 90}), ("webp", {"lossless": True}), ("gif", {})]
)
def test_an_image_in_each_format(served: Served, kind: str, options: dict[str, Any]) -> None:
    file = encoded(picture(11, 96, 64), kind, **options)
    seen = Image.open(io.BytesIO(file)).convert("RGB")
    asked = Asked(state=text(11, 200), questions=QUESTIONS, images=[seen])
    check(served, asked, images=[f"data:image/{kind};base64,{base64.b64encode(file).decode()}"])


def test_images_in_each_form(served: Served) -> None:
    images = [picture(number, 64, 32 * number) for number in range(1, 5)]
    plain = base64.b64encode(encoded(images[2], "png")).decode()
    sent = [
        data_url(images[0]),
        {"url": data_url(images[1])},
        plain,
        {"content_type": "image/png", "base64": base64.b64encode(encoded(images[3], "png")).decode()},
    ]
    check(served, Asked(state=text(12, 200), questions=QUESTIONS, images=images), images=sent)


def test_a_video_file_and_its_sampling(served: Served) -> None:
    file = film(clip(21, 30, 10, 64, 96).frames, 10)
    seen = Clip(frames=shown(file), fps=10.0)
    assert len(seen.frames) == 30
    url = "data:video/mp4;base64," + base64.b64encode(file).decode()
    for options in ({}, {"fps": 5.0}, {"num_frames": 6}):
        # The reference takes a number of frames only where its own default of frames a second is taken back.
        theirs = {"fps": None, **options} if "num_frames" in options else options
        asked = Asked(state=text(21, 100), questions=QUESTIONS, clips=[seen], options=theirs)
        check(served, asked, videos=[{"url": url}], media_kwargs=options)


def test_a_list_of_frames(served: Served) -> None:
    seen = clip(22, 8, 1)
    frames = [data_url(Image.fromarray(frame)) for frame in seen.frames]
    asked = Asked(state=text(22, 100), questions=QUESTIONS, clips=[seen])
    check(served, asked, videos=[{"frames": frames, "fps": 1}])


def test_images_and_a_video_together(served: Served) -> None:
    seen, image = clip(23, 6, 2), picture(23)
    frames = [data_url(Image.fromarray(frame)) for frame in seen.frames]
    asked = Asked(state=text(23, 100), questions=QUESTIONS, images=[image], clips=[seen])
    check(served, asked, images=[data_url(image)], videos=[{"frames": frames, "fps": 2}])


def test_assets_of_typesafe_s_sdk(served: Served) -> None:
    """Its client sends them as parts of a multipart body, under a name that is new each time."""
    door, yard = picture(31, 80, 80), picture(32, 120, 40)
    questions = {"parcel": {"type": "noul", "instructions": "Is the parcel of <image 2> also in <image 1>?"}}
    asked = Asked(state={"door": "<image 1>", "note": "left at noon"}, questions=questions, images=[door, yard])
    expected = served.reference.probabilities(asked.record())["parcel"]["true"]
    for _ in range(2):
        first, second = (SdkImage(encoded(image, "png")) for image in (door, yard))
        with (
            TypeSafeClient(api_key=KEYS["orders"], base_url=served.url) as client,
            client.attach_assets([first, second]),
        ):
            answered = client.system_one(
                state={"door": first, "note": "left at noon"},
                questions={"parcel": Noul(instructions=f"Is the parcel of {second} also in {first}?")},
            )
        assert abs(answered.answers["parcel"].noul - expected) <= tolerances.FP32
    body = {
        "state": {"door": "one", "note": "left at noon"},
        "questions": {"parcel": {"type": "noul", "instructions": "Is the parcel of two also in one?"}},
        "assets": {
            name: {"type": "image", "format": "png", "data_base64": base64.b64encode(encoded(image, "png")).decode()}
            for name, image in (("two", yard), ("one", door))
        },
    }
    inline = served.ask(body)
    assert abs(inline["answers"]["parcel"]["noul"] - expected) <= tolerances.FP32
    assert cached(inline) > 0


def test_other_pixels_share_nothing(served: Served) -> None:
    one, other = picture(41), picture(42)
    for image in (one, other):
        answered = served.ask({"state": text(41, 300), "questions": QUESTIONS, "images": [data_url(image)]})
        assert cached(answered) < GRID


def test_tenants_share_nothing_and_the_keys_of_one_share_all(served: Served) -> None:
    body = {"state": text(51, 3000), "questions": QUESTIONS}
    whole = served.reference.state_end(body) // GRID * GRID
    assert whole > 512
    counts = {}
    for name in ("orders", "fleet", "fleet-next"):
        headers = {"authorization": f"Bearer {KEYS[name]}"}
        response = served.client.post("/v1/systemone", json=body, headers=headers)
        assert response.status_code == 200
        counts[name] = cached(response.json())
    assert counts["orders"] == counts["fleet"] == 0
    assert counts["fleet-next"] >= whole
    salted = served.client.post("/v1/systemone", json={**body, "cache_salt": '["fleet-team", null]'})
    assert cached(salted.json()) == 0


def test_without_a_key_nothing_is_answered(served: Served) -> None:
    body = {"state": "x", "questions": {"u": URGENCY}}
    for header in (None, "Bearer clef_no-such-key", "Basic b3JkZXJz"):
        headers = {} if header is None else {"authorization": header}
        response = httpx.post(f"{served.url}/v1/systemone", json=body, headers=headers)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
    log = "\n".join(served.process.lines)
    hashes = (hashlib.sha256(key.encode()).hexdigest() for key in KEYS.values())
    assert not any(secret in log for secret in (*KEYS.values(), *hashes, "clef_no-such-key", "b3JkZXJz"))


def test_a_state_that_is_cut(served: Served) -> None:
    """As the reference cuts it at the same limit."""
    body = {"state": text(61, 100_000), "questions": QUESTIONS}
    refused = served.post(body)
    assert refused.status_code == 413
    response = served.post({**body, "over_limit": "truncate"})
    answered = response.json()
    assert answered["usage"]["input_tokens"] == 8192
    assert answered["usage"]["x_truncated_tokens"] > 1000
    assert response.headers["x-truncated-tokens"] == str(answered["usage"]["x_truncated_tokens"])
    tokenizer = served.reference.processor.tokenizer
    cut = served.reference.module.encode_record(tokenizer, body, max_length=8192)
    assert distance(probabilities(answered), served.reference.probabilities_of(cut)) <= tolerances.FP32


def test_the_served_document_is_the_committed_one(served: Served) -> None:
    committed = json.loads((Path(__file__).parents[2] / "serving" / "openapi.json").read_text(encoding="utf-8"))
    assert served.client.get("/openapi.json").json() == committed
