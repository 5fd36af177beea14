"""Work that is shared: done once, not disturbed by those who leave, ended with the last of them."""

import asyncio

import pytest

from glimpse.media.cache.single_flight import SingleFlight


class Work:
    """Something that is done when the test says so."""

    def __init__(self) -> None:
        self.num_begun = 0
        self.num_cancelled = 0
        self.may_end = asyncio.Event()

    async def do(self) -> str:
        self.num_begun += 1
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        return f"result {self.num_begun}"


async def test_many_wait_for_one_work() -> None:
    single_flight, work = SingleFlight[str, str](), Work()
    waiting = [asyncio.create_task(single_flight.run("a", work.do)) for _ in range(20)]
    await asyncio.sleep(0)
    work.may_end.set()
    results = await asyncio.gather(*waiting)
    assert [value for value, _ in results] == ["result 1"] * 20
    assert [is_leader for _, is_leader in results] == [True] + [False] * 19
    assert (work.num_begun, len(single_flight)) == (1, 0)


async def test_works_of_different_keys_are_different_works() -> None:
    single_flight, work = SingleFlight[str, str](), Work()
    work.may_end.set()
    await asyncio.gather(*(single_flight.run(key, work.do) for key in "abc"))
    assert work.num_begun == 3


async def test_nothing_is_kept_once_it_is_done() -> None:
    single_flight, work = SingleFlight[str, str](), Work()
    work.may_end.set()
    assert await single_flight.run("a", work.do) == ("result 1", True)
    assert await single_flight.run("a", work.do) == ("result 2", True)


async def test_those_who_leave_disturb_nobody() -> None:
    single_flight, work = SingleFlight[str, str](), Work()
    waiting = [asyncio.create_task(single_flight.run("a", work.do)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # the one that began it
    await asyncio.sleep(0)
    work.may_end.set()
    assert [value for value, _ in await asyncio.gather(*waiting[1:])] == ["result 1"] * 2
    assert (work.num_begun, work.num_cancelled) == (1, 0)
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]


async def test_the_last_one_who_leaves_ends_the_work() -> None:
    single_flight, work = SingleFlight[str, str](), Work()
    waiting = [asyncio.create_task(single_flight.run("a", work.do)) for _ in range(3)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.sleep(0)
    assert (work.num_begun, work.num_cancelled, len(single_flight)) == (1, 1, 0)


async def test_who_comes_after_the_last_one_left_begins_anew() -> None:
    single_flight, work = SingleFlight[str, str](), Work()
    first = asyncio.create_task(single_flight.run("a", work.do))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = asyncio.create_task(single_flight.run("a", work.do))
    await asyncio.sleep(0)
    work.may_end.set()
    assert await second == ("result 2", True)


async def test_all_are_told_what_went_wrong_and_the_next_one_tries_again() -> None:
    single_flight, work = SingleFlight[str, str](), Work()
    work.may_end.set()

    async def fail() -> str:
        raise ValueError("broken")

    failed = await asyncio.gather(*(single_flight.run("a", fail) for _ in range(3)), return_exceptions=True)
    assert [str(error) for error in failed] == ["broken"] * 3
    assert await single_flight.run("a", work.do) == ("result 1", True)
