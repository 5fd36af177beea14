"""Events of one request on their way to its consumer. What gathers while the consumer is busy becomes one event."""

import asyncio
from collections.abc import Sequence

from engine.protocol import TokenEvent


class Mailbox:
    """The events of one request that its consumer has not taken yet."""

    def __init__(self) -> None:
        self._events: list[TokenEvent] = []
        self._arrived = asyncio.Event()

    def put(self, event: TokenEvent) -> None:
        self._events.append(event)
        self._arrived.set()

    async def take(self) -> TokenEvent:
        """Waits for an event; several become one."""
        await self._arrived.wait()
        self._arrived.clear()
        events, self._events = self._events, []
        return events[0] if len(events) == 1 else _merged(events)


def _merged(events: Sequence[TokenEvent]) -> TokenEvent:
    last = events[-1]
    return TokenEvent(
        request_id=last.request_id,
        token_ids=[token_id for event in events for token_id in event.token_ids],
        logprobs=[logprobs for event in events for logprobs in event.logprobs],
        num_cached_tokens=max(event.num_cached_tokens for event in events),
        finish=last.finish,
        error=last.error,
        message=last.message,
    )
