"""One request's way from body bytes to answer bytes: read, check, encode, score, answer. Knows nothing of HTTP."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from serving import strict_json
from serving.answers import answers
from serving.api_types import NoulQuestion, Question, SystemOneRequest, SystemOneResponse, Usage, parse_request
from serving.engine import Engine, EngineDeadError, ScoreRequest, ScoreResult
from serving.errors import Fault, InvalidRequestError, PromptTooLongError, UnknownModelError, json_bytes
from serving.lifecycle import Lifecycle
from serving.prompt import EncodedPrompt, PromptEncoder
from serving.settings import ServingSettings
from serving.tokenizer import Tokenizer

# Long enough to compile what a long prompt needs, short enough not to hold up the start.
MAX_WARM_UP_STATE_TOKENS = 2048
WARM_UP_QUESTIONS: Mapping[str, Question] = {
    "warm_up": NoulQuestion(type="noul", instructions="Is this a warm-up request?")
}
WARM_UP_LINE = "Line of the warm-up text, without meaning.\n"


@dataclass(kw_only=True)
class RequestRecord:
    """What is known of a request, for its log line. Counts are tokens; None where it was not reached."""

    request_id: str
    status: int | None = None
    outcome: str = "ok"
    questions: Counter[str] = field(default_factory=Counter)
    state_tokens: int | None = None
    schema_tokens: int | None = None


class Front:
    """Answers requests with one engine and one tokenizer.

    Args:
        engine: scores prompts. Whoever made it closes it.
        tokenizer: the release's, a Transformers fast tokenizer.
        settings: see `ServingSettings`.
        lifecycle: told when the engine is found dead.

    Raises:
        ValueError: the tokenizer cannot be used; see `PromptEncoder`.
    """

    def __init__(
        self, *, engine: Engine, tokenizer: Tokenizer, settings: ServingSettings, lifecycle: Lifecycle
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
        )
        self._pool = ThreadPoolExecutor(settings.tokenizer_threads, thread_name_prefix="clef-encode")

    def close(self) -> None:
        """End the threads. Requests that were not encoded yet are cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def answer(self, body: bytes, record: RequestRecord) -> bytes:
        """The response body for a request body.

        Cancelling the call aborts the request inside the engine.

        Raises:
            RequestError: the request cannot be answered, and why.
            EngineError: the engine failed.
        """
        self._lifecycle.require_serving()
        request, prompts = await self._in_pool(self._read, body, record)
        response = await self._decide(record.request_id, request.questions, prompts, request.cache_salt)
        return json_bytes(response.model_dump())

    async def warm_up(self) -> None:
        """Answer one short and one long request.

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
        await self._decide("warm-up-short", WARM_UP_QUESTIONS, [short])
        await self._decide("warm-up-long", WARM_UP_QUESTIONS, [long])

    def _read(self, body: bytes, record: RequestRecord) -> tuple[SystemOneRequest, list[EncodedPrompt]]:
        request = parse_request(
            strict_json.parse(body, max_depth=self._settings.max_nesting_depth),
            max_questions=self._settings.max_questions,
            max_options=self._settings.max_options,
        )
        if request.images or request.videos or request.assets:
            fault = Fault(loc=["body"], msg="media are not supported by this server yet", type="field_not_supported")
            raise InvalidRequestError([fault])
        record.questions.update(question.type for question in request.questions.values())
        if request.model is not None and request.model not in self._accepted_names:
            raise UnknownModelError(
                f"no model '{strict_json.shorten(request.model)}' is served here; "
                f"the names are {', '.join(self._settings.accepted_names)}"
            )
        neutral_ids = request.x_question_ids == "neutral"
        if request.x_isolated:
            prompts = self._encoder.encode_isolated(request.state, request.questions, neutral_ids=neutral_ids)
        else:
            prompts = [self._encoder.encode(request.state, request.questions, neutral_ids=neutral_ids)]
        record.state_tokens = prompts[0].state_tokens
        record.schema_tokens = sum(prompt.schema_tokens for prompt in prompts)
        return request, prompts

    async def _decide(
        self,
        request_id: str,
        questions: Mapping[str, Question],
        prompts: Sequence[EncodedPrompt],
        cache_salt: str | None = None,
    ) -> SystemOneResponse:
        """The answers to questions that the prompts ask between them, in order."""
        results = await self._score_all(request_id, prompts, cache_salt)
        option_names = [names for prompt in prompts for names in prompt.option_names]
        logits = [row for result in results for row in result.logits]
        return SystemOneResponse(
            model=self._settings.served_model_name,
            answers=answers(questions, option_names, logits, confidence=self._settings.confidence),
            usage=Usage(
                input_tokens=sum(result.prompt_tokens for result in results),
                x_cached_tokens=sum(result.cached_tokens for result in results),
            ),
        )

    async def _score_all(
        self, request_id: str, prompts: Sequence[EncodedPrompt], cache_salt: str | None
    ) -> list[ScoreResult]:
        """Score prompts about one state. If one fails the others are aborted, and its error is raised as it is."""
        if len(prompts) == 1:
            return [await self._score(request_id, prompts[0], cache_salt)]
        # SGLang aborts every request whose id begins with the one it is given, so that no id may be another's beginning.
        ids = [f"{request_id}-{number:06d}" for number in range(len(prompts))]
        # The first leaves the computed state in the engine's cache; all at once would each compute it.
        first = await self._score(ids[0], prompts[0], cache_salt)
        try:
            async with asyncio.TaskGroup() as group:
                rest = [
                    group.create_task(self._score(prompt_id, prompt, cache_salt))
                    for prompt_id, prompt in zip(ids[1:], prompts[1:], strict=True)
                ]
        except ExceptionGroup as err:
            raise err.exceptions[0] from None
        return [first, *(task.result() for task in rest)]

    async def _score(self, request_id: str, prompt: EncodedPrompt, cache_salt: str | None) -> ScoreResult:
        try:
            return await self._engine.score(
                ScoreRequest(
                    request_id=request_id,
                    input_ids=prompt.input_ids,
                    questions=prompt.questions,
                    state_end=prompt.state_end,
                    cache_salt=cache_salt,
                )
            )
        except EngineDeadError as err:
            self._lifecycle.fail(str(err))
            raise

    async def _in_pool(self, work: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)
