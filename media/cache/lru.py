"""Least-recently-used cache with a limit in bytes and an expiry time per entry. Independent of what it stores."""

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry(Generic[KeyT, ValueT]):
    value: ValueT
    num_bytes: int
    expires_at: float
    refers_to: Sequence[KeyT]


class Lru(Generic[KeyT, ValueT]):
    """Holds at most `max_bytes`, counted by the sizes that callers pass to `put`.

    An entry may refer to others. They leave with the last one that refers to them, and for lack of room not before.
    """

    def __init__(self, *, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: returns the time in seconds."""
        self.max_bytes = max_bytes
        self.num_bytes = 0
        """Size of all entries."""
        self._clock = clock
        self._entries: OrderedDict[KeyT, _Entry[KeyT, ValueT]] = OrderedDict()
        """The least recently used first. What an entry refers to stands behind it."""
        self._num_referring = Counter[KeyT]()  # no zeros

    def __len__(self) -> int:
        return len(self._entries)

    def list_keys(self) -> list[KeyT]:
        """Returns the keys of all entries, expired ones too, the least recently used first."""
        return list(self._entries)

    def list_newest(self, most: int) -> list[tuple[KeyT, ValueT]]:
        """Returns the entries that have not expired, of the `most` that were used last, the last used one first."""
        now = self._clock()
        newest = ((key, self._entries[key]) for key in islice(reversed(self._entries), most))
        return [(key, entry.value) for key, entry in newest if entry.expires_at > now]

    def get(self, key: KeyT) -> ValueT | None:
        """Returns the value and marks it as recently used; None if it is missing or expired."""
        self.drop_if_expired(key)
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._touch(key, entry)
        return entry.value

    def put(
        self, key: KeyT, value: ValueT, *, num_bytes: int, seconds: float = math.inf, refers_to: Sequence[KeyT] = ()
    ) -> bool:
        """Stores a value for `seconds`, replacing one of the same key. Returns False if it alone exceeds the limit."""
        self.drop(key)
        if num_bytes > self.max_bytes or seconds <= 0:
            return False
        while self.num_bytes + num_bytes > self.max_bytes:
            self.drop_oldest()
        expires_at = self._clock() + seconds
        entry = _Entry(value=value, num_bytes=num_bytes, expires_at=expires_at, refers_to=refers_to)
        self._entries[key] = entry
        self._num_referring.update(refers_to)
        self._touch(key, entry)
        self.num_bytes += num_bytes
        return True

    def drop(self, key: KeyT) -> bool:
        """Removes an entry. Returns whether it existed."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self.num_bytes -= entry.num_bytes
        for other in entry.refers_to:
            self._num_referring[other] -= 1
            if not self._num_referring[other]:
                del self._num_referring[other]
                self.drop(other)
        return True

    def drop_oldest(self) -> int:
        """Removes the least recently used entry. Returns its size. There must be one."""
        num_bytes = self.num_bytes
        self.drop(next(iter(self._entries)))
        return num_bytes - self.num_bytes

    def drop_where(self, condition: Callable[[KeyT], bool]) -> None:
        """Removes the entries whose keys fulfil a condition."""
        for key in [key for key in self._entries if condition(key)]:
            self.drop(key)

    def drop_if_expired(self, key: KeyT) -> None:
        """Removes an entry if it has expired."""
        entry = self._entries.get(key)
        if entry is not None and entry.expires_at <= self._clock():
            self.drop(key)

    def list_expiries(self) -> list[tuple[float, KeyT]]:
        """Returns when each entry that does expires, and its key."""
        return [(entry.expires_at, key) for key, entry in self._entries.items() if entry.expires_at < math.inf]

    def _touch(self, key: KeyT, entry: _Entry[KeyT, ValueT]) -> None:
        for each in (key, *entry.refers_to):
            if each in self._entries:
                self._entries.move_to_end(each)
