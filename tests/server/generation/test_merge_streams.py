"""Tests for merged streams: order, back-pressure, failures and cancellation."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.server.generation.merge_streams import merge_streams


class Stream:
    """Yields numbers and raises exceptions."""

    def __init__(self, *values: int | Exception) -> None:
        self.values = values
        self.num_asked = 0
        self.closed = False

    async def run(self) -> AsyncGenerator[int, None]:
        try:
            for value in self.values:
                self.num_asked += 1
                await asyncio.sleep(0)
                if isinstance(value, Exception):
                    raise value
                yield value
        finally:
            self.closed = True


@given(st.lists(st.lists(st.integers()), min_size=1, max_size=5))
async def test_merges_every_value_once_and_in_stream_order(values: list[list[int]]) -> None:
    streams = [Stream(*each) for each in values]
    got: list[list[int]] = [[] for _ in values]

    async def numbered(index: int, stream: Stream) -> AsyncGenerator[tuple[int, int], None]:
        async with aclosing(stream.run()) as each:
            async for value in each:
                yield index, value

    async for index, value in merge_streams([numbered(*each) for each in enumerate(streams)]):
        got[index].append(value)
    assert got == values
    assert all(stream.closed for stream in streams)


@pytest.mark.parametrize("count", [1, 3])
async def test_slow_reader_holds_back_every_stream(count: int) -> None:
    streams = [Stream(1, 2, 3) for _ in range(count)]
    async with aclosing(merge_streams([stream.run() for stream in streams])) as values:
        await anext(values)
        for _ in range(20):
            await asyncio.sleep(0)
        assert max(stream.num_asked for stream in streams) == 1
    assert all(stream.closed for stream in streams)


@pytest.mark.parametrize("others", [0, 2])
async def test_failure_of_one_stream_ends_all(others: int) -> None:
    streams = [Stream(ValueError("first")), *(Stream(*range(9)) for _ in range(others))]
    values = merge_streams([stream.run() for stream in streams])
    with pytest.raises(ValueError, match="first"):
        await anext(values)  # a failure counts before the values that come with it
    assert all(stream.closed or not stream.num_asked for stream in streams)


async def test_cancelled_reader_ends_all_streams() -> None:
    streams = [Stream(1), Stream(2)]

    async def read() -> None:
        async for _ in merge_streams([stream.run() for stream in streams]):
            await asyncio.Event().wait()

    reader = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    reader.cancel()
    await asyncio.wait([reader])
    assert all(stream.closed for stream in streams)
