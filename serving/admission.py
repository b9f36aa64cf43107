"""Who may go to the engine now, who waits, and who is better told at once to come back. Knows nothing of HTTP or prompts.

Work is counted in prompt tokens. The engine gets enough requests to fill its batches; the others wait here, where order
can follow priority, where leaving costs nothing, and where it can be foreseen that a deadline will be missed.
"""

import asyncio
import contextlib
import heapq
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from itertools import count

from serving.errors import OverloadedError, RequestTimeoutError
from serving.settings import AdmissionLimits

# The pace is that of about the last so many seconds in which the engine had work.
PACE_MEMORY_S = 10.0
# How the mean overrun and its deviation are kept and used, as RFC 6298 (2.3) does with round trips.
MEAN_WEIGHT, DEVIATION_WEIGHT, DEVIATIONS = 1 / 8, 1 / 4, 4
LEAST_RETRY_MS = 100
MOST_RETRY_MS = 30_000


class Pace:
    """Prompt tokens a second that the engine answers, over the last seconds in which it had work."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tokens = self._seconds = 0.0
        self._since: float | None = None

    def started(self) -> None:
        """The engine has work."""
        if self._since is None:
            self._since = self._clock()

    def finished(self, tokens: int, *, idle: bool) -> None:
        """So many tokens were answered; `idle` if nothing is left to do."""
        now = self._clock()
        if not tokens:
            # Given up: nobody can say how much of it was computed, so that it tells nothing of the pace.
            self._since = None if idle else self._since
            return
        elapsed = now - (now if self._since is None else self._since)
        kept = math.exp(-elapsed / PACE_MEMORY_S)
        self._tokens, self._seconds = self._tokens * kept + tokens, self._seconds * kept + elapsed
        self._since = None if idle else now

    def seconds_for(self, tokens: int) -> float:
        """How long so many tokens will take; 0 while nothing is known."""
        return tokens * self._seconds / self._tokens if self._tokens else 0.0


class Overrun:
    """How many seconds more than foreseen requests take: an engine answers in batches, and no two do the same work."""

    def __init__(self) -> None:
        self._mean = self._deviation = 0.0

    def observe(self, seconds: float) -> None:
        """A request took so much longer than foreseen."""
        self._deviation += DEVIATION_WEIGHT * (abs(seconds - self._mean) - self._deviation)
        self._mean += MEAN_WEIGHT * (seconds - self._mean)

    @property
    def most(self) -> float:
        """What few requests exceed; below 0 where they take less than foreseen."""
        return self._mean + DEVIATIONS * self._deviation


@dataclass(kw_only=True)
class _Waiting:
    tokens: int
    granted: "asyncio.Future[None]"


class Admission:
    """Bounded, in order of priority and then of arrival. Used from one event loop.

    Args:
        limits: see `AdmissionLimits`.
        clock: seconds; the one that deadlines are given in.
    """

    def __init__(self, limits: AdmissionLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._pace = Pace(clock)
        self._overrun = Overrun()
        self._arrivals = count()
        self._queue: list[tuple[int, int, _Waiting]] = []
        self._here = 0
        self.running_requests = self.running_tokens = 0
        self.waiting_requests = self.waiting_tokens = 0

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """A place in the house for as long as the body runs, whatever the request's size turns out to be.

        Raises:
            OverloadedError: as many are here as may run and wait.
        """
        most = self._limits.max_running_requests + self._limits.max_waiting_requests
        if self._here >= most:
            raise self._full("requests", self._limits.max_waiting_requests)
        self._here += 1
        try:
            yield
        finally:
            self._here -= 1

    @contextlib.asynccontextmanager
    async def turn(self, *, tokens: int, deadline: float, priority: int = 0) -> AsyncIterator[None]:
        """Wait for this request's turn, which lasts as long as the body runs. Whoever leaves while waiting is forgotten.

        Args:
            tokens: of the request's prompts.
            deadline: when the answer must be there.
            priority: the higher goes first.

        Raises:
            OverloadedError: too much waits already.
            RequestTimeoutError: the deadline would be, or was, missed.
        """
        arrived = self._clock()
        foreseen = self.require_time(tokens=tokens, deadline=deadline, priority=priority)
        if self._queue or not self._fits(tokens):
            await self._wait(tokens, deadline, priority)
        else:
            self._start(tokens)
        try:
            yield
        except BaseException:
            self._end(tokens, answered=0)
            if self._clock() >= deadline:  # it would have taken longer still
                self._learn(foreseen, arrived)
            raise
        self._end(tokens, answered=tokens)
        self._learn(foreseen, arrived)

    def require_time(self, *, deadline: float, priority: int = 0, tokens: int = 0) -> float:
        """In how many seconds a request that came now would be answered; 0 while nothing is known of the pace.

        To be asked as early as possible, with the tokens that are known by then: what is refused should cost nothing.

        Raises:
            RequestTimeoutError: the deadline would be missed.
        """
        # Those of lower priority that wait do not stand in the way.
        ahead = self.running_tokens + sum(entry.tokens for order, _, entry in self._queue if -order >= priority)
        wait, foreseen = self._pace.seconds_for(ahead), self._pace.seconds_for(ahead + tokens)
        # With nothing before it a request is always tried: a pace that was once slow could otherwise never be corrected.
        if ahead and foreseen and self._clock() + foreseen + self._overrun.most > deadline:
            raise RequestTimeoutError(
                f"about {wait:.1f} s of other work comes first, so that the deadline would be missed",
                retry_after_ms=_retry_ms(wait),
            )
        return foreseen

    def _learn(self, foreseen: float, arrived: float) -> None:
        if foreseen:
            self._overrun.observe(self._clock() - arrived - foreseen)

    async def _wait(self, tokens: int, deadline: float, priority: int) -> None:
        limits = self._limits
        for name, found, limit in (
            ("requests", self.waiting_requests + 1, limits.max_waiting_requests),
            ("tokens", self.waiting_tokens + tokens, limits.max_waiting_tokens),
        ):
            if found > limit:
                raise self._full(name, limit)
        waiting = _Waiting(tokens=tokens, granted=asyncio.get_running_loop().create_future())
        heapq.heappush(self._queue, (-priority, next(self._arrivals), waiting))
        self.waiting_requests += 1
        self.waiting_tokens += tokens
        self._grant()  # where the one at the head is too large for now, one of higher priority may fit before it
        try:
            async with asyncio.timeout(deadline - self._clock()):
                await waiting.granted
        except BaseException as err:
            if waiting.granted.done() and not waiting.granted.cancelled():
                self._end(tokens, answered=0)  # its turn came in the same moment
            else:
                self._queue = [entry for entry in self._queue if entry[2] is not waiting]
                heapq.heapify(self._queue)
                self.waiting_requests -= 1
                self.waiting_tokens -= tokens
                self._grant()
            if isinstance(err, TimeoutError):
                wait = self._pace.seconds_for(self.running_tokens + self.waiting_tokens)
                raise RequestTimeoutError(
                    "its turn did not come before its deadline", retry_after_ms=_retry_ms(wait)
                ) from err
            raise

    def _full(self, name: str, limit: int) -> OverloadedError:
        return OverloadedError(
            f"the queue is full: max_waiting_{name} is {limit}",
            retry_after_ms=_retry_ms(self._pace.seconds_for(self.running_tokens)),
        )

    def _fits(self, tokens: int) -> bool:
        limits = self._limits
        return self.running_requests == 0 or (
            self.running_requests < limits.max_running_requests
            and self.running_tokens + tokens <= limits.max_running_tokens
        )

    def _start(self, tokens: int) -> None:
        self._pace.started()
        self.running_requests += 1
        self.running_tokens += tokens

    def _end(self, tokens: int, *, answered: int) -> None:
        self.running_requests -= 1
        self.running_tokens -= tokens
        self._pace.finished(answered, idle=self.running_requests == 0)
        self._grant()

    def _grant(self) -> None:
        # Strictly in order: a large request at the head would otherwise wait for as long as small ones keep coming.
        while self._queue and self._fits(self._queue[0][2].tokens):
            _, _, waiting = heapq.heappop(self._queue)
            if waiting.granted.cancelled():
                continue  # its own `_wait` counts it out
            self.waiting_requests -= 1
            self.waiting_tokens -= waiting.tokens
            self._start(waiting.tokens)
            waiting.granted.set_result(None)


def _retry_ms(seconds: float) -> int:
    return max(LEAST_RETRY_MS, min(MOST_RETRY_MS, math.ceil(seconds * 1000)))
