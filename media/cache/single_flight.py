"""Deduplication of concurrent work: tasks that ask for the same key share one execution."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class SingleFlight(Generic[KeyT, ValueT]):
    """Runs at most one execution per key at a time, for the tasks of one event loop."""

    def __init__(self) -> None:
        self._executions: dict[KeyT, _Execution[ValueT]] = {}

    def __len__(self) -> int:
        return len(self._executions)

    async def run(self, key: KeyT, work: Callable[[], Coroutine[Any, Any, ValueT]]) -> tuple[ValueT, bool]:
        """Returns the result of the running execution for the key, or starts one.

        Cancelling one caller does not affect the others. When the last caller is cancelled, so is the execution.

        Returns:
            The result, and whether this caller started the execution.
        """
        execution = self._executions.get(key)
        is_leader = execution is None
        if execution is None:
            execution = self._executions[key] = _Execution(asyncio.create_task(work()))
        execution.num_waiting += 1
        try:
            return await asyncio.shield(execution.task), is_leader
        finally:
            execution.num_waiting -= 1
            if not execution.num_waiting:
                # The execution is done or about to be cancelled, so the next caller starts a new one.
                if self._executions.get(key) is execution:
                    del self._executions[key]
                execution.task.cancel()
            # An error's traceback leads to this frame, which must not lead back to the error.
            del execution


class _Execution(Generic[ValueT]):
    def __init__(self, task: "asyncio.Task[ValueT]") -> None:
        self.task = task
        self.num_waiting = 0
