"""Queues events for a consumer. Events that arrive while it is busy are merged into few for each request."""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from glimpse.engine.protocol.messages import FinishReason, TokenEvent
from glimpse.streams import Stream

_MAX_LOGPROB_EVENTS = 8
"""Events with log-probabilities that are merged into one: each takes up to a millisecond of its consumer's time."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TokenEvent).decode


class _Unread:
    """Events of one request that its consumer has not taken."""

    def __init__(self, first: TokenEvent) -> None:
        self._packed = deque[bytes]()
        """Merged events with log-probabilities. As objects they would take seven times the memory, and the engine waits
        for no slow consumer."""
        self._events = [first]
        """Later ones."""

    def __bool__(self) -> bool:
        return bool(self._packed or self._events)

    def __iter__(self) -> Iterator[TokenEvent]:
        yield from map(_decode, self._packed)
        yield from self._events

    def add(self, event: TokenEvent) -> None:
        self._events.append(event)
        if event.logprobs and len(self._events) == _MAX_LOGPROB_EVENTS:
            self._packed.append(_encode(self._merge()))

    def take(self) -> TokenEvent:
        """Returns the oldest events, merged."""
        return _decode(self._packed.popleft()) if self._packed else self._merge()

    def _merge(self) -> TokenEvent:
        events, self._events = self._events, []
        return events[0] if len(events) == 1 else _merged(events)


class Mailbox:
    """The events of one consumer's requests that it has not taken yet."""

    def __init__(self, stream: Stream[TokenEvent] | None = None) -> None:
        """`stream`: through which the consumer takes the events."""
        self._stream = stream
        self._unread: dict[str, TokenEvent | _Unread] = {}
        """By request id: one event, as mostly, or several. None is empty."""
        self._arrival: asyncio.Future[None] | None = None
        """Future of the next event, while the consumer waits for it."""
        self.has_begun = False
        """Whether an event has come."""

    def put(self, event: TokenEvent) -> bool:
        """Returns whether a receiver has taken it. If not, the consumer's task will."""
        self.has_begun = True
        arrival = None if self._arrival is None or self._arrival.done() else self._arrival
        if arrival is not None and event.finish is None and self._stream is not None:  # and nothing is unread
            receiver = self._stream.receiver
            if receiver is not None and receiver.is_free():
                try:
                    receiver.take(event)
                except StopIteration as error:  # of which a future, like a generator, takes none
                    arrival.set_exception(RuntimeError(f"a receiver raised {error!r}"))
                except Exception as error:
                    arrival.set_exception(error)
                return True
        held = self._unread.setdefault(event.request_id, event)
        if held is not event:
            if not isinstance(held, _Unread):
                held = self._unread[event.request_id] = _Unread(held)
            held.add(event)
        if arrival is not None:
            arrival.set_result(None)
        return False

    @property
    def unread(self) -> list[TokenEvent]:
        """Events that the consumer has not taken."""
        held = self._unread.values()
        return [event for each in held for event in (each if isinstance(each, _Unread) else (each,))]

    async def take(self) -> list[TokenEvent]:
        """Waits for events and returns one for each request, errors first. There may be more if they have
        log-probabilities."""
        while not self._unread:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        unread, self._unread = self._unread, {}
        taken = [each.take() if isinstance(each, _Unread) else each for each in unread.values()]
        self._unread = {key: each for key, each in unread.items() if isinstance(each, _Unread) and each}
        return taken if len(taken) == 1 else sorted(taken, key=lambda event: event.finish is not FinishReason.ERROR)


def _merged(events: Sequence[TokenEvent]) -> TokenEvent:
    last = events[-1]
    return replace(
        last,
        token_ids=[token_id for event in events for token_id in event.token_ids],
        logprobs=[logprobs for event in events for logprobs in event.logprobs],
        prompt_logprobs=events[0].prompt_logprobs,
        stats=events[0].stats if last.finish is None else last.stats,
    )
