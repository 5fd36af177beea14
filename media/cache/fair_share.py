"""Shares of what is scarce before the engine: bytes of bodies and media, places of workers and fetches.

No client may hold more than it leaves free: alone it gets half of a capacity, beside another one that takes all it can
get a third. Whoever holds most is refused or waits first, and there is always room for others, without taking back what
is in use. A client that holds nothing may take whatever is free. (Choudhury and Hahne, "Dynamic queue length thresholds
for shared-memory packet switches", 1998, with a factor of 1.)
"""

import asyncio
import math
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from typing import TypeVar

from glimpse.media.cache.byte_count import ByteCount

ResultT = TypeVar("ResultT")


class FairCapacity:
    """A capacity that clients share. Its total may be counted over several processes; each has its own clients."""

    def __init__(self, capacity: float = math.inf, count: ByteCount | None = None) -> None:
        """`count` counts what all clients hold; by default, in this process."""
        self.capacity = capacity
        self.count = count or ByteCount()
        self._held = Counter[str]()  # by client; no zeros

    def has_room(self, client: str, amount: int, *, own: int = 0) -> bool:
        """Whether a client may take an amount. `own`: what it holds already for the same request."""
        free = self.capacity - self.count.total - amount
        held = self._held.get(client, 0)
        return free >= 0 and (held <= own or held + amount <= free)

    def take(self, client: str, amount: int, *, own: int = 0) -> bool:
        """Takes an amount if there is room for it. Returns whether there was."""
        if not self.has_room(client, amount, own=own):
            return False
        self.count.add(amount)
        self._held[client] += amount
        return True

    def give_back(self, client: str, amount: int) -> None:
        """Gives back an amount that was taken."""
        self.count.add(-amount)
        self._held[client] -= amount
        if not self._held[client]:
            del self._held[client]


class FairPlaces:
    """Places for work that waits until there is one. Clients get them in turn."""

    def __init__(self, most_for_one: int) -> None:
        """`most_for_one`: what one client may hold. As many again are there for others, for as long as it does."""
        self._capacity = FairCapacity(2 * most_for_one)
        self._waiting = OrderedDict[str, deque[asyncio.Future[None]]]()

    @asynccontextmanager
    async def place(self, client: str) -> AsyncGenerator[None]:
        """Holds a place for a client, once it has one, until the block ends."""
        await self.acquire(client)
        try:
            yield
        finally:
            self.release(client)

    async def acquire(self, client: str) -> None:
        """Waits for a place."""
        if self._capacity.take(client, 1):
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # it was granted in the same moment
                self.release(client)
            raise

    async def submit(self, threads: Executor, client: str, work: Callable[[], ResultT]) -> "Future[ResultT]":
        """Begins work in a thread, once there is a place. The work holds it until it ends, whoever waits for it.

        `threads` are as many as there are places for all clients, so that nothing waits in their queue.
        """
        await self.acquire(client)
        loop, begun = asyncio.get_running_loop(), threads.submit(work)

        def release(_: "Future[ResultT]") -> None:
            try:
                loop.call_soon_threadsafe(self.release, client)
            except RuntimeError:  # the loop has ended
                self.release(client)

        begun.add_done_callback(release)
        return begun

    def release(self, client: str) -> None:
        """Gives a place back, and passes on those that others may take now."""
        self._capacity.give_back(client, 1)
        while (following := self._next_client()) is not None:
            self._grant(following)

    def _next_client(self) -> str | None:
        """Returns the client that has waited longest of those that may take a place."""
        if self._capacity.count.total >= self._capacity.capacity:
            return None
        return next((client for client in self._waiting if self._capacity.has_room(client, 1)), None)

    def _grant(self, client: str) -> None:
        """Gives a client's oldest request a place, unless it has stopped waiting. The client's next turn comes last."""
        places = self._waiting.pop(client)
        place = places.popleft()
        if places:
            self._waiting[client] = places
        if not place.done() and self._capacity.take(client, 1):
            place.set_result(None)
