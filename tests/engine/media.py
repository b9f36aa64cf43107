"""Media made for tests, as the reference takes them and as ours does, and a real engine in a process of its own.

The engine is `SGLangEngine` as the server starts it, without the HTTP front around it: a request is processed, placed into
its prompt and scored there.
"""

import asyncio
import contextlib
import math
import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from model_plugin import cpu
from serving.api_types import parse_request
from serving.media.decoded import Video, VideoShape
from serving.media.processed import ProcessedMedia
from serving.media.processing import MediaProcessor
from serving.prompt import PromptEncoder

MAX_PROMPT_TOKENS = 8192
ANSWER_TIMEOUT_S = 120
START_TIMEOUT_S = 240


@dataclass(frozen=True, kw_only=True)
class Clip:
    """A whole video, before any frame is chosen: `[frames, height, width, 3]` and its frames a second."""

    frames: np.ndarray
    fps: float

    @property
    def shape(self) -> VideoShape:
        total, height, width, _ = self.frames.shape
        return VideoShape(total_frames=total, fps=self.fps, width=width, height=height)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request. `options` say how its videos are sampled."""

    state: Any
    questions: dict[str, Any]
    images: Sequence[Image.Image] = ()
    clips: Sequence[Clip] = ()
    options: dict[str, Any] = field(default_factory=dict)
    cache_salt: str | None = None

    def record(self) -> dict[str, Any]:
        """As the reference takes it: whole videos, which its processor samples."""
        kwargs = dict(self.options)
        if self.clips:
            kwargs["video_metadata"] = [
                {"total_num_frames": clip.shape.total_frames, "fps": clip.fps} for clip in self.clips
            ]
        return {
            "state": self.state,
            "questions": self.questions,
            "images": list(self.images),
            "videos": [clip.frames for clip in self.clips],
            "media_kwargs": kwargs,
        }


@dataclass(frozen=True, kw_only=True)
class Answered:
    """What came back, and the prompt that was asked, of which media take `[media_start, media_end)`."""

    probabilities: dict[str, dict[str, float]]
    cached: int
    input_ids: list[int]
    media_start: int
    media_end: int
    state_end: int


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def picture(seed: int, width: int = 96, height: int = 64) -> Image.Image:
    return Image.fromarray(noise(seed, height, width, 3))


def plain(width: int, height: int) -> Image.Image:
    """One colour: every patch of it is the same as every other."""
    return Image.new("RGB", (width, height), (40, 90, 160))


def clip(seed: int, frames: int, fps: float, width: int = 96, height: int = 64) -> Clip:
    return Clip(frames=noise(seed, frames, height, width, 3), fps=fps)


def processed(processor: MediaProcessor, asked: Asked) -> ProcessedMedia | None:
    """The request's media, of whose videos only the frames to sample are handed over."""
    if not asked.images and not asked.clips:
        return None
    videos = []
    for whole in asked.clips:
        indices = processor.frames_to_sample(whole.shape, asked.options)
        videos.append(Video(frames=whole.frames[list(indices)], indices=indices, shape=whole.shape))
    return processor.process(asked.images, videos)


class Engine:
    """Asks the engine behind a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def together(self, asked: Sequence[Asked]) -> list[Answered]:
        """Several requests at once."""
        self._connection.send(list(asked))
        answers = self._receive(ANSWER_TIMEOUT_S)
        assert isinstance(answers, list), answers
        return answers

    def ask(self, asked: Asked) -> Answered:
        return self.together([asked])[0]

    def refused(self, asked: Asked) -> str:
        """The error that a request ends with."""
        self._connection.send([asked])
        answered = self._receive(ANSWER_TIMEOUT_S)
        assert isinstance(answered, str), answered
        return answered

    def wait_until_ready(self) -> None:
        assert (said := self._receive(START_TIMEOUT_S)) == "ready", said

    def stop(self) -> None:
        self._connection.send(None)

    def _receive(self, timeout_s: float) -> Any:
        assert self._connection.poll(timeout_s), f"the engine said nothing for {timeout_s} s"
        return self._connection.recv()


@contextlib.contextmanager
def engine(release: Path, *arguments: str) -> Iterator[Engine]:
    """Start an engine in FP32; arguments are SGLang's."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, str(release), arguments))
    process.start()
    theirs.close()
    asker = Engine(ours)
    try:
        asker.wait_until_ready()
        yield asker
        assert process.is_alive(), "the engine's process ended"
        asker.stop()
        process.join(60)
        assert process.exitcode == 0
    finally:
        if process.is_alive():
            process.kill()
            process.join()


def _serve(connection: Connection, release: str, arguments: tuple[str, ...]) -> None:
    """Runs in the engine's process: answers lists of requests until it is sent None."""
    cpu.activate("float32")
    from serving.engine import EngineSettings, SGLangEngine

    settings = EngineSettings(
        model_path=release,
        device="cpu",
        dtype="float32",
        max_prompt_tokens=MAX_PROMPT_TOKENS,
        served_model_name="demo",
        extra_args=arguments,
    )
    started = SGLangEngine.start(settings)
    try:
        asyncio.run(_answer_all(connection, started))
    finally:
        started.close()


async def _answer_all(connection: Connection, started: Any) -> None:
    from serving.engine import EngineError

    deaths: list[str] = []
    await started.attach(deaths.append)
    encoder = PromptEncoder(
        tokenizer=started.tokenizer, max_prompt_tokens=MAX_PROMPT_TOKENS, cache_entries=0, cache_tokens=0
    )
    processor = MediaProcessor(started.processor or _reference_processor(started))
    connection.send("ready")
    number = 0
    while (batch := await asyncio.to_thread(connection.recv)) is not None:
        number += 1
        try:
            answers = await asyncio.gather(
                *(
                    _answer(started, encoder, processor, asked, f"request-{number:06d}-{place:06d}")
                    for place, asked in enumerate(batch)
                )
            )
        except EngineError as err:
            connection.send(f"{type(err).__name__}: {err}")
        else:
            connection.send(answers)
    assert not deaths, deaths


async def _answer(
    started: Any, encoder: PromptEncoder, processor: MediaProcessor, asked: Asked, request_id: str
) -> Answered:
    from serving.engine import ScoreRequest

    request = parse_request({"model": "demo", "state": asked.state, "questions": asked.questions})
    prompt = encoder.encode(request.state, request.questions)
    media_start = prompt.state_end - prompt.state_tokens
    media = await asyncio.to_thread(processed, processor, asked)
    media_ids = media.input_ids if media is not None else []
    input_ids = prompt.input_ids[:media_start] + media_ids + prompt.input_ids[media_start:]
    state_end = prompt.state_end + len(media_ids)
    result = await started.score(
        ScoreRequest(
            request_id=request_id,
            input_ids=input_ids,
            questions=tuple(spans.shifted(len(media_ids)) for spans in prompt.questions),
            state_end=state_end,
            cache_salt=asked.cache_salt,
            media=media,
            media_start=media_start,
        )
    )
    return Answered(
        probabilities={
            question_id: dict(zip(names, _softmax(logits), strict=True))
            for question_id, names, logits in zip(request.questions, prompt.option_names, result.logits, strict=True)
        },
        cached=result.cached_tokens,
        input_ids=input_ids,
        media_start=media_start,
        media_end=media_start + len(media_ids),
        state_end=state_end,
    )


def _reference_processor(started: Any) -> Any:
    """What the engine does not hand out for a release without a vision tower."""
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(started.tokenizer.name_or_path)


def _softmax(logits: list[float]) -> list[float]:
    weights = [math.exp(logit - max(logits)) for logit in logits]
    return [weight / sum(weights) for weight in weights]
