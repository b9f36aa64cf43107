"""One run: which points are measured, in what order, and what they say together. Knows bounds, not HTTP.

With two servers the slices alternate, A B, B A, ..., with the same requests at the same times: only one is loaded at a
time, so that two servers on one machine do not take it from each other, and each gets the whole rate, which a random
choice for every arrival would halve; what drifts meets both, and every slice has its pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.load.intervals import Interval, ratio_interval
from benchmarks.load.measure import BoundReachedError, Load, Measurer, Point, Server, Settings
from benchmarks.load.progress import Progress
from benchmarks.load.samples import KINDS, Samples
from benchmarks.load.schedule import sides_in_turn
from benchmarks.load.search import RateFound, SearchSettings, Trial, found, next_rate

STRETCHES = 5  # of each slice, which a bootstrap draws whole
COMPARED = (0.5, 0.9, 0.99)


@dataclass(kw_only=True)
class SideResult:
    """What was measured of one server."""

    name: str
    idle_s: float
    points: list[Point] = field(default_factory=list)
    rate: RateFound | None = None
    upper_edge: Point | None = None


@dataclass(kw_only=True)
class RunResult:
    """All sides; `bound` is the bound that ended the run before its end."""

    sides: list[SideResult]
    bound: str | None = None
    requests_sent: int = 0


async def run_loads(
    servers: Sequence[Server], loads: Sequence[Load], settings: Settings, progress: Progress
) -> RunResult:
    """Measure every load on every server, slice by slice in turn.

    Raises:
        UnusableServerError: a server did not answer the first requests.
    """
    measurer, result = await _started(servers, settings, progress)
    try:
        for number, load in enumerate(loads):
            points = [Point(load=load) for _ in servers]
            for side in range(len(servers)):
                result.sides[side].points.append(points[side])
            for piece, side in sides_in_turn(settings.slices, len(servers)):
                await measurer.slice(servers[side], points[side], f"point-{number}/slice-{piece}")
            for server, point in zip(servers, points, strict=True):
                progress.say(_told(server, point, settings))
    except BoundReachedError as err:
        result.bound = str(err)
    for side_result in result.sides:
        side_result.points = [point for point in side_result.points if point.slices]
    result.requests_sent = measurer.requests_sent
    return result


async def find_rates(
    servers: Sequence[Server], search: SearchSettings, settings: Settings, progress: Progress
) -> RunResult:
    """Search the highest rate that meets the SLO on every server, one look of each in turn.

    Raises:
        UnusableServerError: a server did not answer the first requests.
    """
    assert settings.slo is not None, "a rate is searched for an SLO"
    measurer, result = await _started(servers, settings, progress)
    searches = [search.starting(side.idle_s) for side in result.sides]
    points: list[dict[float, Point]] = [{} for _ in servers]
    trials: list[dict[float, Trial]] = [{} for _ in servers]
    looks = 0
    try:
        while any(
            rate is not None for rate in (next_rate(tried, each) for tried, each in zip(trials, searches, strict=True))
        ):
            for side in range(len(servers)) if looks % 2 == 0 else reversed(range(len(servers))):
                rate = next_rate(trials[side], searches[side])
                if rate is None:
                    continue
                point = points[side].setdefault(rate, Point(load=Load(rate_rps=rate)))
                for piece in range(settings.slices):
                    await measurer.slice(servers[side], point, f"look-{looks}/slice-{piece}")
                before = trials[side].get(rate)
                trials[side][rate] = Trial(
                    verdict=point.verdict(settings), looks=1 if before is None else before.looks + 1
                )
                progress.say(_told(servers[side], point, settings))
            looks += 1
    except BoundReachedError as err:
        result.bound = str(err)
    for side, side_result in enumerate(result.sides):
        side_result.points = [points[side][rate] for rate in sorted(points[side]) if points[side][rate].slices]
        side_result.rate = found(trials[side])
        missed = min((rate for rate, trial in trials[side].items() if not trial.verdict.met), default=None)
        side_result.upper_edge = None if missed is None else points[side][missed]
    result.requests_sent = measurer.requests_sent
    return result


async def _started(servers: Sequence[Server], settings: Settings, progress: Progress) -> tuple[Measurer, RunResult]:
    measurer = Measurer(settings, progress)
    result = RunResult(sides=[])
    for server in servers:
        idle_s = await measurer.preflight(server)
        progress.say(f"server {server.name} answers one request at a time within {idle_s * 1000:.1f} ms")
        result.sides.append(SideResult(name=server.name, idle_s=idle_s))
    return measurer, result


def _told(server: Server, point: Point, settings: Settings) -> str:
    verdict = point.verdict(settings)
    said = (
        ""
        if settings.slo is None
        else f", SLO {'met' if verdict.met else 'missed'}" + ("" if verdict.certain else " (not certain)")
    )
    limited = ", the generator was late" if point.generator_limited(settings) else ""
    return f"server {server.name} {point.load.label}: {len(point.samples)} requests{said}{limited}"


def generator_limited(result: RunResult, settings: Settings) -> bool:
    """Whether the generator, not a server, may have decided the result: of a search, at the rate that bounds it from above."""
    if any(side.rate is not None for side in result.sides):
        edges = [side.upper_edge for side in result.sides if side.upper_edge is not None]
        return any(edge.generator_limited(settings) for edge in edges)
    return any(point.generator_limited(settings) for side in result.sides for point in side.points)


def comparison(result: RunResult, settings: Settings) -> dict[str, Any] | None:
    """Ratios of the second server over the first, under each load that both had, with intervals; None of one server.

    Below 1 the second has the lower latency. The ratio of the rates has the intervals' ends divided crosswise.
    """
    if len(result.sides) != 2:
        return None
    first, second = result.sides
    loads = [
        (mine, theirs)
        for mine in first.points
        for theirs in second.points
        if mine.load == theirs.load and mine.slices == theirs.slices
    ]
    report: dict[str, Any] = {
        "ratio": f"{second.name} over {first.name}",
        "latency": [_latency_ratios(mine, theirs, settings) for mine, theirs in loads],
    }
    if first.rate is not None and second.rate is not None:
        report["rate_ratio"] = _rate_ratio(first.rate, second.rate)
    return report


def _latency_ratios(mine: Point, theirs: Point, settings: Settings) -> dict[str, Any]:
    length_s = (settings.warmup_s + settings.duration_s / settings.slices) / STRETCHES
    ratios: dict[str, Any] = {"offered_rps": mine.load.rate_rps, "clients": mine.load.clients}
    for kind in (None, *KINDS):
        ours = Samples(mine.samples).blocks(kind, length_s)
        others = Samples(theirs.samples).blocks(kind, length_s)
        keys = sorted(ours.keys() & others.keys())
        for share in COMPARED:
            interval = ratio_interval(
                [others[key] for key in keys],
                [ours[key] for key in keys],
                share,
                settings.confidence,
                settings.seed,
            )
            if interval is not None:
                ratios[f"{kind or 'all'}_p{share * 100:g}_ratio"] = as_list(interval)
    if mine.load.clients is not None:
        ratios["answered_ratio"] = (theirs.answered_in_time / theirs.seconds) / (mine.answered_in_time / mine.seconds)
    return ratios


def _rate_ratio(first: RateFound, second: RateFound) -> list[float | None]:
    def over(upper: float | None, lower: float | None) -> float | None:
        return None if upper is None or lower is None else round(upper / lower, 4)

    return [
        over(second.rate_rps, first.rate_rps),
        over(second.low_rps, first.high_rps),
        over(second.high_rps, first.low_rps),
    ]


def as_list(interval: Interval) -> list[float]:
    """Value, low, high."""
    return [round(interval.value, 4), round(interval.low, 4), round(interval.high, 4)]
