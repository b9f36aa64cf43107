"""How long it takes to encode a request's prompt: ours beside SGLang 0.5.23's `encode_joint_schema`, in one run.

Both sides get the same tokenizer, the same state and the same questions, and must return the same tokens and spans.
SGLang keeps nothing between requests, so its first and repeated times are one figure; ours differ by the cached schema.
Knows nothing of engines or HTTP. Run it with `python -m benchmarks.prompt_encoding`; the last line is one JSON object.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from serving.api_types import SystemOneRequest, parse_request
from serving.prompt import EncodedPrompt, PromptEncoder

OPTION_COUNTS = (3, 77, 255)
MAX_ROUNDS = 200
NO_LIMIT_TOKENS = 10**6
WORDS = [
    "invoice", "refund", "parcel", "courier", "warranty", "outage", "login", "password", "contract", "renewal",
    "pricing", "discount", "shipment", "damage", "delay", "customs", "payroll", "training", "onboarding", "export",
    "backup", "database", "latency", "certificate", "firewall", "printer", "licence",
]  # fmt: skip
STATE_LINE = "Kestrel Robotics reports that shipment {number} arrived late and asks who pays the storage fee.\n"


def request_body(options: int, state: str, salt: int) -> dict[str, Any]:
    """A request with one choice. Another salt makes another schema of the same size."""
    criteria = {}
    for number in range(options):
        words = [WORDS[(number * step + salt) % len(WORDS)] for step in (1, 5, 7, 11)]
        criteria[f"{words[0]} {words[1]} {number}"] = f"Requests about {words[2]} or {words[3]}, queue {salt + number}."
    question = {"type": "choice", "instructions": "Which queue should this ticket go to?", "criteria": criteria}
    return {"model": "clef", "state": state, "questions": {"queue": question}}


def state_of(tokenizer: Any, tokens: int) -> str:
    """Text of about so many tokens, at least one line."""
    lines: list[str] = []
    counted = 0
    while not lines or counted < tokens:
        lines.append(STATE_LINE.format(number=1000 + len(lines)))
        counted += len(tokenizer(lines[-1], add_special_tokens=False).input_ids)
    return "".join(lines)


@contextmanager
def tokenizer_from(path: Path | None) -> Iterator[tuple[Any, str]]:
    """The tokenizer and what to call it; without a path, the one of the random release, trained on the spot."""
    if path is not None:
        yield AutoTokenizer.from_pretrained(path), str(path)
        return
    from benchmarks.random_release import build_random_release

    with tempfile.TemporaryDirectory() as temporary:
        yield AutoTokenizer.from_pretrained(build_random_release(Path(temporary) / "release")), "random release"


def spans_of(layout: list[int]) -> list[tuple[tuple[int, int], list[tuple[int, int]]]]:
    """Each question's span and its options' spans in SGLang's flat layout: `[length, questions, (type, start, end,
    options, (start, end)*)*]`."""
    found, rest = [], iter(layout[2:])
    for _ in range(layout[1]):
        next(rest)
        question = (next(rest), next(rest))
        found.append((question, [(next(rest), next(rest)) for _ in range(next(rest))]))
    return found


def milliseconds(work: Callable[[], Any]) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


class Sides:
    """Both encoders around one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        from sglang.srt.entrypoints.systemone import joint_schema, protocol

        self._tokenizer, self._joint_schema, self._protocol = tokenizer, joint_schema, protocol
        self.encoder = self.new_encoder()

    def new_encoder(self) -> PromptEncoder:
        """Ours, with an empty cache."""
        return PromptEncoder(
            tokenizer=self._tokenizer, max_prompt_tokens=NO_LIMIT_TOKENS, cache_entries=64, cache_tokens=10**6
        )

    def sglang_request(self, body: dict[str, Any]) -> Any:
        """The request in SGLang's types, which it encodes from."""
        return self._protocol.SystemOneRequest.model_validate(body)

    def sglang(self, request: Any) -> tuple[list[int], list[int]]:
        """SGLang's prompt and layout."""
        ids, layout = self._joint_schema.encode_joint_schema(self._tokenizer, request, NO_LIMIT_TOKENS, ())
        return ids, layout

    def ours(self, request: SystemOneRequest) -> EncodedPrompt:
        """Our prompt and spans."""
        return self.encoder.encode(request.state, request.questions)

    def check_equal(self, body: dict[str, Any]) -> EncodedPrompt:
        """Stop unless both sides agree on every token and span, from an empty cache and from a full one."""
        ids, layout = self.sglang(self.sglang_request(body))
        for _ in range(2):
            prompt = self.ours(parse_request(body))
            assert prompt.input_ids == ids, "the two sides disagree on the prompt"
            assert [(q.question, list(q.options)) for q in prompt.questions] == spans_of(layout), "... or on the spans"
        return prompt


def compare(sides: Sides, options: int, state: str, budget_s: float) -> dict[str, Any]:
    """Median times for one number of options. The three measurements take turns, so that a busy moment meets all."""
    prompt = sides.check_equal(request_body(options, state, salt=0))
    times: dict[str, list[float]] = {"sglang": [], "first": [], "repeated": []}
    deadline = time.perf_counter() + budget_s
    salt = 0
    while salt < MAX_ROUNDS and (time.perf_counter() < deadline or salt < 5):
        salt += 1
        body = request_body(options, state, salt)
        theirs, ours = sides.sglang_request(body), parse_request(body)
        times["sglang"].append(milliseconds(partial(sides.sglang, theirs)))
        times["first"].append(milliseconds(partial(sides.ours, ours)))
        times["repeated"].append(milliseconds(partial(sides.ours, ours)))
    sglang, first, repeated = (statistics.median(times[name]) for name in ("sglang", "first", "repeated"))
    return {
        "options": options,
        "prompt_tokens": len(prompt.input_ids),
        "state_tokens": prompt.state_tokens,
        "schema_tokens": prompt.schema_tokens,
        "sglang_ms": round(sglang, 3),
        "first_ms": round(first, 3),
        "repeated_ms": round(repeated, 3),
        "first_ratio": round(sglang / first, 2),
        "repeated_ratio": round(sglang / repeated, 2),
        "rounds": salt,
    }


async def longest_gap_ms(work: Callable[[], Awaitable[Any]]) -> float:
    """The longest time in which the event loop ran nothing else while `work` was under way."""
    gap_s, last, done = 0.0, time.perf_counter(), False

    async def tick() -> None:
        nonlocal gap_s, last
        while not done:
            await asyncio.sleep(0)
            now = time.perf_counter()
            gap_s, last = max(gap_s, now - last), now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    await work()
    done = True
    await ticking
    return gap_s * 1000


async def loop_blocking(sides: Sides, options: int, state: str, rounds: int = 15) -> dict[str, Any]:
    """The median of the longest gap in the event loop while one new schema is encoded, each side as it is called.

    SGLang encodes in the handler itself; ours runs in a thread, and only what holds the interpreter lock delays the loop.
    """
    loop = asyncio.get_running_loop()
    gaps: dict[str, list[float]] = {"sglang": [], "ours": []}
    with ThreadPoolExecutor(1) as pool:
        for salt in range(1000, 1000 + rounds):
            body = request_body(options, state, salt)
            theirs, ours = sides.sglang_request(body), parse_request(body)

            async def in_loop(request: Any = theirs) -> None:
                sides.sglang(request)

            async def in_thread(request: SystemOneRequest = ours) -> None:
                await loop.run_in_executor(pool, sides.ours, request)

            gaps["sglang"].append(await longest_gap_ms(in_loop))
            gaps["ours"].append(await longest_gap_ms(in_thread))
    return {
        "options": options,
        "sglang_loop_blocked_ms": round(statistics.median(gaps["sglang"]), 3),
        "ours_loop_blocked_ms": round(statistics.median(gaps["ours"]), 3),
    }


def main() -> None:
    """Measure, print a table, and as the last line one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, help="directory of a tokenizer; default: the random release's")
    parser.add_argument("--state-tokens", type=int, default=200, help="size of the state, in tokens (default 200)")
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each number of options, in s (default 5)")
    arguments = parser.parse_args()
    with tokenizer_from(arguments.tokenizer) as (tokenizer, name):
        state = state_of(tokenizer, arguments.state_tokens)
        sides = Sides(tokenizer)
        results = [compare(sides, options, state, arguments.seconds) for options in OPTION_COUNTS]
        blocking = asyncio.run(loop_blocking(sides, OPTION_COUNTS[-1], state))
        vocabulary = len(tokenizer)
    print(f"tokenizer: {name}, {vocabulary} entries; {os.cpu_count()} cores; medians in ms")
    print(
        f"{'options':>8}{'tokens':>8}{'SGLang':>10}{'first':>10}{'repeated':>10}{'SGLang/first':>14}{'SGLang/repeated':>17}"
    )
    for row in results:
        print(
            f"{row['options']:>8}{row['prompt_tokens']:>8}{row['sglang_ms']:>10.3f}{row['first_ms']:>10.3f}"
            f"{row['repeated_ms']:>10.3f}{row['first_ratio']:>14.1f}{row['repeated_ratio']:>17.1f}"
        )
    print(
        f"event loop blocked by one new schema of {blocking['options']} options: "
        f"SGLang {blocking['sglang_loop_blocked_ms']:.1f} ms, ours {blocking['ours_loop_blocked_ms']:.1f} ms"
    )
    report = {"tokenizer": name, "vocabulary_entries": vocabulary, "cpu_cores": os.cpu_count()}
    print(json.dumps(report | {"results": results, "event_loop": blocking}))


if __name__ == "__main__":
    main()
