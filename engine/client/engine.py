"""The engine as a front end sees it: it takes requests and returns their events.

It upholds the guarantee of the protocol: whatever happens to a request, exactly one event has `finish` set, and it is
the last one.
"""

import asyncio
import itertools
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

from glimpse.engine.client.mailbox import Mailbox
from glimpse.engine.client.supervisor import EngineState
from glimpse.engine.errors import EngineError, EngineErrorCode
from glimpse.engine.protocol.messages import (
    Cancel,
    Embed,
    Generate,
    LoadAdapter,
    Loading,
    Ready,
    Request,
    Step,
    StepStats,
    TokenEvent,
    UnloadAdapter,
    error_event,
)
from glimpse.frames import MessageTooLargeError
from glimpse.streams import Stream

_EVENTS_PER_TURN = 16
"""Events that are handled in one turn of the event loop. Those with log-probabilities wait for turns of their own."""
_RECEIVED_PER_TURN = 64
"""Events that receivers take in one turn."""

OnAbandoned = Callable[[TokenEvent], None]
"""Called with the last event of an answer that nobody waits for any more."""


class Engine(ABC):
    """The requests of one front end in flight. Belongs to the event loop in which `start` is called.

    Callbacks are called in that loop and must not block it: `on_state` with each new state and its reason, `on_stats`
    with the statistics of each step.
    """

    def __init__(self, *, on_stats: Callable[[StepStats], None] | None = None) -> None:
        self.loading: Loading | None = None
        """The last progress of loading, where it is known."""
        self._on_stats = on_stats
        self._mailboxes: dict[str, Mailbox] = {}
        self._abandoned: dict[str, OnAbandoned] = {}  # request id → who is told of its end
        self._origin = secrets.token_hex(4)  # of ids: several front ends may use one engine
        self._serials = itertools.count()

    @property
    @abstractmethod
    def state(self) -> EngineState:
        """What it does."""

    @property
    @abstractmethod
    def ready(self) -> Ready | None:
        """The engine's last Ready message. None until it has loaded once."""

    @property
    @abstractmethod
    def retry_after_seconds(self) -> float | None:
        """When a request that it could not serve may be sent again. None: unknown, or never."""

    @abstractmethod
    async def start(self) -> Ready:
        """Waits until it is ready. Called once.

        Raises:
            CheckpointError: the checkpoint cannot be served.
            EngineError: UNAVAILABLE if it ended while loading, or if `stop` was called.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Ends it, or this front end's use of it. May be called at any time, and repeatedly."""

    @abstractmethod
    def _send(self, message: Request | Cancel) -> EngineError | None:
        """Sends a message; nothing if the engine is gone. Returns why it is not sent. Raises MessageTooLargeError."""

    def unique_id(self, name: str) -> str:
        """Returns an id for a request, or for a flow, that no other one has. Clients may use a name twice."""
        return f"{name}/{self._origin}{next(self._serials)}"

    def generate(self, request: Generate, *, on_abandoned: OnAbandoned | None = None) -> Stream[TokenEvent]:
        """Returns the events of a request and its siblings. The last event of each answer has `finish` set.

        Events that arrive while the consumer is busy are merged into one for each answer. If the engine is not ready,
        the last event is an ERROR of UNAVAILABLE, and if it dies, of DIED. Closing the iterator early cancels the
        answers that have not ended; `on_abandoned` is called with their last events, unless the engine dies first.
        A receiver gets no last event.

        Raises:
            ValueError: a request id is already in use.
        """
        return Stream(partial(self._events, request, on_abandoned))

    async def embed(self, request: Embed, *, on_abandoned: OnAbandoned | None = None) -> TokenEvent:
        """Returns the last event of a request, as `generate` yields it. Cancelling this call cancels the request.

        Raises:
            ValueError: the request id is already in use.
        """
        async with aclosing(self._events(request, on_abandoned, None)) as events:
            return await anext(events)

    async def change_adapters(self, request: LoadAdapter | UnloadAdapter) -> TokenEvent:
        """Returns the event of a request. Cancelling this call leaves the request to itself.

        Raises:
            ValueError: the request id is already in use.
        """
        async with aclosing(self._events(request, None, None)) as events:
            return await anext(events)

    async def _events(
        self, request: Request, on_abandoned: OnAbandoned | None, stream: Stream[TokenEvent] | None
    ) -> AsyncGenerator[TokenEvent, None]:
        request_ids = request.request_ids
        if taken := self._mailboxes.keys() & set(request_ids):
            raise ValueError(f"request id {min(taken)!r} is already in use")
        if (refusal := self._post(request)) is not None:
            for request_id in request_ids:
                yield error_event(request_id, refusal)
            return
        mailbox = Mailbox(stream)
        self._mailboxes |= dict.fromkeys(request_ids, mailbox)
        try:
            num_open = len(request_ids)
            while num_open:
                for index, event in enumerate(await mailbox.take()):
                    if index % _EVENTS_PER_TURN == _EVENTS_PER_TURN - 1:
                        await asyncio.sleep(0)  # a request may have many answers; other requests come in between
                    num_open -= event.finish is not None
                    yield event
        finally:
            for request_id in request_ids:
                self._abandon(request_id, on_abandoned)
            for event in mailbox.unread:
                if event.finish is not None and on_abandoned is not None:
                    on_abandoned(event)

    def cancel(self, request_id: str) -> None:
        """Cancels one answer. Its last event is CANCELLED, unless it has ended already. Ignores unknown ids."""
        if request_id in self._mailboxes:
            self._send(Cancel(request_id=request_id))

    def _post(self, request: Request) -> EngineError | None:
        """Sends a request to the engine. Returns the error if that is not possible."""
        if not self.state.takes_requests:
            return EngineError(EngineErrorCode.UNAVAILABLE, f"the engine is not ready: {self.state}")
        try:
            return self._send(request)
        except MessageTooLargeError as error:
            return EngineError(EngineErrorCode.UNSUPPORTED, f"the request has {error} to the engine process")

    async def _deliver(self, step: Step) -> None:
        """Puts the events of a step into their mailboxes, some in each turn of the event loop.

        A consumer takes about 0.1 ms for an event, a receiver a quarter. The RPCs that arrive meanwhile begin between
        two turns.
        """
        if self._on_stats is not None:
            self._on_stats(step.stats)
        # First tokens come first: a consumer is woken in its turn, and a large step wakes hundreds.
        events = sorted(step.events, key=self._has_begun)
        num_woken = num_received = 0
        for event in events:
            if self._put(event):
                num_received += 1
            else:
                num_woken += 1
            if num_woken == _EVENTS_PER_TURN or num_received == _RECEIVED_PER_TURN:
                num_woken = num_received = 0
                await asyncio.sleep(0)

    def _put(self, event: TokenEvent) -> bool:
        """Puts an event into the mailbox of its request. Returns whether a receiver has taken it."""
        is_received = False
        mailbox = self._mailboxes.get(event.request_id)
        if mailbox is not None:
            is_received = mailbox.put(event)
            if event.finish is not None:
                del self._mailboxes[event.request_id]
        elif event.finish is not None and event.request_id in self._abandoned:
            self._abandoned.pop(event.request_id)(event)
        return is_received

    def _has_begun(self, event: TokenEvent) -> bool:
        mailbox = self._mailboxes.get(event.request_id)
        return mailbox is not None and mailbox.has_begun

    def _abandon(self, request_id: str, on_abandoned: OnAbandoned | None) -> None:
        """Forgets a request whose consumer has left, and cancels it unless it has ended."""
        if self._mailboxes.pop(request_id, None) is not None:
            if on_abandoned is not None:
                self._abandoned[request_id] = on_abandoned
            self._send(Cancel(request_id=request_id))

    def _end_all(self, reason: str) -> None:
        """Ends each request in flight with an error. If the engine died, it may have died of any of them."""
        code = EngineErrorCode.DIED if self.state is EngineState.RESTARTING else EngineErrorCode.UNAVAILABLE
        for request_id, mailbox in self._mailboxes.items():
            mailbox.put(error_event(request_id, EngineError(code, reason)))
        self._mailboxes.clear()
        self._abandoned.clear()
