"""What a plan says beside what an engine holds, to the byte: weights, pools, rows, states, on one rank and on two.

The engine is told that 2 GiB are free (`pool_probe`); all else is its own arithmetic and its own tensors.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.plan.arguments import TEXT_ONLY
from launch.plan.model_shape import ModelShape, shape_of_release
from launch.plan.plan import PlanInputs, make_plan
from launch.plan.pools import Budget, PoolArguments, divide
from launch.plan.tensors import read_tensors
from launch.plan.token_memory import StateType, token_memory
from launch.plan.weight_plan import WeightPlan, plan_weights
from model_plugin import cpu
from tests.engine.pool_probe import FREE_GIB, probe
from tests.engine.served import MAX_PROMPT_TOKENS

pytestmark = pytest.mark.engine

FRACTION = 0.1
# What SGLang keeps for images, to be allocated later (SGLANG_VLM_CACHE_SIZE_MB).
MEDIA_GIB = 100 / 1024


def planned_pools(shape: ModelShape, *, tp: int, state: StateType, media_gib: float) -> tuple[int, int, int]:
    """Token slots, state slots, running requests."""
    budget = Budget(before_load_gib=FREE_GIB, after_load_gib=FREE_GIB, static_fraction=FRACTION, reserved_gib=media_gib)
    memory = token_memory(shape, tp=tp, state=state)
    pools = divide(budget, memory, PoolArguments(context_tokens=MAX_PROMPT_TOKENS))
    return pools.token_slots, pools.state_slots, pools.running_requests


def engine_groups(weights: WeightPlan) -> dict[str, int]:
    """As the engine's modules are called."""
    groups = weights.by_group
    named = {
        "model": groups["text"] + groups["embeddings"],
        "lm_head": groups["lm_head"],
        "visual": groups["vision"],
        "pooler": groups["head"],
    }
    return {name: count for name, count in named.items() if count}


PARSE = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(allow_abbrev=False)
ServerArgs.add_cli_args(parser)
parsed = [vars(parser.parse_args(["--model-path", "x", *arguments])) for arguments in json.load(sys.stdin)]
keys = ("tp_size", "max_mamba_cache_size", "json_model_override_args")
print(json.dumps([{key: entry[key] for key in keys} for entry in parsed]))
"""


def test_sglangs_command_line_takes_every_argument_that_plans_give() -> None:
    plans = [
        make_plan(
            PlanInputs(gpu=gpu, model="clef-flash", tp=tp, text_only=text, state_format=state, prefill_graphs=text)
        )
        for gpu, tp, text, state in (
            ("h100", 1, False, "float32"),
            ("b200", 2, True, "int8"),
            ("b300", 4, False, "bfloat16"),
        )
    ]
    environ = dict(os.environ)
    cpu.activate("bfloat16", environ=environ)
    parsed = subprocess.run(
        [sys.executable, "-c", PARSE],
        input=json.dumps([plan.server_arguments for plan in plans]),
        env=environ,
        capture_output=True,
        text=True,
    )
    assert parsed.returncode == 0, parsed.stderr[-2000:]
    pools = [plan.memory.pools for plan in plans]
    assert json.loads(parsed.stdout.splitlines()[-1]) == [
        {
            "tp_size": plan.memory.request.tp,
            "max_mamba_cache_size": held.state_slots if held else None,
            "json_model_override_args": TEXT_ONLY if plan.inputs.text_only else "{}",
        }
        for plan, held in zip(plans, pools, strict=True)
    ]


def test_one_rank_with_images_in_the_engines_own_split(release: Callable[[int], Path], tmp_path: Path) -> None:
    path = release(0)
    (held,) = probe(tmp_path, path, "--mem-fraction-static", str(FRACTION), dtype="bfloat16")
    shape, memory = shape_of_release(path), token_memory(shape_of_release(path), tp=1, state="float32")
    assert held["weights_bytes"] == engine_groups(plan_weights(read_tensors(path), tp=1, text_only=False))
    assert (held["max_total_tokens"], held["state_slots"], held["max_running_requests"]) == planned_pools(
        shape, tp=1, state="float32", media_gib=MEDIA_GIB
    )
    # Each pool has one slot, or one page of one token, that takes the writes of padding.
    assert held["kv_bytes"] == (held["kv_slots"] + 1) * memory.kv_bytes
    assert held["row_bytes"] == (held["kv_slots"] + 1) * memory.row_bytes
    assert held["state_bytes"] == (held["state_slots"] + 1) * memory.state_bytes
    assert (held["kv_slots"], held["page_size"], held["checkpoint_bytes"]) == (held["max_total_tokens"], 1, 0)


def test_two_ranks_without_images_with_smaller_states(release: Callable[[int], Path], tmp_path: Path) -> None:
    path = release(0)
    first, second = sorted(os.sched_getaffinity(0))[:2]
    ranks = probe(
        tmp_path,
        path,
        *("--mem-fraction-static", str(FRACTION), "--tp-size", "2", "--json-model-override-args", TEXT_ONLY),
        *("--mamba-ssm-dtype", "bfloat16", "--enable-int8-mamba-checkpoint", "--int8-mamba-ckpt-size", "10"),
        *("--mamba-radix-cache-strategy", "extra_buffer", "--mamba-max-states-per-path", "1"),
        *("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"),
        dtype="bfloat16",
        environ={"SGLANG_CPU_OMP_THREADS_BIND": f"{first}|{second}"},
    )
    assert len(ranks) == 2
    shape, memory = shape_of_release(path), token_memory(shape_of_release(path), tp=2, state="bfloat16")
    weights = plan_weights(read_tensors(path), tp=2, text_only=True)
    for held in ranks:
        assert held["weights_bytes"] == engine_groups(weights)
        assert (held["max_total_tokens"], held["state_slots"], held["max_running_requests"]) == planned_pools(
            shape, tp=2, state="bfloat16", media_gib=0.0
        )
        assert held["kv_bytes"] == (held["kv_slots"] + 1) * memory.kv_bytes
        assert held["row_bytes"] == (held["kv_slots"] + 1) * memory.row_bytes
        assert held["state_bytes"] == (held["state_slots"] + 1) * memory.state_bytes
        assert held["checkpoint_bytes"] == 11 * memory.int8_bytes
