"""Whole runs in virtual time against simulated servers: the rate at an SLO where theory knows it, states, bounds, ratios."""

import asyncio
from typing import Any

import pytest

from benchmarks.load.measure import PROBES, Load, Measurer, Point, Settings, UnusableServerError
from benchmarks.load.progress import Progress
from benchmarks.load.report import GENERATOR_LIMITED, MET, NOT_MEASURED, NOT_MET, exit_status
from benchmarks.load.run import RunResult, comparison, find_rates, run_loads
from benchmarks.load.search import SearchSettings
from benchmarks.load.slo import parse_slo
from benchmarks.load.workloads import read_workload
from tests.benchmarks.load.simulated import (
    SimulatedReply,
    SimulatedServer,
    md1_rate_at,
    md1_sojourn_cdf,
    settings,
)
from tests.benchmarks.load.virtual_time import VirtualLoop, in_virtual_time

QUIET = Progress(quiet=True)


def loads(*rates: float) -> list[Load]:
    return [Load(rate_rps=rate) for rate in rates]


def measured(server: SimulatedServer, chosen: Settings, *rates: float) -> RunResult:
    return in_virtual_time(run_loads([server], loads(*rates), chosen, QUIET))


def test_the_theory_used_here_is_that_of_a_simple_queue() -> None:
    # Nobody waits with probability 1 - load; the mean wait of M/D/1 is load / (2 (1 - load)) services.
    assert md1_sojourn_cdf(0.7, 1) == pytest.approx(0.3)
    step = 0.001
    mean_wait = sum((1 - md1_sojourn_cdf(0.7, 1 + step * (n + 0.5))) * step for n in range(20_000))
    assert mean_wait == pytest.approx(0.7 / 0.6, rel=1e-3)


def test_the_rate_found_is_the_one_that_theory_knows() -> None:
    """A server of 1 ms for each request keeps p95 below 6 ms up to about 800 requests a second."""
    truth = md1_rate_at(0.95, 0.006, 0.001)
    chosen = settings(slo=parse_slo("p95<6ms"), duration_s=6, warmup_s=0.2)
    result = in_virtual_time(
        find_rates([SimulatedServer(service_s=0.001)], SearchSettings(max_rps=10_000), chosen, QUIET)
    )
    rate = result.sides[0].rate
    assert rate is not None
    assert rate.rate_rps == pytest.approx(truth, rel=0.05)
    assert rate.low_rps is not None
    assert rate.high_rps is not None
    assert rate.low_rps < truth < rate.high_rps
    assert exit_status(result, chosen, None) == MET
    assert exit_status(result, chosen, 700) == MET
    assert exit_status(result, chosen, 900) == NOT_MET


def test_percentiles_of_a_point_are_those_of_theory_and_within_their_intervals() -> None:
    chosen = settings(slo=None, duration_s=20, warmup_s=0.2)
    (point,) = measured(SimulatedServer(service_s=0.001), chosen, 600).sides[0].points
    latency = point.report(chosen)["latency"]["all"]
    for percent in (50, 90, 99):
        low, high = latency[f"p{percent}_ms_interval"]
        assert md1_sojourn_cdf(0.6, low) < percent / 100 < md1_sojourn_cdf(0.6, high)
        assert high - low < 0.2 * latency[f"p{percent}_ms"]


def test_a_point_that_is_lost_is_given_up_early() -> None:
    chosen = settings(duration_s=600)
    result = measured(SimulatedServer(), chosen, 150)
    (point,) = result.sides[0].points
    assert point.stopped_early
    assert point.seconds < 60
    assert exit_status(result, chosen, None) == NOT_MET
    assert point.verdict(chosen).certain


def test_states_never_come_again_in_another_point_or_slice_or_at_another_server() -> None:
    servers = [SimulatedServer(name="A", service_s=0.001), SimulatedServer(name="B", service_s=0.001)]
    chosen = settings(slo=None, duration_s=4, warmup_s=0.5, slices=2)
    in_virtual_time(run_loads(servers, loads(20, 40), chosen, QUIET))
    states = [[body["state"] for body in server.bodies] for server in servers]
    both = [*states[0], *states[1]]
    assert len(both) == len(set(both)) > 200
    # The same requests but for the ids.
    without_ids = [[state.partition("\n")[2] for state in each] for each in states]
    assert sorted(without_ids[0]) == sorted(without_ids[1])


def test_agents_meet_their_states_again_within_a_point_and_never_in_the_next() -> None:
    server = SimulatedServer(service_s=0.001)
    chosen = settings(workload=read_workload("agents"), slo=None, duration_s=20)
    (first, second) = measured(server, chosen, 20, 20).sides[0].points
    for point in (first, second):
        kinds = {kind: sum(sample.kind == kind for sample in point.samples) for kind in ("cold", "prefix", "repeated")}
        assert kinds["prefix"] > 10 * kinds["cold"] > 0 < kinds["repeated"]
    half = len(server.bodies) // 2
    states = [{body["state"] for body in part} for part in (server.bodies[:half], server.bodies[half:])]
    assert len(states[0] & states[1]) <= 4  # those alive where the list is cut


def test_states_that_are_alive_have_been_asked_before_a_slice() -> None:
    server = SimulatedServer(service_s=0.001)
    measured(server, settings(workload=read_workload("agents"), slo=None, duration_s=2, warmup_s=0), 20)
    states = [body["state"] for body in server.bodies[PROBES + 1 :]]  # one more asks whether the server is idle
    assert len(set(states[:4])) == 4
    assert set(states[:4]) & set(states[4:])


def test_a_warm_up_is_asked_and_not_counted() -> None:
    server = SimulatedServer(pause_at_s=0.5, pause_s=1.0)
    chosen = settings(slo=None, duration_s=10, warmup_s=5)
    (point,) = measured(server, chosen, 20).sides[0].points
    assert max(sample.latency_s for sample in point.samples) < 0.1
    assert all(5 <= sample.due_s < 15 for sample in point.samples)
    assert len(server.bodies) > len(point.samples) + 50


def test_errors_are_told_by_status_and_miss_the_slo() -> None:
    server = SimulatedServer(service_s=0.001)
    chosen = settings(slo=parse_slo("p50<1s,cold.errors<1%"), duration_s=20)

    async def failing() -> Point:
        measurer = Measurer(chosen, QUIET)
        await measurer.preflight(server)
        server.outcomes = ("answered", "answered", "answered", "status 503", "connection")
        point = Point(load=Load(rate_rps=20))
        await measurer.slice(server, point, "x")
        return point

    report = in_virtual_time(failing()).report(chosen)
    assert set(report["outcomes"]) == {"answered", "status 503", "connection"}
    assert sum(report["outcomes"].values()) == report["requests"]
    assert report["latency"]["all"]["p90_ms"] is None
    assert [term["met"] for term in report["slo"]] == [True, False]


def test_a_server_that_refuses_the_first_request_is_not_measured() -> None:
    with pytest.raises(UnusableServerError, match="status 401"):
        measured(SimulatedServer(outcomes=("status 401",)), settings(), 10)


@pytest.mark.parametrize(("bound", "value"), [("max_requests", 500), ("max_seconds", 60)])
def test_bounds_end_a_run_and_keep_whole_points(bound: str, value: int) -> None:
    chosen = settings(slo=None, duration_s=20, **{bound: value})
    server = SimulatedServer()
    result = measured(server, chosen, 10, 10, 10, 10)
    assert result.bound is not None
    assert f"{bound} is {value}" in result.bound
    assert 1 <= len(result.sides[0].points) < 4
    assert all(point.seconds == 20 for point in result.sides[0].points)
    assert len(server.bodies) <= 1000
    assert exit_status(result, chosen, None) == NOT_MEASURED


def test_the_clock_ends_a_slice_that_would_go_on() -> None:
    async def run() -> tuple[RunResult, float]:
        result = await run_loads(
            [SimulatedServer()], loads(10), settings(slo=None, duration_s=2000, max_seconds=30), QUIET
        )
        return result, asyncio.get_running_loop().time()

    result, ended_s = in_virtual_time(run())
    assert result.bound == "max_seconds is 30"
    assert ended_s < 32


def slow_generator(seconds: float) -> SimulatedServer:
    class Busy(SimulatedServer):
        async def ask(self, body: bytes) -> SimulatedReply:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            loop.busy(seconds)
            return await super().ask(body)

    return Busy(service_s=0)


@pytest.mark.parametrize(("busy_s", "status"), [(0.0005, MET), (0.02, GENERATOR_LIMITED)])
def test_a_generator_that_cannot_keep_up_is_told_from_a_slow_server(busy_s: float, status: int) -> None:
    chosen = settings(slo=parse_slo("p99<100ms"), duration_s=10)
    result = measured(slow_generator(busy_s), chosen, 60)
    assert exit_status(result, chosen, None) == status
    (point,) = result.sides[0].points
    assert point.generator_limited(chosen) == (status == GENERATOR_LIMITED)
    assert point.lag_bound_s(chosen) == pytest.approx(0.01)


def test_a_search_whose_upper_edge_is_the_generators_says_so() -> None:
    chosen = settings(slo=parse_slo("p95<50ms"), duration_s=20)
    result = in_virtual_time(
        find_rates([slow_generator(0.01)], SearchSettings(start_rps=10, max_rps=1000), chosen, QUIET)
    )
    assert result.sides[0].rate is not None
    assert exit_status(result, chosen, None) == GENERATOR_LIMITED
    assert exit_status(result, chosen, 20) == MET  # what was asked for was reached all the same


def test_two_servers_are_compared_slice_by_slice() -> None:
    servers = [SimulatedServer(name="A", service_s=0.02), SimulatedServer(name="B", service_s=0.01)]
    chosen = settings(slo=None, duration_s=80, slices=4)
    compared = comparison(in_virtual_time(run_loads(servers, loads(5), chosen, QUIET)), chosen)
    assert compared is not None
    assert compared["ratio"] == "B over A"
    (ratios,) = compared["latency"]
    value, low, high = ratios["all_p50_ratio"]
    assert low <= value <= high
    assert value == pytest.approx(0.5, abs=0.01)
    assert ratios["cold_p50_ratio"] == ratios["all_p50_ratio"]


def test_rates_of_two_servers_are_searched_in_turn_and_compared() -> None:
    servers = [SimulatedServer(name="A", service_s=0.002), SimulatedServer(name="B", service_s=0.001)]
    chosen = settings(slo=parse_slo("p90<10ms"), duration_s=4, warmup_s=0.2)
    compared = comparison(in_virtual_time(find_rates(servers, SearchSettings(max_rps=5000), chosen, QUIET)), chosen)
    assert compared is not None
    truth = md1_rate_at(0.9, 0.01, 0.001) / md1_rate_at(0.9, 0.01, 0.002)
    value, low, high = compared["rate_ratio"]
    assert value == pytest.approx(truth, rel=0.1)
    assert low < truth < high


def test_a_closed_loop_tells_what_a_server_can_do() -> None:
    chosen = settings(slo=None, duration_s=20)
    result = in_virtual_time(run_loads([SimulatedServer()], [Load(clients=4)], chosen, QUIET))
    report = result.sides[0].points[0].report(chosen)
    assert report["answered_rps"] == pytest.approx(100, rel=0.01)
    assert report["latency"]["all"]["p50_ms"] == pytest.approx(40)
    assert (report["clients"], report["offered_rps"]) == (4, None)


def test_a_server_that_is_still_busy_is_waited_for() -> None:
    """10 s of work are left when the first point ends; the second one begins after them."""
    chosen = settings(slo=None, duration_s=10, warmup_s=0, timeout_s=1, settle_s=60)
    first, second = measured(SimulatedServer(), chosen, 200, 10).sides[0].points
    assert max(first.report(chosen)["outcomes"], key=first.report(chosen)["outcomes"].get) == "timeout"
    assert second.settled
    assert second.report(chosen)["outcomes"] == {"answered": len(second.samples)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"duration_s": 0},
        {"warmup_s": -1},
        {"slices": 0},
        {"confidence": 1},
        {"max_requests": 0},
        {"slo": parse_slo("p99<20s")},
        {"slo": parse_slo("prefix.p99<1s")},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        settings(**wrong)
