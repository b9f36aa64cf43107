"""A bounded store of encoded schemas, the least recently used going first. Knows nothing of text or tokenizers."""

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

Value = TypeVar("Value")

# A key's text is kept too; this many of its bytes weigh as much as one token id does in a Python list.
BYTES_PER_TOKEN = 36


class SchemaCache(Generic[Value]):
    """Values by exact text, bounded in entries and in weight (tokens). Safe to use from several threads."""

    def __init__(self, *, max_entries: int, max_tokens: int) -> None:
        self._max_entries = max_entries
        self._max_tokens = max_tokens
        self._entries: OrderedDict[str, tuple[Value, int]] = OrderedDict()
        self._tokens = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def tokens(self) -> int:
        """The weight of everything kept, in tokens."""
        return self._tokens

    def get(self, key: str) -> Value | None:
        """The value kept under the key, which becomes the most recently used."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: str, value: Value, *, tokens: int) -> None:
        """Keep a value of so many tokens and drop others to stay within bounds. One too large for them is not kept."""
        weight = tokens + -(-len(key) // BYTES_PER_TOKEN)
        with self._lock:
            replaced = self._entries.pop(key, None)
            if replaced is not None:
                self._tokens -= replaced[1]
            if weight > self._max_tokens or self._max_entries == 0:
                return
            self._entries[key] = (value, weight)
            self._tokens += weight
            while self._tokens > self._max_tokens or len(self._entries) > self._max_entries:
                _, (_, dropped) = self._entries.popitem(last=False)
                self._tokens -= dropped
