"""One memory row for every KV slot, so that a cached token's row lives exactly as long as its KV and eviction needs no code.

Knows nothing of requests: callers say which slots.
"""

import torch
from torch import Tensor


class MemoryRows:
    """The head's view of every token that has a KV slot: `memory_projection(hidden_norm(hidden))`, `[slots, width]`."""

    def __init__(self, *, slots: int, width: int, dtype: torch.dtype, device: torch.device | str) -> None:
        self._rows = torch.zeros(slots, width, dtype=dtype, device=device)

    @property
    def size_bytes(self) -> int:
        """What the pool occupies."""
        return self._rows.nbytes

    def write(self, slots_T: Tensor, rows_TW: Tensor) -> None:
        """Store one row a slot."""
        self._rows[slots_T] = rows_TW.to(self._rows.dtype)

    def read(self, slots_T: Tensor) -> Tensor:
        """The rows of these slots, `[T, width]`."""
        return self._rows[slots_T]


def row_bytes(width: int, dtype: torch.dtype) -> int:
    """What one row adds to the memory of a token, in bytes."""
    return width * dtype.itemsize
