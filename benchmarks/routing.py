"""What becomes of the cache behind a router: one engine, two behind smg with the chart's policy, two asked in turn.

Both engines run on this machine's CPU, so this shows where requests go and what is found there, and no speed. Each front is
asked the same states, each several times with other questions, in random order; a `cache_salt` keeps fronts apart. Prints a
table, and one JSON object as the last line.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from benchmarks._server import ServerFailedError, serving
from benchmarks._workloads import question_set
from benchmarks.corpus import lines
from launch.checkpoint_source import MINI_NAME
from tests.launch.running import free_port

SEED = 20261201
STATE_LINES = 12
# The chart's policy and what it depends on, then smg's simplest.
POLICIES = ("prefix_hash", "round_robin")
ROUTER_ARGUMENTS = ("--prefix-token-count=1024", "--disable-tokenizer-autoload", "--history-backend=none")
ROUTED = "x-smg-routed-worker-id"  # the URL of the engine that answered
START_TIMEOUT_S = 30


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing", description=__doc__)
    parser.add_argument("--states", type=int, default=24, help="different states (default: %(default)s)")
    parser.add_argument("--asks", type=int, default=8, help="requests for each state (default: %(default)s)")
    parser.add_argument("--concurrency", type=int, default=4, help="requests at once (default: %(default)s)")
    arguments = parser.parse_args(argv)
    try:
        report = measure(arguments, lambda text: print(text, file=sys.stderr, flush=True))
    except ServerFailedError as err:
        print(f"benchmarks.routing: {err}", file=sys.stderr)
        return 1
    print(json.dumps(report))
    return 0


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Ask all three fronts.

    Raises:
        ServerFailedError: an engine did not start or stop.
    """
    with contextlib.ExitStack() as running:
        up = ["--device", "cpu", "--max-prompt-tokens", "8192", "--served-model-name", MINI_NAME]
        engines = [running.enter_context(serving(up, say)) for _ in range(2)]
        say("one engine")
        fronts = {"one engine": ask_all(engines[0], "one engine", arguments)}
        for policy in POLICIES:
            name = f"two behind smg, {policy}"
            say(name)
            with _smg(engines, policy) as url:
                fronts[name] = ask_all(url, name, arguments)
    print_table(fronts)
    return {
        "benchmark": "routing",
        "clef_serving": importlib.metadata.version("clef-serving"),
        "sglang": importlib.metadata.version("sglang"),
        "smg": importlib.metadata.version("smg"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
        **{name: getattr(arguments, name) for name in ("states", "asks", "concurrency")},
        "router_arguments": ROUTER_ARGUMENTS,
        "fronts": fronts,
    }


def ask_all(url: str, salt: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Ask one front every state as often as wanted, in the same random order for each front; what became of it."""
    order = [(state, ask) for state in range(arguments.states) for ask in range(arguments.asks)]
    random.Random(SEED).shuffle(order)
    states = list(_states(arguments.states))
    with httpx.Client(base_url=url, timeout=120) as client:

        def ask(which: tuple[int, int]) -> tuple[int, str, Mapping[str, Any]]:
            state, number = which
            body = {"model": MINI_NAME, "state": states[state], "questions": question_set(number), "cache_salt": salt}
            response = client.post("/v1/systemone", json=body)
            response.raise_for_status()
            return state, response.headers.get(ROUTED, url), response.json()["usage"]

        with ThreadPoolExecutor(arguments.concurrency) as pool:
            answered = list(pool.map(ask, order))
    places: dict[int, set[str]] = {}
    for state, place, _ in answered:
        places.setdefault(state, set()).add(place)
    prompt, cached = (sum(usage[key] for _, _, usage in answered) for key in ("input_tokens", "x_cached_tokens"))
    used = [place for _, place, _ in answered]
    return {
        "requests": len(answered),
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "cached_share": round(cached / prompt, 4),
        "states_on_one_engine": sum(len(found) == 1 for found in places.values()),
        "requests_by_engine": sorted((used.count(place) for place in set(used)), reverse=True),
    }


def print_table(fronts: Mapping[str, Mapping[str, Any]]) -> None:
    """A line for each front."""
    print(f"{'':30}{'cached tokens':>15}{'states that stay':>18}{'requests by engine':>20}")
    for name, front in fronts.items():
        spread = " and ".join(map(str, front["requests_by_engine"]))
        print(f"{name:30}{front['cached_share']:>15.1%}{front['states_on_one_engine']:>18}{spread:>20}")


def _states(count: int) -> Iterator[str]:
    text = list(lines(count * STATE_LINES))
    for number in range(count):
        yield f"Case {number}.\n" + "\n".join(text[number * STATE_LINES : (number + 1) * STATE_LINES])


@contextlib.contextmanager
def _smg(engines: Sequence[str], policy: str) -> Iterator[str]:
    """The URL of a router that sends requests to all of these engines meanwhile.

    Raises:
        ServerFailedError: it did not start.
    """
    port, health_port, metrics_port = (free_port() for _ in range(3))
    command = [str(Path(sys.executable).with_name("smg")), "launch", "--host=127.0.0.1", f"--port={port}"]
    command += [
        f"--health-check-port={health_port}",
        "--prometheus-host=127.0.0.1",
        f"--prometheus-port={metrics_port}",
    ]
    command += [f"--policy={policy}", *ROUTER_ARGUMENTS, "--worker-urls", *engines]
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as router:
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while _healthy(f"http://127.0.0.1:{health_port}/readiness") < len(engines):
                if time.monotonic() > deadline or router.poll() is not None:
                    log.seek(0)
                    raise ServerFailedError(f"smg did not start:\n{log.read().decode(errors='replace')[-3000:]}")
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            router.kill()  # told to stop, it takes five seconds at least


def _healthy(url: str) -> int:
    """How many engines the router sends requests to."""
    try:
        return int(httpx.get(url).json().get("healthy_workers", 0))
    except httpx.TransportError:
        return 0


if __name__ == "__main__":
    raise SystemExit(main())
