"""How much a caller may use in a minute, in requests and in prompt tokens. Knows nothing of keys, queues or HTTP.

Counted by the sliding window counter of the `limits` library: what was used in the current minute of the clock, plus what
was used in the minute before, weighted by how much of that one lies within the last 60 seconds. So a caller may use the
whole limit at once, and gets it back evenly in the course of a minute. The library's other two ways of counting do not
fit: a fixed window lets twice the limit through at its edge, and a moving one keeps an entry for each single token.

The counts are this process's: several servers behind one address each allow the whole limit.
"""

import math

from limits.storage import MemoryStorage

from serving.auth import Caller
from serving.errors import PromptTooLongError, RateLimitedError

WINDOW_S = 60
# Times are floats of about 1.7e9 seconds, exact to 0.0003 ms; the answer must never be a wait that is too short.
ROUNDING_MS = 0.01


class RateLimiter:
    """Counts what each key uses. Two counters for each kind of limit of a key, dropped when they no longer matter.

    To be called from one thread.
    """

    def __init__(self) -> None:
        self._counters = MemoryStorage()

    def take_request(self, caller: Caller) -> None:
        """Count one request.

        Raises:
            RateLimitedError: the key has no request left. Nothing is counted. `retry_after_ms` is when there is one.
        """
        limit = caller.limits.requests_per_minute
        if limit is None or self._take(caller, "requests", limit, 1):
            return
        used, wait_ms = self._used_and_wait_ms(caller, "requests", limit, 1)
        raise RateLimitedError(
            f"API key '{caller.key_name}' has used {used} of its {limit} requests a minute (requests_per_minute); "
            f"the next is free in {wait_ms} ms",
            retry_after_ms=wait_ms,
        )

    def take_tokens(self, caller: Caller, tokens: int) -> None:
        """Count the tokens of a prompt, those from the cache too. The request was counted before, and stays so.

        Raises:
            RateLimitedError: the key has fewer tokens left. None is counted. After `retry_after_ms` the same request would
                pass both limits.
            PromptTooLongError: it is more than the key may use in any minute, so that trying again cannot help.
        """
        limit = caller.limits.tokens_per_minute
        if limit is None:
            return
        if tokens > limit:
            raise PromptTooLongError(
                f"the prompt has {tokens} tokens, and API key '{caller.key_name}' may use {limit} a minute "
                "(tokens_per_minute)"
            )
        if self._take(caller, "tokens", limit, tokens):
            return
        used, wait_ms = self._used_and_wait_ms(caller, "tokens", limit, tokens)
        if (requests := caller.limits.requests_per_minute) is not None:
            wait_ms = max(wait_ms, self._used_and_wait_ms(caller, "requests", requests, 1)[1])
        raise RateLimitedError(
            f"the prompt has {tokens} tokens, and API key '{caller.key_name}' has used {used} of its {limit} tokens a "
            f"minute (tokens_per_minute); there is room in {wait_ms} ms",
            retry_after_ms=wait_ms,
        )

    def _take(self, caller: Caller, kind: str, limit: int, amount: int) -> bool:
        return self._counters.acquire_sliding_window_entry(_counter(caller, kind), limit, WINDOW_S, amount)

    def _used_and_wait_ms(self, caller: Caller, kind: str, limit: int, amount: int) -> tuple[int, int]:
        """What counts as used now, and the milliseconds, at least 1, until `amount` more would be granted.

        It is granted as soon as previous * share + current < limit - amount + 1. The share of the previous window that
        still counts falls evenly to 0 at the end of the current one, which then becomes the previous one.
        """
        previous, previous_ends_s, current, current_ends_s = self._counters.get_sliding_window(
            _counter(caller, kind), WINDOW_S
        )
        used = math.floor(previous * previous_ends_s / WINDOW_S + current)
        below = limit - amount + 1
        if current < below:
            fading, ends_s, below = previous, previous_ends_s, below - current
        else:
            fading, ends_s = current, current_ends_s
        wait_s = ends_s - below * WINDOW_S / fading if fading else 0.0
        return used, max(1, math.floor(wait_s * 1000 + ROUNDING_MS) + 1)


def _counter(caller: Caller, kind: str) -> str:
    return f"{kind}/{caller.key_name}"
