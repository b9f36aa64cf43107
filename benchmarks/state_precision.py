"""What SGLang's levers on the recurrent states cost in answers, and how many states each keeps in a pool of the same slots.

Each lever runs in an engine of its own, on the CPU platform, over the random release, whose recurrent states are made to
last: with its own random weights they forget within a few tokens, and what is forgotten cannot be wrong. Answers are compared
with those of an engine that caches nothing and never cuts a prompt. Run it with `python -m benchmarks.state_precision`; the
last line is one JSON object.
"""

import argparse
import datetime
import importlib.metadata
import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from benchmarks._sides import Answer, SideFailedError, SideSettings, running
from benchmarks._workloads import Prompt, Workloads, largest_difference, probabilities
from benchmarks.prefix_sharing import machine
from benchmarks.random_release import build_random_release

# Lengths of the states in tokens: within a chunk, and over up to five.
STATE_TOKENS = (300, 700, 1500, 2200, 3000, 5000)
QUESTION_SETS = 3
CHUNK_TOKENS = 1024
# One request at a time, for which SGLang counts five slots, and room for two states of each prompt.
_RUNNING_SLOTS = 5
_CACHED_SLOTS = 2 * len(STATE_TOKENS)
_ONE_AT_A_TIME = ("--max-running-requests", "1", "--chunked-prefill-size", str(CHUNK_TOKENS))
_SHARED_POOL = ("--max-mamba-cache-size", str(_RUNNING_SLOTS + _CACHED_SLOTS))
_OWN_POOL = ("--max-mamba-cache-size", str(_RUNNING_SLOTS), "--int8-mamba-ckpt-size", str(_CACHED_SLOTS))
_CAPPED = ("--mamba-max-states-per-path", "1")
TEXT_ONLY = json.dumps({"language_model_only": True})
# After how many tokens half of what a head holds is forgotten; one for each value head of the random release.
HALF_LIVES_TOKENS = (64, 512, 4096, 32_768)
VARIANTS: dict[str, tuple[str, ...]] = {
    "FP32": (*_SHARED_POOL, *_CAPPED, "--mamba-ssm-dtype", "float32"),
    "FP32, no cap on a path": (*_SHARED_POOL, "--mamba-ssm-dtype", "float32"),
    "BF16": (*_SHARED_POOL, *_CAPPED, "--mamba-ssm-dtype", "bfloat16"),
    "int8, cached ones": (*_OWN_POOL, *_CAPPED, "--mamba-ssm-dtype", "float32", "--enable-int8-mamba-checkpoint"),
    "FP32, text only": (
        *_SHARED_POOL,
        *_CAPPED,
        "--mamba-ssm-dtype",
        "float32",
        "--json-model-override-args",
        TEXT_ONLY,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One lever.

    Attributes:
        kept_states: of the states, how many the second round of questions found cached.
        cold_max_abs_dp: of the first questions about each state, which compute it, in chunks.
        cached_max_abs_dp, cached_mean_abs_dp: of those that found it cached.
    """

    kept_states: int
    cached_answers: int
    cold_max_abs_dp: float
    cached_max_abs_dp: float
    cached_mean_abs_dp: float


def lasting_release(directory: Path) -> Path:
    """Build the random release, with the forgetting rates of HALF_LIVES_TOKENS, in `directory` and return it.

    A head's state shrinks by `exp(-exp(A_log) x softplus(a + dt_bias))` a token, where `a` depends on the token; here on
    average by what halves it in that many tokens.
    """
    import torch
    from safetensors.torch import load_file, save_file

    weights = build_random_release(directory) / "model.safetensors"
    tensors = load_file(weights)
    rates = math.log(2) / torch.tensor(HALF_LIVES_TOKENS) / torch.nn.functional.softplus(torch.ones(()))
    for name in tensors:
        if name.endswith("A_log"):
            tensors[name] = rates.log().to(tensors[name].dtype)
    save_file(tensors, weights, metadata={"format": "pt"})
    return directory


def ask_all(settings: SideSettings, prompts: Sequence[Sequence[Prompt]]) -> list[list[Answer]]:
    """Every question set over every state, one set after the other; by question set, then by state.

    Each set goes over the states in the opposite order of the last, or a pool that is one state too small would keep none.
    """
    with running("ours", settings) as side:
        rounds = []
        for questions in range(QUESTION_SETS):
            order = list(range(len(prompts)))[:: 1 if questions % 2 == 0 else -1]
            answers = {state: side.ask([prompts[state][questions]]).answers[0] for state in order}
            rounds.append([answers[state] for state in range(len(prompts))])
        return rounds


def compare(expected: list[list[Answer]], found: list[list[Answer]]) -> Outcome:
    """Answers against those of the engine without a cache."""
    pairs = [
        (mine, theirs)
        for mine_round, theirs_round in zip(found[1:], expected[1:], strict=True)
        for mine, theirs in zip(mine_round, theirs_round, strict=True)
        if mine.cached_tokens
    ]
    differences = [
        abs(a - b)
        for mine, theirs in pairs
        for one, other in zip(mine.logits, theirs.logits, strict=True)
        for a, b in zip(probabilities(one), probabilities(other), strict=True)
    ]
    return Outcome(
        kept_states=sum(answer.cached_tokens > 0 for answer in found[1]),
        cached_answers=len(pairs),
        cold_max_abs_dp=max(
            largest_difference(mine.logits, theirs.logits) for mine, theirs in zip(found[0], expected[0], strict=True)
        ),
        cached_max_abs_dp=max(differences, default=0.0),
        cached_mean_abs_dp=mean(differences) if differences else 0.0,
    )


def measure(release: Path, dtype: Literal["float32", "bfloat16"], say: Callable[[str], None]) -> dict[str, Any]:
    """Run every variant over `lasting_release` and print the table; returns the JSON object."""
    from transformers import AutoTokenizer

    workloads = Workloads(AutoTokenizer.from_pretrained(release))
    prompts = [
        [workloads.prompt(state=state, state_tokens=tokens, questions=number) for number in range(QUESTION_SETS)]
        for state, tokens in enumerate(STATE_TOKENS)
    ]
    longest = max(len(prompt.input_ids) for of_state in prompts for prompt in of_state)

    def settings(*arguments: str) -> SideSettings:
        return SideSettings(
            model_path=release,
            device="cpu",
            dtype=dtype,
            max_prompt_tokens=longest,
            extra_args=arguments,
        )

    say("no cache")
    expected = ask_all(settings("--disable-radix-cache"), prompts)
    outcomes = {}
    print(f"engine in {dtype}; {len(STATE_TOKENS)} states of {min(STATE_TOKENS)} to {max(STATE_TOKENS)} tokens, "
          f"chunks of {CHUNK_TOKENS}, |dp| against an engine that caches nothing\n")  # fmt: skip
    print(f"{'':>26}{'kept':>6}{'cold max |dp|':>15}{'cached max |dp|':>17}{'cached mean |dp|':>18}")
    for name, arguments in VARIANTS.items():
        say(name)
        outcome = outcomes[name] = compare(expected, ask_all(settings(*_ONE_AT_A_TIME, *arguments), prompts))
        print(f"{name:>26}{outcome.kept_states:>6}{outcome.cold_max_abs_dp:>15.1e}"
              f"{outcome.cached_max_abs_dp:>17.1e}{outcome.cached_mean_abs_dp:>18.1e}", flush=True)  # fmt: skip
    return {
        "benchmark": "state_precision",
        "clef_serving": importlib.metadata.version("clef-serving"),
        "sglang": importlib.metadata.version("sglang"),
        "torch": importlib.metadata.version("torch"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine({"gpu": None, "cuda": None}),
        "model": release.name,
        "dtype": dtype,
        "state_tokens": STATE_TOKENS,
        "question_sets": QUESTION_SETS,
        "chunk_tokens": CHUNK_TOKENS,
        "variants": {name: vars(outcome) for name, outcome in outcomes.items()},
    }


def main() -> None:
    """Measure, print the table, and as the last line one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], default="float32", help="type of weights and activations"
    )
    arguments = parser.parse_args()

    def say(message: str) -> None:
        print(f"... {message}", file=sys.stderr, flush=True)

    try:
        with tempfile.TemporaryDirectory(prefix="clef-benchmark-") as temporary:
            report = measure(lasting_release(Path(temporary) / "lasting-states"), arguments.dtype, say)
    except SideFailedError as err:
        raise SystemExit(f"benchmarks.state_precision: {err}") from err
    print(json.dumps(report))


if __name__ == "__main__":
    main()
