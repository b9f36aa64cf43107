"""The plugin under plain `sglang serve`: SGLang's own route shares prefixes too, of text and of images."""

import base64
import io
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import torch
from PIL import Image

from launch.mini.build import build_demo_release
from model_plugin.cpu import activate
from tests import tolerances
from tests.engine.records import TEAM, URGENCY, questions, text
from tests.engine.served import ENVIRON, GRID, START_TIMEOUT_S, Reference, distance, probabilities
from tests.launch.running import Running, running

pytestmark = pytest.mark.engine

PREFILL = r"Prefill batch.*#new-token: (\d+), #cached-token: (\d+)"


@dataclass(frozen=True, kw_only=True)
class SGLangServer:
    process: Running
    reference: Reference
    client: httpx.Client

    def ask(self, record: dict[str, Any], images: list[Image.Image]) -> tuple[dict[str, dict[str, float]], int]:
        """The probabilities, and how many tokens SGLang says it took from its cache."""
        body = {"model": "tiny", **record, "images": [{"url": data_url(image)} for image in images]}
        response = self.client.post("/v1/systemone", json=body)
        assert response.status_code == 200, response.text
        return probabilities(response.json()), int(self.process.wait_for(PREFILL, 10)[2])


def data_url(image: Image.Image) -> str:
    data = io.BytesIO()
    image.save(data, "PNG")
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"


def picture(seed: int, size: tuple[int, int] = (96, 64)) -> Image.Image:
    pixels = torch.randint(0, 256, (size[1], size[0], 3), generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(pixels.to(torch.uint8).numpy())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLangServer]:
    # The demonstration release has rotary sections for time, height and width, as Qwen3.5 does; the tiny ones do not.
    release = build_demo_release(tmp_path_factory.mktemp("release") / "demo")
    environ = dict(ENVIRON)
    activate("float32", environ=environ)
    arguments = ["--model-path", str(release), "--device", "cpu", "--attention-backend", "torch_native"]
    port = free_port()
    arguments += ["--dtype", "float32", "--max-total-tokens", "65536", "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--skip-server-warmup", "--max-running-requests", "8", "--sleep-on-idle"]
    with (
        running("sglang.launch_server", *arguments, environ=environ) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client,
    ):
        process.wait_for(r"Uvicorn running on|ready to roll", START_TIMEOUT_S)
        yield SGLangServer(process=process, reference=Reference(release, torch.float32), client=client)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_text_states_are_shared(server: SGLangServer) -> None:
    state = {"ticket": text(50, 1480)}
    for seed in range(3):
        record = {"state": state, "questions": questions(seed)}
        answered, cached = server.ask(record, [])
        assert distance(answered, server.reference.probabilities(record)) <= tolerances.FP32
        if seed:
            assert cached == server.reference.state_end(record) // GRID * GRID


@pytest.mark.parametrize("count", [1, 2])
def test_image_states_are_shared_by_equal_images_only(server: SGLangServer, count: int) -> None:
    images = [picture(seed) for seed in range(count)]
    record = {"state": text(60 + count, 300), "questions": {"u": URGENCY}}
    other_questions = {**record, "questions": {"t": TEAM}}
    other_images = [*images[:-1], picture(99)]
    expected = [
        server.reference.probabilities({**asked, "images": shown})
        for asked, shown in ((record, images), (other_questions, images), (record, other_images))
    ]
    assert distance(expected[0], expected[2]) > 10 * tolerances.FP32, "the images make no difference"
    end = server.reference.state_end({**record, "images": images})

    cold, _ = server.ask(record, images)
    again, cached_again = server.ask(record, images)
    asked_other, cached_other = server.ask(other_questions, images)
    shown_other, cached_shown_other = server.ask(record, other_images)
    assert distance(cold, expected[0]) <= tolerances.FP32
    assert distance(again, expected[0]) <= tolerances.FP32
    assert distance(asked_other, expected[1]) <= tolerances.FP32
    assert distance(shown_other, expected[2]) <= tolerances.FP32
    assert cached_again == cached_other == end // GRID * GRID
    assert cached_shown_other < cached_again


def test_the_same_bytes_in_another_shape_are_another_image(server: SGLangServer) -> None:
    wide, high = picture(7, (128, 32)), picture(7, (32, 128))
    assert wide.tobytes() == high.tobytes()
    record = {"state": "Which way does it go?", "questions": {"u": URGENCY}}
    for image in (wide, high, wide):
        answered, _ = server.ask(record, [image])
        expected = server.reference.probabilities({**record, "images": [image]})
        assert distance(answered, expected) <= tolerances.FP32
