"""A bound on the bytes of request bodies that are held at one time. Knows nothing of what they say.

Whoever would exceed it is refused, not kept waiting: half a body that waits for room keeps its own from others.
"""

import contextlib
from collections.abc import Callable, Iterator

from serving.errors import OverloadedError

RETRY_AFTER_MS = 1000


class BodyMemory:
    """Belongs to one event loop.

    Args:
        size: bytes in all.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.taken = 0

    @contextlib.contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """A function that takes so many bytes more; they are all held for as long as the `with` block runs.

        The function raises OverloadedError where they are not to be had.
        """
        held = 0

        def take(count: int) -> None:
            nonlocal held
            if self.taken + count > self._size:
                raise OverloadedError(
                    f"no room for this body beside those that are here: max_bodies_memory is {self._size} bytes",
                    retry_after_ms=RETRY_AFTER_MS,
                )
            held += count
            self.taken += count

        try:
            yield take
        finally:
            self.taken -= held
