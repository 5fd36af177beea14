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
from dataclasses import dataclass
from typing import TypeVar

from glimpse.media.cache.byte_count import ByteCount
from glimpse.native.memory import available_memory

ResultT = TypeVar("ResultT")


class FairCapacity:
    """A capacity that clients share. Its total may be counted over several processes; each has its own clients."""

    def __init__(self, capacity: float = math.inf, count: ByteCount | None = None) -> None:
        """`count` counts what all clients hold; by default, in this process."""
        self.capacity = capacity
        self.count = count or ByteCount()
        self._held = Counter[str]()  # by client; no zeros

    @property
    def free(self) -> float:
        """What nobody holds."""
        return self.capacity - self.count.total

    def has_room(self, client: str, amount: int, *, own: int = 0, free: float | None = None) -> bool:
        """Whether a client may take an amount. `own`: what it holds already for the same request. `free`: as known."""
        left = (self.free if free is None else free) - amount
        held = self._held.get(client, 0)
        return left >= 0 and (held <= own or held + amount <= left)

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


class FreeMemory(FairCapacity):
    """The memory that this process and those that it starts can still take.

    Whoever finds nothing of it held may take any amount. What is held and in use by now counts twice, on the safe side.
    """

    @property
    def free(self) -> float:
        available = available_memory() if self.count.total else None
        return math.inf if available is None else available - self.count.total


class FairPlaces:
    """Places for work that waits until there is one, or bytes for it. Clients get them in turn."""

    def __init__(self, most_for_one: int = 0, *, capacity: FairCapacity | None = None) -> None:
        """
        Args:
            most_for_one: What one client may hold. As many again are there for others, for as long as it does.
            capacity: What is shared in place of so many.
        """
        self._capacity = capacity or FairCapacity(2 * most_for_one)
        self._waiting = OrderedDict[str, deque[_Waiting]]()

    @asynccontextmanager
    async def place(self, client: str, amount: int = 1) -> AsyncGenerator[None]:
        """Holds an amount for a client, once it has that, until the block ends."""
        await self.acquire(client, amount)
        try:
            yield
        finally:
            self.release(client, amount)

    async def acquire(self, client: str, amount: int = 1) -> None:
        """Waits for an amount."""
        if self._capacity.take(client, amount):
            return
        waiting = _Waiting(amount, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(client, deque()).append(waiting)
        try:
            await waiting.granted
        except asyncio.CancelledError:
            if not waiting.granted.cancelled():  # it was granted in the same moment
                self.release(client, amount)
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

    def release(self, client: str, amount: int = 1) -> None:
        """Gives an amount back, and passes on what others may take now."""
        self._capacity.give_back(client, amount)
        while (following := self._next_client()) is not None:
            self._grant(following)

    def _next_client(self) -> str | None:
        """Returns the client that has waited longest of those that may take what they wait for."""
        free = self._capacity.free if self._waiting else 0
        if free <= 0:
            return None
        waiting = self._waiting.items()
        return next((who for who, own in waiting if self._capacity.has_room(who, own[0].amount, free=free)), None)

    def _grant(self, client: str) -> None:
        """Grants a client's oldest request, unless it has stopped waiting. The client's next turn comes last."""
        own = self._waiting.pop(client)
        waiting = own.popleft()
        if own:
            self._waiting[client] = own
        if not waiting.granted.done() and self._capacity.take(client, waiting.amount):
            waiting.granted.set_result(None)


@dataclass(frozen=True, slots=True)
class _Waiting:
    amount: int
    granted: "asyncio.Future[None]"
