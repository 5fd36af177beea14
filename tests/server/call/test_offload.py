"""Long work gets threads and turns of the loop by clients in turn, and keeps its thread though its caller has left."""

import asyncio
import time
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


async def test_turns_of_a_client_are_rare_while_rpcs_are_accepted():
    turns, loop, taken, accepted = LoopTurns(), asyncio.get_running_loop(), 0, asyncio.Event()

    async def render() -> None:
        nonlocal taken
        while True:
            await turns.next("busy")
            time.sleep(0.002)  # noqa: ASYNC251 - it holds the loop
            taken += 1

    def accept(more: int) -> None:
        turns.note_accepted()
        if more:
            loop.call_soon(accept, more - 1)
        else:
            accepted.set()

    rendering = asyncio.create_task(render())
    loop.call_soon(accept, 100)
    await accepted.wait()
    assert taken < 50, "a turn of the loop accepts an RPC, and few of the turns do other work"
    before = taken
    while taken < before + 3:  # noqa: ASYNC110 - they go on
        await asyncio.sleep(0.001)
    rendering.cancel()


async def test_clients_that_have_one_thing_to_do_get_turns_one_after_another_while_rpcs_are_accepted():
    turns, turn = LoopTurns(), 0

    async def take(client: str) -> int:
        await turns.next(client)
        return turn

    taken = [asyncio.create_task(take(client)) for client in ("busy", "busy", "busy", *map(str, range(10)))]
    while not all(each.done() for each in taken[3:]):
        turns.note_accepted()
        turn += 1
        time.sleep(0.001)  # noqa: ASYNC251 - a pause is at least three such turns
        await asyncio.sleep(0)
    assert taken[-1].result() < 28, "two turns each"
    await asyncio.wait(taken)
