"""Calls and notices between a supervisor and a front end, in both directions over one Unix socket."""

import asyncio
import itertools
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar, cast

import msgspec

from glimpse.frames import AsyncChannel, Frames, TransportError, encoded

_Message = TypeVar("_Message", bound=msgspec.Struct)
_Reply = TypeVar("_Reply", bound=msgspec.Struct)

_logger = logging.getLogger(__name__)


class PeerGoneError(Exception):
    """The other end is gone, or did not answer a call because it failed."""


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    number: int
    """Number of a call that expects a reply; negative: of the call that this replies to; 0: a notice."""
    body: msgspec.Raw
    """The message. Empty: the call failed."""


_ENVELOPES = Frames[_Envelope](_Envelope)


class Peer(Generic[_Message]):
    """The other end of a socket. Belongs to the event loop in which `connect` is called."""

    def __init__(
        self,
        channel: AsyncChannel[_Envelope],
        messages: Frames[_Message],
        notice: Callable[[_Message], None],
        answer: Callable[[_Message], Awaitable[msgspec.Struct]] | None,
    ) -> None:
        self._channel = channel
        self._messages = messages
        self._answer = answer
        self._notice = notice
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[msgspec.Struct]] = {}
        self._answers = set[asyncio.Task[None]]()
        self._is_gone = False

    @classmethod
    async def connect(
        cls,
        connection: socket.socket,
        messages: Frames[_Message],
        *,
        notice: Callable[[_Message], None],
        answer: Callable[[_Message], Awaitable[msgspec.Struct]] | None = None,
    ) -> "Peer[_Message]":
        """Takes ownership of the socket.

        Args:
            connection: The socket.
            messages: Decodes what the other end sends, replies included.
            notice: Called with notices, in order; must not block.
            answer: Answers calls; several at a time. The other end does not learn of what it raises. None: none come.
        """
        return cls(await AsyncChannel.connect(connection, _ENVELOPES), messages, notice, answer)

    def tell(self, message: msgspec.Struct) -> None:
        """Sends a notice. It is lost if the other end is gone."""
        self._post(0, msgspec.Raw(encoded(message)))

    async def call(self, message: msgspec.Struct, expected: type[_Reply]) -> _Reply:
        """Sends a call and returns its reply. Raises PeerGoneError."""
        if self._is_gone:
            raise PeerGoneError
        number = next(self._numbers)
        reply = self._calls[number] = asyncio.get_running_loop().create_future()
        try:
            self._post(number, msgspec.Raw(encoded(message)))
            answer = await reply
        finally:
            del self._calls[number]
        if not isinstance(answer, expected):
            raise TransportError(f"expected a reply of type {expected.__name__}, got {type(answer).__name__}")
        return answer

    async def serve(self) -> None:
        """Receives until the other end is gone; then all calls raise PeerGoneError. Raises TransportError."""
        try:
            while (envelope := await self._channel.receive()) is not None:
                self._take(envelope)
        finally:
            self._is_gone = True
            for reply in self._calls.values():
                if not reply.done():
                    reply.set_exception(PeerGoneError())

    async def close(self) -> None:
        """Closes the socket. Notices that are not sent yet are lost."""
        for task in self._answers:
            task.cancel()
        await asyncio.gather(*self._answers, return_exceptions=True)
        await self._channel.close()

    def _take(self, envelope: _Envelope) -> None:
        number, body = envelope.number, bytes(envelope.body)
        if number > 0:
            if self._answer is None:
                raise TransportError("expected no calls, got one")
            task = asyncio.create_task(self._reply(number, self._answer(self._messages.decode(body))))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)
        elif number == 0:
            self._notice(self._messages.decode(body))
        elif (reply := self._calls.get(-number)) is not None and not reply.done():
            if body == _NOTHING:
                reply.set_exception(PeerGoneError())
            else:
                reply.set_result(cast("msgspec.Struct", self._messages.decode(body)))

    async def _reply(self, number: int, answer: Awaitable[msgspec.Struct]) -> None:
        try:
            body = encoded(await answer)
        except Exception:
            _logger.exception("a call of another process of this server failed")
            body = _NOTHING
        self._post(-number, msgspec.Raw(body))

    def _post(self, number: int, body: msgspec.Raw) -> None:
        self._channel.post(_Envelope(number=number, body=body))


_NOTHING = msgspec.msgpack.encode(None)
"""The body of the reply to a call that failed."""
