"""Values by key within a budget of bytes: the longest unused give way. Knows a clock, and nothing of media."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry(Generic[ValueT]):
    value: ValueT
    num_bytes: int
    expires_at: float


class Lru(Generic[KeyT, ValueT]):
    """Keeps at most `max_bytes`, as those who put values in count them."""

    def __init__(self, *, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells the time in seconds."""
        self.max_bytes = max_bytes
        self.num_bytes = 0
        """Those of all values."""
        self._clock = clock
        self._entries: OrderedDict[KeyT, _Entry[ValueT]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: KeyT) -> ValueT | None:
        """The value, which thereby counts as used; None where there is none, or its time is over."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires_at <= self._clock():
            self.drop(key)
            return None
        self._entries.move_to_end(key)
        return entry.value

    def put(self, key: KeyT, value: ValueT, *, num_bytes: int, seconds: float = math.inf) -> bool:
        """Keeps a value for so long, in the place of one of the same key; false where it alone is too large."""
        self.drop(key)
        if num_bytes > self.max_bytes or seconds <= 0:
            return False
        while self.num_bytes + num_bytes > self.max_bytes:
            self.drop(next(iter(self._entries)))
        self._entries[key] = _Entry(value=value, num_bytes=num_bytes, expires_at=self._clock() + seconds)
        self.num_bytes += num_bytes
        return True

    def drop(self, key: KeyT) -> bool:
        """Whether there was such a value."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self.num_bytes -= entry.num_bytes
        return True

    def drop_expired(self) -> None:
        """Frees what no one can get any more."""
        now = self._clock()
        for key in [key for key, entry in self._entries.items() if entry.expires_at <= now]:
            self.drop(key)
