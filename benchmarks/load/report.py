"""A run as one JSON object, and as a table for people."""

import datetime
from collections.abc import Sequence
from typing import Any

from benchmarks.load.client import Client
from benchmarks.load.machine import OtherLoad, machine, versions
from benchmarks.load.measure import Settings
from benchmarks.load.run import RunResult, SideResult, comparison, generator_limited
from benchmarks.load.samples import KINDS

MET, NOT_MET, USAGE, GENERATOR_LIMITED, NOT_MEASURED = range(5)
WORDS = {MET: "met", NOT_MET: "not met", GENERATOR_LIMITED: "generator-limited", NOT_MEASURED: "not measured"}


def run_report(
    result: RunResult, clients: Sequence[Client], settings: Settings, load: OtherLoad, at_least_rps: float | None
) -> dict[str, Any]:
    """Everything about a run but its key, its requests and its answers. `exit_status` is the program's."""
    status = exit_status(result, settings, at_least_rps)
    return {
        "benchmark": "load",
        "exit_status": status,
        "result": WORDS[status] if settings.slo is not None or status != MET else "measured",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "machine": machine(),
        "other_processes_cores": round(load.cores(), 3),
        "workload": settings.workload.name,
        "workload_as_is": settings.workload.as_is,
        "slo": [term.text for term in settings.slo.terms] if settings.slo else None,
        "at_least_rps": at_least_rps,
        "duration_s": settings.duration_s,
        "warmup_s": settings.warmup_s,
        "slices": settings.slices,
        "timeout_s": settings.timeout_s,
        "seed": settings.seed,
        "run_id": settings.run_id,
        "confidence": settings.confidence,
        "requests_sent": result.requests_sent,
        "bound_reached": result.bound,
        "sides": [_side(side, client, settings) for side, client in zip(result.sides, clients, strict=True)],
        "comparison": comparison(result, settings),
    }


def _side(side: SideResult, client: Client, settings: Settings) -> dict[str, Any]:
    return {
        "name": side.name,
        "url": client.target.base,
        "path": client.target.path,
        "model": client.model_asked,
        "server": client.server,
        "idle_ms": round(side.idle_s * 1000, 3),
        "rate_at_slo": None if side.rate is None else side.rate.report(),
        "points": [point.report(settings) for point in side.points],
    }


def exit_status(result: RunResult, settings: Settings, at_least_rps: float | None) -> int:
    """See the program's help."""
    searched = any(side.rate is not None for side in result.sides)
    if not any(side.points for side in result.sides) or (result.bound is not None and not searched):
        return NOT_MEASURED
    if searched:
        rates = [None if side.rate is None else side.rate.rate_rps for side in result.sides]
        wanted = at_least_rps or 0.0
        if all(rate is not None and rate >= wanted for rate in rates) and at_least_rps is not None:
            return MET
        if generator_limited(result, settings):
            return GENERATOR_LIMITED
        if result.bound is not None:
            return NOT_MEASURED
        return MET if all(rate is not None and rate >= wanted for rate in rates) else NOT_MET
    if generator_limited(result, settings):
        return GENERATOR_LIMITED
    met = all(point.verdict(settings).met for side in result.sides for point in side.points)
    return MET if met else NOT_MET


def table(report: dict[str, Any]) -> str:
    """For people: a line for each point, the rate at the SLO, the ratios."""
    lines: list[str] = []
    for side in report["sides"]:
        lines += ["", f"server {side['name']}: {side['url']}, {report['workload']}, idle {side['idle_ms']:.1f} ms"]
        lines.append(
            f"{'load':>12}{'requests':>10}{'answered/s':>12}{'p50 ms':>10}{'p90 ms':>10}{'p99 ms':>10}"
            f"{'p99 interval':>20}{'errors':>8}  SLO"
        )
        for point in side["points"]:
            for kind in ("all", *KINDS):
                if kind == "all" or _several_kinds(point):
                    lines += _rows(point, kind)
            lines += [f"{'':12}{note}" for note in _notes(point)]
        if side["rate_at_slo"] is not None:
            rate, (low, high) = side["rate_at_slo"]["rate_rps"], side["rate_at_slo"]["rate_rps_interval"]
            lines.append(
                f"highest rate with {', '.join(report['slo'])}: {_number(rate)}/s "
                f"(certain between {_number(low)} and {_number(high)})"
            )
    lines += _compared(report["comparison"])
    lines.append("")
    lines.append(
        f"other programs kept {report['other_processes_cores']:.2f} of {report['machine']['cpu_cores']} cores busy"
    )
    if report["bound_reached"]:
        lines.append(f"ended early: {report['bound_reached']}")
    lines.append(f"result: {report['result']}")
    return "\n".join(lines)


def _several_kinds(point: dict[str, Any]) -> bool:
    return sum(point["latency"][kind] is not None for kind in KINDS) > 1


def _rows(point: dict[str, Any], kind: str) -> list[str]:
    latency = point["latency"][kind]
    if latency is None:
        return []
    if kind == "all":
        load = f"{point['offered_rps']:.2f}/s" if point["clients"] is None else f"{point['clients']} clients"
        said = {None: "", True: "met", False: "missed"}[point["slo_met"]]
        said += "" if point["slo_certain"] in (None, True) else ", not certain"
        answered = f"{point['answered_rps']:.2f}"
    else:
        load, said, answered = kind, "", ""
    low, high = latency["p99_ms_interval"]
    errors = latency["requests"] - latency["answered"]
    return [
        f"{load:>12}{latency['requests']:>10}{answered:>12}{_number(latency['p50_ms']):>10}"
        f"{_number(latency['p90_ms']):>10}{_number(latency['p99_ms']):>10}{f'{_number(low)} .. {_number(high)}':>20}"
        f"{errors:>8}  {said}".rstrip()
    ]


def _notes(point: dict[str, Any]) -> list[str]:
    notes = []
    errors = {outcome: count for outcome, count in point["outcomes"].items() if outcome != "answered"}
    if errors:
        notes.append("unanswered: " + ", ".join(f"{count} {outcome}" for outcome, count in errors.items()))
    generator = point["generator"]
    if generator["limited"]:
        notes.append(
            f"THE GENERATOR WAS LATE: {generator['lag_p99_ms']:.1f} ms at p99, more than {generator['lag_bound_ms']:.1f}"
        )
    if point["stopped_early"]:
        notes.append("given up early, as the SLO could not be met any more")
    if not point["settled_before"]:
        notes.append("the server was still busy when this began")
    for kind in KINDS:
        told = point["cache"][kind]
        if told is not None and told["unexpected"]:
            notes.append(
                f"{told['unexpected']} of {told['requests']} {kind} requests were not cached as their kind should be"
            )
    return notes


def _compared(compared: dict[str, Any] | None) -> list[str]:
    if compared is None:
        return []
    lines = ["", f"ratio, {compared['ratio']}, with interval:"]
    for ratios in compared["latency"]:
        load = f"{ratios['offered_rps']:.2f}/s" if ratios["clients"] is None else f"{ratios['clients']} clients"
        for name, ratio in ratios.items():
            if name.endswith("_ratio"):
                shown = (
                    f"{ratio[0]:.3f}  ({ratio[1]:.3f} .. {ratio[2]:.3f})" if isinstance(ratio, list) else f"{ratio:.3f}"
                )
                lines.append(f"{load:>12}  {name.removesuffix('_ratio').replace('_', ' '):16}{shown}")
    if (rates := compared.get("rate_ratio")) is not None:
        lines.append(f"{'rate at SLO':>12}  {_number(rates[0])}  ({_number(rates[1])} .. {_number(rates[2])})")
    return lines


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if value < 1000 else f"{value:.0f}"
