"""Compares the JSON objects of two runs. Knows nothing of servers.

The runs were measured one after the other, so a ratio's interval has the ends of both intervals divided crosswise: wider
than needed, and the machine may have been busier in one of them. `--compare` measures two servers in turn, and tells more.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load.samples import KINDS

SAME = ("workload", "slo", "timeout_s", "duration_s", "machine", "versions")


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """The second run over the first; below 1 it has the lower latency, or the lower rate."""

    name: str
    value: float
    low: float
    high: float


def read_run(path: Path) -> dict[str, Any]:
    """The JSON object in the last line of a file, or in all of it.

    Raises:
        ValueError: there is none of a run.
    """
    try:
        text = path.read_text(encoding="utf-8").strip()
        report = json.loads(text if text.startswith("{") else text.splitlines()[-1])
    except (OSError, ValueError, IndexError) as err:
        raise ValueError(f"{path}: holds no run: {err}") from err
    if not isinstance(report, dict) or report.get("benchmark") != "load":
        raise ValueError(f"{path}: holds no run of this program")
    return report


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """What else differs between the runs than the server."""
    return [f"{key}: {first[key]} and {second[key]}" for key in SAME if first[key] != second[key]]


def ratios(first: dict[str, Any], second: dict[str, Any]) -> list[Ratio]:
    """Of the first side of each run: latency under each load that both had, and the rate at the SLO."""
    mine, theirs = first["sides"][0], second["sides"][0]
    found: list[Ratio] = []
    for point in mine["points"]:
        for other in theirs["points"]:
            if (point["offered_rps"], point["clients"]) == (other["offered_rps"], other["clients"]):
                found += _latency(point, other)
    if mine["rate_at_slo"] and theirs["rate_at_slo"]:
        rates = [side["rate_at_slo"]["rate_rps"] for side in (mine, theirs)]
        if None not in rates:
            (low, high), (other_low, other_high) = (side["rate_at_slo"]["rate_rps_interval"] for side in (mine, theirs))
            found.append(
                Ratio(
                    name="rate at SLO",
                    value=rates[1] / rates[0],
                    low=other_low / high if other_low and high else 0.0,
                    high=other_high / low if other_high and low else math.inf,
                )
            )
    return found


def _latency(point: dict[str, Any], other: dict[str, Any]) -> list[Ratio]:
    load = f"{point['offered_rps']:.4g}/s" if point["clients"] is None else f"{point['clients']} clients"
    found = []
    for kind in ("all", *KINDS):
        for percent in ("p50", "p90", "p99"):
            mine, theirs = point["latency"][kind], other["latency"][kind]
            if not mine or not theirs or not mine[f"{percent}_ms"] or theirs[f"{percent}_ms"] is None:
                continue
            (low, high), (other_low, other_high) = (each[f"{percent}_ms_interval"] for each in (mine, theirs))
            found.append(
                Ratio(
                    name=f"{load} {kind} {percent}",
                    value=theirs[f"{percent}_ms"] / mine[f"{percent}_ms"],
                    low=other_low / high if high and other_low else 0.0,
                    high=other_high / low if other_high and low else math.inf,
                )
            )
    return found


def slower(found: list[Ratio], most: float) -> list[Ratio]:
    """Those where the second run is certainly worse than `most` times the first: its latency higher, or its rate lower."""
    return [ratio for ratio in found if (ratio.high < 1 / most if ratio.name == "rate at SLO" else ratio.low > most)]
