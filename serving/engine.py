"""The engine the front asks for scores: a small protocol, and its one implementation on an embedded `sglang.Engine`.

This is the only module of `serving` that names SGLang. It knows nothing of HTTP, question text or answers.
"""

import asyncio
import contextlib
import itertools
import logging
import math
import multiprocessing
import os
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import psutil

import model_plugin
from model_plugin.schema_layout import PromptLayout, QuestionSpans, namespace_of, pack_layout
from serving.engine_metrics import open_directory, remove_directory
from serving.shared_states import SharedStates

if TYPE_CHECKING:
    from serving.media.processed import Features, ProcessedMedia

logger = logging.getLogger(__name__)

# SGLang refuses a prompt within 7 tokens of its context length (tp_worker.py: max_req_input_len = context - 1 - 5, and the
# scheduler's comparison is strict), so the engine is started with this much more context than the longest prompt.
RESERVED_TOKENS = 8
# Whether a child of the engine has ended is looked up this often, in seconds.
CHILD_CHECK_INTERVAL_S = 0.5
# Waiting for another request to compute a shared state pays once the state is longer than common schemas are.
MIN_SHARED_STATE_TOKENS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreRequest:
    """One prompt to score. Positions index `input_ids`.

    Attributes:
        state_end: where the state ends; tokens before it may be served from the cache, those after it never are.
        cache_salt: prompts share cached prefixes only under equal salts.
        media: the images and videos whose tokens stand in `input_ids`, expanded, from `media_start` on.
    """

    request_id: str
    input_ids: Sequence[int]
    questions: Sequence[QuestionSpans]
    state_end: int
    cache_salt: str | None = None
    media: "ProcessedMedia | None" = None
    media_start: int = 0

    def __post_init__(self) -> None:
        if self.media is not None:
            media_end = self.media_start + len(self.media.input_ids)
            assert media_end <= self.state_end, (media_end, self.state_end)
            assert list(self.input_ids[self.media_start : media_end]) == self.media.input_ids


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreResult:
    """The head's FP32 logits, one list per question in request order, one value per option in scoring order.

    `cached_tokens` of the prompt's tokens were not computed again.
    """

    logits: list[list[float]]
    prompt_tokens: int
    cached_tokens: int = 0


class EngineError(Exception):
    """Base of what an engine raises.

    EngineError
    ├── EngineStartError     the engine could not be started
    ├── EngineRefusedError   the engine refused this request; the front should have, so it is a fault of ours
    ├── EngineScoresError    the engine answered without one finite logit per option
    └── EngineDeadError      the engine or one of its processes is gone
    """


class EngineStartError(EngineError):
    """The engine did not start; the message says why."""


class EngineRefusedError(EngineError):
    """The engine refused the request."""


class EngineScoresError(EngineError):
    """The scores are missing or not finite."""


class EngineDeadError(EngineError):
    """The engine is gone; no later request can succeed."""


class Engine(Protocol):
    """What the front needs of an engine."""

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score one prompt.

        Cancelling the call aborts the request inside the engine.

        Raises:
            EngineError: see its tree.
        """
        ...

    def close(self) -> None:
        """End the engine's processes. Safe to call twice."""
        ...


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How to start the engine. `extra_args` are further SGLang server arguments as on its command line; they win over ours."""

    model_path: str
    device: Literal["cuda", "cpu"]
    dtype: Literal["bfloat16", "float32"]
    max_prompt_tokens: int
    served_model_name: str
    extra_args: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """The SGLang server arguments these settings stand for."""
        context = self.max_prompt_tokens + RESERVED_TOKENS
        arguments = {
            "--model-path": self.model_path,
            "--served-model-name": self.served_model_name,
            "--device": self.device,
            "--dtype": self.dtype,
            "--context-length": str(context),
            "--max-prefill-tokens": str(context),
            "--log-level": "error",
        }
        if self.device == "cpu":
            # A CPU has no memory of its own to fill: room for a few of the longest prompts and, besides the three states
            # a running request holds, for about a hundred cached ones, not a share of the machine.
            arguments |= {"--attention-backend": "torch_native", "--max-total-tokens": str(4 * context)}
            arguments |= {"--max-running-requests": "32", "--max-mamba-cache-size": "192"}
        flags = ["--skip-server-warmup", "--enable-metrics"]
        if self.device == "cpu":
            flags.append("--sleep-on-idle")  # an idle scheduler would otherwise spin on one of the few cores
        return [part for pair in arguments.items() for part in pair] + flags + list(self.extra_args)


class SGLangEngine:
    """One embedded `sglang.Engine`: its tokenizer manager in this process, its scheduler in child processes.

    `start` must be called in the main thread, before the event loop runs; `attach` inside the loop that will call `score`.

    Attributes:
        max_prompt_tokens: the longest prompt it takes, media included.
        tokenizer: the release's.
        processor: the release's, for `MediaProcessor`; None where the release has no vision tower.
        metrics_directory: where its processes write their figures, for `EngineMetrics`, until it is closed.
    """

    def __init__(
        self,
        engine: Any,
        *,
        processor: Any | None,
        max_prompt_tokens: int,
        shares_states: bool,
        figures: "tempfile.TemporaryDirectory[str]",
    ) -> None:
        self._engine = engine
        self._figures = figures
        self._manager = engine.tokenizer_manager
        # The engine's own child processes, and what to call them.
        self._children = {child: _process_name(child) for child in multiprocessing.active_children()}
        self._death: asyncio.Future[str] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._closed = False
        self._shares_states = shares_states
        self._shared_states = SharedStates()
        self.max_prompt_tokens = max_prompt_tokens
        self.tokenizer = self._manager.tokenizer
        self.processor = processor
        self.metrics_directory = Path(figures.name)

    @classmethod
    def start(cls, settings: EngineSettings) -> "SGLangEngine":
        """Load the model and wait until the scheduler is ready.

        Raises:
            EngineStartError: SGLang refused the arguments, or a process ended while it started.
        """
        # The limit is ours to check: positions never pass the checkpoint's, only SGLang's reserve does.
        os.environ["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
        from sglang.srt.entrypoints.engine import Engine as EmbeddedEngine
        from sglang.srt.plugins import load_plugins
        from sglang.srt.runtime_context import get_memory
        from sglang.srt.server_args import prepare_server_args

        load_plugins()
        if not model_plugin.installed():
            raise EngineStartError(
                "SGLang did not load the clef plugin (entry point `clef` of the group sglang.srt.plugins); "
                "install this package into the same environment, and name `clef` in SGLANG_PLUGINS if that is set"
            )
        try:
            arguments = prepare_server_args(settings.arguments())
        except SystemExit as err:  # argparse has printed why
            raise EngineStartError("SGLang refused its server arguments; see the lines above") from err
        except ValueError as err:
            raise EngineStartError(f"SGLang refused its server arguments: {err}") from err
        # A child that fails tells its parent with SIGQUIT, and SGLang would then kill this process without a word.
        arguments.custom_sigquit_handler = _child_failed
        figures = open_directory()
        try:
            engine = EmbeddedEngine(server_args=arguments)
        except (ValueError, AssertionError, RuntimeError, OSError, NotImplementedError) as err:
            raise EngineStartError(f"SGLang did not start: {err}") from err
        manager = engine.tokenizer_manager
        return cls(
            engine,
            processor=_load_processor(settings.model_path) if model_plugin.has_vision(settings.model_path) else None,
            max_prompt_tokens=min(model_plugin.prompt_limit(manager), settings.max_prompt_tokens),
            shares_states=not get_memory().disable_radix_cache,
            figures=figures,
        )

    async def attach(self, on_death: Callable[[str], None]) -> None:
        """Bind the engine to the running event loop.

        Args:
            on_death: called once, in the loop, with one line that names the process and its exit code.
        """
        # SGLang would put its own handlers for SIGTERM and SIGQUIT on the loop; the server owns its signals.
        self._manager.signal_handler_class = _NoSignals
        self._manager.auto_create_handle_loop()
        self._death = asyncio.get_running_loop().create_future()
        self._watch = asyncio.create_task(self._watch_children(on_death))

    async def _watch_children(self, on_death: Callable[[str], None]) -> None:
        while True:
            for child, name in self._children.items():
                if not child.is_alive():
                    message = f"the engine's {name} process (pid {child.pid}) ended with exit code {child.exitcode}"
                    assert self._death is not None
                    self._death.set_result(message)
                    on_death(message)
                    return
            await asyncio.sleep(CHILD_CHECK_INTERVAL_S)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """See `Engine.score`."""
        from sglang.srt.managers.io_struct import EmbeddingReqInput

        assert self._death is not None, "attach the engine first"
        if self._death.done():
            raise EngineDeadError(self._death.result())
        layout = pack_layout(
            PromptLayout(
                prompt_tokens=len(request.input_ids),
                questions=tuple(request.questions),
                state_end=request.state_end,
                namespace=namespace_of(request.cache_salt),
            )
        )
        if request.media is not None and self.processor is None:
            raise EngineRefusedError("the release has no vision tower, and the request has media")
        embedding = EmbeddingReqInput(
            rid=request.request_id,
            input_ids=list(request.input_ids),
            decision_layout=layout,
            **_media_data(request.media, request.media_start),
        )
        async with self._shared_turn(request):
            return await self._score(request, embedding)

    def _shared_turn(self, request: ScoreRequest) -> contextlib.AbstractAsyncContextManager[None]:
        """Keep requests about one new state from computing it side by side."""
        if not self._shares_states or request.state_end < MIN_SHARED_STATE_TOKENS:
            return contextlib.nullcontext()
        state = array("i", request.input_ids[: request.state_end]).tobytes()
        media = request.media.digest if request.media is not None else None
        return self._shared_states.turn((request.cache_salt, hash(state), len(state), media))

    async def _score(self, request: ScoreRequest, embedding: Any) -> ScoreResult:
        assert self._death is not None
        reply = asyncio.create_task(_last(self._manager.generate_request(embedding, None)))
        model_plugin.cached_tokens[request.request_id] = 0
        try:
            await asyncio.wait((reply, self._death), return_when=asyncio.FIRST_COMPLETED)
            if not reply.done():
                raise EngineDeadError(self._death.result())
            result = reply.result()
        except ValueError as err:
            raise EngineRefusedError(str(err)) from err
        finally:
            # Cancelling makes SGLang abort the request in its scheduler.
            reply.cancel()
            cached_tokens = model_plugin.cached_tokens.pop(request.request_id)
        return ScoreResult(
            logits=_split_scores(result["embedding"], request.questions),
            prompt_tokens=result["meta_info"]["prompt_tokens"],
            cached_tokens=cached_tokens,
        )

    def close(self) -> None:
        """See `Engine.close`. Ends only this engine's processes, at the latest after SGLang's own 60 seconds."""
        if self._closed:
            return
        self._closed = True
        if self._watch is not None and not self._watch.get_loop().is_closed():
            self._watch.cancel()
        started = time.monotonic()
        self._engine.shutdown()
        remove_directory(self._figures)
        logger.debug("engine closed in %.1f s", time.monotonic() - started)


def _load_processor(model_path: str) -> Any:
    """The release's processor as the reference loads it; SGLang changes the settings of its own."""
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(model_path)


def _media_data(media: "ProcessedMedia | None", start: int) -> dict[str, Any]:
    """Media as SGLang takes them when nothing is left to load, decode, resize or tokenize: one entry for each kind."""
    if media is None:
        return {}

    def entry(kind: str, patches: str, grids: str, features: "Features") -> list[dict[str, Any]]:
        values: dict[str, Any] = {"format": "processor_output", "modality": kind}
        values |= {patches: features.patches, grids: features.grids, model_plugin.MEDIA_DIGESTS: list(features.digests)}
        # SGLang would look for the placeholder tokens, and a state may hold the same; its ends are inclusive.
        values["offsets"] = [(start + first, start + end - 1) for first, end in features.spans]
        return [values]

    data = {}
    if media.images is not None:
        data["image_data"] = entry("IMAGE", "pixel_values", "image_grid_thw", media.images)
    if media.videos is not None:
        data["video_data"] = entry("VIDEO", "pixel_values_videos", "video_grid_thw", media.videos)
    return data


class _NoSignals:
    """In the place of SGLang's signal handlers: a dead child is noticed by `_watch_children`, SIGTERM by the server."""

    def __init__(self, manager: Any) -> None:
        del manager

    def sigterm_handler(self, signum: Any = None, frame: Any = None) -> None:
        """Does nothing."""

    def running_phase_sigquit_handler(self, signum: Any = None, frame: Any = None) -> None:
        """Does nothing."""


def _child_failed(signum: int, frame: Any) -> None:
    """On SIGQUIT while the engine starts: say nothing, the wait for the scheduler fails by itself and tells why."""


def _process_name(child: multiprocessing.process.BaseProcess) -> str:
    try:
        title = psutil.Process(child.pid).cmdline()[0]
    except (psutil.Error, IndexError):
        return "child"
    return "scheduler" if "scheduler" in title else "detokenizer" if "detokenizer" in title else "child"


async def _last(replies: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    """The last reply of a request, which ends with it; SGLang sends one for an embedding."""
    result: dict[str, Any] = {}
    async for reply in replies:
        result = reply
    return result


def _split_scores(values: list[float], questions: Sequence[QuestionSpans]) -> list[list[float]]:
    expected = sum(len(question.options) for question in questions)
    if len(values) != expected:
        raise EngineScoresError(f"the engine returned {len(values)} scores for {expected} options")
    if not all(map(math.isfinite, values)):
        raise EngineScoresError("the engine returned a score that is not finite")
    scores = iter(values)
    return [list(itertools.islice(scores, len(question.options))) for question in questions]
