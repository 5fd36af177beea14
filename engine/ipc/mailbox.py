"""Queues events for a consumer. Events that arrive while it is busy are merged into one for each request."""

import asyncio
from collections.abc import Sequence

from glimpse.engine.protocol import FinishReason, TokenEvent


class Mailbox:
    """The events of one consumer's requests that it has not taken yet."""

    def __init__(self) -> None:
        self._events: dict[str, list[TokenEvent]] = {}
        """Request id → events."""
        self._arrived = asyncio.Event()

    def put(self, event: TokenEvent) -> None:
        self._events.setdefault(event.request_id, []).append(event)
        self._arrived.set()

    async def take(self) -> list[TokenEvent]:
        """Waits for events and returns one for each request, errors first."""
        await self._arrived.wait()
        self._arrived.clear()
        taken, self._events = self._events, {}
        events = [each[0] if len(each) == 1 else _merged(each) for each in taken.values()]
        return sorted(events, key=lambda event: event.finish is not FinishReason.ERROR)


def _merged(events: Sequence[TokenEvent]) -> TokenEvent:
    last = events[-1]
    return TokenEvent(
        request_id=last.request_id,
        token_ids=[token_id for event in events for token_id in event.token_ids],
        logprobs=[logprobs for event in events for logprobs in event.logprobs],
        num_cached_tokens=max(event.num_cached_tokens for event in events),
        num_encoded_media=max(event.num_encoded_media for event in events),
        finish=last.finish,
        error=last.error,
        message=last.message,
    )
