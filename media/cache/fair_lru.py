"""Least-recently-used cache that several owners share: whoever has most in it loses first."""

import math
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from glimpse.media.cache.lru import Lru

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class FairLru(Generic[KeyT, ValueT]):
    """Like `Lru`, but each entry has an owner. When it is full, the owner that has most loses its oldest entry."""

    def __init__(
        self, *, max_bytes: int, owner: Callable[[KeyT], Hashable], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Args:
            max_bytes: Limit for all entries together.
            owner: Returns whose entry a key's is.
            clock: Returns the time in seconds.
        """
        self._max_bytes = max_bytes
        self._owner = owner
        self._clock = clock
        self._by_owner: dict[Hashable, Lru[KeyT, ValueT]] = {}

    @property
    def num_bytes(self) -> int:
        """Size of all entries."""
        # A copy: metrics read this in another thread.
        return sum(each.num_bytes for each in list(self._by_owner.values()))

    def list_keys(self) -> list[KeyT]:
        """Returns the keys of all entries, expired ones too; of each owner the least recently used first."""
        return [key for each in self._by_owner.values() for key in each.list_keys()]

    def get(self, key: KeyT) -> ValueT | None:
        """Returns the value and marks it as recently used; None if it is missing or expired."""
        own = self._by_owner.get(self._owner(key))
        value = None if own is None else own.get(key)
        self._forget_empty(key)
        return value

    def put(
        self, key: KeyT, value: ValueT, *, num_bytes: int, seconds: float = math.inf, max_own_bytes: float = math.inf
    ) -> bool:
        """Stores a value for `seconds`, replacing one of the same key. Returns False if it alone exceeds a limit.

        `max_own_bytes` limits what its owner has: the owner's least recently used entries leave.
        """
        self.drop(key)
        if num_bytes > min(max_own_bytes, self._max_bytes) or seconds <= 0:
            return False
        owner = self._owner(key)
        own = self._by_owner.get(owner) or Lru[KeyT, ValueT](max_bytes=self._max_bytes, clock=self._clock)
        while own.num_bytes + num_bytes > max_own_bytes:
            own.drop_oldest()
        self._make_room(owner, num_bytes)
        self._by_owner[owner] = own
        return own.put(key, value, num_bytes=num_bytes, seconds=seconds)

    def drop(self, key: KeyT) -> bool:
        """Removes an entry. Returns whether it existed."""
        own = self._by_owner.get(self._owner(key))
        existed = own is not None and own.drop(key)
        self._forget_empty(key)
        return existed

    def drop_where(self, condition: Callable[[KeyT], bool]) -> None:
        """Removes the entries whose keys fulfil a condition."""
        for key in [key for key in self.list_keys() if condition(key)]:
            self.drop(key)

    def drop_expired(self) -> None:
        """Removes all expired entries."""
        for owner, own in list(self._by_owner.items()):
            own.drop_expired()
            if not own:
                del self._by_owner[owner]

    def _make_room(self, owner: Hashable, num_bytes: int) -> None:
        """Drops entries until there is room for `num_bytes` more of an owner."""
        total = self.num_bytes
        while total + num_bytes > self._max_bytes:
            largest = max(
                (each for each in self._by_owner if self._by_owner[each]),
                key=lambda each: self._by_owner[each].num_bytes + (num_bytes if each == owner else 0),
            )
            total -= self._by_owner[largest].drop_oldest()
            if not self._by_owner[largest]:
                del self._by_owner[largest]

    def _forget_empty(self, key: KeyT) -> None:
        owner = self._owner(key)
        if owner in self._by_owner and not self._by_owner[owner]:
            del self._by_owner[owner]
