"""`clef-serve profiles` and `clef-serve plan`: their flags, and what they print. Starts nothing and needs no GPU."""

import argparse
import json
from collections.abc import Sequence
from typing import get_args

from launch.plan.gpu import gpus
from launch.plan.model_shape import known_models
from launch.plan.plan import PlanInputs, make_plan
from launch.plan.profile import DEFAULT_PROFILE, profiles
from launch.plan.tensors import FORMATS
from launch.plan.text import plan_json, plan_text
from launch.plan.token_memory import StateFormat
from launch.plan.user_arguments import read_user_arguments

PROFILES_HELP = "List the profiles: what each is for, and what it sets."
PLAN_HELP = """\
Resolve a profile for a GPU and a model, without either: the exact SGLang server arguments with their reasons, where the
memory goes, how many states stay cached, and the least time a request can take.

Arguments after `--` go to SGLang as they are and win over the profile's, for example:
clef-serve plan --gpu h200 --model clef-flash -- --chunked-prefill-size 8192
"""


def add_profiles_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `profiles`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `plan`."""
    parser.add_argument("--gpu", required=True, choices=sorted(gpus()), help="the GPU to plan for")
    parser.add_argument(
        "--model",
        required=True,
        metavar="NAME|PATH",
        help=f"{', '.join(known_models())}, or a directory that holds a release; only its headers are read",
    )
    parser.add_argument(
        "--profile", default=DEFAULT_PROFILE, choices=list(profiles()), help=f"default: {DEFAULT_PROFILE}"
    )
    parser.add_argument("--tp", type=_count, default=1, metavar="N", help="GPUs to divide the model over (default 1)")
    parser.add_argument(
        "--weights",
        choices=FORMATS,
        help="how the release is stored: bf16, fp8 (compressed-tensors), nvfp4 (Blackwell only), int4 (AWQ or GPTQ); "
        "default: bf16, or what the directory holds",
    )
    parser.add_argument("--text-only", action="store_true", help="leave the vision tower out")
    parser.add_argument(
        "--state-tokens", type=_count, metavar="N", help="expected length of a state in tokens; default: the profile's"
    )
    parser.add_argument(
        "--schema-tokens",
        type=_count,
        metavar="N",
        help="expected length of the questions in tokens; default: the profile's",
    )
    parser.add_argument(
        "--state-format",
        choices=get_args(StateFormat),
        default="float32",
        help="how recurrent states are kept: float32 (default), bfloat16, or int8 for cached ones",
    )
    parser.add_argument(
        "--prefill-graphs",
        choices=["off", "breakable"],
        default="off",
        help="CUDA graphs for prefill, for text only; unmeasured, and turned off by the plugin today (default off)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def profiles_command(options: argparse.Namespace) -> int:
    """Print every profile; the exit status."""
    if options.json:
        print(json.dumps({name: profile.model_dump(by_alias=True) for name, profile in profiles().items()}))
        return 0
    for name, profile in profiles().items():
        print(f"{name}{' (default)' if name == DEFAULT_PROFILE else ''}: {profile.summary}")
        for key in ("state_tokens", "schema_tokens", "chunk_tokens", "running_requests", "states_per_path"):
            count = getattr(profile, key)
            print(f"  {key.replace('_', ' '):<18}{count.value:>7,}  {count.reason}")
        for model in known_models():
            for key, count in profile.for_model(model):
                if key != "models" and count != getattr(profile, key):
                    print(f"  {model}: {key.replace('_', ' ')} {count.value:,}  {count.reason}")
        print()
    return 0


def plan_command(options: argparse.Namespace, engine_args: Sequence[str]) -> int:
    """Print a plan; the exit status is 0 if it fits and 1 if it does not.

    Args:
        engine_args: what stood after `--`.

    Raises:
        ValueError: the combination cannot be served, or an argument is wrong; the message says why.
    """
    inputs = PlanInputs(
        gpu=options.gpu,
        model=options.model,
        profile=options.profile,
        tp=options.tp,
        weights=options.weights,
        text_only=options.text_only,
        state_tokens=options.state_tokens,
        schema_tokens=options.schema_tokens,
        state_format=options.state_format,
        prefill_graphs=options.prefill_graphs == "breakable",
        user=read_user_arguments(engine_args),
    )
    plan = make_plan(inputs)
    print(json.dumps(plan_json(plan)) if options.json else plan_text(plan))
    return 0 if plan.memory.fits else 1
