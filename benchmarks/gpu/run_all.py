"""One server on this machine's GPU in one run: cold and cached latency, the rate an SLO allows, and how near the roofline.

Starts `clef-serve up`, lets `benchmarks.load` ask it, and sets what that measured beside `launch.plan.roofline`. Run it with
`benchmarks/gpu/run_all.sh`; the last line is one JSON object. `--device cpu` tries the program out, without a roofline.
"""

import argparse
import datetime
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks._server import ROOT, ServerFailedError, serving
from launch.check.gpu import visible_gpus
from launch.plan.gpu import Gpu, gpu_named
from launch.plan.gpu_detect import detect_gpu
from launch.plan.model_shape import shape_of_release
from launch.plan.roofline import bound, request_work
from launch.plan.tensors import read_tensors
from launch.plan.token_memory import token_memory

PACKAGES = ("sglang", "torch", "transformers", "triton")
START_TIMEOUT_S = 1800  # a release of 19 GB, and kernels that are compiled at the first start
SERVER_FAILED, LOAD_FAILED = 1, 4
# One client and states one after the other: each is asked for the first time, then 7 times with other questions.
LATENCY_WORKLOAD = """description = "One long state at a time, asked {asks} times, each time with other questions."
[[part]]
state_tokens = {state_tokens}
live_states = 1
asks_per_state = {asks}
question_sets = 0
"""
ASKS_PER_STATE = 8


class LoadFailedError(Exception):
    """`benchmarks.load` could not measure; it said why on standard error."""


class Roofline:
    """The least time of a request to one release on a number of GPUs of one kind."""

    def __init__(self, release: Path, gpu: Gpu, tp: int) -> None:
        self._shape, self._tensors = shape_of_release(release), read_tensors(release)
        self._memory = token_memory(self._shape, tp=1, state="float32")
        self._gpu, self._tp = gpu, tp

    def least_s(self, *, tokens: float, cached_share: float) -> tuple[float, float]:
        """Seconds of a request alone, and seconds of arithmetic alone, which many requests at once cannot avoid."""
        cached = round(tokens * cached_share)
        work = request_work(
            self._shape, self._tensors, self._memory, cached_tokens=cached, new_tokens=max(1, round(tokens) - cached)
        )
        limits = bound(work, self._gpu, tp=self._tp)
        return limits.least_s, limits.compute_s


def latency(load: dict[str, Any], roofline: Roofline | None) -> dict[str, Any]:
    """Of each kind of request: percentiles in milliseconds, and the share of the median that the roofline explains."""
    (point,) = load["sides"][0]["points"]
    found: dict[str, Any] = {}
    for kind, measured in point["latency"].items():
        cache = point["cache"].get(kind)
        if measured is None or cache is None:
            continue
        names = ("requests", "p50_ms", "p50_ms_interval", "p99_ms", "p99_ms_interval")
        entry = {name: measured[name] for name in names} | {
            "input_tokens_mean": cache["input_tokens_mean"],
            "cached_token_share": cache["cached_token_share"],
        }
        if roofline is not None:
            least_s, _ = roofline.least_s(tokens=cache["input_tokens_mean"], cached_share=cache["cached_token_share"])
            entry["roofline_ms"] = round(least_s * 1000, 3)
            entry["roofline_share"] = round(least_s * 1000 / measured["p50_ms"], 4)
        found[kind] = entry
    return found


def rate(load: dict[str, Any], roofline: Roofline | None) -> dict[str, Any]:
    """The highest rate that met the SLO, and the share of the GPU's arithmetic that it asks for."""
    side = load["sides"][0]
    found: dict[str, Any] = {
        "slo": load["slo"],
        "result": load["result"],
        **(side["rate_at_slo"] or {"rate_rps": None}),
    }
    points = [point for point in side["points"] if point["offered_rps"] == found["rate_rps"]]
    if roofline is None or not points:
        return found
    kinds = [cache for cache in points[0]["cache"].values() if cache is not None]
    requests = sum(cache["requests"] for cache in kinds)
    compute_s = sum(
        cache["requests"]
        * roofline.least_s(tokens=cache["input_tokens_mean"], cached_share=cache["cached_token_share"])[1]
        for cache in kinds
    )
    return found | {"arithmetic_share": round(found["rate_rps"] * compute_s / requests, 4)}


def measure(arguments: argparse.Namespace, release: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Start the server, ask it, and report.

    Raises:
        ServerFailedError: it did not start or stop.
        LoadFailedError: nothing could be measured.
    """
    cuda = arguments.device == "cuda"
    gpus = [vars(gpu) for gpu in visible_gpus()] if cuda else []
    roofline = Roofline(release, gpu_named(arguments.gpu or detect_gpu().name), arguments.tp) if cuda else None
    command = ["--device", arguments.device, "--model", str(release)]
    command += ["--profile", arguments.profile] if cuda else []
    command += ["--", "--tp-size", str(arguments.tp), *arguments.engine_arg]
    rates: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(prefix="clef-benchmark-gpu-") as directory,
        serving(command, say, start_timeout_s=START_TIMEOUT_S) as url,
    ):
        workload = Path(directory) / "latency.toml"
        workload.write_text(
            LATENCY_WORKLOAD.format(state_tokens=arguments.state_tokens, asks=ASKS_PER_STATE), encoding="utf-8"
        )
        # A first pass, whose figures are thrown away, compiles what is compiled at the first request of a size.
        one = ["--url", url, "--workload", str(workload), "--concurrency", "1"]
        load(one, arguments.seconds / 3, say)
        alone = latency(load(one, arguments.seconds, say), roofline)
        for name in arguments.workloads:
            searched = ["--url", url, "--workload", name, "--find-rate", "--slo", arguments.slo]
            load(["--url", url, "--workload", name, "--concurrency", "32"], arguments.seconds / 3, say)
            rates[name] = rate(load(searched, arguments.seconds, say), roofline)
    return {
        "benchmark": "gpu",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "gpus": gpus,
        "model": arguments.model.name if arguments.model else f"random weights, shape {arguments.random_shape}",
        "profile": arguments.profile if cuda else None,
        "tp": arguments.tp,
        "engine_arguments": arguments.engine_arg,
        "state_tokens": arguments.state_tokens,
        "latency_one_client": alone,
        "rate_at_slo": rates,
    }


def load(arguments: Sequence[str], seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """One run of `benchmarks.load`: its JSON object. That an SLO is missed is a result too.

    Raises:
        LoadFailedError: it has none.
    """
    command = [sys.executable, "-m", "benchmarks.load", *arguments, "--duration", f"{seconds:g}"]
    say(" ".join(command[1:]))
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1, 3):
        raise LoadFailedError(f"benchmarks.load ended with status {done.returncode}")
    *table, last = done.stdout.splitlines()
    print("\n".join(table), flush=True)
    report: dict[str, Any] = json.loads(last)
    return report


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--model", type=Path, help="directory of a Clef release; default: random weights")
    parser.add_argument(
        "--random-shape", choices=["small", "clef-flash"], default="clef-flash", help="default: clef-flash"
    )
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache", help="where random releases are kept")
    parser.add_argument(
        "--gpu", help="the GPU to count with, as `clef-serve profiles` names it; default: this machine's"
    )
    parser.add_argument("--tp", type=int, default=1, help="GPUs to divide the model over (default 1)")
    parser.add_argument("--profile", default="auto", help="of `clef-serve up` (default auto)")
    parser.add_argument("--state-tokens", type=int, default=4096, help="length of the states of the latency run")
    parser.add_argument("--slo", default="p99<500ms,errors<0.1%", help="(default: %(default)s)")
    parser.add_argument("--workloads", nargs="+", default=["hot-path", "agents"], help="whose rate is searched")
    parser.add_argument("--seconds", type=float, default=30, help="of each point measured (default 30)")
    parser.add_argument("--engine-arg", action="append", default=[], metavar="ARG", help="an SGLang server argument")
    return parser.parse_args()


def main() -> int:
    """Measure, and print one JSON object as the last line."""
    arguments = parse_arguments()

    def say(message: str) -> None:
        print(f"... {message}", file=sys.stderr, flush=True)

    release = arguments.model
    if release is None:
        say(f"random weights, shape {arguments.random_shape}")
        build = [sys.executable, "-m", "benchmarks._release"]
        build += [arguments.random_shape, str(arguments.cache.resolve()), arguments.device]
        built = subprocess.run(build, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        release = Path(built.stdout.splitlines()[-1])
    try:
        report = measure(arguments, release.resolve(), say)
    except ServerFailedError as err:
        say(str(err))
        return SERVER_FAILED
    except LoadFailedError as err:
        say(str(err))
        return LOAD_FAILED
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
