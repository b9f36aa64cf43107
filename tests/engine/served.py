"""A real server on the real engine, the reference beside it, and the distance between their answers."""

import contextlib
import functools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import httpx
import torch
from clef_finetune import tiny
from clef_finetune.jsm import load_jsm
from clef_finetune.tiny import tiny_config

from tests.launch.running import Running, alive, running

START_TIMEOUT_S = 600  # seconds; half a minute on an idle machine
# What a checkpoint may read where nothing limits the server before.
MAX_PROMPT_TOKENS = 65_536
GRID = 64
# No C++ compiler: the CPU platform must do without.
ENVIRON = {"CXX": "/no/such/compiler"}
READY = r"clef-serve is ready at (http://\S+)"


def build_release(directory: Path, seed: int, *, vocabulary: int = 512, **text_config: int) -> Path:
    """A tiny random release in the exact layout, with room for 255 options and long states.

    Its tokenizer has one token for each byte. `text_config` changes the shape of its language model.
    """

    def config_of(tokenizer: Any, vocabulary: int) -> Any:
        config = tiny_config(tokenizer, vocabulary)
        config.text_config.update(text_config)
        return config

    with mock.patch.object(tiny, "tiny_config", config_of):
        release: Path = tiny.build_tiny_release(directory, seed=seed, vocab_size=vocabulary)
    path = release / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["vision_config"]["deepstack_visual_indexes"] = []  # Transformers does not write it, SGLang needs it
    config["text_config"]["max_position_embeddings"] = MAX_PROMPT_TOKENS
    path.write_text(json.dumps(config), encoding="utf-8")
    return release


class Reference:
    """Cloudflare's implementation on the CPU."""

    def __init__(self, release: Path, dtype: torch.dtype) -> None:
        self.module: ModuleType = load_jsm()
        self.model, self.processor = self.module.load_release_model(release, device="cpu", dtype=dtype)

    def encode(self, record: dict[str, Any]) -> Any:
        """The reference's prompt; media are given as the reference takes them."""
        return self.module.encode_record(
            self.processor.tokenizer, record, max_length=MAX_PROMPT_TOKENS, processor=self.processor
        )

    def probabilities(self, record: dict[str, Any]) -> dict[str, dict[str, float]]:
        """For each question the probability of each option."""
        return self.probabilities_of(self.encode(record))

    @torch.inference_mode()
    def probabilities_of(self, encoded: Any) -> dict[str, dict[str, float]]:
        """The same for a prompt of the reference's."""
        batch = self.module.collate_records([encoded], self.processor.tokenizer.pad_token_id, torch.device("cpu"))
        return {
            question.question_id: dict(zip(question.option_ids, logits.float().softmax(-1).tolist(), strict=True))
            for question, logits in zip(encoded.questions, self.model(batch)[0], strict=True)
        }

    def state_end(self, record: dict[str, Any]) -> int:
        """Where the state ends in the reference's prompt, in tokens."""
        asked = self.encode({"state": "", "questions": record["questions"]})
        return len(self.encode(record).input_ids) - len(asked.input_ids) + self._prefix_tokens

    @functools.cached_property
    def _prefix_tokens(self) -> int:
        text = f"<|im_start|>system\n{self.module.SYSTEM_PROMPT}<|im_end|>\n<|im_start|>user\nSTATE:\n"
        return len(self.processor.tokenizer(text, add_special_tokens=False).input_ids)


@dataclass(frozen=True, kw_only=True)
class Served:
    """A running server and the reference of the same release."""

    process: Running
    url: str
    reference: Reference
    client: httpx.Client

    def post(self, body: dict[str, Any]) -> httpx.Response:
        return self.client.post("/v1/systemone", json=body)

    def ask(self, record: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """The response to a record that must be answered."""
        response = self.post({**record, **fields})
        assert response.status_code == 200, response.text
        answered: dict[str, Any] = response.json()
        return answered

    def ask_together(self, records: list[dict[str, Any]], **fields: Any) -> list[dict[str, Any]]:
        """The same for several at once."""
        with ThreadPoolExecutor(len(records)) as pool:
            return list(pool.map(lambda record: self.ask(record, **fields), records))


def cached(answered: dict[str, Any]) -> int:
    """How many tokens of the prompt were not computed again."""
    tokens: int = answered["usage"]["x_cached_tokens"]
    return tokens


def probabilities(answered: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What a response says of every option."""
    return {
        question_id: {"true": answer["noul"], "false": 1 - answer["noul"]}
        if answer["type"] == "noul"
        else answer["probabilities"]
        for question_id, answer in answered["answers"].items()
    }


def distance(one: dict[str, dict[str, float]], other: dict[str, dict[str, float]]) -> float:
    """max |dp| over all options of all questions, which must be the same."""
    assert one.keys() == other.keys()
    for question_id in one:
        assert one[question_id].keys() == other[question_id].keys()
    return max(abs(p - other[question_id][option]) for question_id in one for option, p in one[question_id].items())


def starting(
    release: Path, *arguments: str, dtype: str = "float32", environ: dict[str, str] | None = None
) -> contextlib.AbstractContextManager[Running]:
    """Start `clef-serve up` on a release; arguments after `--` are SGLang's."""
    up = ["up", "--device", "cpu", "--port", "0", "--dtype", dtype, "--model", str(release)]
    return running("launch", *up, *arguments, environ={**ENVIRON, **(environ or {})})


@contextlib.contextmanager
def serving(
    release: Path, *arguments: str, dtype: str = "float32", environ: dict[str, str] | None = None
) -> Iterator[Served]:
    """The same, once it is ready; at the end it is stopped, and must leave nothing behind."""
    with starting(release, *arguments, dtype=dtype, environ=environ) as process:
        url = process.wait_for(READY, START_TIMEOUT_S)[1]
        with httpx.Client(base_url=url, timeout=300) as client:
            yield Served(
                process=process,
                url=url,
                reference=Reference(release, getattr(torch, dtype)),
                client=client,
            )
        assert process.process.poll() is None, "the server died:\n" + "\n".join(process.lines)
        tree = process.tree()
        process.press_ctrl_c()
        assert process.end(60) == 0, "\n".join(process.lines)
        assert process.lines[-1] == "clef-serve: stopped"
        assert not [line for line in process.lines if "Traceback" in line], "\n".join(process.lines)
        assert alive(tree) == []
