"""The memory that bodies of requests may occupy, from their first bytes until their media are loaded.

A body that would exceed it is refused instead of waiting: clients know how to retry, and a waiting body would keep the
memory that others wait for.
"""

import math
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from glimpse.media.cache.byte_count import ByteCount
from glimpse.media.cache.fair_share import FairCapacity
from glimpse.server.errors import InvalidRequest


class BodyBudget:
    """Bytes of all bodies of one event loop. Clients share them: see `glimpse.media.cache.fair_share`."""

    def __init__(self, max_bytes: float = math.inf, count: ByteCount | None = None) -> None:
        """`count` counts what is reserved; by default, only this budget's."""
        self.capacity = FairCapacity(max_bytes, count)

    @property
    def num_bytes(self) -> int:
        """Reserved here in total."""
        return self.capacity.count.own

    @contextmanager
    def reservation(self, client: str = "") -> Generator[None]:
        """Makes a reservation for the client's RPC that the current task serves; releases it when the block ends."""
        reservation = _Reservation(self.capacity, client)
        _current.set(reservation)
        try:
            yield
        finally:
            reservation.release()


class _Reservation:
    def __init__(self, capacity: FairCapacity, client: str) -> None:
        self._capacity = capacity
        self._client = client
        self.num_bytes = 0

    def reserve(self, num_bytes: int) -> None:
        if not self._capacity.take(self._client, num_bytes, own=self.num_bytes):
            message = "The bodies of the requests in progress leave too little of the server's memory; try again later."
            raise InvalidRequest("", message, "overloaded")
        self.num_bytes += num_bytes

    def release(self) -> None:
        self._capacity.give_back(self._client, self.num_bytes)
        self.num_bytes = 0


_current: ContextVar[_Reservation | None] = ContextVar("body", default=None)


def reserve_body(num_bytes: int) -> None:
    """Reserves bytes for the body of the current RPC. Raises InvalidRequest (overloaded)."""
    if reservation := _current.get():
        reservation.reserve(num_bytes)


def body_size() -> int:
    """Returns the bytes of the current RPC's body; 0 if it is released. Messages would serialize to tell their size."""
    reservation = _current.get()
    return 0 if reservation is None else reservation.num_bytes


def release_body() -> None:
    """Releases the body of the current RPC, of which nothing is needed any more. Idempotent."""
    if reservation := _current.get():
        reservation.release()
