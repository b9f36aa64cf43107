"""Prompts whole, in chunks, after a cached prefix, interleaved and aborted: the answer is the reference's each time.

`Slots` plays SGLang's memory: KV slots are handed out, freed and handed out again, and never in order.
"""

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from model_plugin import pooler as pooler_module
from model_plugin.memory_pool import MemoryRows, row_bytes
from model_plugin.pooler import Chunk, SchemaPooler
from model_plugin.schema_layout import PromptLayout, QuestionSpans
from tests import tolerances
from tests.model_plugin.reference_head import Heads, Prompt, distance, random_heads, random_prompts

HEADS = random_heads()
PROMPTS = random_prompts(HEADS, 5)
EXPECTED = [HEADS.expected(prompt) for prompt in PROMPTS]
LONGEST = max(len(prompt) for prompt in PROMPTS)


def pooler_of(heads: Heads, slots: int | None = 4096) -> SchemaPooler:
    """A pooler on one rank; with a row pool unless `slots` is None."""
    pooler = SchemaPooler(heads.ours, heads)
    if slots is not None:
        dtype = heads.output_VD.dtype
        pooler.rows = MemoryRows(slots=slots, width=heads.config.width, dtype=dtype, device="cpu")
    return pooler


@dataclass(frozen=True, kw_only=True)
class Part:
    """Tokens `[start, end)` of a prompt, and where they lie."""

    request: str
    prompt: Prompt
    start: int
    end: int
    slots_T: Tensor  # of the whole prompt


def step(pooler: SchemaPooler, *parts: Part) -> list[Tensor]:
    """One forward over these parts."""
    logits: list[Tensor] = pooler(
        torch.cat([part.prompt.hidden_TD[part.start : part.end] for part in parts]),
        torch.cat([part.prompt.token_ids_T[part.start : part.end] for part in parts]),
        torch.cat([part.slots_T[part.start : part.end] for part in parts]),
        [
            Chunk(
                request=part.request,
                start=part.start,
                length=part.end - part.start,
                layout=part.prompt.layout,
                slots=lambda tokens, slots_T=part.slots_T: slots_T[:tokens],  # type: ignore[misc]
            )
            for part in parts
        ],
    )
    return logits


class Slots:
    """Distinct KV slots in random order."""

    def __init__(self, seed: int = 0, count: int = 4096) -> None:
        self._free = random.Random(seed).sample(range(count), count)

    def take(self, tokens: int) -> Tensor:
        taken, self._free = self._free[:tokens], self._free[tokens:]
        return torch.tensor(taken)


def in_chunks(request: str, prompt: Prompt, size: int, slots_T: Tensor, start: int = 0) -> list[Part]:
    ends = [*range(start + size, len(prompt), size), len(prompt)]
    starts = [start, *ends[:-1]]
    return [
        Part(request=request, prompt=prompt, start=first, end=end, slots_T=slots_T)
        for first, end in zip(starts, ends, strict=True)
    ]


def whole(request: str, prompt: Prompt, slots_T: Tensor) -> Part:
    return in_chunks(request, prompt, len(prompt), slots_T)[0]


def assert_right(prompt: Prompt, logits: Tensor, expected: Tensor) -> None:
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
    assert distance(prompt.layout, logits, expected) <= tolerances.FP32


@pytest.mark.parametrize("with_rows", [True, False], ids=["row pool", "no row pool"])
def test_a_ragged_batch_equals_the_reference_one_at_a_time(with_rows: bool) -> None:
    slots = Slots()
    parts = [whole(str(index), prompt, slots.take(len(prompt))) for index, prompt in enumerate(PROMPTS)]
    logits = step(pooler_of(HEADS, 4096 if with_rows else None), *parts)
    for prompt, got, expected in zip(PROMPTS, logits, EXPECTED, strict=True):
        assert_right(prompt, got, expected)


def test_bfloat16_stays_near_the_reference() -> None:
    heads = random_heads(dtype=torch.bfloat16)
    slots = Slots()
    prompts = random_prompts(heads, 4)
    pooler = pooler_of(heads)
    for index, prompt in enumerate(prompts):
        *earlier, last = in_chunks(str(index), prompt, 64, slots.take(len(prompt)))
        for part in earlier:
            step(pooler, part)
        assert distance(prompt.layout, step(pooler, last)[0], heads.expected(prompt)) <= tolerances.BF16


@pytest.mark.parametrize("size", [*range(1, 18), 64])
def test_chunks_of_any_size_equal_the_whole(size: int) -> None:
    pooler, slots = pooler_of(HEADS), Slots()
    for index, (prompt, expected) in enumerate(zip(PROMPTS, EXPECTED, strict=True)):
        *earlier, last = in_chunks(str(index), prompt, size, slots.take(len(prompt)))
        for part in earlier:
            assert step(pooler, part)[0].numel() == 0
        assert_right(prompt, step(pooler, last)[0], expected)
    assert not pooler._unfinished


@pytest.mark.parametrize("cached", [1, 63, 64, 100, "all"], ids=str)
def test_a_cached_state_equals_a_cold_one(cached: int | str) -> None:
    """Another prompt over the same state reads the first one's memory rows, and computes only the rest."""
    generator = torch.Generator().manual_seed(5)
    state_end = 130
    state = torch.randn(state_end, HEADS.config.hidden_size, generator=generator)
    state_ids = torch.randint(0, 100, (state_end,), generator=generator)
    prompts = []
    for options in (2, 9):
        spans = tuple((state_end + 5 + 3 * index, state_end + 7 + 3 * index) for index in range(options))
        question = QuestionSpans(question_type="choice", question=(state_end, state_end + 4), options=spans)
        tokens = state_end + 50
        own = torch.randn(50, HEADS.config.hidden_size, generator=generator)
        prompts.append(
            Prompt(
                layout=PromptLayout(prompt_tokens=tokens, questions=(question,), state_end=state_end),
                hidden_TD=torch.cat([state, own]),
                token_ids_T=torch.cat([state_ids, torch.randint(0, 100, (50,), generator=generator)]),
            )
        )
    pooler, slots = pooler_of(HEADS), Slots()
    first, second = prompts
    first_slots_T = slots.take(len(first))
    step(pooler, whole("first", first, first_slots_T))
    reused = state_end if cached == "all" else int(cached)
    slots_T = torch.cat([first_slots_T[:reused], slots.take(len(second) - reused)])
    hit = Part(request="second", prompt=second, start=reused, end=len(second), slots_T=slots_T)
    assert_right(second, step(pooler, hit)[0], HEADS.expected(second))


@pytest.mark.parametrize("seed", range(4))
def test_interleaved_requests_keep_apart(seed: int) -> None:
    """Each forward holds the next chunks of some prompts, of random lengths, in random order."""
    rng, slots, pooler = random.Random(seed), Slots(seed), pooler_of(HEADS)
    # No more prompts are in the middle of their chunks at a time than sums are kept.
    waiting = [(index, slots.take(len(prompt))) for index, prompt in enumerate(PROMPTS)]
    at = {index: 0 for index, _ in waiting}
    answers: dict[int, Tensor] = {}
    while waiting:
        batch = rng.sample(waiting[:3], k=rng.randint(1, len(waiting[:3])))
        parts = []
        for index, slots_T in batch:
            end = min(len(PROMPTS[index]), at[index] + rng.randint(1, 40))
            parts.append(Part(request=str(index), prompt=PROMPTS[index], start=at[index], end=end, slots_T=slots_T))
            at[index] = end
        for (index, _), part, logits in zip(batch, parts, step(pooler, *parts), strict=True):
            if part.end == len(part.prompt):
                answers[index] = logits
            else:
                assert logits.numel() == 0
        waiting = [(index, slots_T) for index, slots_T in waiting if at[index] < len(PROMPTS[index])]
    for index, prompt in enumerate(PROMPTS):
        assert_right(prompt, answers[index], EXPECTED[index])


def test_an_aborted_prompt_leaves_nothing_behind() -> None:
    """Its next chunk never comes, and another prompt takes its slots."""
    pooler, slots = pooler_of(HEADS), Slots()
    slots_T = slots.take(LONGEST)
    for attempt in range(20):
        aborted, later = PROMPTS[attempt % len(PROMPTS)], PROMPTS[(attempt + 1) % len(PROMPTS)]
        for part in in_chunks(f"aborted {attempt}", aborted, 8, slots_T)[:-1]:
            step(pooler, part)
            assert len(pooler._unfinished) <= pooler_module._UNFINISHED_KEPT
        answer = step(pooler, whole(f"later {attempt}", later, slots_T))[0]
        assert_right(later, answer, EXPECTED[(attempt + 1) % len(PROMPTS)])
    assert f"aborted {attempt}" in pooler._unfinished, "nothing was left behind: the test aborts too early"


def test_a_prompt_asked_again_under_its_name_starts_over() -> None:
    pooler, prompt = pooler_of(HEADS), PROMPTS[0]
    slots_T = Slots().take(len(prompt))
    middle = prompt.layout.questions[0].options[0][0]
    first = Part(request="name", prompt=prompt, start=0, end=middle, slots_T=slots_T)
    rest = Part(request="name", prompt=prompt, start=middle, end=len(prompt), slots_T=slots_T)
    for part in (first, first):
        step(pooler, part)
    assert_right(prompt, step(pooler, rest)[0], EXPECTED[0])


@pytest.mark.parametrize("kept", [False, True], ids=["no sums", "sums of an earlier place"])
def test_a_chunk_that_continues_nothing_gives_no_scores(kept: bool) -> None:
    pooler, slots = pooler_of(HEADS), Slots()
    prompt = PROMPTS[0]
    slots_T = slots.take(len(prompt))
    middle = prompt.layout.questions[0].question[0] + 1
    if kept:
        step(pooler, Part(request="name", prompt=prompt, start=0, end=middle, slots_T=slots_T))
    missed = middle + 1
    rest = Part(request="name", prompt=prompt, start=missed, end=len(prompt), slots_T=slots_T)
    beside = whole("beside", PROMPTS[1], slots.take(len(PROMPTS[1])))
    nothing, answer = step(pooler, rest, beside)
    assert nothing.numel() == 0
    assert_right(PROMPTS[1], answer, EXPECTED[1])
    assert not pooler._unfinished


def test_a_request_without_a_layout_gives_nothing() -> None:
    pooler = pooler_of(HEADS, None)
    prompt = PROMPTS[0]
    hidden_TD = torch.cat([torch.randn(3, HEADS.config.hidden_size), prompt.hidden_TD])
    token_ids_T = torch.cat([torch.zeros(3, dtype=torch.long), prompt.token_ids_T])
    chunks = [
        Chunk(request="check", start=0, length=3, layout=None, slots=torch.arange),
        Chunk(request="asks", start=0, length=len(prompt), layout=prompt.layout, slots=torch.arange),
    ]
    nothing, answer = pooler(hidden_TD, token_ids_T, None, chunks)
    assert nothing.shape == (0,)
    assert_right(prompt, answer, EXPECTED[0])


@pytest.mark.parametrize("rows", [1, 100, 400])
def test_many_memory_rows_are_scored_in_several_passes(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    handle = HEADS.ours.register_forward_pre_hook(lambda _, inputs: passes.append(len(inputs[0].memory_MW)))
    monkeypatch.setattr(pooler_module, "_ROWS_A_PASS", rows)
    slots = Slots()
    parts = [whole(str(index), prompt, slots.take(len(prompt))) for index, prompt in enumerate(PROMPTS)]
    try:
        logits = step(pooler_of(HEADS), *parts)
    finally:
        handle.remove()
    for prompt, got, expected in zip(PROMPTS, logits, EXPECTED, strict=True):
        assert_right(prompt, got, expected)
    assert sum(passes) == sum(len(prompt) for prompt in PROMPTS)
    assert len(passes) > 1
    assert all(count <= max(rows, LONGEST) for count in passes)
    if rows == 1:
        assert passes == [len(prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_size_of_a_row_is_what_the_pool_occupies(dtype: torch.dtype) -> None:
    rows = MemoryRows(slots=10, width=48, dtype=dtype, device="cpu")
    assert rows.size_bytes == 10 * row_bytes(48, dtype)
