"""`python -m benchmarks.load`: measures a SystemOne server under load; `compare` two runs; `self-check`."""

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.load.arguments import Run, parse
from benchmarks.load.client import Client
from benchmarks.load.compare import differences, ratios, read_run, slower
from benchmarks.load.machine import OtherLoad
from benchmarks.load.measure import UnusableServerError
from benchmarks.load.progress import Progress
from benchmarks.load.report import MET, NOT_MEASURED, NOT_MET, USAGE, run_report, table
from benchmarks.load.run import find_rates, run_loads
from benchmarks.load.self_check import run_self_check


async def measure(run: Run, progress: Progress) -> dict[str, Any]:
    """The JSON object of a run.

    Raises:
        UnusableServerError: a server did not answer the first requests.
        ValueError: the requests would need too much memory.
    """
    load = OtherLoad(run.server_pids)
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(Client(target, name=name))
            for name, target in zip("AB", run.targets, strict=False)
        ]
        for client in clients:
            await client.prepare()
        if run.find_rate:
            result = await find_rates(clients, run.search, run.settings, progress)
        else:
            result = await run_loads(clients, run.loads, run.settings, progress)
        return run_report(result, clients, run.settings, load, run.at_least_rps)


def load_command(argv: Sequence[str]) -> int:
    """Measure, print a table and the JSON object."""
    try:
        run = parse(argv)
        progress = Progress(quiet=run.quiet)
        report = asyncio.run(measure(run, progress))
        print(table(report), flush=True)
        if run.report is not None:
            from benchmarks.load.html_report import html_page

            run.report.write_text(html_page(report), encoding="utf-8")
        if run.json is not None:
            run.json.write_text(json.dumps(report) + "\n", encoding="utf-8")
    except (ValueError, OSError) as err:
        print(f"benchmarks.load: {err}", file=sys.stderr)
        return USAGE
    except UnusableServerError as err:
        print(f"benchmarks.load: {err}", file=sys.stderr)
        return NOT_MEASURED
    print(json.dumps(report))
    return int(report["exit_status"])


def compare_command(argv: Sequence[str]) -> int:
    """Ratios of two runs."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.load compare", description="Ratios of two runs, B over A."
    )
    parser.add_argument("a", type=Path, help="file with a run's JSON object in its last line")
    parser.add_argument("b", type=Path)
    parser.add_argument(
        "--max-slowdown", type=float, metavar="X", help="exit status 1 if B is certainly more than X times as slow"
    )
    given = parser.parse_args(argv)
    try:
        first, second = read_run(given.a), read_run(given.b)
    except ValueError as err:
        print(f"benchmarks.load: {err}", file=sys.stderr)
        return USAGE
    for difference in differences(first, second):
        print(f"differs: {difference}")
    found = ratios(first, second)
    for ratio in found:
        print(f"{ratio.name:32}{ratio.value:8.3f}  ({ratio.low:.3f} .. {ratio.high:.3f})")
    worse = [] if given.max_slowdown is None else slower(found, given.max_slowdown)
    for ratio in worse:
        print(f"slower: {ratio.name}")
    rows = [vars(ratio) | {"high": None if ratio.high == float("inf") else ratio.high} for ratio in found]
    print(json.dumps({"benchmark": "load compare", "ratios": rows, "slower": [ratio.name for ratio in worse]}))
    return NOT_MET if worse else MET


def self_check_command(argv: Sequence[str]) -> int:
    """The harness against a stub."""
    argparse.ArgumentParser(prog="python -m benchmarks.load self-check", description=run_self_check.__doc__).parse_args(
        argv
    )
    report = run_self_check(Progress())
    for check in report["checks"]:
        details = {key: value for key, value in check.items() if key not in ("check", "passed")}
        print(f"{'ok' if check['passed'] else 'FAILED':8}{check['check']}: {details}")
    print(json.dumps(report))
    return MET if report["passed"] else NOT_MET


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names, else measure."""
    given = list(sys.argv[1:] if argv is None else argv)
    commands = {"compare": compare_command, "self-check": self_check_command}
    if given and given[0] in commands:
        return commands[given[0]](given[1:])
    return load_command(given)


if __name__ == "__main__":
    sys.exit(main())
