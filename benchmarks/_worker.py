"""One side of a comparison in a process of its own: an embedded engine, prompts as JSON lines in, logits and times out.

`python -m benchmarks._worker SETTINGS_JSON`, with the environment that `_sides` prepares. The first line out says what the
engine is; then one line in is one round, whose prompts are asked at once, and one line out is its answers.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import model_plugin
from model_plugin.schema_layout import QUESTION_TYPES, QuestionSpans
from serving.engine import EngineSettings, ScoreRequest, SGLangEngine

# logits of each question, prompt tokens, cached tokens
Answer = tuple[list[list[float]], int, int]
Ask = Callable[[str, list[int], list[QuestionSpans], int], Coroutine[Any, Any, Answer]]


def start_ours(settings: EngineSettings, loop: asyncio.AbstractEventLoop) -> tuple[Ask, Callable[[], None]]:
    """The product's engine, as its server starts and asks it."""
    engine = SGLangEngine.start(settings)
    loop.run_until_complete(engine.attach(lambda message: print(message, file=sys.stderr)))

    async def ask(name: str, input_ids: list[int], questions: list[QuestionSpans], state_end: int) -> Answer:
        request = ScoreRequest(request_id=name, input_ids=input_ids, questions=questions, state_end=state_end)
        result = await engine.score(request)
        return result.logits, result.prompt_tokens, result.cached_tokens

    return ask, engine.close


def start_stock(settings: EngineSettings) -> tuple[Ask, Callable[[], None]]:
    """SGLang's own engine, asked as its own /v1/systemone route asks it."""
    os.environ["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.layers.joint_schema_head import LayoutQuestion, pack_decision_layout
    from sglang.srt.managers.io_struct import EmbeddingReqInput
    from sglang.srt.server_args import prepare_server_args

    engine = Engine(server_args=prepare_server_args(settings.arguments()))
    if model_plugin.installed():
        raise SystemExit("stock SGLang was asked for, and the clef plugin is in place")

    async def ask(name: str, input_ids: list[int], questions: list[QuestionSpans], state_end: int) -> Answer:
        del state_end  # not known to SGLang
        layout = pack_decision_layout(
            len(input_ids),
            [LayoutQuestion(QUESTION_TYPES.index(q.question_type), q.question, q.options) for q in questions],
        )
        request = EmbeddingReqInput(rid=name, input_ids=input_ids, decision_layout=layout)
        (reply,) = [reply async for reply in engine.tokenizer_manager.generate_request(request, None)]
        values = iter(reply["embedding"])
        logits = [[next(values) for _ in question.options] for question in questions]
        # Its prefix cache is off, which `facts` shows.
        return logits, reply["meta_info"]["prompt_tokens"], 0

    return ask, engine.shutdown


def facts(side: str) -> dict[str, Any]:
    """What runs here, read from the engine's own resolved settings."""
    import sglang
    import torch
    import transformers
    from sglang.srt.runtime_context import get_memory, get_schedule

    cuda = torch.cuda.is_available() and os.environ.get("SGLANG_USE_CPU_ENGINE") != "1"
    return {
        "side": side,
        "sglang": sglang.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "radix_cache": not get_memory().disable_radix_cache,
        "chunked_prefill_tokens": get_schedule().chunked_prefill_size,
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if cuda else None,
        "cuda": torch.version.cuda if cuda else None,
    }


async def answer_round(ask: Ask, number: int, prompts: list[dict[str, Any]]) -> dict[str, Any]:
    """Ask all prompts of a round at once."""

    async def one(position: int, prompt: dict[str, Any]) -> dict[str, Any]:
        questions = [
            QuestionSpans(question_type=kind, question=tuple(span), options=tuple(map(tuple, options)))
            for kind, span, options in prompt["questions"]
        ]
        started = time.perf_counter()
        logits, tokens, cached = await ask(
            f"round-{number}-{position}", prompt["input_ids"], questions, prompt["state_end"]
        )
        seconds = time.perf_counter() - started
        return {"logits": logits, "prompt_tokens": tokens, "cached_tokens": cached, "seconds": seconds}

    started = time.perf_counter()
    answers = await asyncio.gather(*(one(position, prompt) for position, prompt in enumerate(prompts)))
    return {"seconds": time.perf_counter() - started, "answers": answers}


def main() -> None:
    """Start the engine, then answer rounds until standard input ends."""
    # Standard output carries our lines alone; whatever SGLang prints goes where its log goes.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    values = json.loads(sys.argv[1])
    side = values.pop("side")
    settings = EngineSettings(**values | {"extra_args": tuple(values["extra_args"])})
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    ask, close = start_ours(settings, loop) if side == "ours" else start_stock(settings)

    def say(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=out, flush=True)

    try:
        say(facts(side))
        for number, line in enumerate(sys.stdin):
            say(loop.run_until_complete(answer_round(ask, number, json.loads(line))))
    finally:
        close()


if __name__ == "__main__":
    main()
