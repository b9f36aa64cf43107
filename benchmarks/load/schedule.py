"""When requests are due. Pure: a seed in, seconds out."""

import random


def poisson(rate_rps: float, seconds: float, seed: str) -> list[float]:
    """Arrivals of many independent clients within `seconds`, in order: exponential gaps with a mean of 1 / rate.

    Raises:
        ValueError: the rate or the time is not positive.
    """
    if not (rate_rps > 0 and seconds > 0):
        raise ValueError(f"a rate and a duration must be above 0, not {rate_rps:g}/s for {seconds:g} s")
    draw = random.Random(seed)
    due: list[float] = []
    at = draw.expovariate(rate_rps)
    while at < seconds:
        due.append(at)
        at += draw.expovariate(rate_rps)
    return due


def sides_in_turn(slices: int, sides: int) -> list[tuple[int, int]]:
    """(slice, side) in the order of measuring: A B, B A, A B, ... so that a slow drift of the machine meets both alike."""
    return [
        (number, side)
        for number in range(slices)
        for side in (range(sides) if number % 2 == 0 else range(sides - 1, -1, -1))
    ]
