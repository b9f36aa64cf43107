"""What the front's tests share: tokenizers, an app around an engine, a real server, and the reference's answers."""

import asyncio
import contextlib
import functools
import hashlib
import json
import math
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from clef_finetune import tiny
from clef_finetune.jsm import load_jsm
from fastapi import FastAPI
from jevcompat import validate
from tokenizers import normalizers
from transformers import AutoProcessor

from benchmarks.random_release import build_random_release
from serving.app import create_app
from serving.auth import KeyRing
from serving.engine import Engine
from serving.fake_engine import fake_logit
from serving.metrics import Metrics
from serving.prompt import PromptEncoder
from serving.settings import ServingSettings

SERVED_NAME = "Example/clef-demo"
MAX_PROMPT_TOKENS = 30_000
WHOLE_PROMPT = 10**9


@functools.cache
def tiny_tokenizer() -> Any:
    """The tiny release's: one token a byte, so every span can be decoded exactly."""
    return tiny._tokenizer(512)


@functools.cache
def composing_tokenizer() -> Any:
    """One that composes accents first, as Qwen's does."""
    tokenizer = tiny._tokenizer(512)
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    return tokenizer


@functools.cache
def demo_processor() -> Any:
    """The random release's, loaded as the reference loads it."""
    with tempfile.TemporaryDirectory() as directory:
        return AutoProcessor.from_pretrained(build_random_release(Path(directory) / "release"))


def settings(**changes: Any) -> ServingSettings:
    return ServingSettings(**{"served_model_name": SERVED_NAME, "max_prompt_tokens": MAX_PROMPT_TOKENS} | changes)


def encoder(tokenizer: Any = None, **changes: Any) -> PromptEncoder:
    limits = {"max_prompt_tokens": WHOLE_PROMPT, "cache_entries": 64, "cache_tokens": 10**6} | changes
    return PromptEncoder(tokenizer=tokenizer or tiny_tokenizer(), **limits)


def make_app(
    engine: Engine,
    *,
    tokenizer: Any = None,
    processor: Any = None,
    keys: KeyRing | None = None,
    metrics: Metrics | None = None,
    **changes: Any,
) -> FastAPI:
    """The app; with a processor it serves media, and that one's tokenizer is the default. Changes are of the settings."""
    tokenizer = tokenizer or (processor.tokenizer if processor is not None else tiny_tokenizer())
    return create_app(
        engine=engine,
        tokenizer=tokenizer,
        processor=processor,
        keys=keys,
        metrics=metrics,
        settings=settings(**changes),
    )


def key_ring(file: Path, keys: Mapping[str, str]) -> KeyRing:
    """The keys of one tenant, each with a line for its limits, by way of a key file."""
    file.write_text(
        "".join(
            f'[[keys]]\nname = "key-{number}"\ntenant = "orders-team"\n{limit}\n'
            f'sha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n'
            for number, (key, limit) in enumerate(keys.items())
        )
    )
    return KeyRing(file)


@contextlib.asynccontextmanager
async def client_of(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the started app, in this process, once the warm-up is over."""
    async with app.router.lifespan_context(app):
        while app.state.lifecycle.phase == "starting":  # noqa: ASYNC110  (as a probe of /readyz would)
            await asyncio.sleep(0.001)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://front") as client:
            yield client


@contextlib.contextmanager
def running_server(app: FastAPI) -> Iterator[str]:
    """The URL of a uvicorn server that runs the app in a thread, as it runs in production."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, loop="uvloop", log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started or app.state.lifecycle.phase == "starting":
            assert thread.is_alive(), "the server did not start"
            thread.join(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def reference_record(
    request: Mapping[str, Any], tokenizer: Any = None, *, processor: Any = None, max_length: int = WHOLE_PROMPT
) -> Any:
    """The reference's own encoding of a request, its state cut to the limit.

    A request with media needs a processor, whose tokenizer is then the default. For a request whose texts hold control
    tokens see `tests.serving.reference_tokenizer`.
    """
    tokenizer = tokenizer or (processor.tokenizer if processor is not None else tiny_tokenizer())
    return load_jsm().encode_record(tokenizer, request, max_length=max_length, processor=processor)


def reference_body(
    request: Mapping[str, Any], *, tokenizer: Any = None, processor: Any = None, max_length: int = WHOLE_PROMPT
) -> dict[str, Any]:
    """The response body that the fake engine's logits stand for, by the reference's prompt and jevcompat's formulas.

    Arguments as for `reference_record`; tokens that were cut off are not counted here.
    """
    record = reference_record(request, tokenizer, processor=processor, max_length=max_length)
    answers: dict[str, Any] = {}
    for encoded in record.questions:
        question = request["questions"][encoded.question_id]
        ids = record.input_ids
        question_ids = ids[slice(*encoded.question_span)]
        weights = [math.exp(fake_logit(question_ids, ids[slice(*span)])) for span in encoded.option_spans]
        p = {name: weight / sum(weights) for name, weight in zip(encoded.option_ids, weights, strict=True)}
        if question["type"] == "noul":
            answers[encoded.question_id] = {"type": "noul", "noul": p["true"]}
        elif question["type"] == "choice":
            p = {name: p[name] for name in question["criteria"]}
            answers[encoded.question_id] = {
                "type": "choice",
                "choice": max(p, key=p.__getitem__),
                "confidence": validate.choice_confidence(list(p.values())),
                "probabilities": p,
            }
        else:
            answers[encoded.question_id] = {
                "type": "score",
                "score": sum(int(level) * value for level, value in p.items()),
                "confidence": validate.score_confidence(list(p.values())),
                "legend": {str(level): text for level, text in enumerate(question["criteria"])},
                "probabilities": p,
            }
    usage = {"input_tokens": len(record.input_ids), "output_tokens": 0, "x_cached_tokens": 0, "x_truncated_tokens": 0}
    return {"model": SERVED_NAME, "answers": answers, "usage": usage}


def same(left: Any, right: Any) -> bool:
    """Equal in every key, their order, every type and every text; floats to 1e-12."""
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=0, abs_tol=1e-12)
    return type(left) is type(right) and left == right


def body_of(request: dict[str, Any]) -> bytes:
    return json.dumps(request).encode()
