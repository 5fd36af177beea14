"""Long work gets threads and turns of the loop by clients in turn, and keeps its thread though its caller has left."""

import asyncio
from threading import Event

import pytest

from glimpse.server.call.offload import LoopTurns, Offload


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


async def test_clients_get_turns_of_the_loop_one_after_another():
    turns, turn = LoopTurns(), 0

    async def take(client: str) -> int:
        await turns.next(client)
        return turn

    taken = [asyncio.create_task(take(client)) for client in (*("busy",) * 100, *map(str, range(10)))]
    while not all(each.done() for each in taken):
        turn += 1
        await asyncio.sleep(0)
    assert len({each.result() for each in taken[:100]}) == 100, "a turn has one thing of a client"
    assert taken[-1].result() < 28, "two turns each"
