"""The memory that bodies of requests may occupy, from their first bytes until their media are loaded.

A body that would exceed it is refused instead of waiting: clients know how to retry, and a waiting body would keep the
memory that others wait for.
"""

from glimpse.media.cache.fair_share import FairCapacity
from glimpse.server.errors import InvalidRequest


class BodyReservation:
    """The memory of one call's body, of what clients share."""

    def __init__(self, capacity: FairCapacity, client: str) -> None:
        """Reserves nothing yet. `release` must follow."""
        self._capacity = capacity
        self._client = client
        self.num_bytes = 0
        """The bytes of the body; 0 once it is released. Messages would serialize to tell their size."""

    def reserve(self, num_bytes: int) -> None:
        """Reserves bytes for the next part of the body. Raises InvalidRequest (overloaded, or never to be admitted)."""
        if self.num_bytes + num_bytes > self._capacity.capacity:
            message = f"The body is larger than {self._capacity.capacity} bytes, the server's --body-in-flight-bytes."
            raise InvalidRequest("", message, "request_too_large")
        if not self._capacity.take(self._client, num_bytes, own=self.num_bytes):
            message = "The bodies of the requests in progress leave too little of the server's memory; try again later."
            raise InvalidRequest("", message, "overloaded")
        self.num_bytes += num_bytes

    def release(self) -> None:
        """Releases the body, of which nothing is needed any more. Idempotent."""
        self._capacity.give_back(self._client, self.num_bytes)
        self.num_bytes = 0
