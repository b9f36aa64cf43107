"""The plugin under plain `sglang serve`: SGLang's own route shares prefixes too, of text and of images.

Nothing tells this engine how large its pools shall be: SGLang measures, as it does on a GPU.
"""

import base64
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import torch
from PIL import Image

from benchmarks.random_release import build_random_release
from model_plugin.cpu import activate
from tests import tolerances
from tests.engine.inspector import inspector
from tests.engine.records import TEAM, URGENCY, questions, text
from tests.engine.served import ENVIRON, GRID, START_TIMEOUT_S, Reference, distance, probabilities
from tests.launch.running import Running, free_port, running

pytestmark = pytest.mark.engine

FREE_BYTES = 2 << 30
PREFILL = r"Prefill batch.*#new-token: (\d+), #cached-token: (\d+)"


@dataclass(frozen=True, kw_only=True)
class SGLangServer:
    process: Running
    reference: Reference
    client: httpx.Client

    def answer(self, record: dict[str, Any], images: list[Any]) -> dict[str, dict[str, float]]:
        """The probabilities; an image is a picture or the bytes of a file."""
        body = {"model": "demo", **record, "images": [{"url": data_url(image)} for image in images]}
        response = self.client.post("/v1/systemone", json=body)
        assert response.status_code == 200, response.text
        return probabilities(response.json())

    def ask(self, record: dict[str, Any], images: list[Any]) -> tuple[dict[str, dict[str, float]], int]:
        """The probabilities, and how many tokens SGLang says it took from its cache. One request at a time."""
        answered = self.answer(record, images)
        return answered, int(self.process.wait_for(PREFILL, 10)[2])

    def flush(self) -> None:
        """Empty the cache, and forget what SGLang has said so far."""
        response = self.client.post("/flush_cache")
        assert response.status_code == 200, response.text
        self.process.wait_for("Cache flushed successfully", 10)


def png(image: Image.Image, **options: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, "PNG", **options)
    return data.getvalue()


def data_url(image: Image.Image | bytes) -> str:
    data = image if isinstance(image, bytes) else png(image)
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def picture(seed: int, size: tuple[int, int] = (96, 64)) -> Image.Image:
    pixels = torch.randint(0, 256, (size[1], size[0], 3), generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(pixels.to(torch.uint8).numpy())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLangServer]:
    # The random release has rotary sections for time, height and width, as Qwen3.5 does; the tiny ones do not.
    release = build_random_release(tmp_path_factory.mktemp("release") / "demo")
    arguments = ["--model-path", str(release), "--device", "cpu", "--attention-backend", "torch_native"]
    port = free_port()
    arguments += ["--dtype", "float32", "--mem-fraction-static", "0.75", "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--skip-server-warmup", "--max-running-requests", "8", "--sleep-on-idle"]
    with (
        inspector(free_bytes=FREE_BYTES) as inside,
        running("sglang.launch_server", *arguments, environ=on_a_cpu(inside.environ)) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client,
    ):
        process.wait_for(r"Uvicorn running on|ready to roll", START_TIMEOUT_S)
        yield SGLangServer(process=process, reference=Reference(release, torch.float32), client=client)


def on_a_cpu(environ: dict[str, str]) -> dict[str, str]:
    prepared = ENVIRON | environ
    activate("float32", environ=prepared)
    return prepared


def test_pools_that_sglang_sizes_fill_what_they_may_have_and_no_more(server: SGLangServer) -> None:
    """KV slots, their memory rows and recurrent states together, against the budget that SGLang measured."""
    (state,) = server.client.get("/server_info").json()["internal_states"]
    size, slots = state["inspected"]["bytes"], state["inspected"]["pools"]["kv"]["total"]
    used = size["kv"] + size["rows"] + size["states"]
    assert 0.6 * FREE_BYTES < size["budget"] < 0.75 * FREE_BYTES
    # Both pools have one slot more, which takes the writes of padding; SGLang counts it for recurrent states only.
    kv_slot, row = size["kv"] / (slots + 1), size["rows"] / (slots + 1)
    assert used <= size["budget"] + kv_slot + row
    assert used >= 0.99 * size["budget"]
    # Had rows not been counted, SGLang would have filled the same memory with KV slots alone, and rows would come on top.
    assert row / kv_slot > 0.2
    slots_without = (size["budget"] - size["states"]) // kv_slot
    assert slots_without * (kv_slot + row) + size["states"] > 1.1 * size["budget"]


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


def test_images_that_begin_alike_are_different_images(server: SGLangServer) -> None:
    """Their files share far more than 64 KiB; the last row of pixels differs."""
    one = picture(11, (256, 192))
    other = one.copy()
    other.paste((0, 0, 0), (0, 160, 256, 192))
    one_file, other_file = (png(image, compress_level=0) for image in (one, other))
    assert one_file[41:100_000] == other_file[41:100_000]
    record = {"state": "Is it dark at the bottom?", "questions": {"u": URGENCY}}
    for image, file in ((one, one_file), (other, other_file), (one, one_file)):
        expected = server.reference.probabilities({**record, "images": [image]})
        assert distance(server.answer(record, [file]), expected) <= tolerances.FP32


def test_text_and_images_hits_and_misses_in_one_batch_equal_the_reference(server: SGLangServer) -> None:
    shown = picture(12)
    known = {"state": text(80, 600), "questions": {"u": URGENCY}}
    server.answer(known, [])
    server.answer(known, [shown])
    asked: list[tuple[dict[str, Any], list[Image.Image]]] = [
        (known, []),
        (known, [shown]),
        ({**known, "questions": {"t": TEAM}}, [shown]),
        ({**known, "questions": questions(81)}, []),
        (known, [picture(13)]),
        ({"state": text(82, 900), "questions": questions(82)}, [shown, picture(14, (64, 160))]),
        ({"state": text(83, 40), "questions": questions(83)}, []),
        ({"state": "", "questions": {"t": TEAM}}, [picture(15)]),
    ]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda ask: server.answer(*ask), asked))
    for (record, images), answered in zip(asked, answers, strict=True):
        expected = server.reference.probabilities({**record, "images": images})
        assert distance(answered, expected) <= tolerances.FP32


def test_flushing_the_cache_between_bursts_changes_no_answer(server: SGLangServer) -> None:
    records = [{"state": text(90 + seed % 3, 400 + 100 * seed), "questions": questions(90 + seed)} for seed in range(8)]
    expected = [server.reference.probabilities(record) for record in records]
    for _ in range(5):
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda record: server.answer(record, []), records))
        assert max(map(distance, answers, expected)) <= tolerances.FP32
        server.flush()
        answered, cached = server.ask(records[0], [])
        assert cached == 0
        assert distance(answered, expected[0]) <= tolerances.FP32
