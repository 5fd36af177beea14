"""Shares one engine among several front ends, each at the other end of a socket.

A front end sends its requests as to an engine of its own, and gets the events of its requests, and the engine's state
whenever that changes. `SharedEngine` is its end.
"""

import logging
import math
import socket
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from glimpse.engine.client.supervisor import ENGINE_COMMAND, EngineListener, EngineState, EngineSupervisor
from glimpse.engine.client.suspects import Work
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.protocol.messages import Cancel, Loading, Ready, Step, StepStats, TokenEvent, error_event
from glimpse.frames import AsyncChannel, Frames, TransportError, encoded

_log = logging.getLogger(__name__)


class EngineChanged(msgspec.Struct, frozen=True, kw_only=True, tag="engine_changed"):
    """The engine's state. A front end gets it first, and whenever it changes; requests in flight are lost when it takes
    none any more."""

    state: EngineState
    reason: str
    ready: Ready | None
    """The engine's last Ready message."""
    retry_after_seconds: float | None


class RefusedRequests(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The ends of requests that the engine does not get."""

    events: list[TokenEvent]


FromBroker = Step | EngineChanged | RefusedRequests


class _Answer(msgspec.Struct, frozen=True):
    request_id: str


class _ToBroker(_Answer, frozen=True):
    """What the broker reads of a `Request` or a `Cancel`: prompts and media pass through it as they are."""

    type: Literal["generate", "embed", "load_adapter", "unload_adapter", "cancel"]
    flow: str = ""
    digest: bytes = b""
    siblings: list[_Answer] = []


_TO_BROKER = Frames[_ToBroker](_ToBroker)


class EngineBroker:
    """One engine process, and the requests of its front ends. Belongs to the event loop in which `start` is called."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        command: Sequence[str] = ENGINE_COMMAND,
        on_state: Callable[[EngineState, str], None],
        on_loading: Callable[[Loading], None],
        on_stats: Callable[[StepStats], None],
        max_silence_seconds: float = math.inf,
        keep_spare: bool = False,
    ) -> None:
        """Callbacks are as in `EngineClient`, the rest is as in `EngineSupervisor`."""
        self._on_state = on_state
        self._on_stats = on_stats
        self._front_ends = set[AsyncChannel[_ToBroker]]()
        self._owners: dict[str, AsyncChannel[_ToBroker]] = {}
        """Request id → whose it is, while it is in flight."""
        listener = EngineListener(
            on_state=self._changed,
            on_loading=on_loading,
            on_step=self._split,
            on_lost=lambda _: self._owners.clear(),  # front ends end their requests when they hear of the new state
        )
        self._supervisor = EngineSupervisor(
            config, listener, command=command, max_silence_seconds=max_silence_seconds, keep_spare=keep_spare
        )

    @property
    def ready(self) -> Ready | None:
        """The engine's last Ready message. None until it has loaded once."""
        return self._supervisor.ready

    @property
    def num_open(self) -> int:
        """Number of requests in flight."""
        return len(self._owners)

    async def start(self) -> Ready:
        """Calls `EngineSupervisor.start`."""
        return await self._supervisor.start()

    async def stop(self) -> None:
        """Calls `EngineSupervisor.stop`."""
        await self._supervisor.stop()

    async def serve(self, connection: socket.socket) -> None:
        """Serves the front end at the other end until that is gone; then its requests are cancelled."""
        channel = await AsyncChannel.connect(connection, _TO_BROKER)
        self._front_ends.add(channel)
        try:
            channel.post(self._state())
            while (body := await channel.receive_body()) is not None:
                self._pass_on(channel, body)
        except TransportError:
            _log.exception("a front end sent an invalid message")
        finally:
            self._front_ends.discard(channel)
            self._cancel_all(channel)
            await channel.close()

    def _pass_on(self, channel: AsyncChannel[_ToBroker], body: bytes) -> None:
        """Passes a message on to the engine. While that is not ready, its front end is about to hear so."""
        if not self._supervisor.state.takes_requests:
            return
        message = _TO_BROKER.decode(body)
        if message.type == "cancel":
            self._supervisor.send(body)
            return
        owned = [message.request_id, *(sibling.request_id for sibling in message.siblings)]
        work = Work(request_ids=owned, digest=message.digest, flow=message.flow or message.request_id)
        if (refusal := self._supervisor.submit(body, work)) is not None:
            channel.post(RefusedRequests(events=[error_event(request_id, refusal) for request_id in owned]))
            return
        self._owners |= dict.fromkeys(owned, channel)

    def _cancel_all(self, channel: AsyncChannel[_ToBroker]) -> None:
        """Cancels the requests of a front end that is gone. They stay in flight until the engine has ended them."""
        for request_id, owner in self._owners.items():
            if owner is channel:
                self._supervisor.send(encoded(Cancel(request_id=request_id)))

    async def _split(self, step: Step) -> None:
        """Sends each front end the events of its requests, and the statistics."""
        self._on_stats(step.stats)
        if step.adapters is not None:
            self._tell("other adapters are loaded")
        parts: dict[AsyncChannel[_ToBroker], list[TokenEvent]] = {channel: [] for channel in self._front_ends}
        owners = self._owners
        for event in step.events:
            owner = owners.get(event.request_id)
            if owner in parts:
                parts[owner].append(event)
            if event.finish is not None:
                owners.pop(event.request_id, None)
        for channel, events in parts.items():
            channel.post(Step(events=events, stats=step.stats))

    def _changed(self, state: EngineState, reason: str) -> None:
        self._on_state(state, reason)
        self._tell(reason)

    def _tell(self, reason: str) -> None:
        """Tells all front ends of the engine's state."""
        changed = self._state(reason)
        for channel in self._front_ends:
            channel.post(changed)

    def _state(self, reason: str = "") -> EngineChanged:
        supervisor = self._supervisor
        return EngineChanged(
            state=supervisor.state,
            reason=reason,
            ready=supervisor.ready,
            retry_after_seconds=supervisor.retry_after_seconds,
        )
