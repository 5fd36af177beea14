"""How many bytes of media requests may hold in memory, one and all together. Knows numbers of bytes, and no medium.

Whoever would exceed a budget is refused and does not wait: one that waits holds what others wait for.
"""

import math
from collections.abc import Generator
from contextlib import contextmanager

from glimpse.media.errors import MediaError, MediaErrorCode


class MemoryBudget:
    """The bytes that are held, of one event loop."""

    def __init__(self, *, max_bytes: float = math.inf, max_request_bytes: float = math.inf) -> None:
        """`max_bytes` of all requests together, `max_request_bytes` of each."""
        self.num_bytes = 0
        """Held by all."""
        self.max_bytes = max_bytes
        self.max_request_bytes = min(max_bytes, max_request_bytes)
        self._holders: dict[int, int] = {}
        """How many hold an object that several share, by its identity."""

    @contextmanager
    def reservation(self) -> Generator["MemoryReservation"]:
        """What one request holds, until the block ends."""
        reservation = MemoryReservation(self)
        try:
            yield reservation
        finally:
            reservation.give_all()

    def take(self, num_bytes: int) -> None:
        """Raises MediaError (OVERLOADED)."""
        if self.num_bytes + num_bytes > self.max_bytes:
            message = "the media of the requests being served take too much memory; try again later"
            raise MediaError(MediaErrorCode.OVERLOADED, message)
        self.num_bytes += num_bytes

    def give(self, num_bytes: int) -> None:
        """Gives back what was taken."""
        self.num_bytes -= num_bytes

    def take_shared(self, shared: object, num_bytes: int) -> None:
        """As `take`, but an object that is held already takes nothing. It must be alive until it is given back."""
        num_holders = self._holders.get(id(shared), 0)
        if not num_holders:
            self.take(num_bytes)
        self._holders[id(shared)] = num_holders + 1

    def give_shared(self, shared: object, num_bytes: int) -> None:
        """Gives back what was taken for an object, once nobody holds it."""
        self._holders[id(shared)] -= 1
        if not self._holders[id(shared)]:
            del self._holders[id(shared)]
            self.give(num_bytes)


class MemoryReservation:
    """What one request holds."""

    def __init__(self, memory_budget: MemoryBudget) -> None:
        self.num_bytes = 0
        self._in_flight = memory_budget
        self._shared: list[tuple[object, int]] = []

    def take(self, num_bytes: int) -> None:
        """Raises MediaError: TOO_LARGE for more than a request may have, OVERLOADED."""
        self._check(num_bytes)
        self._in_flight.take(num_bytes)
        self.num_bytes += num_bytes

    def take_shared(self, shared: object, num_bytes: int) -> None:
        """As `take`, for an object that other requests may hold too; it is held to the end."""
        self._check(num_bytes)
        self._in_flight.take_shared(shared, num_bytes)
        self._shared.append((shared, num_bytes))
        self.num_bytes += num_bytes

    def give(self, num_bytes: int) -> None:
        """Gives back what was taken."""
        self._in_flight.give(num_bytes)
        self.num_bytes -= num_bytes

    def give_all(self) -> None:
        """Gives everything back."""
        for shared, num_bytes in self._shared:
            self._in_flight.give_shared(shared, num_bytes)
            self.num_bytes -= num_bytes
        self._shared.clear()
        self._in_flight.give(self.num_bytes)
        self.num_bytes = 0

    def _check(self, num_bytes: int) -> None:
        if self.num_bytes + num_bytes > self._in_flight.max_request_bytes:
            message = f"the media of the request take more than {self._in_flight.max_request_bytes} bytes of memory"
            raise MediaError(MediaErrorCode.TOO_LARGE, message)
