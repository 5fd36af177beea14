"""Queues events for a consumer. Events that arrive while it is busy are merged into few for each request."""

import asyncio
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from glimpse.engine.protocol.messages import FinishReason, TokenEvent

_MAX_LOGPROB_EVENTS = 8
"""Events with log-probabilities that are merged into one: each takes up to a millisecond of its consumer's time."""


class Mailbox:
    """The events of one consumer's requests that it has not taken yet."""

    def __init__(self) -> None:
        self._events: dict[str, list[TokenEvent]] = {}
        """Request id → events."""
        self._arrival: asyncio.Future[None] | None = None
        """Future of the next event, while the consumer waits for it."""
        self.has_begun = False
        """Whether an event has come."""

    def put(self, event: TokenEvent) -> None:
        self.has_begun = True
        self._events.setdefault(event.request_id, []).append(event)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    @property
    def unread(self) -> list[TokenEvent]:
        """Events that the consumer has not taken."""
        return [event for events in self._events.values() for event in events]

    async def take(self) -> list[TokenEvent]:
        """Waits for events and returns one for each request, errors first; several if they have log-probabilities."""
        while not self._events:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        taken, self._events = self._events, {}
        if len(taken) == 1:
            (events,) = taken.values()
            return events if len(events) == 1 else list(_merged_events(events))
        merged = [event for events in taken.values() for event in _merged_events(events)]
        return sorted(merged, key=lambda event: event.finish is not FinishReason.ERROR)


def _merged_events(events: Sequence[TokenEvent]) -> Iterator[TokenEvent]:
    num_merged = _MAX_LOGPROB_EVENTS if events[0].logprobs else len(events)
    for start in range(0, len(events), num_merged):
        part = events[start : start + num_merged]
        yield part[0] if len(part) == 1 else _merged(part)


def _merged(events: Sequence[TokenEvent]) -> TokenEvent:
    last = events[-1]
    return replace(
        last,
        token_ids=[token_id for event in events for token_id in event.token_ids],
        logprobs=[logprobs for event in events for logprobs in event.logprobs],
        prompt_logprobs=events[0].prompt_logprobs,
        stats=events[0].stats if last.finish is None else last.stats,
    )
