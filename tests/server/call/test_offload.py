"""Long work gets threads by clients in turn, and keeps its thread until it ends, though its caller has left."""

import asyncio
from threading import Event

import pytest

from glimpse.server.call.offload import Offload


async def run(offload: Offload, client: str, work: Event, ended: list[str]) -> None:
    await offload.run(client, work.wait, 30)
    ended.append(client)


async def test_clients_get_threads_in_turn():
    offload, work = Offload("test"), Event()
    begun = asyncio.Queue[str]()
    loop = asyncio.get_running_loop()

    def begin(client: str) -> None:
        loop.call_soon_threadsafe(begun.put_nowait, client)
        work.wait(30)

    async with asyncio.TaskGroup() as group:
        for client in [*("many" for _ in range(9)), "one"]:
            group.create_task(offload.run(client, begin, client))
            await asyncio.sleep(0)
        first = [await begun.get() for _ in range(3)]
        work.set()
    assert sorted(first) == ["many", "many", "one"], (
        "two ran before it came, and it waits for none of those behind them"
    )


async def test_a_thread_whose_caller_has_left_stays_taken():
    offload, work, ended = Offload("test"), Event(), list[str]()
    leaving = [asyncio.create_task(run(offload, "leaves", work, ended)) for _ in range(2)]
    await asyncio.sleep(0)
    staying = asyncio.create_task(run(offload, "stays", work, ended))
    for task in leaving:
        task.cancel()
    await asyncio.wait(leaving)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(staying), 0.05)
    work.set()
    await staying
    assert ended == ["stays"]
