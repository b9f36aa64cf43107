"""A bound on the bytes that many tasks hold at once: who asks waits for a place, in turn. Knows nothing of what is held."""

import asyncio
from collections import deque


class Memory:
    """Places for bytes. Belongs to one event loop.

    In turn, because a large one would otherwise wait for as long as small ones come.

    Args:
        size: bytes in all.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._free = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def taken(self) -> int:
        """Bytes held now."""
        return self._size - self._free

    async def take(self, count: int) -> None:
        """Hold so many bytes until `give`, once they are free. Cancelled, it holds none."""
        assert count <= self._size, (count, self._size)
        place = (count, asyncio.get_running_loop().create_future())
        self._waiting.append(place)
        self._serve()
        try:
            await place[1]
        except asyncio.CancelledError:
            if place in self._waiting:
                self._waiting.remove(place)
                self._serve()
            else:  # it was served while the cancellation was on its way
                self.give(count)
            raise

    def give(self, count: int) -> None:
        """Let go of so many bytes."""
        self._free += count
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            count, future = self._waiting.popleft()
            self._free -= count
            if not future.cancelled():
                future.set_result(None)
            # A cancelled one gives its bytes back itself.
