"""Work that several tasks wait for is done once. Knows nothing of what the work is."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class SingleFlight(Generic[KeyT, ValueT]):
    """The works that are being done, by key. For the tasks of one event loop."""

    def __init__(self) -> None:
        self._flights: dict[KeyT, _Flight[ValueT]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    async def share(self, key: KeyT, work: Callable[[], Coroutine[Any, Any, ValueT]]) -> tuple[ValueT, bool]:
        """The result of the work under way for this key, or of a new one; and whether it was begun for this caller.

        A caller that is cancelled leaves the others waiting; when the last one leaves, the work is cancelled.
        """
        flight = self._flights.get(key)
        is_leader = flight is None
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.create_task(work()))
        flight.num_waiting += 1
        try:
            return await asyncio.shield(flight.task), is_leader
        finally:
            flight.num_waiting -= 1
            if not flight.num_waiting:
                # Whoever comes now begins anew: this work is done, or is being cancelled.
                if self._flights.get(key) is flight:
                    del self._flights[key]
                flight.task.cancel()


class _Flight(Generic[ValueT]):
    def __init__(self, task: "asyncio.Task[ValueT]") -> None:
        self.task = task
        self.num_waiting = 0
