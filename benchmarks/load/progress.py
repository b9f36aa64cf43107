"""Says on standard error how a measurement goes while it goes. Knows nothing of what is measured."""

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from typing import IO

from benchmarks.load.intervals import percentile
from benchmarks.load.samples import ANSWERED
from benchmarks.load.sender import Flight

TERMINAL_INTERVAL_S, LOG_INTERVAL_S = 1.0, 10.0
RECENT = 1000  # requests whose latency is shown: few enough to sort while others are in flight


class Progress:
    """One line that changes on a terminal, a new line now and then elsewhere."""

    def __init__(self, stream: IO[str] = sys.stderr, *, quiet: bool = False) -> None:
        self._stream, self._quiet, self._terminal = stream, quiet, stream.isatty()

    def say(self, message: str) -> None:
        """A line that stays."""
        if not self._quiet:
            print(f"{self._clear}... {message}", file=self._stream, flush=True)

    @property
    def _clear(self) -> str:
        return "\r\x1b[K" if self._terminal else ""

    @contextlib.contextmanager
    def of(self, what: str, flight: Flight) -> Iterator[None]:
        """Tell of this flight meanwhile."""
        telling = asyncio.ensure_future(self._tell(what, flight))
        try:
            yield
        finally:
            telling.cancel()
            if self._terminal and not self._quiet:
                print(self._clear, end="", file=self._stream, flush=True)

    async def _tell(self, what: str, flight: Flight) -> None:
        seconds = 0.0
        while not self._quiet:
            interval_s = TERMINAL_INTERVAL_S if self._terminal else LOG_INTERVAL_S
            await asyncio.sleep(interval_s)
            seconds += interval_s
            recent = [sent for sent in flight.sent[-RECENT:] if sent.outcome == ANSWERED]
            latency_s = [sent.done_s - sent.due_s for sent in recent]
            shown = (
                f"p50 {percentile(latency_s, 0.5) * 1000:.0f} ms, p99 {percentile(latency_s, 0.99) * 1000:.0f} ms"
                if latency_s
                else "no answer yet"
            )
            misses = len(flight.sent[-RECENT:]) - len(recent)
            line = (
                f"{what}, {seconds:.0f} s: {len(flight.sent)} done, {flight.in_flight} in flight, "
                f"lately {shown}, {misses} unanswered"
            )
            print(f"{self._clear}{line}", end="" if self._terminal else "\n", file=self._stream, flush=True)
