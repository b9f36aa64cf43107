"""One request's way from body to answer: read, check, encode, wait, score, answer. Knows nothing of HTTP."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from serving import strict_json
from serving.admission import Admission
from serving.answers import answers, decisions
from serving.api_types import (
    MAX_CHOICE_OPTIONS,
    ChoiceQuestion,
    NoulQuestion,
    Question,
    SystemOneRequest,
    SystemOneResponse,
    Usage,
    parse_request,
)
from serving.assets import Placed, place_assets, refuse_inline_media
from serving.auth import ANONYMOUS, Caller
from serving.engine import Engine, EngineDeadError, ScoreRequest, ScoreResult
from serving.errors import PromptTooLongError, RequestTimeoutError, UnknownModelError, json_bytes
from serving.lifecycle import Lifecycle
from serving.media.processed import ProcessedMedia
from serving.metrics import Metrics
from serving.prompt import EncodedPrompt, PromptEncoder
from serving.rate_limits import RateLimiter
from serving.request_body import RequestBody
from serving.request_media import MediaDesk
from serving.request_record import RequestRecord
from serving.settings import CLOUDFLARE_PREFIX, ServingSettings
from serving.tokenizer import Tokenizer

# Long enough to compile what a long prompt needs, short enough not to hold up the start.
MAX_WARM_UP_STATE_TOKENS = 2048
WARM_UP_QUESTIONS: Mapping[str, Question] = {
    "warm_up": NoulQuestion(type="noul", instructions="Is this a warm-up request?")
}
WARM_UP_MANY: Mapping[str, Question] = {
    "warm_up": ChoiceQuestion(
        type="choice", criteria={f"option {number}": None for number in range(MAX_CHOICE_OPTIONS)}
    )
}
WARM_UP_LINE = "Line of the warm-up text, without meaning.\n"


class Front:
    """Answers requests with one engine and one tokenizer.

    Args:
        engine: scores prompts. Whoever made it closes it.
        tokenizer: the release's, a Transformers fast tokenizer.
        processor: the release's, a Transformers processor; without one, media are refused.
        settings: see `ServingSettings`.
        lifecycle: told when the engine is found dead.

    Attributes:
        admission: who is in the engine and who waits for it, to be read.

    Raises:
        ValueError: tokenizer or processor cannot be used; see `PromptEncoder` and `MediaProcessor`.
    """

    def __init__(
        self, *, engine: Engine, tokenizer: Tokenizer, processor: Any, settings: ServingSettings, lifecycle: Lifecycle
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._lifecycle = lifecycle
        self._accepted_names = frozenset(settings.accepted_names)
        self._encoder = PromptEncoder(
            tokenizer=tokenizer,
            max_prompt_tokens=settings.max_prompt_tokens,
            cache_entries=settings.schema_cache_entries,
            cache_tokens=settings.schema_cache_tokens,
            exact_control_tokens=settings.exact_control_tokens,
        )
        self._media = MediaDesk(processor, settings)
        self._rates = RateLimiter()
        self.admission = Admission(settings.admission)
        self._pool = ThreadPoolExecutor(settings.tokenizer_threads, thread_name_prefix="clef-encode")

    async def aclose(self) -> None:
        """End the threads. Requests that were not encoded yet are cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        await self._media.aclose()

    def show_in(self, metrics: Metrics) -> None:
        """Let these figures show what is here now."""
        metrics.watch(admission=self.admission, schema_cache=self._encoder.schema_cache, lifecycle=self._lifecycle)

    @contextlib.contextmanager
    def room(self, caller: Caller) -> Iterator[None]:
        """Room for one request, while the body runs, asked for before anything of it is read; counts as one of the caller's.

        Raises:
            NotServingError, EngineDeadError: no request can be answered now.
            OverloadedError: too many requests are here already.
            RateLimitedError: the caller has used up its requests.
        """
        with self._lifecycle.request(), self.admission.place():
            self._rates.take_request(caller)
            yield

    async def answer(
        self,
        body: RequestBody,
        record: RequestRecord,
        *,
        deadline: float,
        caller: Caller = ANONYMOUS,
        priority: int = 0,
    ) -> bytes:
        """The response body for a request body.

        Cancelling the call aborts the request inside the engine.

        Args:
            body: as it was read.
            record: filled in on the way.
            deadline: when the answer must be there, by `time.monotonic`.
            caller: whose prefixes it may share, and whose tokens it uses.
            priority: the higher goes first.

        Raises:
            RequestError: the request cannot be answered, and why.
            EngineError: the engine failed.
        """
        self._lifecycle.require_alive()
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await self._answer(body, record, caller, deadline, priority)
        except TimeoutError as err:
            raise RequestTimeoutError("the answer was not there before the deadline", retry_after_ms=1000) from err

    async def _answer(
        self, body: RequestBody, record: RequestRecord, caller: Caller, deadline: float, priority: int
    ) -> bytes:
        self.admission.require_time(deadline=deadline, priority=priority)
        with record.stage("encode"):
            request, placed = await self._in_pool(self._read, body.document, record)
            media = await self._media.open(request, placed.names, body.parts)
            record.images, record.videos = media.images, media.videos
            # The prompt's length is known, and may be refused, before a pixel is decoded.
            prompts: list[EncodedPrompt] = await self._in_pool(self._encode, request, placed, media.tokens, record)
            tokens = sum(len(prompt.input_ids) for prompt in prompts)
            self._rates.take_tokens(caller, tokens)
        async with contextlib.AsyncExitStack() as turn:
            with record.stage("queue"):
                waiting = self.admission.turn(tokens=_to_compute(prompts), deadline=deadline, priority=priority)
                await turn.enter_async_context(waiting)
            with record.stage("encode"):
                processed = await media.processed()
            with record.stage("engine"):
                salt = _salt(caller, request.cache_salt)
                results = await self._score_all(record.request_id, prompts, salt, processed)
        with record.stage("answer"):
            response = self._response(request.questions, prompts, results)
            record.cached_tokens = response.usage.x_cached_tokens
            record.decisions.extend(decisions(response.answers))
            return json_bytes(response.model_dump())

    async def warm_up(self) -> None:
        """Answer a short and a long request, one with many options and, where media are served, one with an image.

        Raises:
            ValueError: `max_prompt_tokens` does not hold even the short one.
            EngineError: the engine failed.
        """
        limit = self._settings.max_prompt_tokens
        try:
            short = await self._in_pool(self._encoder.encode, "A short text.", WARM_UP_QUESTIONS)
        except PromptTooLongError as err:
            raise ValueError(f"max_prompt_tokens is too small to ask anything: {err}") from err
        line_tokens = await self._in_pool(self._encoder.count, WARM_UP_LINE)
        state_tokens = min(MAX_WARM_UP_STATE_TOKENS, limit // 4, limit - len(short.input_ids))
        # Whole lines only, so that no line's end makes the text longer than counted.
        long_state = WARM_UP_LINE * max(1, state_tokens // line_tokens)
        long = await self._in_pool(self._encoder.encode, long_state, WARM_UP_QUESTIONS)
        await self._try("warm-up-short", WARM_UP_QUESTIONS, short)
        await self._try("warm-up-long", WARM_UP_QUESTIONS, long)
        with contextlib.suppress(PromptTooLongError):
            await self._try("warm-up-many", WARM_UP_MANY, await self._in_pool(self._encoder.encode, "", WARM_UP_MANY))
        if (media := await self._media.blank()) is not None and len(short.input_ids) + len(media.input_ids) <= limit:
            encode = partial(self._encoder.encode, "", WARM_UP_QUESTIONS, media_ids=media.input_ids)
            await self._try("warm-up-image", WARM_UP_QUESTIONS, await self._in_pool(encode), media)

    async def _try(
        self,
        request_id: str,
        questions: Mapping[str, Question],
        prompt: EncodedPrompt,
        media: ProcessedMedia | None = None,
    ) -> None:
        self._response(questions, [prompt], await self._score_all(request_id, [prompt], None, media))

    def _read(self, document: bytes, record: RequestRecord) -> tuple[SystemOneRequest, Placed]:
        settings = self._settings
        request = parse_request(
            strict_json.parse(document, max_depth=settings.max_nesting_depth),
            max_questions=settings.max_questions,
            max_options=settings.max_options,
        )
        for question in request.questions.values():
            record.questions[question.type] += 1
            record.options[question.type] += 2 if isinstance(question, NoulQuestion) else len(question.criteria)
        self._require_served(request.model)
        refuse_inline_media(request.state, request.questions)
        first_number = len(request.images or ()) + 1
        return request, place_assets(request.state, request.questions, request.assets or (), first_number=first_number)

    def _require_served(self, name: str | None) -> None:
        # A client of Cloudflare's sends the whole name of its model there.
        if name is not None and name.removeprefix(CLOUDFLARE_PREFIX) not in self._accepted_names:
            raise UnknownModelError(
                f"no model '{strict_json.shorten(name)}' is served here; "
                f"the names are {', '.join(self._settings.accepted_names)}"
            )

    def _encode(
        self, request: SystemOneRequest, placed: Placed, media_tokens: int, record: RequestRecord
    ) -> list[EncodedPrompt]:
        """The prompts, with room for so many tokens of media."""
        encode = self._encoder.encode_isolated if request.x_isolated else self._encoder.encode
        encoded = encode(
            placed.state,
            placed.questions,
            neutral_ids=request.x_question_ids == "neutral",
            media_ids=[0] * media_tokens,
            truncate=(request.over_limit or self._settings.over_limit) == "truncate",
        )
        prompts = encoded if isinstance(encoded, list) else [encoded]
        record.state_tokens = sum(prompt.state_tokens for prompt in prompts)
        record.schema_tokens = sum(prompt.schema_tokens for prompt in prompts)
        record.media_tokens = sum(prompt.media_tokens for prompt in prompts)
        record.truncated_tokens = sum(prompt.truncated_tokens for prompt in prompts)
        record.prompt_tokens = sum(len(prompt.input_ids) for prompt in prompts)
        return prompts

    def _response(
        self, questions: Mapping[str, Question], prompts: Sequence[EncodedPrompt], results: Sequence[ScoreResult]
    ) -> SystemOneResponse:
        """The answers to questions that the prompts ask between them, in order."""
        option_names = [names for prompt in prompts for names in prompt.option_names]
        logits = [row for result in results for row in result.logits]
        return SystemOneResponse(
            model=self._settings.served_model_name,
            answers=answers(questions, option_names, logits, confidence=self._settings.confidence),
            usage=Usage(
                input_tokens=sum(result.prompt_tokens for result in results),
                x_cached_tokens=sum(result.cached_tokens for result in results),
                x_truncated_tokens=sum(prompt.truncated_tokens for prompt in prompts),
            ),
        )

    async def _score_all(
        self, request_id: str, prompts: Sequence[EncodedPrompt], cache_salt: str | None, media: ProcessedMedia | None
    ) -> list[ScoreResult]:
        """Score prompts about one state. If one fails the others are aborted, and its error is raised as it is."""
        if len(prompts) == 1:
            return [await self._score(request_id, prompts[0], cache_salt, media)]
        # SGLang aborts every request whose id begins with the one it is given, so that no id may be another's beginning.
        ids = [f"{request_id}-{number:06d}" for number in range(len(prompts))]
        # The first leaves the computed state in the engine's cache; all at once would each compute it.
        first = await self._score(ids[0], prompts[0], cache_salt, media)
        try:
            async with asyncio.TaskGroup() as group:
                rest = [
                    group.create_task(self._score(prompt_id, prompt, cache_salt, media))
                    for prompt_id, prompt in zip(ids[1:], prompts[1:], strict=True)
                ]
        except ExceptionGroup as err:
            raise err.exceptions[0] from None
        return [first, *(task.result() for task in rest)]

    async def _score(
        self, request_id: str, prompt: EncodedPrompt, cache_salt: str | None, media: ProcessedMedia | None
    ) -> ScoreResult:
        input_ids, media_start = prompt.input_ids, prompt.state_end - prompt.state_tokens - prompt.media_tokens
        if media is not None:
            assert len(media.input_ids) == prompt.media_tokens, (len(media.input_ids), prompt.media_tokens)
            input_ids[media_start : media_start + prompt.media_tokens] = media.input_ids
        try:
            return await self._engine.score(
                ScoreRequest(
                    request_id=request_id,
                    input_ids=input_ids,
                    questions=prompt.questions,
                    state_end=prompt.state_end,
                    cache_salt=cache_salt,
                    media=media,
                    media_start=media_start,
                )
            )
        except EngineDeadError as err:
            self._lifecycle.fail(str(err))
            raise

    async def _in_pool(self, work: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)


def _to_compute(prompts: Sequence[EncodedPrompt]) -> int:
    """Tokens for the engine to compute: of isolated prompts about one state, the state once."""
    return prompts[0].state_end + sum(len(prompt.input_ids) - prompt.state_end for prompt in prompts)


def _salt(caller: Caller, cache_salt: str | None) -> str | None:
    """One salt for each pair of a tenant and what its request sent; no tenant can send another's."""
    return cache_salt if caller.tenant is None else json.dumps([caller.tenant, cache_salt])
