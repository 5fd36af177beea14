"""The memory that bodies of requests may occupy, from their first bytes until their media are loaded.

A body that would exceed it is refused instead of waiting: clients know how to retry, and a waiting body would keep the
memory that others wait for.
"""

import math
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from glimpse.media.cache.byte_count import ByteCount
from glimpse.server.rpc.errors import InvalidRequest


class BodyBudget:
    """Bytes of the bodies of all requests of one event loop."""

    def __init__(self, max_bytes: float = math.inf, count: ByteCount | None = None) -> None:
        """`count` counts what is reserved; by default, only this budget's."""
        self.count = count or ByteCount()
        self.max_bytes = max_bytes

    @property
    def num_bytes(self) -> int:
        """Reserved here in total."""
        return self.count.own

    @contextmanager
    def reservation(self) -> Generator[None]:
        """Makes a reservation for the RPC that the current task serves, and releases it when the block ends."""
        reservation = _Reservation(self)
        _current.set(reservation)
        try:
            yield
        finally:
            reservation.release()


class _Reservation:
    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.num_bytes = 0

    def reserve(self, num_bytes: int) -> None:
        budget = self._budget
        if budget.count.total + num_bytes > budget.max_bytes:
            message = "The bodies of all requests in progress exceed the server's memory limit; try again later."
            raise InvalidRequest("", message, "overloaded")
        budget.count.add(num_bytes)
        self.num_bytes += num_bytes

    def release(self) -> None:
        self._budget.count.add(-self.num_bytes)
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
