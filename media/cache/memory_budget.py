"""Limits on the memory that media may occupy, per request and in total. Counts bytes, whatever they contain.

A reservation that would exceed a limit fails instead of waiting: a waiting request would keep the memory that others
wait for.
"""

import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from glimpse.media.cache.byte_count import ByteCount
from glimpse.media.cache.fair_share import FairCapacity
from glimpse.media.errors import MediaError, MediaErrorCode


class MemoryShare:
    """The part of a budget that one party's requests may occupy together."""

    def __init__(self, max_bytes: float | None = None) -> None:
        """None: no limit but the budget's."""
        self.num_bytes = 0
        """Reserved in this process."""
        self.num_bytes_of_others = 0
        """Reserved in other processes, as this one last heard."""
        self.max_bytes = max_bytes

    def reserve(self, num_bytes: int) -> None:
        """Counts reserved bytes. Raises MediaError (OVERLOADED)."""
        if self.max_bytes is not None and self.num_bytes + self.num_bytes_of_others + num_bytes > self.max_bytes:
            message = f"the media of your tenant's requests exceed its limit, {self.max_bytes} bytes; try again later"
            raise MediaError(MediaErrorCode.OVERLOADED, message)
        self.num_bytes += num_bytes

    def release(self, num_bytes: int) -> None:
        """Counts released bytes."""
        self.num_bytes -= num_bytes


class MemoryBudget:
    """Bytes reserved by all requests of one event loop. Clients share them: see `glimpse.media.cache.fair_share`."""

    def __init__(
        self, *, max_bytes: float = math.inf, max_request_bytes: float = math.inf, count: ByteCount | None = None
    ) -> None:
        """
        Args:
            max_bytes: Limit for all requests together.
            max_request_bytes: Limit for each request.
            count: Counts what is reserved. Default: only this budget.
        """
        self.capacity = FairCapacity(max_bytes, count)
        self.max_request_bytes = min(max_bytes, max_request_bytes)
        self.shared: dict[int, _Shared] = {}
        """Objects that reservations hold, by their ids."""

    @contextmanager
    def reservation(self, share: MemoryShare | None = None, *, client: str = "") -> Generator["MemoryReservation"]:
        """Opens a reservation for a client's request and releases it when the block ends. It counts in `share` too."""
        reservation = MemoryReservation(self, share or MemoryShare(), client)
        try:
            yield reservation
        finally:
            reservation.release_all()

    @property
    def num_bytes(self) -> int:
        """Reserved here in total."""
        return self.capacity.count.own


@dataclass(slots=True)
class _Shared:
    client: str
    """Who reserved it first."""
    num_holders: int = 1


class MemoryReservation:
    """Bytes reserved by one request."""

    def __init__(self, budget: MemoryBudget, share: MemoryShare, client: str = "") -> None:
        self.num_bytes = 0
        self._budget = budget
        self._share = share
        self._client = client
        self._shared: list[tuple[object, int]] = []

    def reserve(self, num_bytes: int) -> None:
        """Reserves bytes. Raises MediaError: TOO_LARGE for more than one request may have, or OVERLOADED."""
        self._reserve(num_bytes, taken=num_bytes)

    def reserve_shared(self, shared: object, num_bytes: int) -> None:
        """Like `reserve`, for an object that requests share, which counts once. It stays reserved until the end."""
        held = self._budget.shared.get(id(shared))
        self._reserve(num_bytes, taken=0 if held else num_bytes)
        if held:
            held.num_holders += 1
        else:
            self._budget.shared[id(shared)] = _Shared(self._client)
        self._shared.append((shared, num_bytes))

    def release(self, num_bytes: int) -> None:
        """Releases reserved bytes."""
        self._budget.capacity.give_back(self._client, num_bytes)
        self._share.release(num_bytes)
        self.num_bytes -= num_bytes

    def release_all(self) -> None:
        """Releases everything."""
        for shared, num_bytes in self._shared:
            held = self._budget.shared[id(shared)]
            held.num_holders -= 1
            if not held.num_holders:
                del self._budget.shared[id(shared)]
                self._budget.capacity.give_back(held.client, num_bytes)
            self._share.release(num_bytes)
            self.num_bytes -= num_bytes
        self._shared.clear()
        self.release(self.num_bytes)

    def _reserve(self, num_bytes: int, *, taken: int) -> None:
        """Counts bytes of the request and takes some of them from the budget; neither if it raises MediaError."""
        max_bytes = self._budget.max_request_bytes
        if self.num_bytes + num_bytes > max_bytes:
            message = f"expected the request's media to occupy at most {max_bytes} bytes of memory, got more"
            raise MediaError(MediaErrorCode.TOO_LARGE, message)
        self._share.reserve(num_bytes)
        if taken and not self._budget.capacity.take(self._client, taken, own=self.num_bytes):
            self._share.release(num_bytes)
            message = "the media of the requests in progress leave too little of the server's memory; try again later"
            raise MediaError(MediaErrorCode.OVERLOADED, message)
        self.num_bytes += num_bytes
