"""What an engine holds in memory once its pools are there: every rank writes it to a file. A plugin of SGLang, for tests.

`python -m tests.engine.pool_probe DIRECTORY SGLANG_ARGUMENT ...` starts an engine on the CPU platform with our plugin and
this one, and stops it. The machine's free memory is replaced by a constant, so that the pools have the same size everywhere.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

ENTRY_POINT = "clef_pool_probe"
DIRECTORY_VARIABLE = "CLEF_POOL_PROBE"
# What SGLang is told is free on the device, before and after it has loaded the weights, in GiB.
FREE_GIB = 2.0
ROOT = Path(__file__).resolve().parents[2]


def register() -> None:
    """Loaded by SGLang in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.runtime_context import get_parallel

    directory = Path(os.environ[DIRECTORY_VARIABLE])

    def report(result: None, scheduler: Any) -> None:
        holdings = _holdings(scheduler.tp_worker.model_runner)
        (directory / f"rank-{get_parallel().tp_rank}.json").write_text(json.dumps(holdings), encoding="utf-8")

    HookRegistry.register(
        "sglang.srt.utils.common.get_available_gpu_memory", lambda *args, **kwargs: FREE_GIB, HookType.REPLACE
    )
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.init_memory_pools", report, HookType.AFTER)


def _holdings(runner: Any) -> dict[str, Any]:
    pool, requests = runner.token_to_kv_pool.full_kv_pool, runner.req_to_token_pool
    states, checkpoints = requests.mamba_pool.mamba_cache, requests.mamba_ckpt_pool
    weights: dict[str, int] = {}
    for name, parameter in runner.model.named_parameters():
        group = name.split(".")[0]
        weights[group] = weights.get(group, 0) + parameter.nbytes
    rows = runner.model.pooler.schema.rows
    return {
        "weights_bytes": weights,
        "buffers_bytes": _bytes(runner.model.buffers()),
        "kv_bytes": _bytes([*pool.k_buffer, *pool.v_buffer]),
        "kv_slots": pool.size,
        "row_bytes": rows.size_bytes,
        "state_bytes": _bytes([*states.conv, states.temporal]),
        "state_slots": requests.mamba_pool.size,
        "checkpoint_bytes": checkpoints.mem_usage_bytes() if checkpoints else 0,
        "checkpoint_slots": checkpoints.num_slots if checkpoints else 0,
        "max_total_tokens": runner.max_total_num_tokens,
        "max_running_requests": runner.max_running_requests,
        "page_size": runner.token_to_kv_pool.page_size,
    }


def _bytes(tensors: Iterable[Any]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def probe(
    directory: Path,
    release: Path,
    *arguments: str,
    dtype: Literal["bfloat16", "float32"],
    environ: dict[str, str] | None = None,
) -> list[dict[str, Any]]:
    """What each rank of an engine over `release` holds, in rank order. `arguments` are SGLang's."""
    from model_plugin import cpu

    info = directory / "plugin" / f"{ENTRY_POINT}-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {ENTRY_POINT}\nVersion: 0\n", encoding="utf-8")
    entry = f"[sglang.srt.plugins]\n{ENTRY_POINT} = {__name__}:register\n"
    (info / "entry_points.txt").write_text(entry, encoding="utf-8")
    child = {
        **os.environ,
        "SGLANG_PLUGINS": f"clef,{ENTRY_POINT}",
        DIRECTORY_VARIABLE: str(directory),
        **(environ or {}),
    }
    child["PYTHONPATH"] = os.pathsep.join([str(info.parent), str(ROOT)])
    cpu.activate(dtype, environ=child)
    given = ["--model-path", str(release), "--dtype", dtype, "--device", "cpu", "--attention-backend", "torch_native"]
    given += ["--skip-server-warmup", "--log-level", "error", *arguments]
    started = subprocess.run(
        [sys.executable, "-m", __name__, *given], cwd=ROOT, env=child, capture_output=True, text=True, timeout=200
    )
    assert started.returncode == 0, started.stderr[-4000:]
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(directory.glob("rank-*.json"))]


def main() -> None:
    """Start an engine and stop it."""
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    engine = Engine(server_args=prepare_server_args(sys.argv[1:]))
    with contextlib.suppress(SystemExit):
        engine.shutdown()


if __name__ == "__main__":
    main()
