"""Sends requests when they are due, whatever becomes of them, or one client after another. Knows neither HTTP nor workloads.

An open loop never waits for an answer, and latency counts from when a request was due: a server that stalls is seen by all
who would have come meanwhile (no coordinated omission). Times are the event loop's, so that a loop with a virtual clock
simulates all of it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

LEAD_S = 0.05  # from now to the start of a schedule
TICK_S = 0.01
LOOK_S = 0.5


class Reply(Protocol):
    """What an ask returns: `outcome` as `Sample` has it."""

    @property
    def outcome(self) -> str:
        """`answered`, or why not."""
        ...

    def usage(self) -> dict[str, int]:
        """Tokens by name, as far as the server tells."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class NoReply:
    """There was none."""

    outcome: str

    def usage(self) -> dict[str, int]:
        """Nothing."""
        return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """One request by its number, and its times in seconds from the start of the schedule."""

    number: int
    due_s: float
    started_s: float
    done_s: float
    outcome: str
    usage: dict[str, int]


@dataclass(kw_only=True)
class Flight:
    """What has happened so far; grows while requests are sent.

    Attributes:
        sent: requests that are over, in the order in which they ended.
        ticks_s: how late a clock that ticks every `TICK_S` came each time: the event loop's own lag.
    """

    sent: list[Sent] = field(default_factory=list)
    in_flight: int = 0
    ticks_s: list[float] = field(default_factory=list)
    stopped_early: bool = False

    def over(self, number: int, due_s: float, started_s: float, done_s: float, reply: Reply) -> None:
        """One that was in flight is so no more."""
        self.in_flight -= 1
        self.sent.append(
            Sent(
                number=number,
                due_s=due_s,
                started_s=started_s,
                done_s=done_s,
                outcome=reply.outcome,
                usage=reply.usage(),
            )
        )


Ask = Callable[[int], Awaitable[Reply]]


async def open_loop(
    due_s: Sequence[float],
    ask: Ask,
    *,
    timeout_s: float,
    max_in_flight: int,
    lost: Callable[[Flight], bool] = lambda flight: False,
    flight: Flight | None = None,
) -> Flight:
    """Start `ask(number)` at each of these seconds from now, in order; each has `timeout_s` from when it was due.

    A request that would be one too many in flight is not sent and counts as missed. When `lost`, which is asked every half
    second, says so, the rest is not sent and what is in flight is given up.
    """
    flight = Flight() if flight is None else flight
    loop = asyncio.get_running_loop()
    start = loop.time() + LEAD_S
    tasks: set[asyncio.Task[None]] = set()

    async def one(number: int, due: float) -> None:
        started = loop.time()
        flight.in_flight += 1
        reply: Reply = NoReply(outcome="given up")
        try:
            async with asyncio.timeout_at(start + due + timeout_s):
                reply = await ask(number)
        except TimeoutError:
            reply = NoReply(outcome="timeout")
        finally:
            flight.over(number, due, started - start, loop.time() - start, reply)

    async def send() -> None:
        for number, due in enumerate(due_s):
            if (wait := start + due - loop.time()) > 0:
                await asyncio.sleep(wait)
            if len(tasks) >= max_in_flight:
                now = loop.time() - start
                flight.in_flight += 1
                flight.over(number, due, now, now, NoReply(outcome="not sent"))
                continue
            task = loop.create_task(one(number, due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        while tasks:
            await asyncio.wait(tasks)

    await _watched(send(), flight, lost)
    await _cancelled(list(tasks))
    return flight


async def closed_loop(
    clients: int,
    seconds: float,
    ask: Ask,
    *,
    timeout_s: float,
    max_requests: int,
    prepare: Callable[[int], None],
    lost: Callable[[Flight], bool] = lambda flight: False,
    flight: Flight | None = None,
) -> Flight:
    """So many clients for `seconds`, each of which asks again as soon as it is answered.

    A request is due when its client is free; `prepare(number)` is called before that. Shows how many requests a second a
    server can do; its latencies are those of so many clients, not of a rate.
    """
    flight = Flight() if flight is None else flight
    loop = asyncio.get_running_loop()
    start = loop.time()
    numbers = count()

    async def client() -> None:
        while loop.time() - start < seconds and (number := next(numbers)) < max_requests:
            prepare(number)
            due = loop.time() - start
            flight.in_flight += 1
            reply: Reply = NoReply(outcome="given up")
            try:
                async with asyncio.timeout(timeout_s):
                    reply = await ask(number)
            except TimeoutError:
                reply = NoReply(outcome="timeout")
            finally:
                flight.over(number, due, due, loop.time() - start, reply)

    async def all_clients() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client())

    await _watched(all_clients(), flight, lost)
    return flight


async def _watched(work: Awaitable[None], flight: Flight, lost: Callable[[Flight], bool]) -> None:
    """Do the work while the clock ticks, until it is done or lost."""
    loop = asyncio.get_running_loop()
    working = asyncio.ensure_future(work)

    async def tick() -> None:
        due = loop.time()
        while True:
            due = max(due, loop.time()) + TICK_S
            await asyncio.sleep(due - loop.time())
            flight.ticks_s.append(loop.time() - due)

    ticking = asyncio.ensure_future(tick())
    try:
        while not (await asyncio.wait({working}, timeout=LOOK_S))[0] and not lost(flight):
            pass
        flight.stopped_early = not working.done()
        if not flight.stopped_early:
            await working
    finally:
        await _cancelled([ticking, working])


async def _cancelled(tasks: "Sequence[asyncio.Future[None]]") -> None:
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
