"""Calls and notices over a real socket pair."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator

import msgspec
import pytest

from glimpse.frames import Frames, TransportError
from glimpse.server.processes.peer import Peer, PeerGoneError


class Word(msgspec.Struct, frozen=True, tag="word"):
    text: str


class Number(msgspec.Struct, frozen=True, tag="number"):
    value: int


MESSAGES = Frames[Word | Number](Word | Number)


class End:
    """One end: it returns calls reversed, and keeps notices."""

    def __init__(self) -> None:
        self.notices: list[Word | Number] = []
        self.answering = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def answer(self, message: Word | Number) -> msgspec.Struct:
        self.answering.set()
        await self.may_answer.wait()
        if isinstance(message, Number):
            raise TypeError("no numbers")
        return Word(message.text[::-1])


Ends = tuple[Peer[Word | Number], End, Peer[Word | Number]]


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    """A peer, the end that it speaks to, and that end's peer."""
    here, there = End(), End()
    near, far = socket.socketpair()
    peer = await Peer.connect(near, MESSAGES, answer=here.answer, notice=here.notices.append)
    other = await Peer.connect(far, MESSAGES, answer=there.answer, notice=there.notices.append)
    tasks = [asyncio.create_task(each.serve()) for each in (peer, other)]
    yield peer, there, other
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await peer.close()
    await other.close()


async def test_calls_get_their_own_replies(ends: Ends) -> None:
    peer, _, _ = ends
    replies = await asyncio.gather(*(peer.call(Word(f"word {index}"), Word) for index in range(50)))
    assert replies == [Word(f"word {index}"[::-1]) for index in range(50)]


async def test_notices_arrive_in_order_before_later_calls(ends: Ends) -> None:
    peer, end, _ = ends
    for value in range(5):
        peer.tell(Number(value))
    await peer.call(Word("after"), Word)
    assert end.notices == [Number(value) for value in range(5)]


async def test_call_that_fails_there_fails_here_without_its_reason(
    ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    peer, _, _ = ends
    with caplog.at_level(logging.ERROR), pytest.raises(PeerGoneError):
        await peer.call(Number(1), Word)
    assert "no numbers" in caplog.text
    assert await peer.call(Word("on"), Word) == Word("no")


async def test_reply_of_another_type_is_an_error(ends: Ends) -> None:
    peer, _, _ = ends
    with pytest.raises(TransportError, match="expected a reply of type Number, got Word"):
        await peer.call(Word("x"), Number)


async def test_calls_end_when_the_other_end_is_gone(ends: Ends) -> None:
    peer, there, other = ends
    there.may_answer.clear()
    call = asyncio.create_task(peer.call(Word("x"), Word))
    await there.answering.wait()
    await other.close()
    with pytest.raises(PeerGoneError):
        await call
    with pytest.raises(PeerGoneError):
        await peer.call(Word("y"), Word)
    peer.tell(Word("z"))
