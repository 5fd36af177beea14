"""The front end's door to the engine process: starts it, speaks with it, and starts it again when it dies.

It keeps the promise of the seam: whatever happens to a request, exactly one event with `finish` set is its last. It
knows the protocol alone, nothing of how answers are computed, of text or of the wire to clients.
"""

import asyncio
import logging
import math
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from enum import StrEnum
from typing import assert_never

from glimpse.engine.config import EngineConfig
from glimpse.engine.errors import CheckpointError, EngineError, EngineErrorCode
from glimpse.engine.ipc.child import EngineChild
from glimpse.engine.ipc.mailbox import Mailbox
from glimpse.engine.ipc.transport import MessageTooLargeError, TransportError
from glimpse.engine.protocol import (
    Cancel,
    Failed,
    FinishReason,
    Generate,
    Loading,
    Ready,
    Start,
    Step,
    StepStats,
    Stop,
    TokenEvent,
)

FIRST_BACKOFF_SECONDS = 0.5
"""Waited before a dead engine is started again; doubled each time."""
LONGEST_BACKOFF_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""An engine that served this long is sound: after its death the wait starts again from the shortest."""
STOP_SECONDS = 10.0
"""Given to a running step and to the process's own end before it is killed."""
EXIT_SECONDS = 2.0
"""Given to a process that closed its socket, for its exit status."""
_LONGEST_SLEEP_SECONDS = 3600.0
"""An event loop cannot sleep for ever."""

ENGINE_COMMAND = (sys.executable, "-m", "glimpse.engine.process")

_log = logging.getLogger(__name__)


class EngineState(StrEnum):
    """Where the engine stands, as the front end's health reports it."""

    LOADING = "loading"
    """Not started, or loading for the first time."""
    READY = "ready"
    """It serves."""
    RESTARTING = "restarting"
    """It died and comes back."""
    FAILED = "failed"
    """It cannot serve this checkpoint, or did not survive its first start. It is not tried again."""
    STOPPED = "stopped"
    """`stop` was called. Final."""


class EngineClient:
    """One engine process and the requests in flight. Belongs to the event loop in which `start` is called.

    The callbacks are called in that loop and must not block it: `on_state` with each new state and its reason in
    words, `on_loading` with the progress of each load, `on_stats` with each step's statistics.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        command: Sequence[str] = ENGINE_COMMAND,
        on_state: Callable[[EngineState, str], None] | None = None,
        on_loading: Callable[[Loading], None] | None = None,
        on_stats: Callable[[StepStats], None] | None = None,
        longest_silence_seconds: float = math.inf,
    ) -> None:
        """An engine that has requests and says nothing for so long is taken for hung, and treated as one that died."""
        self.state = EngineState.LOADING
        self.ready: Ready | None = None
        """What the engine last said of itself; None until it has loaded once."""
        self._config = config
        self._command = command
        self._on_state = on_state
        self._on_loading = on_loading
        self._on_stats = on_stats
        self._engine: EngineChild | None = None
        self._open: dict[str, Mailbox] = {}
        self._supervisor: asyncio.Task[None] | None = None
        self._backoff_seconds = FIRST_BACKOFF_SECONDS
        self._longest_silence_seconds = longest_silence_seconds
        self._heard_at = 0.0  # or when it was given something to do, if that is later

    @property
    def pid(self) -> int | None:
        """Of the process that runs now; None while there is none."""
        return None if self._engine is None else self._engine.process.pid

    async def start(self) -> Ready:
        """Starts the engine and waits until it is ready. Called once.

        Raises:
            CheckpointError: the checkpoint cannot be served.
            EngineError: UNAVAILABLE, the engine died while it loaded, or `stop` was called.
        """
        try:
            ready = await self._launch()
        except (CheckpointError, EngineError) as error:
            self._become(EngineState.FAILED, str(error))
            raise
        self._supervisor = asyncio.create_task(self._supervise())
        return ready

    async def generate(self, request: Generate) -> AsyncGenerator[TokenEvent, None]:
        """The events of a request and of its siblings, of each the last with `finish` set.

        Events that arrive while the consumer is busy become one of each answer. An engine that is not ready, or dies,
        makes the last event an ERROR of UNAVAILABLE. To close the iterator early cancels what has not ended. A request
        id serves once.
        """
        request_ids = [request.request_id, *(sibling.request_id for sibling in request.siblings)]
        if taken := self._open.keys() & set(request_ids):
            raise ValueError(f"request {min(taken)!r} is in flight already")
        if (refusal := self._post(request)) is not None:
            for request_id in request_ids:
                yield _error(request_id, refusal.code, refusal.message)
            return
        if not self._open:
            self._heard_at = time.monotonic()
        mailbox = Mailbox()
        self._open |= dict.fromkeys(request_ids, mailbox)
        try:
            num_open = len(request_ids)
            while num_open:
                for event in await mailbox.take():
                    num_open -= event.finish is not None
                    yield event
        finally:
            for request_id in request_ids:
                self._abandon(request_id)

    def cancel(self, request_id: str) -> None:
        """Ends one answer of several early: its last event is CANCELLED unless it has ended. Ignores unknown ids."""
        if request_id in self._open and self._engine is not None:
            self._engine.channel.post(Cancel(request_id=request_id))

    def _post(self, request: Generate) -> EngineError | None:
        """Sends a request to the engine; what speaks against it, if anything does."""
        if self.state is not EngineState.READY or self._engine is None:
            return EngineError(EngineErrorCode.UNAVAILABLE, f"the engine is not ready: {self.state}")
        try:
            self._engine.channel.post(request)
        except MessageTooLargeError as error:
            return EngineError(EngineErrorCode.UNSUPPORTED, str(error))
        return None

    async def stop(self) -> None:
        """Ends the engine; what is in flight ends as CANCELLED. May be called at any time, and again.

        A step that runs is given `STOP_SECONDS`, unless `stop` is called a second time meanwhile.
        """
        was_ready = self.state is EngineState.READY
        self._become(EngineState.STOPPED, "stopped by the front end")
        if self._supervisor is not None:
            if was_ready and self._engine is not None:
                self._engine.channel.post(Stop())
                await asyncio.wait([self._supervisor], timeout=STOP_SECONDS)
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        await self._bury(grace_seconds=0)

    async def _launch(self) -> Ready:
        """Starts a process and waits until it is ready; leaves none behind if it raises."""
        try:
            engine = self._engine = await EngineChild.spawn(self._command)
            ready = self.ready = await self._load(engine)
            self._become(EngineState.READY, "loaded")
            return ready
        except (OSError, TransportError) as error:
            await self._bury()
            raise EngineError(EngineErrorCode.UNAVAILABLE, f"the engine cannot be started: {error}") from error
        except BaseException:
            await self._bury()
            raise

    async def _load(self, engine: EngineChild) -> Ready:
        if self.state is EngineState.STOPPED:  # while the process was being started
            raise EngineError(EngineErrorCode.UNAVAILABLE, "the engine was stopped")
        engine.channel.post(Start(config=self._config))
        while (message := await engine.channel.receive()) is not None:
            match message:
                case Loading():
                    if self._on_loading is not None:
                        self._on_loading(message)
                case Ready():
                    return message
                case Failed():
                    raise CheckpointError(message.message)
                case Step():
                    raise TransportError("it sent a step before it was ready")
                case _:
                    assert_never(message)
        status = await engine.end(grace_seconds=EXIT_SECONDS)
        raise EngineError(EngineErrorCode.UNAVAILABLE, f"the engine ended with status {status} while it loaded")

    async def _supervise(self) -> None:
        """Delivers what the engine sends and starts it again when it died, until it is stopped or fails."""
        try:
            while (engine := self._engine) is not None:
                began = time.monotonic()
                watch = asyncio.create_task(self._watch(engine))
                try:
                    await self._deliver_all(engine)
                finally:
                    watch.cancel()
                self._become(EngineState.RESTARTING, "the engine ended")
                self._end_open("the engine stopped; the request can be sent again")
                await self._bury(grace_seconds=EXIT_SECONDS)
                if time.monotonic() - began > STEADY_SECONDS:
                    self._backoff_seconds = FIRST_BACKOFF_SECONDS
                await self._restart()
        except Exception:
            _log.exception("the engine is given up after a fault in the front end")
            self._become(EngineState.FAILED, "a fault in the front end")
        finally:
            self._end_open("the engine was stopped")

    async def _restart(self) -> None:
        while self.state is EngineState.RESTARTING:
            await asyncio.sleep(self._backoff_seconds)
            self._backoff_seconds = min(2 * self._backoff_seconds, LONGEST_BACKOFF_SECONDS)
            try:
                await self._launch()
            except CheckpointError as error:
                self._become(EngineState.FAILED, str(error))
            except EngineError as error:
                _log.warning("%s; the next try comes in %g s", error, self._backoff_seconds)

    async def _deliver_all(self, engine: EngineChild) -> None:
        """Hands out the events of each step, until the engine is gone or cannot be understood."""
        try:
            while (message := await engine.channel.receive()) is not None:
                self._heard_at = time.monotonic()
                match message:
                    case Step():
                        self._deliver(message)
                    case Loading() | Ready() | Failed():
                        raise TransportError(f"the engine sent {type(message).__name__} while it served")
                    case _:
                        assert_never(message)
        except TransportError:
            _log.exception("the engine is killed")
            await engine.end(grace_seconds=0)

    async def _watch(self, engine: EngineChild) -> None:
        """Kills an engine that is hung: each step says something, if only that it was one."""
        silence = 0.0
        while silence < self._longest_silence_seconds:
            await asyncio.sleep(min(self._longest_silence_seconds - silence, _LONGEST_SLEEP_SECONDS))
            silence = time.monotonic() - self._heard_at if self._open else 0.0
        _log.error("the engine is killed: %d requests wait, and it has said nothing for %g s", len(self._open), silence)
        await engine.end(grace_seconds=0)

    def _deliver(self, step: Step) -> None:
        for event in step.events:
            mailbox = self._open.get(event.request_id)
            if mailbox is None:
                continue  # its consumer left; the event was on its way already
            mailbox.put(event)
            if event.finish is not None:
                del self._open[event.request_id]
        if self._on_stats is not None:
            self._on_stats(step.stats)

    def _abandon(self, request_id: str) -> None:
        """Forgets a request whose consumer left, and spares the engine the rest of it, unless it has ended."""
        if self._open.pop(request_id, None) is not None and self._engine is not None:
            self._engine.channel.post(Cancel(request_id=request_id))

    def _end_open(self, reason: str) -> None:
        """Gives each request in flight its last event."""
        for request_id, mailbox in self._open.items():
            mailbox.put(_error(request_id, EngineErrorCode.UNAVAILABLE, reason))
        self._open.clear()

    async def _bury(self, *, grace_seconds: float = 0) -> None:
        """Sees to it that the process is gone. May be called beside itself, and when there is none."""
        engine = self._engine
        if engine is None:
            return
        status = await engine.end(grace_seconds=grace_seconds)
        if self._engine is engine:
            self._engine = None
            _log.info("the engine process ended with status %d", status)

    def _become(self, state: EngineState, reason: str) -> None:
        if self.state is EngineState.STOPPED or self.state is state:
            return
        self.state = state
        _log.info("the engine is %s: %s", state, reason)
        if self._on_state is not None:
            self._on_state(state, reason)


def _error(request_id: str, code: EngineErrorCode, message: str) -> TokenEvent:
    return TokenEvent(request_id=request_id, finish=FinishReason.ERROR, error=code, message=message)
