"""A front end's end of an engine that several front ends share. `glimpse.engine.client.broker` is the other end."""

import asyncio
import socket
from collections.abc import Callable

from glimpse.engine.client.broker import EngineChanged, FromBroker, RefusedRequests
from glimpse.engine.client.engine import Engine
from glimpse.engine.client.supervisor import EngineState
from glimpse.engine.errors import EngineError, EngineErrorCode
from glimpse.engine.protocol.messages import Cancel, Ready, Request, Step, StepStats
from glimpse.frames import AsyncChannel, Frames

_FROM_BROKER = Frames[FromBroker](FromBroker)


class SharedEngine(Engine):
    """The engine at the other end of a socket. `on_state` is called with each new state and its reason."""

    def __init__(
        self,
        connection: socket.socket,
        *,
        on_state: Callable[[EngineState, str], None] | None = None,
        on_stats: Callable[[StepStats], None] | None = None,
    ) -> None:
        super().__init__(on_stats=on_stats)
        self._connection = connection
        self._on_state = on_state
        self._channel: AsyncChannel[FromBroker] | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._news = EngineChanged(state=EngineState.LOADING, reason="", ready=None, retry_after_seconds=None)
        self._settled = asyncio.Event()  # it is ready, or never will be

    @property
    def state(self) -> EngineState:
        return self._news.state

    @property
    def ready(self) -> Ready | None:
        return self._news.ready

    @property
    def retry_after_seconds(self) -> float | None:
        return self._news.retry_after_seconds

    async def start(self) -> Ready:
        self._channel = await AsyncChannel.connect(self._connection, _FROM_BROKER)
        self._receiving = asyncio.create_task(self._receive(self._channel))
        await self._settled.wait()
        if not self.state.takes_requests or self.ready is None:
            raise EngineError(EngineErrorCode.UNAVAILABLE, f"the engine is {self.state}: {self._news.reason}")
        return self.ready

    async def stop(self) -> None:
        """Ends this front end's use of the engine. Requests in flight end with an error."""
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.wait([self._receiving])
        if self._channel is not None:
            await self._channel.close()
        self._change(
            EngineChanged(state=EngineState.STOPPED, reason="stopped", ready=self.ready, retry_after_seconds=None)
        )

    def _send(self, message: Request | Cancel) -> None:  # refusals come as events
        if self._channel is not None:
            self._channel.post(message)

    async def _receive(self, channel: AsyncChannel[FromBroker]) -> None:
        """Delivers the events of each step until the broker is gone. Raises TransportError."""
        while (message := await channel.receive()) is not None:
            match message:
                case Step():
                    await self._deliver(message)
                case EngineChanged():
                    self._change(message)
                case RefusedRequests():
                    for event in message.events:
                        self._put(event)
        self._end(EngineState.FAILED, "the supervisor is gone")

    def _end(self, state: EngineState, reason: str) -> None:
        self._change(EngineChanged(state=state, reason=reason, ready=self.ready, retry_after_seconds=None))

    def _change(self, news: EngineChanged) -> None:
        if self.state is EngineState.STOPPED:
            return
        is_new, self._news = news.state is not self.state, news
        if news.state not in (EngineState.LOADING, EngineState.RESTARTING):
            self._settled.set()
        if not news.state.takes_requests:
            # The broker may hear of a request before the engine is ready again, and would let it compute for nobody.
            for request_id in self._mailboxes:
                self._send(Cancel(request_id=request_id))
            self._end_all("the engine exited; retry the request")
        if is_new and self._on_state is not None:
            self._on_state(news.state, news.reason)
