"""What sharing a state saves: stock SGLang 0.5.23 beside ours in one run, on the same platform, checkpoint and prompts.

Two workloads: one state asked many question sets, and as many unrelated states. Both engines are alive throughout and take
turns request by request, so that a busy moment of the machine meets both. Then, ours alone: what a request over a cached
state costs as the state grows. Run it with `python -m benchmarks.prefix_sharing`; the last line is one JSON object.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, get_args

import psutil

from benchmarks._sides import ROOT, Answer, Round, Side, SideFailedError, SideName, SideSettings, running
from benchmarks._workloads import (
    GRID_TOKENS,
    Line,
    Prompt,
    Workloads,
    fitted,
    ideal_prefill_tokens,
    largest_difference,
)

CACHE = ROOT / ".cache" / "benchmarks"
# Numbers of states, so that no part of the benchmark finds what another left in the cache.
SHARED_STATE, WARMING_STATE, FIRST_GROWTH_STATE, FIRST_UNSHARED_STATE = 0, 1, 2, 100
GROWTH_REPEATS = 5
# More than any question set with its suffix takes, in tokens.
SCHEMA_TOKENS_AT_MOST = 1024


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One workload on both sides: a round of each side for every round of the workload, in order."""

    stock: list[Round]
    ours: list[Round]

    def rounds(self, side: SideName) -> list[Round]:
        """One side's."""
        return {"stock": self.stock, "ours": self.ours}[side]

    def prefill_tokens(self, side: SideName) -> int:
        """Tokens that a side computed."""
        return sum(answer.prefill_tokens for turn in self.rounds(side) for answer in turn.answers)

    def seconds(self, side: SideName) -> float:
        """The time a side took, turn by turn."""
        return sum(turn.seconds for turn in self.rounds(side))

    def ratio(self) -> float:
        """Stock's time over ours."""
        return self.seconds("stock") / self.seconds("ours")

    def max_abs_dp(self) -> float:
        """The largest difference of a probability between the sides."""
        return max(
            largest_difference(mine.logits, theirs.logits)
            for ours, stock in zip(self.ours, self.stock, strict=True)
            for mine, theirs in zip(ours.answers, stock.answers, strict=True)
        )


class OtherLoad:
    """How many cores other processes keep busy while something is measured; more than a few tenths spoil the figures."""

    def __init__(self, *sides: Side) -> None:
        self._sides, self._started, self._before = sides, time.monotonic(), self._other_s(sides)

    @staticmethod
    def _other_s(sides: Sequence[Side]) -> float:
        times = psutil.cpu_times()
        return float(sum(times[:3])) - sum(side.cpu_seconds() for side in sides)  # user, nice, system

    def cores(self) -> float:
        """On average since the start."""
        return max(0.0, self._other_s(self._sides) - self._before) / (time.monotonic() - self._started)


def compare(stock: Side, ours: Side, prompts: Sequence[Prompt], concurrency: int) -> Comparison:
    """Ask both sides the same prompts, `concurrency` at once. Each side goes first every other turn."""
    rounds: dict[str, list[Round]] = {"stock": [], "ours": []}
    for turn, start in enumerate(range(0, len(prompts), concurrency)):
        for side in (stock, ours) if turn % 2 == 0 else (ours, stock):
            rounds[side.name].append(side.ask(prompts[start : start + concurrency]))
    return Comparison(**rounds)


@dataclass(frozen=True, kw_only=True)
class GrowthPoint:
    """Seconds of the first request over a state of this length, and the median of later ones, which find it cached."""

    state_tokens: int
    cached_tokens: int
    computed_tokens: float
    cold_s: float
    cached_s: float


def growth_points(
    ours: Side, workloads: Workloads, lengths: Sequence[int], say: Callable[[str], None]
) -> list[GrowthPoint]:
    """One point for each length. Cached requests go round the lengths, so that a busy moment meets all; the first round is
    not counted."""
    cold: list[Answer] = []
    prompts: list[list[Prompt]] = []
    for number, length in enumerate(lengths):
        say(f"growth: a state of {length} tokens")
        prompts.append(workloads.shared(FIRST_GROWTH_STATE + number, length, 2 + GROWTH_REPEATS))
        cold += ours.ask(prompts[-1][:1]).answers
    cached: list[list[Answer]] = [[] for _ in lengths]
    for repeat in range(1, 2 + GROWTH_REPEATS):
        for answers, questions in zip(cached, prompts, strict=True):
            answers += ours.ask(questions[repeat : repeat + 1]).answers
    return [
        GrowthPoint(
            state_tokens=length,
            cached_tokens=min(answer.cached_tokens for answer in answers[1:]),
            computed_tokens=median(answer.prefill_tokens for answer in answers[1:]),
            cold_s=first.seconds,
            cached_s=median(answer.seconds for answer in answers[1:]),
        )
        for length, first, answers in zip(lengths, cold, cached, strict=True)
    ]


def growth_report(points: Sequence[GrowthPoint], config: dict[str, Any], head: dict[str, Any]) -> dict[str, Any]:
    """The points, the line through them, and the work that each cached token causes, counted from the release's sizes."""
    line: Line = fitted([point.cached_tokens for point in points], [point.cached_s for point in points])
    text = config["text_config"]
    full_layers = text["layer_types"].count("full_attention")
    attention_width = text["num_attention_heads"] * text["head_dim"]
    new_tokens = median(point.computed_tokens for point in points)
    return {
        "points": [vars(point) for point in points],
        "fixed_ms": line.fixed_s * 1e3,
        "us_per_cached_token": line.s_per_token * 1e6,
        "worst_miss": line.worst_miss,
        # A score and a weighted sum, each one multiplication and one addition a number.
        "attention_flop_per_cached_token": 4 * attention_width * new_tokens * full_layers,
        # Keys and values of a memory row, projected again in each layer of the head.
        "head_flop_per_cached_token": 4 * head["width"] ** 2 * (head["routing_layers"] + head["layers"]),
        # Keys and values of the full-attention layers, and the memory row.
        "numbers_read_per_cached_token": 2 * text["num_key_value_heads"] * text["head_dim"] * full_layers
        + head["width"],
    }


def print_comparison(name: str, comparison: Comparison, prompts: Sequence[Prompt], ideal: int) -> None:
    """One block of the table."""
    print(f"\n{name}: {len(prompts)} requests, {sum(len(prompt.input_ids) for prompt in prompts)} prompt tokens")
    print(f"{'':>10}{'prefill tokens':>16}{'seconds':>10}{'first s':>10}{'later s (median)':>18}")
    print(f"{'ideal':>10}{ideal:>16}")
    for side in get_args(SideName):
        rounds = comparison.rounds(side)
        later = f"{median(turn.seconds for turn in rounds[1:]):>18.3f}" if len(rounds) > 1 else ""
        tokens, seconds = comparison.prefill_tokens(side), comparison.seconds(side)
        print(f"{side:>10}{tokens:>16}{seconds:>10.2f}{rounds[0].seconds:>10.3f}{later}")
    print(f"stock time / ours: {comparison.ratio():.2f}   max |dp|: {comparison.max_abs_dp():.1e}")


def print_growth(report: dict[str, Any]) -> None:
    """The second figure, and what it is made of."""
    print("\nA request over a cached state, ours:")
    print(f"{'state':>10}{'cached':>10}{'computed':>10}{'cold s':>10}{'cached ms':>12}{'line ms':>10}")
    for point in report["points"]:
        line_ms = report["fixed_ms"] + report["us_per_cached_token"] * point["cached_tokens"] / 1e3
        print(
            f"{point['state_tokens']:>10}{point['cached_tokens']:>10}{point['computed_tokens']:>10.0f}"
            f"{point['cold_s']:>10.2f}{point['cached_s'] * 1e3:>12.1f}{line_ms:>10.1f}"
        )
    print(
        f"line: {report['fixed_ms']:.1f} ms + {report['us_per_cached_token']:.2f} us a cached token, "
        f"at most {report['worst_miss']:.0%} off\n"
        "The fixed part is the schema, the suffix and the state's remainder through every layer. What grows, for each cached "
        "token:\n"
        f"  {report['attention_flop_per_cached_token'] / 1e6:.2f} MFLOP: the new tokens attend to it in the full-attention "
        "layers (Gated DeltaNet layers carry a state of fixed size)\n"
        f"  {report['head_flop_per_cached_token'] / 1e6:.2f} MFLOP: its memory row is projected to keys and values in each "
        "layer of the head\n"
        f"  {report['numbers_read_per_cached_token']} numbers read: its keys, values and memory row are gathered from "
        "the pools"
    )


def machine(facts: dict[str, Any]) -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": platform.machine(),
        "cpu_cores": os.cpu_count(),
        "gpu": facts["gpu"],
        "cuda": facts["cuda"],
        "python": platform.python_version(),
    }


def positive(text: str) -> int:
    """An integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state-tokens", type=positive, default=4096, help="length of each state, in tokens")
    parser.add_argument("--question-sets", type=positive, default=16, help="requests of each workload")
    parser.add_argument("--concurrency", type=positive, default=1, help="requests asked at once (default 1)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: float32 on a CPU, else bfloat16")
    parser.add_argument("--model", type=Path, help="directory of a Clef release; default: random weights")
    parser.add_argument(
        "--random-shape",
        choices=["small", "clef-flash"],
        default="small",
        help="sizes of the random release: small (default) or clef-flash (9 billion parameters, 19 GB on disk)",
    )
    parser.add_argument("--cache", type=Path, default=CACHE, help="where random releases are kept (default .cache)")
    parser.add_argument(
        "--growth",
        default="1024,4096,16384,65024",
        metavar="LENGTHS",
        help="lengths of the cached state in tokens, separated by commas, or 'none'. The last default leaves room for the "
        "questions within 65,536 tokens",
    )
    parser.add_argument(
        "--reference",
        type=int,
        metavar="N",
        help="compare ours with the reference implementation on N prompts, FP32 on the CPU (default 3, on CUDA 0)",
    )
    parser.add_argument(
        "--engine-arg",
        action="append",
        default=[],
        metavar="ARG",
        help="an SGLang server argument for both sides; repeat it: --engine-arg=--mem-fraction-static --engine-arg=0.4",
    )
    arguments = parser.parse_args(argv)
    arguments.dtype = arguments.dtype or ("float32" if arguments.device == "cpu" else "bfloat16")
    if arguments.reference is None:
        arguments.reference = 3 if arguments.device == "cpu" else 0
    try:
        lengths = [] if arguments.growth == "none" else [positive(part) for part in arguments.growth.split(",")]
    except (ValueError, argparse.ArgumentTypeError):
        parser.error(f"--growth: {arguments.growth!r} is neither 'none' nor lengths separated by commas")
    if len(lengths) == 1:
        parser.error("--growth: a line needs two lengths")
    arguments.growth = lengths
    return arguments


def measure(arguments: argparse.Namespace, release: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Run everything and print the tables; returns the JSON object."""
    from transformers import AutoTokenizer

    workloads = Workloads(AutoTokenizer.from_pretrained(release))
    shared = workloads.shared(SHARED_STATE, arguments.state_tokens, arguments.question_sets)
    unshared = workloads.unshared(FIRST_UNSHARED_STATE, arguments.state_tokens, arguments.question_sets)
    warming = workloads.shared(WARMING_STATE, arguments.state_tokens, 3)
    longest = max(arguments.state_tokens, *arguments.growth, 0) + SCHEMA_TOKENS_AT_MOST
    settings = SideSettings(
        model_path=release,
        device=arguments.device,
        dtype=arguments.dtype,
        max_prompt_tokens=longest,
        extra_args=tuple(arguments.engine_arg),
    )
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(running("ours", settings))
        with running("stock", settings) as stock:
            facts = {"stock": stock.facts, "ours": ours.facts}
            caches = stock.facts["radix_cache"], ours.facts["radix_cache"]
            assert caches == (False, True), f"stock SGLang keeps no prefixes and ours does, but found {facts}"
            say("engines ready")
            for prompt in warming:
                for side in (stock, ours):
                    side.ask([prompt])
            load = OtherLoad(stock, ours)
            say("warm; one state, many question sets")
            with_sharing = compare(stock, ours, shared, arguments.concurrency)
            say("unrelated states")
            without_sharing = compare(stock, ours, unshared, arguments.concurrency)
            other_cores = load.cores()
        points = growth_points(ours, workloads, arguments.growth, say)
    ideal = ideal_prefill_tokens(shared)
    unshared_ideal = sum(len(prompt.input_ids) for prompt in unshared)
    print_comparison("One state", with_sharing, shared, ideal)
    print_comparison("Unrelated states", without_sharing, unshared, unshared_ideal)
    print(f"\nother processes kept {other_cores:.2f} of {os.cpu_count()} cores busy meanwhile")
    growth = None
    if points:
        config = json.loads((release / "config.json").read_text(encoding="utf-8"))
        head = json.loads((release / "joint_head_config.json").read_text(encoding="utf-8"))
        growth = growth_report(points, config, head)
        print_growth(growth)
    report = {
        "benchmark": "prefix_sharing",
        "clef_serving": importlib.metadata.version("clef-serving"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(ours.facts),
        "engines": facts,
        "model": arguments.model.name if arguments.model else f"random weights, shape {arguments.random_shape}",
        "dtype": arguments.dtype,
        "state_tokens": arguments.state_tokens,
        "question_sets": arguments.question_sets,
        "concurrency": arguments.concurrency,
        "grid_tokens": GRID_TOKENS,
        "other_processes_cores": other_cores,
        "stock_prefill_tokens": with_sharing.prefill_tokens("stock"),
        "ours_prefill_tokens": with_sharing.prefill_tokens("ours"),
        "ideal_prefill_tokens": ideal,
        "ours_over_ideal": with_sharing.prefill_tokens("ours") / ideal,
        "shared_stock_s": with_sharing.seconds("stock"),
        "shared_ours_s": with_sharing.seconds("ours"),
        "shared_speedup": with_sharing.ratio(),
        "unshared_stock_prefill_tokens": without_sharing.prefill_tokens("stock"),
        "unshared_ours_prefill_tokens": without_sharing.prefill_tokens("ours"),
        "unshared_stock_s": without_sharing.seconds("stock"),
        "unshared_ours_s": without_sharing.seconds("ours"),
        "unshared_ratio": without_sharing.ratio(),
        "each_s": {
            f"{workload}_{side}": [turn.seconds for turn in comparison.rounds(side)]
            for workload, comparison in (("shared", with_sharing), ("unshared", without_sharing))
            for side in get_args(SideName)
        },
        "max_abs_dp": max(with_sharing.max_abs_dp(), without_sharing.max_abs_dp()),
        "max_abs_dp_reference": None,
        "reference_prompts": 0,
        "growth": growth,
    }
    if arguments.reference:
        say("reference")
        report |= compare_with_reference(release, shared[-arguments.reference :], with_sharing.ours)
    return report


def compare_with_reference(release: Path, prompts: Sequence[Prompt], rounds: Sequence[Round]) -> dict[str, Any]:
    """The last prompts of the shared workload, which ours answered from the cache, against the reference."""
    from benchmarks._reference import reference_logits

    wanted = reference_logits(release, prompts)
    if wanted is None:
        print("\nno comparison with the reference: clef-finetune is not installed (make install-dev)")
        return {}
    answers = [answer for turn in rounds for answer in turn.answers][-len(prompts) :]
    difference = max(largest_difference(answer.logits, logits) for answer, logits in zip(answers, wanted, strict=True))
    print(f"\nours, cached, against the reference in FP32 on {len(prompts)} prompts: max |dp| {difference:.1e}")
    return {"max_abs_dp_reference": difference, "reference_prompts": len(prompts)}


def main() -> None:
    """Measure, print tables, and as the last line one JSON object."""
    arguments = parse_arguments()

    def say(message: str) -> None:
        print(f"... {message}", file=sys.stderr, flush=True)

    if arguments.model is None:
        say(f"random weights, shape {arguments.random_shape}")
        build = [sys.executable, "-m", "benchmarks._release"]
        build += [arguments.random_shape, str(arguments.cache.resolve()), arguments.device]
        built = subprocess.run(build, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        release = Path(built.stdout.splitlines()[-1])
    else:
        release = arguments.model
    try:
        report = measure(arguments, release.resolve(), say)
    except SideFailedError as err:
        raise SystemExit(f"benchmarks.prefix_sharing: {err}") from err
    print(json.dumps(report))


if __name__ == "__main__":
    main()
