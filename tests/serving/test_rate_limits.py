"""What a key may use in a minute, what it is told when that is used up, and that this is true. Time is set by hand."""

from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.auth import ANONYMOUS, Caller
from serving.errors import PromptTooLongError, RateLimitedError
from serving.key_file import MOST_PER_MINUTE, RateLimits
from serving.rate_limits import RateLimiter

# The start of a minute of the clock, of a year in which floats are as coarse as they are today.
MINUTE = 1_800_000_000.0


class Clock:
    """What the limiter and its library take for the time, in Unix seconds."""

    def __init__(self) -> None:
        self.now = MINUTE

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    with mock.patch("time.time", Clock()) as clock:
        yield clock


def caller(name: str = "orders", *, requests: int | None = None, tokens: int | None = None) -> Caller:
    limits = RateLimits(requests_per_minute=requests, tokens_per_minute=tokens)
    return Caller(key_name=name, tenant="orders-team", limits=limits)


def refused_request(limiter: RateLimiter, who: Caller) -> RateLimitedError:
    with pytest.raises(RateLimitedError) as caught:
        limiter.take_request(who)
    return caught.value


def refused_tokens(limiter: RateLimiter, who: Caller, tokens: int) -> RateLimitedError:
    with pytest.raises(RateLimitedError) as caught:
        limiter.take_tokens(who, tokens)
    return caught.value


def test_requests_up_to_the_limit_then_one_at_a_time(clock: Clock) -> None:
    limiter, who = RateLimiter(), caller(requests=3)
    for _ in range(3):
        limiter.take_request(who)
    clock.now = MINUTE + 15
    error = refused_request(limiter, who)
    # All three fade over the minute that begins in 45 s; the first is wholly gone after a third of it, and one ms.
    assert error.retry_after_ms == 45_001
    assert str(error) == (
        "API key 'orders' has used 3 of its 3 requests a minute (requests_per_minute); the next is free in 45001 ms"
    )
    clock.now = MINUTE + 60
    assert refused_request(limiter, who).retry_after_ms == 1
    clock.now = MINUTE + 60.001
    limiter.take_request(who)
    assert refused_request(limiter, who).retry_after_ms == 20_000


def test_tokens_are_counted_as_many_as_they_are(clock: Clock) -> None:
    limiter, who = RateLimiter(), caller(tokens=10_000)
    limiter.take_tokens(who, 9_000)
    limiter.take_tokens(who, 1_000)
    clock.now = MINUTE + 20
    error = refused_tokens(limiter, who, 2_500)
    # 2,500 of 10,000 have faded a quarter into the next minute, less the one that rounding down gives.
    assert error.retry_after_ms == 40_000 + 15_000 - 6 + 1
    assert str(error) == (
        "the prompt has 2500 tokens, and API key 'orders' has used 10000 of its 10000 tokens a minute (tokens_per_minute); "
        f"there is room in {error.retry_after_ms} ms"
    )
    clock.now += error.retry_after_ms / 1000
    limiter.take_tokens(who, 2_500)


def test_what_is_refused_takes_nothing(clock: Clock) -> None:
    limiter, who = RateLimiter(), caller(requests=1, tokens=100)
    limiter.take_tokens(who, 60)
    for _ in range(5):
        refused_tokens(limiter, who, 41)
    limiter.take_tokens(who, 40)
    limiter.take_request(who)
    first = refused_request(limiter, who).retry_after_ms
    assert [refused_request(limiter, who).retry_after_ms for _ in range(5)] == [first] * 5


def test_a_prompt_that_no_minute_holds_is_too_long_and_takes_nothing(clock: Clock) -> None:
    limiter, who = RateLimiter(), caller(tokens=100)
    with pytest.raises(PromptTooLongError) as caught:
        limiter.take_tokens(who, 101)
    assert str(caught.value) == (
        "the prompt has 101 tokens, and API key 'orders' may use 100 a minute (tokens_per_minute)"
    )
    limiter.take_tokens(who, 100)


def test_refused_tokens_wait_for_the_next_request_too(clock: Clock) -> None:
    limiter, who = RateLimiter(), caller(requests=1, tokens=100)
    limiter.take_tokens(who, 1)
    clock.now = MINUTE + 60
    limiter.take_request(who)
    error = refused_tokens(limiter, who, 100)  # the one token fades within a millisecond, the request only in a minute
    assert error.retry_after_ms == 60_001
    clock.now += error.retry_after_ms / 1000
    limiter.take_request(who)
    limiter.take_tokens(who, 100)


def test_keys_share_nothing(clock: Clock) -> None:
    limiter = RateLimiter()
    for name in ("orders", "orders-new"):  # of one tenant
        limiter.take_request(caller(name, requests=1))
        limiter.take_tokens(caller(name, tokens=10), 10)
    refused_request(limiter, caller("orders", requests=1))
    limiter.take_request(caller("billing", requests=1))


def test_a_changed_limit_counts_what_was_used(clock: Clock) -> None:
    limiter = RateLimiter()
    for _ in range(3):
        limiter.take_request(caller(requests=3))
    limiter.take_request(caller(requests=4))
    error = refused_request(limiter, caller(requests=2))
    assert "has used 4 of its 2 requests a minute" in str(error)
    clock.now += error.retry_after_ms / 1000
    limiter.take_request(caller(requests=2))


@pytest.mark.parametrize("who", [ANONYMOUS, caller()], ids=["no key", "key without limits"])
def test_without_a_limit_nothing_is_counted(clock: Clock, who: Caller) -> None:
    limiter = RateLimiter()
    for _ in range(100):
        limiter.take_request(who)
        limiter.take_tokens(who, 10**9)
    assert limiter._counters.storage == {}


# What a key does: seconds after the last time, and how much it asks for, as a share of its limit.
HISTORIES = st.lists(st.tuples(st.floats(0, 90), st.floats(0, 1)), min_size=1, max_size=20)


@given(
    start=st.floats(0, 60),
    limit=st.integers(1, 100) | st.integers(1, MOST_PER_MINUTE),
    history=HISTORIES,
)
def test_waiting_as_long_as_told_is_enough_and_not_too_much(
    start: float, limit: int, history: list[tuple[float, float]]
) -> None:
    with mock.patch("time.time", Clock()) as clock:
        limiter, who = RateLimiter(), caller(tokens=limit)
        clock.now = MINUTE + start
        for pause_s, share in history:
            clock.now += pause_s
            tokens = max(1, round(limit * share))
            try:
                limiter.take_tokens(who, tokens)
            except RateLimitedError as err:
                refused_at = clock.now
                if err.retry_after_ms > 2:
                    clock.now = refused_at + (err.retry_after_ms - 2) / 1000
                    refused_tokens(limiter, who, tokens)
                clock.now = refused_at + err.retry_after_ms / 1000
                limiter.take_tokens(who, tokens)


@given(start=st.floats(0, 60), history=HISTORIES, requests=st.integers(1, 5), tokens=st.integers(1, 1000))
def test_after_refused_tokens_the_same_request_passes_both_limits(
    start: float, history: list[tuple[float, float]], requests: int, tokens: int
) -> None:
    with mock.patch("time.time", Clock()) as clock:
        limiter, who = RateLimiter(), caller(requests=requests, tokens=tokens)
        clock.now = MINUTE + start
        for pause_s, share in history:
            clock.now += pause_s
            asked = max(1, round(tokens * share))
            for take in (lambda: limiter.take_request(who), lambda asked=asked: limiter.take_tokens(who, asked)):
                try:
                    take()
                except RateLimitedError as err:
                    clock.now += err.retry_after_ms / 1000
                    limiter.take_request(who)
                    if "tokens_per_minute" in str(err):
                        limiter.take_tokens(who, asked)
                    break


@given(start=st.floats(0, 60), history=HISTORIES)
def test_never_more_than_the_limit_at_once_and_what_a_minute_gives_back(
    start: float, history: list[tuple[float, float]]
) -> None:
    limit = 1000
    granted: list[tuple[float, int]] = []
    with mock.patch("time.time", Clock()) as clock:
        limiter, who = RateLimiter(), caller(tokens=limit)
        clock.now = MINUTE + start
        for pause_s, share in history:
            clock.now += pause_s
            tokens = max(1, round(limit * share))
            try:
                limiter.take_tokens(who, tokens)
            except RateLimitedError:
                continue
            granted.append((clock.now, tokens))
    for first, (began, _) in enumerate(granted):
        for last in range(first, len(granted)):
            minutes = (granted[last][0] - began) / 60
            used = sum(tokens for _, tokens in granted[first : last + 1])
            assert used <= limit * (1 + minutes) + 1


def test_counters_of_the_past_are_dropped(clock: Clock) -> None:
    limiter = RateLimiter()
    for minute in range(50):
        clock.now = MINUTE + 60 * minute
        for name in ("orders", "billing"):
            limiter.take_request(caller(name, requests=5, tokens=100))
            limiter.take_tokens(caller(name, requests=5, tokens=100), 10)
        while limiter._counters.timer.is_alive():  # the library drops what is past in a thread, 10 ms after a count
            limiter._counters.timer.join()
    # At most three windows of each limit of each key: this one, the one before, and one about to be dropped.
    assert len(limiter._counters.storage) <= 2 * 2 * 3
    assert len(limiter._counters.expirations) == len(limiter._counters.storage)
    assert len(limiter._counters.locks) <= len(limiter._counters.storage)


def test_refusing_leaves_no_trace_behind(clock: Clock) -> None:
    limiter, who = RateLimiter(), caller(requests=1)
    limiter.take_request(who)
    for _ in range(1000):
        refused_request(limiter, who)
    assert len(limiter._counters.storage) == 1
