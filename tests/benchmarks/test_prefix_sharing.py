"""The arithmetic of the prefix benchmark, and the environments that decide what each side runs. Starts no engine."""

import importlib.metadata
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _stock_platform
from benchmarks._release import SHAPES, Shape
from benchmarks._sides import Answer, Round, SideSettings, environment
from benchmarks._workloads import (
    Prompt,
    Workloads,
    fitted,
    ideal_prefill_tokens,
    largest_difference,
    question_set,
)
from benchmarks.prefix_sharing import Comparison, parse_arguments
from model_plugin.cpu import STAND_IN_PATH
from model_plugin.schema_layout import PromptLayout
from tests.serving.harness import tiny_tokenizer


def prompt(*, state_end: int, after: int) -> Prompt:
    return Prompt(input_ids=[0] * (state_end + after), questions=(), state_end=state_end)


@pytest.mark.parametrize(
    ("state_end", "after", "ideal"),
    [
        (130, (10,), 140),  # one request computes all of its prompt
        (130, (10, 20), 140 + 2 + 20),  # 130 = 2 * 64 + 2
        (128, (10, 20, 30), 138 + 20 + 30),  # the state ends on the grid
        (63, (10, 20), 73 + 63 + 20),  # nothing of so short a state can be kept
    ],
)
def test_ideal_tokens(state_end: int, after: tuple[int, ...], ideal: int) -> None:
    assert ideal_prefill_tokens([prompt(state_end=state_end, after=each) for each in after]) == ideal


def test_ideal_tokens_are_of_one_state() -> None:
    with pytest.raises(AssertionError):
        ideal_prefill_tokens([prompt(state_end=100, after=1), prompt(state_end=101, after=1)])


def test_a_line_is_found() -> None:
    tokens = [1024, 4096, 16384, 65024]
    line = fitted(tokens, [0.25 + 2e-5 * each for each in tokens])
    assert line.fixed_s == pytest.approx(0.25)
    assert line.s_per_token == pytest.approx(2e-5)
    assert line.worst_miss == pytest.approx(0, abs=1e-9)


def test_a_curve_is_seen_to_be_no_line() -> None:
    tokens = [1024, 4096, 16384, 65024]
    assert fitted(tokens, [0.25 + 1e-9 * each**2 for each in tokens]).worst_miss > 0.3


def test_probabilities_are_compared_not_logits() -> None:
    assert largest_difference([[1.0, 2.0]], [[101.0, 102.0]]) == pytest.approx(0, abs=1e-12)
    assert largest_difference([[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 100.0]]) == pytest.approx(0.5)


def test_a_comparison_adds_up() -> None:
    def turn(seconds: float, *cached: int) -> Round:
        answers = [Answer(logits=[[0.0]], prompt_tokens=100, cached_tokens=each, seconds=1) for each in cached]
        return Round(answers=answers, seconds=seconds)

    comparison = Comparison(stock=[turn(2, 0, 0), turn(4, 0, 0)], ours=[turn(2, 0, 64), turn(1, 64, 64)])
    assert comparison.prefill_tokens("stock") == 400
    assert comparison.prefill_tokens("ours") == 400 - 3 * 64
    assert comparison.ratio() == 2
    assert comparison.max_abs_dp() == 0


@pytest.mark.parametrize("state_tokens", [1, 63, 64, 500])
def test_prompts_have_a_state_of_that_length(state_tokens: int) -> None:
    workloads = Workloads(tiny_tokenizer())
    prompts = workloads.shared(0, state_tokens, 3)
    one = workloads.prompt(state=0, state_tokens=1, questions=0)
    for each in prompts:
        assert each.state_end == one.state_end + state_tokens - 1
        assert each.input_ids[: each.state_end] == prompts[0].input_ids[: prompts[0].state_end]
        # Refuses spans that overlap, or reach into the state or beyond the prompt.
        PromptLayout(prompt_tokens=len(each.input_ids), questions=each.questions, state_end=each.state_end)


def test_cutting_the_state_moves_the_spans_with_their_tokens() -> None:
    workloads = Workloads(tiny_tokenizer())

    def texts(made: Prompt) -> list[list[int]]:
        spans = [span for q in made.questions for span in (q.question, *q.options)]
        return [made.input_ids[start:end] for start, end in spans]

    short, long = (workloads.prompt(state=0, state_tokens=tokens, questions=2) for tokens in (10, 300))
    assert texts(short) == texts(long)


def test_states_and_question_sets_differ() -> None:
    workloads = Workloads(tiny_tokenizer())
    unshared = workloads.unshared(100, 64, 3)
    assert len({tuple(each.input_ids[: each.state_end]) for each in unshared}) == 3
    sets = [question_set(number) for number in range(16)]
    assert len({repr(each) for each in sets}) == 16
    assert {question["type"] for each in sets for question in each.values()} == {"noul", "choice", "score"}


def settings(**changes: Any) -> SideSettings:
    values: dict[str, Any] = {
        "model_path": Path("release"),
        "device": "cpu",
        "dtype": "float32",
        "max_prompt_tokens": 1,
    }
    return SideSettings(**values | changes)


def plugins(environ: dict[str, str]) -> dict[str, str]:
    """The plugins SGLang would load of those on PYTHONPATH."""
    found = importlib.metadata.distributions(path=environ["PYTHONPATH"].split(os.pathsep))
    entries = [entry for each in found for entry in each.entry_points if entry.group == "sglang.srt.plugins"]
    return {entry.name: entry.value for entry in entries if entry.name in environ["SGLANG_PLUGINS"].split(",")}


def test_stock_on_a_cpu_loads_the_platform_alone(tmp_path: Path) -> None:
    environ = environment("stock", settings(), tmp_path)
    assert plugins(environ) == {_stock_platform.ENTRY_POINT: "benchmarks._stock_platform:register"}
    assert str(STAND_IN_PATH) in environ["PYTHONPATH"].split(os.pathsep)
    assert environ["SGLANG_USE_CPU_ENGINE"] == "1"


def test_stock_on_cuda_loads_nothing_of_ours(tmp_path: Path) -> None:
    environ = environment("stock", settings(device="cuda", dtype="bfloat16"), tmp_path)
    assert environ["SGLANG_PLUGINS"] not in ("", "clef")
    assert plugins(environ) == {}
    assert str(STAND_IN_PATH) not in environ["PYTHONPATH"].split(os.pathsep)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_ours_loads_the_product(device: str, tmp_path: Path) -> None:
    environ = environment("ours", settings(device=device), tmp_path)
    assert environ["SGLANG_PLUGINS"] == "clef"
    assert _stock_platform.ENTRY_POINT not in plugins(environ)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_random_shapes_are_consistent(shape: Shape) -> None:
    text = shape.text
    assert shape.head.hidden_size == text["hidden_size"] == 4 * shape.head.width
    assert text["num_attention_heads"] * text["head_dim"] == text["hidden_size"]
    assert text["linear_num_value_heads"] * text["linear_value_head_dim"] == text["hidden_size"]
    assert text["layer_types"].count("full_attention") * 4 == text["num_hidden_layers"] == len(text["layer_types"])
    assert sum(text["rope_parameters"]["mrope_section"]) * 8 == text["head_dim"]


def test_clef_flash_has_the_rotary_sections_of_its_family() -> None:
    assert SHAPES["clef-flash"].text["rope_parameters"]["mrope_section"] == [11, 11, 10]


def test_defaults_follow_the_device() -> None:
    cpu, cuda = parse_arguments([]), parse_arguments(["--device", "cuda"])
    assert (cpu.dtype, cuda.dtype) == ("float32", "bfloat16")
    assert (cpu.state_tokens, cpu.question_sets, cpu.concurrency) == (4096, 16, 1)
    assert cpu.reference > 0
    assert cuda.reference == 0


@pytest.mark.parametrize("growth", ["some", "0,10", "10", "-1,5", ""])
def test_growth_is_two_lengths_or_none(growth: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--growth", growth])
    assert "--growth" in capsys.readouterr().err
    assert parse_arguments(["--growth", "none"]).growth == []
    assert parse_arguments(["--growth", "5,10"]).growth == [5, 10]
