"""The command line of a run, and what it stands for. Every setting is checked before anything is sent."""

import argparse
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.client import DEFAULT_PATH, Target, key_from
from benchmarks.load.measure import Load, Settings
from benchmarks.load.search import SearchSettings
from benchmarks.load.slo import Slo, parse_slo, read_slo
from benchmarks.load.workloads import names, read_workload

DESCRIPTION = """How fast a SystemOne server answers, and the highest rate at which it keeps a promise.

Requests come at random times at a given rate (an open loop, Poisson), whatever becomes of them; latency counts from when a
request was due; one without an answer counts as infinitely late. The last line on standard output is one JSON object."""
EPILOG = """
exit status:
  0  every SLO was met, or none was given; with --find-rate: a rate was found (and --at-least reached)
  1  an SLO was not met, or no rate was found, or --at-least not reached
  2  the command line is wrong
  3  the generator, not the server, may have decided the result
  4  nothing could be measured: the server did not answer the first requests, or a bound ended the run too early

other commands:
  python -m benchmarks.load compare A.json B.json     ratios of two runs, second over first
  python -m benchmarks.load self-check                the harness against a stub with known delays
"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What to do. `loads` is empty where a rate is searched."""

    targets: tuple[Target, ...]
    settings: Settings
    loads: tuple[Load, ...]
    find_rate: bool
    search: SearchSettings
    at_least_rps: float | None
    server_pids: tuple[int, ...]
    report: Path | None
    json: Path | None
    quiet: bool


def parser() -> argparse.ArgumentParser:
    """All options with their units and defaults."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.load",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument_group("what is asked").add_argument
    add("--url", required=True, help="base URL of the server, such as http://127.0.0.1:8000")
    add("--path", default=DEFAULT_PATH, help="path that is asked, after the base (default: %(default)s)")
    add("--model", help="model to ask for (default: the first that /v1/models lists, else clef)")
    add("--key-env", metavar="NAME", help="environment variable that holds the API key (default: no key)")
    add("--compare", metavar="URL", help="a second server, measured in turn with the first, with ratios")
    add("--compare-path", help="its path (default: --path)")
    add("--compare-model", help="its model (default: the first that it lists)")
    add("--compare-key-env", metavar="NAME", help="environment variable that holds its API key (default: no key)")
    add("--workload", required=True, help=f"{', '.join(names())}, a .toml file, or a .jsonl file of your own requests")
    add("--as-is", action="store_true", help="put no id before the states of your own requests: caches may know them")
    add = made.add_argument_group("how it is asked").add_argument
    how = made.add_mutually_exclusive_group(required=True)
    how.add_argument(
        "--rate", metavar="R[,R...]", help="requests a second of an open loop; several are measured in turn"
    )
    how.add_argument("--concurrency", metavar="N[,N...]", help="clients of a closed loop, which wait for their answers")
    how.add_argument("--find-rate", action="store_true", help="search the highest rate that meets the SLO")
    add("--duration", type=float, default=30, help="of a point, without warm-ups, in seconds (default: %(default)g)")
    add("--warmup", type=float, help="before each slice, in seconds (default: a fifth of a slice, 5 at most)")
    add("--slices", type=int, help="that a point is cut into (default: 1; with --compare 4, and 2 with --find-rate)")
    add(
        "--timeout", type=float, default=10, help="of a request, in seconds from when it was due (default: %(default)g)"
    )
    add("--seed", type=int, default=1, help="of all that is drawn (default: %(default)s)")
    add("--run-id", help="stands in the ids of states, so that no cache knows them (default: drawn anew for each run)")
    add = made.add_argument_group("what is promised").add_argument
    add("--slo", metavar="TERMS", help='such as "p99<200ms" or "p50<50ms,p99<200ms,errors<0.1%%,cold.p95<1s"')
    add("--slo-file", type=Path, help='TOML with slo = ["p99<200ms", ...]')
    add("--confidence", type=float, default=0.95, help="of intervals (default: %(default)g)")
    add = made.add_argument_group("the search").add_argument
    add("--start-rate", type=float, help="first rate (default: half of what one client alone gets answered)")
    add("--max-rate", type=float, default=2000, help="highest rate tried (default: %(default)g)")
    add("--resolution", type=float, default=1.05, help="ratio of rates at which it ends (default: %(default)g)")
    add("--max-looks", type=int, default=3, help="at one rate near the edge (default: %(default)s)")
    add("--max-measurements", type=int, default=30, help="looks at all rates together (default: %(default)s)")
    add("--at-least", type=float, metavar="R", help="rate that must be found for exit status 0")
    add = made.add_argument_group("bounds").add_argument
    add("--max-requests", type=int, default=200_000, help="of the whole run (default: %(default)s)")
    add("--max-seconds", type=float, default=1800, help="of the whole run (default: %(default)g)")
    add("--max-in-flight", type=int, default=4096, help="requests at one time; more are misses (default: %(default)s)")
    add("--settle", type=float, default=20, help="longest wait for an idle server before a slice, in seconds")
    add("--max-lag-ms", type=float, help="of the generator at p99 (default: a tenth of the tightest limit, at least 5)")
    add = made.add_argument_group("output").add_argument
    add("--report", type=Path, metavar="FILE", help="write an HTML page with plots")
    add("--json", type=Path, metavar="FILE", help="write the JSON object there too")
    add(
        "--server-pid",
        type=int,
        action="append",
        default=[],
        help="a server on this machine, not counted as other load",
    )
    add("--quiet", action="store_true", help="no progress on standard error")
    return made


def parse(argv: Sequence[str]) -> Run:
    """What the command line asks for. A mistake ends the program with status 2.

    Raises:
        ValueError: a value is wrong; the message says which and why.
    """
    given = parser().parse_args(argv)
    slo = _slo(given)
    if given.find_rate and slo is None:
        raise ValueError("--find-rate needs --slo or --slo-file")
    if given.at_least is not None and not given.find_rate:
        raise ValueError("--at-least needs --find-rate")
    slices = given.slices or (1 if given.compare is None else 2 if given.find_rate else 4)
    warmup_s = min(5.0, given.duration / slices / 5) if given.warmup is None else given.warmup
    settings = Settings(
        workload=read_workload(given.workload, as_is=given.as_is),
        slo=slo,
        duration_s=given.duration,
        warmup_s=warmup_s,
        slices=slices,
        timeout_s=given.timeout,
        settle_s=given.settle,
        seed=given.seed,
        run_id=given.run_id or secrets.token_hex(4),
        confidence=given.confidence,
        max_requests=given.max_requests,
        max_seconds=given.max_seconds,
        max_in_flight=given.max_in_flight,
        max_lag_s=None if given.max_lag_ms is None else given.max_lag_ms / 1000,
    )
    return Run(
        targets=_targets(given),
        settings=settings,
        loads=_loads(given),
        find_rate=given.find_rate,
        search=SearchSettings(
            max_rps=given.max_rate,
            start_rps=given.start_rate,
            resolution=given.resolution,
            max_looks=given.max_looks,
            max_measurements=given.max_measurements,
        ),
        at_least_rps=given.at_least,
        server_pids=tuple(given.server_pid),
        report=given.report,
        json=given.json,
        quiet=given.quiet,
    )


def _slo(given: argparse.Namespace) -> Slo | None:
    if given.slo is not None and given.slo_file is not None:
        raise ValueError("--slo and --slo-file exclude each other")
    if given.slo_file is not None:
        return read_slo(given.slo_file)
    return None if given.slo is None else parse_slo(given.slo)


def _targets(given: argparse.Namespace) -> tuple[Target, ...]:
    first = Target(url=given.url, path=given.path, model=given.model, key=key_from(given.key_env))
    if given.compare is None:
        return (first,)
    second = Target(
        url=given.compare,
        path=given.compare_path or given.path,
        model=given.compare_model,
        key=key_from(given.compare_key_env),
    )
    return first, second


def _loads(given: argparse.Namespace) -> tuple[Load, ...]:
    if given.rate is not None:
        rates = [float(part) for part in given.rate.split(",")]
        if min(rates) <= 0:
            raise ValueError(f"a rate must be above 0, not {given.rate}")
        return tuple(Load(rate_rps=rate) for rate in rates)
    if given.concurrency is not None:
        clients = [int(part) for part in given.concurrency.split(",")]
        if min(clients) < 1:
            raise ValueError(f"--concurrency must be at least 1, not {given.concurrency}")
        return tuple(Load(clients=number) for number in clients)
    return ()
