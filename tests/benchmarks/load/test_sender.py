"""The open and the closed loop in virtual time: when requests start, what their latency is, and what becomes of each."""

import asyncio
import math

import pytest

from benchmarks.load.intervals import percentile
from benchmarks.load.schedule import poisson
from benchmarks.load.sender import Flight, Sent, closed_loop, open_loop
from tests.benchmarks.load.simulated import SimulatedReply, SimulatedServer
from tests.benchmarks.load.virtual_time import VirtualLoop, in_virtual_time

DUE_S = [0.0, 1.0, 2.0, 3.0, 4.0]


def latencies(flight: Flight) -> list[float]:
    return [round(sent.done_s - sent.due_s, 6) for sent in sorted(flight.sent, key=lambda sent: sent.number)]


async def answer_after(seconds: float) -> SimulatedReply:
    await asyncio.sleep(seconds)
    return SimulatedReply()


def test_a_slow_answer_keeps_no_other_request_waiting() -> None:
    flight = in_virtual_time(open_loop(DUE_S, lambda _: answer_after(2.5), timeout_s=10, max_in_flight=10))
    assert latencies(flight) == [2.5] * 5
    assert [sent.started_s for sent in flight.sent] == pytest.approx(DUE_S)
    assert not flight.stopped_early


def test_all_that_come_while_a_server_pauses_wait_for_it() -> None:
    """No coordinated omission: of a pause of 3 seconds the requests due in it see what is left of it."""
    server = SimulatedServer(service_s=0.125, pause_at_s=0.5, pause_s=3)
    flight = in_virtual_time(open_loop(DUE_S, lambda _: server.ask(b"{}"), timeout_s=10, max_in_flight=10))
    # The second request meets the pause; those after it queue behind it.
    assert latencies(flight) == [0.125, 3.125, 2.25, 1.375, 0.5]


def test_a_queue_has_the_latencies_of_lindleys_recursion() -> None:
    due = poisson(80, 60, "queue")
    server = SimulatedServer(service_s=0.01)
    flight = in_virtual_time(open_loop(due, lambda _: server.ask(b"{}"), timeout_s=100, max_in_flight=10_000))
    expected, free_at = [], 0.0
    for at in due:
        free_at = max(free_at, at) + 0.01
        expected.append(free_at - at)
    assert latencies(flight) == pytest.approx(expected, abs=1e-5)
    assert percentile(latencies(flight), 0.5) > 0.015


def test_a_timeout_counts_from_when_a_request_was_due_and_is_kept() -> None:
    server = SimulatedServer(service_s=1.5)
    flight = in_virtual_time(open_loop(DUE_S, lambda _: server.ask(b"{}"), timeout_s=2.75, max_in_flight=10))
    assert [sent.outcome for sent in sorted(flight.sent, key=lambda sent: sent.number)] == ["answered"] * 3 + [
        "timeout"
    ] * 2
    assert latencies(flight) == [1.5, 2.0, 2.5, 2.75, 2.75]


def test_one_too_many_in_flight_is_not_sent_and_is_kept() -> None:
    asked: list[int] = []

    async def ask(number: int) -> SimulatedReply:
        asked.append(number)
        return await answer_after(2.5)

    flight = in_virtual_time(open_loop(DUE_S, ask, timeout_s=10, max_in_flight=2))
    outcomes = {sent.number: sent.outcome for sent in flight.sent}
    assert outcomes == {0: "answered", 1: "answered", 2: "not sent", 3: "answered", 4: "answered"}
    assert asked == [0, 1, 3, 4]


def test_a_lost_slice_gives_up_what_is_in_flight_and_sends_no_more() -> None:
    def lost(flight: Flight) -> bool:
        return flight.in_flight >= 3

    flight = in_virtual_time(open_loop(DUE_S, lambda _: answer_after(100), timeout_s=1000, max_in_flight=10, lost=lost))
    assert flight.stopped_early
    assert sorted((sent.number, sent.outcome) for sent in flight.sent) == [
        (0, "given up"),
        (1, "given up"),
        (2, "given up"),
    ]


def test_a_generator_that_is_busy_sends_late_and_its_clock_shows_it() -> None:
    """Preparing a request takes 30 ms, one comes every 10: the generator falls behind, and latency says so too."""

    async def ask(_: int) -> SimulatedReply:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.busy(0.03)
        return SimulatedReply()

    flight = in_virtual_time(open_loop([0.01 * n for n in range(100)], ask, timeout_s=100, max_in_flight=1000))
    lags = [sent.started_s - sent.due_s for sent in flight.sent]
    assert lags[-1] == pytest.approx(99 * 0.02, abs=0.05)
    assert max(flight.ticks_s) > 0.015
    assert max(latencies(flight)) >= max(lags)


def test_a_closed_loop_asks_again_when_it_is_answered() -> None:
    server = SimulatedServer(service_s=0.25)
    prepared: list[int] = []
    flight = in_virtual_time(
        closed_loop(2, 2.0, lambda _: server.ask(b"{}"), timeout_s=10, max_requests=100, prepare=prepared.append)
    )
    assert len(flight.sent) == 9  # 8 end within 2 s, and the last one was due before that
    assert latencies(flight)[2:] == [0.5] * 7
    assert prepared == list(range(9))


def test_a_closed_loop_keeps_to_its_bound() -> None:
    flight = in_virtual_time(
        closed_loop(3, math.inf, lambda _: answer_after(1), timeout_s=10, max_requests=7, prepare=lambda _: None)
    )
    assert len(flight.sent) == 7


def test_usage_is_kept() -> None:
    async def ask(_: int) -> SimulatedReply:
        return SimulatedReply(told={"x_cached_tokens": 64})

    (sent,) = in_virtual_time(open_loop([0.0], ask, timeout_s=1, max_in_flight=1)).sent
    assert isinstance(sent, Sent)
    assert sent.usage == {"x_cached_tokens": 64}
