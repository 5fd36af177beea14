"""SingleFlight: concurrent callers share a task, which is cancelled with its last caller."""

import asyncio

import pytest

from glimpse.media.cache.single_flight import SingleFlight


class Work:
    """Work that finishes when the test allows it."""

    def __init__(self) -> None:
        self.num_started = 0
        self.num_cancelled = 0
        self.may_end = asyncio.Event()

    async def do(self) -> str:
        self.num_started += 1
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        return f"result {self.num_started}"


async def test_concurrent_callers_share_one_task() -> None:
    single_flight, work = SingleFlight[str, str](), Work()
    waiting = [asyncio.create_task(single_flight.run("a", work.do)) for _ in range(20)]
    await asyncio.sleep(0)
    work.may_end.set()
    results = await asyncio.gather(*waiting)
    assert [value for value, _ in results] == ["result 1"] * 20
    assert [is_leader for _, is_leader in results] == [True] + [False] * 19
    assert (work.num_started, len(single_flight)) == (1, 0)


async def test_different_keys_have_separate_tasks() -> None:
    single_flight, work = SingleFlight[str, str](), Work()
    work.may_end.set()
    await asyncio.gather(*(single_flight.run(key, work.do) for key in "abc"))
    assert work.num_started == 3


async def test_finished_results_are_not_reused() -> None:
    single_flight, work = SingleFlight[str, str](), Work()
    work.may_end.set()
    assert await single_flight.run("a", work.do) == ("result 1", True)
    assert await single_flight.run("a", work.do) == ("result 2", True)


async def test_cancelled_caller_does_not_cancel_the_task() -> None:
    single_flight, work = SingleFlight[str, str](), Work()
    waiting = [asyncio.create_task(single_flight.run("a", work.do)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # the caller that started it
    await asyncio.sleep(0)
    work.may_end.set()
    assert [value for value, _ in await asyncio.gather(*waiting[1:])] == ["result 1"] * 2
    assert (work.num_started, work.num_cancelled) == (1, 0)
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]


async def test_task_is_cancelled_with_its_last_caller() -> None:
    single_flight, work = SingleFlight[str, str](), Work()
    waiting = [asyncio.create_task(single_flight.run("a", work.do)) for _ in range(3)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.sleep(0)
    assert (work.num_started, work.num_cancelled, len(single_flight)) == (1, 1, 0)


async def test_caller_after_a_cancelled_task_starts_a_new_one() -> None:
    single_flight, work = SingleFlight[str, str](), Work()
    first = asyncio.create_task(single_flight.run("a", work.do))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = asyncio.create_task(single_flight.run("a", work.do))
    await asyncio.sleep(0)
    work.may_end.set()
    assert await second == ("result 2", True)


async def test_failure_reaches_all_callers_and_is_not_cached() -> None:
    single_flight, work = SingleFlight[str, str](), Work()
    work.may_end.set()

    async def fail() -> str:
        raise ValueError("broken")

    failed = await asyncio.gather(*(single_flight.run("a", fail) for _ in range(3)), return_exceptions=True)
    assert [str(error) for error in failed] == ["broken"] * 3
    assert await single_flight.run("a", work.do) == ("result 1", True)
