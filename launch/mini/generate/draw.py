"""Random draws that are the same on every machine and Python version. Knows nothing of records."""

import random
from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Draws from one seed, a text. Rests on `random.Random(text)` and its `random()`, which Python keeps the same."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)  # noqa: S311 - text, not secrets

    def number(self, limit: int) -> int:
        """A whole number from 0 to below `limit`."""
        return int(self._random.random() * limit)

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + self.number(high - low + 1)

    def real(self, low: float, high: float) -> float:
        return low + self._random.random() * (high - low)

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def of(self, values: Sequence[T]) -> T:
        return values[self.number(len(values))]

    def sample(self, values: Iterable[T], count: int) -> list[T]:
        """`count` different values in random order, or all of them if there are fewer."""
        return self.shuffled(values)[:count]

    def shuffled(self, values: Iterable[T]) -> list[T]:
        pool = list(values)
        for index in range(len(pool) - 1, 0, -1):
            other = self.number(index + 1)
            pool[index], pool[other] = pool[other], pool[index]
        return pool
