"""Who runs, who waits in which order, and who is told to come back when."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from serving.admission import Admission, Pace
from serving.errors import OverloadedError, RequestTimeoutError
from serving.settings import AdmissionLimits

pytestmark = pytest.mark.asyncio
FAR = 1e9


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def admission(clock: Callable[[], float] | None = None, **changes: int) -> Admission:
    limits = {
        "max_running_requests": 2,
        "max_running_tokens": 100,
        "max_waiting_requests": 3,
        "max_waiting_tokens": 300,
    }
    return Admission(AdmissionLimits(**limits | changes), **({"clock": clock} if clock else {}))


class Client:
    """A request that runs until `finish` is called."""

    def __init__(self, desk: Admission, log: list[str], name: str, tokens: int, **how: Any) -> None:
        self.done = asyncio.Event()
        self.task = asyncio.create_task(self._run(desk, log, name, {"tokens": tokens, "deadline": FAR} | how))

    async def _run(self, desk: Admission, log: list[str], name: str, how: dict[str, Any]) -> None:
        async with desk.turn(**how):
            log.append(name)
            await self.done.wait()

    async def finish(self) -> None:
        self.done.set()
        await self.task


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def counts(desk: Admission) -> tuple[int, int, int, int]:
    return desk.running_requests, desk.running_tokens, desk.waiting_requests, desk.waiting_tokens


async def test_what_fits_runs_and_the_rest_waits_in_order() -> None:
    desk, log = admission(), []  # type: ignore[var-annotated]
    clients = [Client(desk, log, name, tokens) for name, tokens in (("a", 40), ("b", 60), ("c", 10), ("d", 10))]
    await settle()
    assert log == ["a", "b"]
    assert counts(desk) == (2, 100, 2, 20)
    await clients[0].finish()
    await settle()
    assert log == ["a", "b", "c"]
    for client in clients[1:]:
        await client.finish()
    assert log == ["a", "b", "c", "d"]
    assert counts(desk) == (0, 0, 0, 0)


async def test_a_large_request_at_the_head_is_not_overtaken() -> None:
    desk, log = admission(), []  # type: ignore[var-annotated]
    first, large, small = (
        Client(desk, log, name, tokens) for name, tokens in (("a", 40), ("large", 100), ("small", 1))
    )
    await settle()
    assert log == ["a"]
    await first.finish()
    await settle()
    assert log == ["a", "large"]
    await large.finish()
    await settle()
    assert log == ["a", "large", "small"]
    await small.finish()


async def test_one_request_may_run_whatever_its_size() -> None:
    desk, log = admission(), []  # type: ignore[var-annotated]
    client = Client(desk, log, "huge", 10_000)
    await settle()
    assert log == ["huge"]
    await client.finish()


async def test_priority_goes_first_and_equals_in_order_of_arrival() -> None:
    desk, log = admission(max_running_requests=1), []  # type: ignore[var-annotated]
    first = Client(desk, log, "first", 1)
    await settle()
    waiting = [Client(desk, log, name, 1, priority=p) for name, p in (("low", -1), ("normal", 0), ("high", 1))]
    await settle()
    for client in (first, waiting[2], waiting[1], waiting[0]):
        await client.finish()
        await settle()
    assert log == ["first", "high", "normal", "low"]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [([10, 10, 10, 10], "max_waiting_requests is 3"), ([100, 100, 101], "max_waiting_tokens is 300")],
    ids=["requests", "tokens"],
)
async def test_a_full_queue_refuses(tokens: list[int], message: str) -> None:
    desk, log = admission(max_running_requests=1), []  # type: ignore[var-annotated]
    clients = [Client(desk, log, "a", 50)]
    await settle()
    clients += [Client(desk, log, "b", size) for size in tokens[:-1]]
    await settle()
    with pytest.raises(OverloadedError, match=message) as caught:
        async with desk.turn(tokens=tokens[-1], deadline=FAR):
            pass
    assert caught.value.retry_after_ms == 100
    for client in clients:
        await client.finish()
    assert counts(desk) == (0, 0, 0, 0)


async def test_whoever_leaves_while_waiting_or_running_frees_the_place() -> None:
    desk, log = admission(max_running_requests=1), []  # type: ignore[var-annotated]
    running, leaving, staying = (Client(desk, log, name, 10) for name in ("running", "leaving", "staying"))
    await settle()
    leaving.task.cancel()
    await settle()
    assert counts(desk) == (1, 10, 1, 10)
    running.task.cancel()
    await settle()
    assert log == ["running", "staying"]
    await staying.finish()
    assert counts(desk) == (0, 0, 0, 0)


async def test_whoever_leaves_in_the_moment_its_turn_comes_gives_it_on() -> None:
    desk, log = admission(max_running_requests=1), []  # type: ignore[var-annotated]
    running, leaving, staying = (Client(desk, log, name, 10) for name in ("running", "leaving", "staying"))
    await settle()
    running.done.set()
    await asyncio.sleep(0)  # `running` has ended and has granted the turn, `leaving` has not woken up
    leaving.task.cancel()
    await settle()
    assert log == ["running", "staying"]
    await staying.finish()
    assert counts(desk) == (0, 0, 0, 0)


async def test_a_turn_that_does_not_come_in_time_is_refused() -> None:
    desk, log = admission(max_running_requests=1), []  # type: ignore[var-annotated]
    running = Client(desk, log, "running", 10)
    await settle()
    loop = asyncio.get_running_loop()
    with pytest.raises(RequestTimeoutError, match="its turn did not come before its deadline"):
        async with desk.turn(tokens=1, deadline=loop.time() + 0.01):
            pass
    assert counts(desk) == (1, 10, 0, 0)
    await running.finish()


async def work(desk: Admission, clock: Clock, tokens: int, seconds: float) -> None:
    async with desk.turn(tokens=tokens, deadline=FAR):
        clock.now += seconds


async def test_a_deadline_that_other_work_would_miss_is_refused_at_once() -> None:
    clock, log = Clock(), []  # type: ignore[var-annotated]
    desk = admission(clock, max_running_tokens=1000)
    await work(desk, clock, tokens=100, seconds=1)  # 10 ms a token
    running = Client(desk, log, "running", 500)
    await settle()
    with pytest.raises(RequestTimeoutError, match=r"about 5\.0 s of other work comes first") as caught:
        async with desk.turn(tokens=100, deadline=clock.now + 5.9):
            pass
    assert caught.value.retry_after_ms == 5000
    async with desk.turn(tokens=100, deadline=clock.now + 6.1):
        log.append("in time")
    assert log == ["running", "in time"]
    await running.finish()


async def test_work_of_lower_priority_does_not_count_as_ahead() -> None:
    clock, log = Clock(), []  # type: ignore[var-annotated]
    desk = admission(clock, max_running_requests=1, max_running_tokens=1000)
    await work(desk, clock, tokens=100, seconds=1)
    running, low = Client(desk, log, "running", 100), Client(desk, log, "low", 200, priority=-1)
    await settle()
    with pytest.raises(RequestTimeoutError):
        async with desk.turn(tokens=1, deadline=clock.now + 2, priority=-1):
            pass
    high = Client(desk, log, "high", 50, priority=1, deadline=clock.now + 2)
    await settle()
    for client in (running, high, low):
        await client.finish()
        await settle()
    assert log == ["running", "high", "low"]


async def test_an_idle_engine_is_always_tried() -> None:
    clock = Clock()
    desk = admission(clock)
    await work(desk, clock, tokens=1, seconds=100)
    async with desk.turn(tokens=100, deadline=clock.now + 1):
        pass


async def test_the_pace_forgets_and_does_not_count_idle_time_or_work_given_up() -> None:
    clock = Clock()
    pace = Pace(clock)

    async def one(tokens: int, seconds: float, idle: float) -> None:
        pace.started()
        clock.now += seconds
        pace.finished(tokens, idle=True)
        clock.now += idle

    assert pace.seconds_for(100) == 0
    await one(100, 1, idle=1000)
    assert pace.seconds_for(100) == pytest.approx(1)
    await one(0, 500, idle=0)
    assert pace.seconds_for(100) == pytest.approx(1)
    for _ in range(10):
        await one(1000, 5, idle=10)
    assert pace.seconds_for(100) == pytest.approx(0.5, rel=0.01)


async def test_retry_after_is_bounded() -> None:
    clock, log = Clock(), []  # type: ignore[var-annotated]
    desk = admission(clock, max_running_tokens=10**9)
    await work(desk, clock, tokens=1, seconds=1)
    running = Client(desk, log, "running", 10**6)
    await settle()
    with pytest.raises(RequestTimeoutError) as caught:
        async with desk.turn(tokens=1, deadline=clock.now + 5):
            pass
    assert caught.value.retry_after_ms == 30_000
    await running.finish()


async def test_a_small_one_of_higher_priority_runs_at_once_where_a_large_one_is_waiting() -> None:
    desk, log = admission(), []  # type: ignore[var-annotated]
    first, large = Client(desk, log, "first", 40), Client(desk, log, "large", 100)
    small = Client(desk, log, "small", 10, priority=1)
    await settle()
    assert log == ["first", "small"]
    assert counts(desk) == (2, 50, 1, 100)
    for client in (first, small, large):
        await client.finish()
    assert counts(desk) == (0, 0, 0, 0)


async def test_what_is_ahead_is_refused_before_the_requests_own_size_is_known() -> None:
    clock, log = Clock(), []  # type: ignore[var-annotated]
    desk = admission(clock, max_running_tokens=1000)
    assert desk.require_time(tokens=100, deadline=clock.now + 0.001) == 0, "nothing is known of the pace"
    await work(desk, clock, tokens=100, seconds=1)
    running = Client(desk, log, "running", 500)
    await settle()
    with pytest.raises(RequestTimeoutError, match=r"about 5\.0 s of other work comes first") as caught:
        desk.require_time(deadline=clock.now + 4.9)
    assert caught.value.retry_after_ms == 5000
    assert desk.require_time(deadline=clock.now + 5.1) == pytest.approx(5)
    assert desk.require_time(tokens=100, deadline=clock.now + 6.1) == pytest.approx(6)
    assert counts(desk) == (1, 500, 0, 0)
    await running.finish()


async def overrun(desk: Admission, clock: Clock, seconds: float) -> None:
    """Two together whose tokens are foreseen to take 2 s, in an engine that answers both after so many seconds."""
    log: list[str] = []
    pair = [Client(desk, log, name, 100) for name in "ab"]
    await settle()
    clock.now += seconds
    for client in pair:
        await client.finish()


def is_tried(desk: Admission, clock: Clock, within: float) -> bool:
    try:
        desk.require_time(tokens=100, deadline=clock.now + within)
    except RequestTimeoutError:
        return False
    return True


async def test_what_requests_took_beyond_the_foreseen_is_allowed_for() -> None:
    clock, log = Clock(), []  # type: ignore[var-annotated]
    desk = admission(clock, max_running_tokens=1000)
    await work(desk, clock, tokens=100, seconds=1)
    # Both are answered when the batch is: the first of two took a second longer than its place says, the second did not.
    for _ in range(20):
        await overrun(desk, clock, 2)
    running = Client(desk, log, "running", 100)
    await settle()
    assert not is_tried(desk, clock, within=2.1), "2 s of work, and a batch's second beyond it"
    assert is_tried(desk, clock, within=5)
    await running.finish()
    # One after the other nothing is beyond the foreseen.
    for _ in range(60):
        await work(desk, clock, tokens=100, seconds=1)
    running = Client(desk, log, "running", 100)
    await settle()
    assert is_tried(desk, clock, within=2.1)
    await running.finish()


@pytest.mark.parametrize(("left_after", "tried"), [(9, False), (4, True)], ids=["its deadline", "its client left"])
async def test_one_given_up_at_its_deadline_counts_as_slow_and_one_whose_client_left_does_not(
    left_after: float, tried: bool
) -> None:
    clock, log = Clock(), []  # type: ignore[var-annotated]
    desk = admission(clock, max_running_tokens=1000)
    await work(desk, clock, tokens=100, seconds=1)
    given_up = Client(desk, log, "given up", 100, deadline=clock.now + 9)
    await settle()
    clock.now += left_after
    given_up.task.cancel()
    await settle()
    running = Client(desk, log, "running", 100)
    await settle()
    assert is_tried(desk, clock, within=3) == tried
    await running.finish()
    assert counts(desk) == (0, 0, 0, 0)
