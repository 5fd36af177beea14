"""Least-recently-used cache that several owners share: whoever has most in it loses first."""

import heapq
import itertools
import math
import time
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from glimpse.media.cache.lru import Lru

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")
ItemT = TypeVar("ItemT", bound=Hashable)

_SLACK = 64
"""Outdated items that a heap may have besides as many as it has others."""


class _Heap(Generic[ItemT]):
    """Items by rank, the least first. An item whose rank has changed is in it more than once."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, ItemT]] = []
        self._serials = itertools.count()  # items need no order

    def push(self, rank: float, item: ItemT) -> None:
        heapq.heappush(self._heap, (rank, next(self._serials), item))

    def first(self) -> tuple[float, ItemT] | None:
        """Returns the least rank and its item."""
        return (self._heap[0][0], self._heap[0][2]) if self._heap else None

    def pop(self) -> None:
        """Removes the item of the least rank."""
        heapq.heappop(self._heap)

    def prune(self, num_items: int, items: Callable[[], Iterable[tuple[float, ItemT]]]) -> None:
        """Replaces its content by `items`, which are `num_items`, if most of it is outdated."""
        if len(self._heap) > 2 * num_items + _SLACK:
            self._heap = [(rank, next(self._serials), item) for rank, item in items()]
            heapq.heapify(self._heap)


class FairLru(Generic[KeyT, ValueT]):
    """Like `Lru`, but each entry has an owner. When it is full, the owner that has most loses its oldest entry.

    What leaves costs time by the logarithm of the number of owners and entries, however many there are.
    """

    def __init__(
        self, *, max_bytes: int, owner: Callable[[KeyT], Hashable], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Args:
            owner: Returns whose entry a key's is.
            clock: Returns the time in seconds.
        """
        self.num_bytes = 0
        """Size of all entries."""
        self._num_entries = 0
        self._max_bytes = max_bytes
        self._owner = owner
        self._clock = clock
        self._by_owner: dict[Hashable, Lru[KeyT, ValueT]] = {}
        self._sizes = _Heap[Hashable]()
        """Owners by their sizes, the largest first. None has more than its first item says."""
        self._expiries = _Heap[KeyT]()
        """Keys by when they expire. Some have left before."""

    def list_keys(self) -> list[KeyT]:
        """Returns the keys of all entries, expired ones too; of each owner the least recently used first."""
        return [key for each in self._by_owner.values() for key in each.list_keys()]

    def list_newest(self, owner: Hashable, most: int) -> list[tuple[KeyT, ValueT]]:
        """Returns an owner's entries as `Lru.list_newest` does."""
        own = self._by_owner.get(owner)
        return [] if own is None else own.list_newest(most)

    def get(self, key: KeyT) -> ValueT | None:
        """Returns the value and marks it as recently used; None if it is missing or expired."""
        with self._counting(self._owner(key)) as own:
            return own.get(key)

    def put(
        self,
        key: KeyT,
        value: ValueT,
        *,
        num_bytes: int,
        seconds: float = math.inf,
        max_own_bytes: float = math.inf,
        refers_to: Sequence[KeyT] = (),
    ) -> bool:
        """Stores a value for `seconds`, replacing one of the same key. Returns False if it alone exceeds a limit.

        Args:
            max_own_bytes: Limit on what the owner has: the owner's least recently used entries leave.
            refers_to: Entries of the same owner, as in `Lru`.
        """
        self.drop(key)
        if num_bytes > min(max_own_bytes, self._max_bytes) or seconds <= 0:
            return False
        owner = self._owner(key)
        with self._counting(owner) as own:
            while own.num_bytes + num_bytes > max_own_bytes:
                own.drop_oldest()
        self._make_room(owner, num_bytes)
        with self._counting(owner) as own:
            own.put(key, value, num_bytes=num_bytes, seconds=seconds, refers_to=refers_to)
        if seconds < math.inf:
            self._expiries.push(self._clock() + seconds, key)
            self._expiries.prune(self._num_entries, self._list_expiries)
        return True

    def drop(self, key: KeyT) -> bool:
        """Removes an entry. Returns whether it existed."""
        with self._counting(self._owner(key)) as own:
            return own.drop(key)

    def drop_where(self, condition: Callable[[KeyT], bool]) -> None:
        """Removes the entries whose keys fulfil a condition."""
        for key in [key for key in self.list_keys() if condition(key)]:
            self.drop(key)

    def drop_expired(self) -> None:
        """Removes all expired entries."""
        now = self._clock()
        while (first := self._expiries.first()) is not None and first[0] <= now:
            self._expiries.pop()
            with self._counting(self._owner(first[1])) as own:
                own.drop_if_expired(first[1])

    def _make_room(self, owner: Hashable, num_bytes: int) -> None:
        """Drops entries until there is room for `num_bytes` more of an owner."""
        while self.num_bytes + num_bytes > self._max_bytes:
            losing, own = self._largest(), self._by_owner.get(owner)
            if own is not None and own.num_bytes + num_bytes > self._by_owner[losing].num_bytes:
                losing = owner
            with self._counting(losing) as entries:
                entries.drop_oldest()

    def _largest(self) -> Hashable:
        """Returns the owner that has most. The cache is not empty."""
        while (first := self._sizes.first()) is not None:
            own = self._by_owner.get(first[1])
            if own is not None and own.num_bytes == -first[0]:
                return first[1]
            self._sizes.pop()
            if own is not None:
                self._sizes.push(-own.num_bytes, first[1])
        raise LookupError("the cache is empty")

    @contextmanager
    def _counting(self, owner: Hashable) -> Generator[Lru[KeyT, ValueT]]:
        """Counts what comes into and leaves an owner's entries within the block."""
        own = self._by_owner.get(owner) or Lru[KeyT, ValueT](max_bytes=self._max_bytes, clock=self._clock)
        num_bytes, num_entries = own.num_bytes, len(own)
        yield own
        self.num_bytes += own.num_bytes - num_bytes
        self._num_entries += len(own) - num_entries
        if own:
            self._by_owner[owner] = own
        else:
            self._by_owner.pop(owner, None)
        if own.num_bytes > num_bytes:
            self._sizes.push(-own.num_bytes, owner)
            self._sizes.prune(len(self._by_owner), self._list_sizes)

    def _list_sizes(self) -> Iterable[tuple[float, Hashable]]:
        return ((-own.num_bytes, owner) for owner, own in self._by_owner.items())

    def _list_expiries(self) -> Iterable[tuple[float, KeyT]]:
        return (item for own in self._by_owner.values() for item in own.list_expiries())
