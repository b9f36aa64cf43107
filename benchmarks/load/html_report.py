"""A run, or several, as one HTML page: latency against rate and percentile curves, and the tables."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from benchmarks._report import Section, page, svg
from benchmarks.load.report import table
from benchmarks.load.samples import KINDS


def html_page(report: dict[str, Any]) -> str:
    """The page of one run's JSON object."""
    sections = [
        Section(heading=heading, plots=[plot])
        for heading, plot in (
            ("Latency against rate", _draw(_latency_against_rate, report)),
            ("Percentiles", _draw(_percentile_curves, report)),
        )
        if plot is not None
    ]
    note = (
        "Latency counts from when a request was due. A request without an answer counts as infinitely late: a curve ends "
        "where it reaches one. Bars and shades are confidence intervals."
    )
    sections.append(Section(heading="Table", paragraphs=[note], texts=[table(report).strip()]))
    sections.append(Section(heading="Data", texts=[json.dumps(report, indent=1)]))
    return page(f"Load: {report['workload']}, {report['date'][:10]}", sections)


def _draw(fill: Callable[[Any, dict[str, Any]], bool], report: dict[str, Any]) -> Markup | None:
    """The plot, or None where there is nothing to draw."""
    figure = Figure(figsize=(11, 5.5), layout="constrained")
    return svg(figure) if fill(figure.add_subplot(), report) else None


def _curves(report: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, list[dict[str, Any]]]]:
    """(side, kind, points that have it); kinds apart where there are several."""
    for side in report["sides"]:
        kinds = [kind for kind in KINDS if any(point["latency"][kind] for point in side["points"])]
        for kind in ("all", *(kinds if len(kinds) > 1 else ())):
            yield side, kind, [point for point in side["points"] if point["latency"][kind]]


def _latency_against_rate(axes: Any, report: dict[str, Any]) -> bool:
    drawn = False
    for side, kind, points in _curves(report):
        open_points = sorted(
            (point for point in points if point["offered_rps"] is not None), key=lambda point: point["offered_rps"]
        )
        for percent, style in (("p50", ":"), ("p99", "-")):
            rows = [(point["offered_rps"], point["latency"][kind]) for point in open_points]
            rows = [(rate, latency) for rate, latency in rows if latency[f"{percent}_ms"] is not None]
            if not rows or (kind != "all" and percent == "p50"):
                continue
            rates = [rate for rate, _ in rows]
            values = [latency[f"{percent}_ms"] for _, latency in rows]
            intervals = [latency[f"{percent}_ms_interval"] for _, latency in rows]
            below = [value - (low or 0) for value, (low, _) in zip(values, intervals, strict=True)]
            above = [max(0.0, (high or value) - value) for value, (_, high) in zip(values, intervals, strict=True)]
            axes.errorbar(
                rates, values, yerr=[below, above], linestyle=style, marker="o", markersize=3, capsize=2,
                label=f"{side['name']} {kind} {percent}",
            )  # fmt: skip
            drawn = True
        if kind == "all" and side["rate_at_slo"] and side["rate_at_slo"]["rate_rps"]:
            axes.axvline(side["rate_at_slo"]["rate_rps"], color="grey", linestyle="--", linewidth=1)
    if drawn:
        axes.set(xlabel="offered requests a second", ylabel="latency, ms", yscale="log")
        axes.grid(visible=True, which="both", alpha=0.3)
        axes.legend()
    return drawn


def _percentile_curves(axes: Any, report: dict[str, Any]) -> bool:
    drawn = False
    for side, kind, points in _curves(report):
        for point in points:
            curve = [(100 - percent, value) for percent, value in point["latency"][kind]["curve"] if value is not None]
            if len(curve) < 2 or (kind != "all" and len(report["sides"][0]["points"]) > 3):
                continue
            load = f"{point['offered_rps']:.3g}/s" if point["clients"] is None else f"{point['clients']} clients"
            above, values = zip(*curve, strict=True)
            axes.plot(above, values, linewidth=1.2, label=f"{side['name']} {kind} {load}")
            drawn = True
    if drawn:
        axes.set(xlabel="percentile", ylabel="latency, ms", xscale="log", yscale="log")
        axes.invert_xaxis()
        ticks = [90, 50, 10, 5, 1, 0.1, 0.01]
        axes.set_xticks(ticks, [f"p{100 - tick:g}" for tick in ticks])
        axes.grid(visible=True, which="both", alpha=0.3)
        axes.legend(fontsize="small", ncols=2)
    return drawn
