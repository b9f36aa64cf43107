"""What becomes of a server that is asked more than it can do: `clef-serve up` on the CPU under an open load of 3 times it.

First the capacity, by clients that ask again as soon as they are answered; then requests at a fixed rate, whatever becomes of
them, each with a deadline. Then the same at a server that refuses nothing and knows no deadline. Knows only HTTP. Run it with
`python -m benchmarks.overload`; the last line is one JSON object.
"""

import argparse
import asyncio
import contextlib
import datetime
import importlib.metadata
import json
import math
import os
import platform
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import aiohttp

from benchmarks._server import ServerFailedError, serving
from benchmarks._workloads import question_set
from benchmarks.corpus import lines

# As good as no limit, and no more digits than the command line takes.
WITHOUT_LIMITS = {
    "--max-running-requests": 100_000,
    "--max-running-tokens": 10**11,
    "--max-waiting-requests": 100_000,
    "--max-waiting-tokens": 10**11,
    "--request-timeout-ms": 10**8,
}
# What the server says of a request that it let in and could not answer in time.
LATE = ("the answer was not there before the deadline", "its turn did not come before its deadline")


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One response, or none: `status` is 0 if the benchmark ended first. Seconds count from when it was due to be sent."""

    status: int
    reason: str
    seconds: float

    @property
    def late(self) -> bool:
        """Whether it was let in and then not answered in time."""
        return self.reason.endswith(LATE)


def reply_of(status: int, body: Any, seconds: float) -> Reply:
    """The reason is the error's type and its message with every number taken out."""
    if status == 200:
        return Reply(status=status, reason="answered", seconds=seconds)
    detail = body["detail"]
    message = re.sub(r"[0-9]+(\.[0-9]+)?", "N", detail["message"])
    return Reply(status=status, reason=f"{detail['error_type']}: {message}", seconds=seconds)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The least value that so large a share of the values does not exceed; None of no values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def summary(replies: Sequence[Reply], *, offered_seconds: float, deadline_s: float) -> dict[str, Any]:
    """The figures of one open load. Milliseconds, requests a second, and shares of 1."""

    def ms(values: Sequence[float], share: float) -> float | None:
        value = percentile(values, share)
        return None if value is None else round(value * 1000, 1)

    answered = [reply.seconds for reply in replies if reply.status == 200]
    in_time = [seconds for seconds in answered if seconds <= deadline_s]
    refused = [reply.seconds for reply in replies if reply.status not in (0, 200)]
    let_in = len(replies) - len(refused) + sum(reply.late for reply in replies)
    return {
        "requests": len(replies),
        "offered_rps": len(replies) / offered_seconds,
        "answered_rps": len(answered) / offered_seconds,
        "goodput_rps": len(in_time) / offered_seconds,
        "refused": len(refused),
        "refusal_p50_ms": ms(refused, 0.5),
        "refusal_p99_ms": ms(refused, 0.99),
        "answer_p50_ms": ms(answered, 0.5),
        "answer_p99_ms": ms(answered, 0.99),
        "let_in": let_in,
        "let_in_within_deadline": len(in_time) / let_in if let_in else None,
        "unanswered_at_the_end": sum(reply.status == 0 for reply in replies),
        "by_reason": dict(Counter(reply.reason for reply in replies).most_common()),
    }


class Client:
    """Asks about a new state each time, so that no answer comes out of the cache."""

    def __init__(self, session: aiohttp.ClientSession, url: str, state_lines: int) -> None:
        self._session, self._url = session, f"{url}/v1/systemone"
        self._numbers = count()
        self._text = "\n".join(lines(state_lines))
        self._questions = question_set(0)

    async def ask(self, headers: dict[str, str], due: float) -> Reply:
        """One request, whose seconds count from `due` on the monotonic clock."""
        body = {"state": f"Case {next(self._numbers)}\n{self._text}", "questions": self._questions}
        async with self._session.post(self._url, json=body, headers=headers) as response:
            answered = await response.json()
        return reply_of(response.status, answered, time.monotonic() - due)


async def closed_load(client: Client, *, clients: int, seconds: float) -> float:
    """Answers a second to so many clients, each of which asks again as soon as it is answered."""
    ends = time.monotonic() + seconds
    answered = 0

    async def one() -> None:
        nonlocal answered
        while time.monotonic() < ends:
            reply = await client.ask({}, time.monotonic())
            if reply.status != 200:
                raise ServerFailedError(f"while the capacity was measured a request got {reply.status}: {reply.reason}")
            answered += time.monotonic() <= ends

    await asyncio.gather(*(one() for _ in range(clients)))
    return answered / seconds


async def open_load(
    client: Client, *, rate: float, seconds: float, headers: dict[str, str], stay_s: float
) -> list[Reply]:
    """Requests at a fixed rate; whoever is not answered `stay_s` seconds after the last one was sent gives up."""
    started = time.monotonic()
    tasks: list[asyncio.Task[Reply]] = []
    for number in range(round(rate * seconds)):
        due = started + number / rate
        await asyncio.sleep(due - time.monotonic())
        tasks.append(asyncio.create_task(client.ask(headers, due)))
    done, pending = await asyncio.wait(tasks, timeout=stay_s)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return [task.result() for task in done] + [Reply(status=0, reason="unanswered", seconds=stay_s)] * len(pending)


@contextlib.asynccontextmanager
async def client_of(url: str, state_lines: int) -> AsyncIterator[Client]:
    """A client with as many connections as it needs."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield Client(session, url, state_lines)


async def limited(url: str, arguments: argparse.Namespace, say: Callable[[str], None]) -> tuple[float, dict[str, Any]]:
    """The capacity, and what becomes of the load at a server with its limits."""
    deadline_s = arguments.deadline_ms / 1000
    async with client_of(url, arguments.state_lines) as client:
        await closed_load(client, clients=arguments.clients, seconds=arguments.capacity_seconds / 4)
        capacity = await closed_load(client, clients=arguments.clients, seconds=arguments.capacity_seconds)
        say(f"capacity {capacity:.1f} requests/s; {arguments.factor:g} times that for {arguments.seconds:g} s")
        replies = await open_load(
            client,
            rate=capacity * arguments.factor,
            seconds=arguments.seconds,
            headers={"x-request-timeout-ms": str(arguments.deadline_ms)},
            stay_s=deadline_s + 10,
        )
    return capacity, summary(replies, offered_seconds=arguments.seconds, deadline_s=deadline_s)


async def unlimited(url: str, rate: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """The same load at a server without limits; an answer that comes after the deadline is of no use to its client."""
    deadline_s = arguments.deadline_ms / 1000
    seconds = arguments.unlimited_seconds
    async with client_of(url, arguments.state_lines) as client:
        await closed_load(client, clients=arguments.clients, seconds=arguments.capacity_seconds / 4)
        replies = await open_load(client, rate=rate, seconds=seconds, headers={}, stay_s=deadline_s)
    return summary(replies, offered_seconds=seconds, deadline_s=deadline_s)


def print_table(capacity: float, sides: dict[str, dict[str, Any]]) -> None:
    """One column for each side."""
    print(f"\ncapacity, closed loop: {capacity:.1f} requests/s\n")
    print(f"{'':26}" + "".join(f"{name:>16}" for name in sides))
    for name in next(iter(sides.values())):
        if name == "by_reason":
            continue
        values = (side[name] for side in sides.values())
        shown = ("-" if value is None else f"{value:.3g}" if isinstance(value, float) else value for value in values)
        print(f"{name:26}" + "".join(f"{value:>16}" for value in shown))
    for side_name, side in sides.items():
        print(f"\n{side_name}:")
        for reason, times in side["by_reason"].items():
            print(f"{times:8}  {reason}")


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Both servers, one after the other.

    Raises:
        ServerFailedError: see `serving`.
    """
    common = ["--dtype", "float32", "--max-prompt-tokens", "4096"]
    with serving(common, say) as url:
        capacity, with_limits = asyncio.run(limited(url, arguments, say))
    sides = {"with limits": with_limits}
    if arguments.unlimited_seconds:
        with serving([*common, *(str(part) for pair in WITHOUT_LIMITS.items() for part in pair)], say) as url:
            sides["without"] = asyncio.run(unlimited(url, capacity * arguments.factor, arguments))
    print_table(capacity, sides)
    return {
        "benchmark": "overload",
        "clef_serving": importlib.metadata.version("clef-serving"),
        "sglang": importlib.metadata.version("sglang"),
        "torch": importlib.metadata.version("torch"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
        "deadline_ms": arguments.deadline_ms,
        "factor": arguments.factor,
        "seconds": arguments.seconds,
        "capacity_rps": capacity,
        **with_limits,
        "goodput_over_capacity": with_limits["goodput_rps"] / capacity,
        "without_limits": sides.get("without"),
        "goodput_over_capacity_without_limits": sides["without"]["goodput_rps"] / capacity
        if "without" in sides
        else None,
    }


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="open load, in seconds (default: %(default)s)")
    parser.add_argument("--factor", type=float, default=3, help="offered load over capacity (default: %(default)s)")
    parser.add_argument("--deadline-ms", type=int, default=2000, help="of each request (default: %(default)s)")
    parser.add_argument("--capacity-seconds", type=float, default=12, help="closed load (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=16, help="of the closed load (default: %(default)s)")
    parser.add_argument("--state-lines", type=int, default=24, help="lines of a state (default: %(default)s)")
    parser.add_argument(
        "--unlimited-seconds",
        type=float,
        default=20,
        help="open load on a server without limits; 0 leaves it out (default: %(default)s)",
    )
    return parser.parse_args(argv)


def main() -> None:
    """Measure, print a table, and as the last line one JSON object."""
    arguments = parse_arguments()

    def say(message: str) -> None:
        print(f"... {message}", file=sys.stderr, flush=True)

    try:
        report = measure(arguments, say)
    except ServerFailedError as err:
        raise SystemExit(f"benchmarks.overload: {err}") from err
    print(json.dumps(report))


if __name__ == "__main__":
    main()
