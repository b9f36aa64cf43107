"""Holds the harness to a stub server in a process of its own, whose delays are known: what it reports must be true.

What is expected is what the stub itself recorded. Real time and real sockets: on a machine that is busy with something else
it may fail, and says by how much.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.load.client import Client, Target
from benchmarks.load.intervals import percentile
from benchmarks.load.measure import Load, Measurer, Point, Settings
from benchmarks.load.progress import Progress
from benchmarks.load.workloads import read_workload

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 0.02
START_TIMEOUT_S = 30
SEED, RUN_ID = 7, "self-check"
DRAW = "check"
DELAYS_MS = [150.0] * 9 + [400.0]
SERVICE_MS = 40.0


def settings(*, duration_s: float, timeout_s: float = 5) -> Settings:
    """A short run of small requests without an SLO."""
    return Settings(
        workload=read_workload("hot-path"),
        slo=None,
        duration_s=duration_s,
        warmup_s=1,
        slices=1,
        timeout_s=timeout_s,
        settle_s=5,
        seed=SEED,
        run_id=RUN_ID,
        confidence=0.95,
        max_requests=100_000,
        max_seconds=120,
        max_in_flight=4096,
    )


@contextlib.contextmanager
def stub(delays_ms: Sequence[float], *, queue: bool = False) -> Iterator[str]:
    """The URL of a stub that runs meanwhile."""
    command = [sys.executable, "-m", "benchmarks.load.stub", "--delays-ms", *map(str, delays_ms)]
    with subprocess.Popen(
        [*command, *(["--queue"] if queue else [])], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"
        finally:
            process.kill()


async def measured(url: str, rate_rps: float, chosen: Settings, progress: Progress) -> tuple[Point, list[float]]:
    """One point on the stub, and how many seconds the stub had each of its requests."""
    async with Client(Target(url=url, model="stub"), name="stub") as client:
        await client.prepare()
        measurer = Measurer(chosen, progress)
        await measurer.preflight(client)
        point = Point(load=Load(rate_rps=rate_rps))
        await measurer.slice(client, point, DRAW)
    async with aiohttp.ClientSession() as session, session.get(f"{url}/record") as response:
        had_s: list[float] = await response.json()
    return point, had_s[-len(point.samples) :]


async def self_check(progress: Progress) -> list[dict[str, Any]]:
    """Every check with what was expected, what was reported, and whether it passed."""
    checks: list[dict[str, Any]] = []

    def within(name: str, had_s: Sequence[float], point: Point, share: float) -> None:
        expected_s = percentile(had_s, share)
        reported_s = percentile([sample.latency_s for sample in point.samples], share)
        off = reported_s / expected_s - 1
        checks.append(
            {
                "check": name,
                "stub_ms": round(expected_s * 1000, 3),
                "reported_ms": round(reported_s * 1000, 3),
                "off_by": round(off, 5),
                "passed": abs(off) <= TOLERANCE,
            }
        )

    def true(name: str, passed: bool, reported: Any) -> None:
        checks.append({"check": name, "reported": reported, "passed": passed})

    chosen = settings(duration_s=10)
    with stub(DELAYS_MS) as url:
        point, had_s = await measured(url, 40, chosen, progress)
    for share in (0.5, 0.95):
        within(f"delays of 150 ms and a tenth of 400 ms, p{share * 100:g}", had_s, point, share)
    true("the generator keeps up", not point.generator_limited(chosen), point.report(chosen)["generator"])

    with stub([SERVICE_MS], queue=True) as url:
        point, had_s = await measured(url, 20, chosen, progress)
    for share in (0.5, 0.9, 0.99):
        within(f"a queue that is busy for 80% of the time, p{share * 100:g}", had_s, point, share)

    impatient = settings(duration_s=3, timeout_s=0.2)
    with stub([0.0] * 5 + [400.0]) as url:
        point, _ = await measured(url, 40, impatient, progress)
    timeouts = sum(sample.outcome == "timeout" for sample in point.samples)
    sixth = len(point.samples) / 6
    true("timeouts are counted", abs(timeouts - sixth) <= 1, {"timeouts": timeouts, "of": len(point.samples)})

    hurried = settings(duration_s=1)
    with stub([0.0]) as url:
        point, _ = await measured(url, 20_000, hurried, progress)
    true(
        "a generator that cannot keep up says so", point.generator_limited(hurried), point.report(hurried)["generator"]
    )
    return checks


def run_self_check(progress: Progress) -> dict[str, Any]:
    """The JSON object of all checks."""
    checks = asyncio.run(self_check(progress))
    return {
        "benchmark": "load self-check",
        "tolerance": TOLERANCE,
        "passed": all(check["passed"] for check in checks),
        "checks": checks,
    }
