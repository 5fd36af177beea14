"""Runs the engine process: starts it, restarts it when it dies, watches whether it hangs, and ends it."""

import asyncio
import logging
import math
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

import msgspec

from glimpse.backoff import Backoff
from glimpse.engine.client.child import EngineChild
from glimpse.engine.client.spare import SpareEngine
from glimpse.engine.client.step_pace import StepPace
from glimpse.engine.client.suspects import Suspects, Work
from glimpse.engine.errors import CheckpointError, EngineError, EngineErrorCode
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.protocol.messages import Failed, Loading, Ready, Start, Step, Stop
from glimpse.frames import TransportError

INITIAL_BACKOFF_SECONDS = 0.5
"""Wait before a dead engine is restarted. Doubled after each failure."""
MAX_BACKOFF_SECONDS = 30.0
STABLE_SECONDS = 10.0
"""An engine that has served this long is stable: when it dies, the backoff starts again from the initial one."""
STOP_SECONDS = 10.0
"""Time for the running step and for the process to end before it is killed."""
EXIT_SECONDS = 2.0
"""Time for a process that has closed its socket to exit before it is killed."""
MIN_STALL_SHARE, MAX_STALL_SHARE = 0.1, 0.5
"""An engine is stalled after many times what its steps usually take, within these shares of the longest silence."""
_MIN_RETRY_SECONDS = 1.0
_MAX_SLEEP_SECONDS = 3600.0
"""Event loops cannot sleep forever."""

ENGINE_COMMAND = (sys.executable, "-m", "glimpse.engine.worker.process")

_log = logging.getLogger(__name__)


class EngineState(StrEnum):
    """State of the engine, as the health service reports it."""

    LOADING = "loading"
    """Not started, or loading for the first time."""
    READY = "ready"
    """Serving requests."""
    STALLED = "stalled"
    """Serving requests, but the running step takes many times the usual. It may still end."""
    RESTARTING = "restarting"
    """The engine died and is being restarted."""
    FAILED = "failed"
    """The first start failed, for example because it cannot serve this checkpoint. Final."""
    STOPPED = "stopped"
    """`stop` was called. Final."""

    @property
    def takes_requests(self) -> bool:
        """Whether requests are given to the engine."""
        return self in (EngineState.READY, EngineState.STALLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineListener:
    """Who is told what the engine does, in the event loop that `EngineSupervisor.start` is called in. None may block.

    `on_state` gets each new state and its reason, and `on_loading` the progress of each load.
    """

    on_state: Callable[[EngineState, str], None]
    on_loading: Callable[[Loading], None]
    on_step: Callable[[Step], Awaitable[None]]
    """Called with each step; the next one is read when it has returned."""
    on_lost: Callable[[str], None]
    """Called with the reason when the requests in flight are lost, because the engine has ended."""


class EngineSupervisor:
    """One engine process after another. Belongs to the event loop in which `start` is called."""

    def __init__(
        self,
        config: EngineConfig,
        listener: EngineListener,
        *,
        command: Sequence[str] = ENGINE_COMMAND,
        max_silence_seconds: float = math.inf,
        keep_spare: bool = False,
    ) -> None:
        """An engine that has requests and sends nothing for `max_silence_seconds` is killed and restarted, and reported
        as stalled long before that.

        With `keep_spare`, a spare process replaces an engine that dies.
        """
        self.state = EngineState.LOADING
        self.ready: Ready | None = None
        """The engine's last Ready message. None until it has loaded once."""
        self._config = config
        self._listener = listener
        self._command = command
        self._engine: EngineChild | None = None
        self._spare = SpareEngine(command) if keep_spare else None
        self._supervisor: asyncio.Task[None] | None = None
        self._backoff = Backoff(INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        self._launch_seconds = 0.0  # the last launch
        self._max_silence_seconds = max_silence_seconds
        self._last_message_at = 0.0  # or when it got its first request, if that is later
        self._pace = StepPace(config.max_batch_tokens)
        self._suspects = Suspects()

    @property
    def pid(self) -> int | None:
        """Process id of the engine. None while it is not running."""
        return None if self._engine is None else self._engine.process.pid

    @property
    def retry_after_seconds(self) -> float | None:
        """When a request that the engine could not serve may be sent again. None: unknown, or never."""
        match self.state:
            case EngineState.RESTARTING:
                return max(_MIN_RETRY_SECONDS, self._launch_seconds)
            case EngineState.LOADING | EngineState.READY | EngineState.STALLED | EngineState.STOPPED:
                return _MIN_RETRY_SECONDS
            case EngineState.FAILED:
                return None

    async def start(self) -> Ready:
        """Starts the engine and waits until it is ready. Called once.

        Raises:
            CheckpointError: the checkpoint cannot be served.
            EngineError: UNAVAILABLE if the engine died while loading, or if `stop` was called.
        """
        try:
            ready = await self._launch()
        except (CheckpointError, EngineError) as error:
            self._set_state(EngineState.FAILED, str(error))
            raise
        self._supervisor = asyncio.create_task(self._supervise())
        return ready

    def submit(self, body: bytes | bytearray, work: Work) -> EngineError | None:
        """Queues an encoded request. Returns why the engine does not get it, if it does not."""
        if (refusal := self._suspects.refusal(work)) is not None:
            return refusal
        if not self._suspects.in_flight:
            self._last_message_at = time.monotonic()
        self._suspects.begin(work)
        self.send(body)
        return None

    def send(self, body: bytes | bytearray) -> None:
        """Queues an encoded message. If the engine is gone, it is lost: the listener is told that its requests are."""
        if self._engine is not None:
            self._engine.channel.post_body(body)

    async def stop(self) -> None:
        """Ends the engine. Requests in flight end as CANCELLED. May be called at any time, and repeatedly.

        A running step has `STOP_SECONDS` to finish, unless `stop` is called a second time.
        """
        was_ready = self.state.takes_requests
        self._set_state(EngineState.STOPPED, "stopped by the front end")
        if self._supervisor is not None:
            if was_ready and self._engine is not None:
                self._engine.channel.post(Stop())
                await asyncio.wait([self._supervisor], timeout=STOP_SECONDS)
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        await self._reap(grace_seconds=0)
        if self._spare is not None:
            await self._spare.stop()

    async def _launch(self, spare: EngineChild | None = None) -> Ready:
        """Starts a process, or the spare, and waits until it is ready. Leaves no process behind if it raises."""
        began = time.monotonic()
        try:
            engine = self._engine = spare or await EngineChild.spawn(self._command)
            is_first = self.ready is None
            ready = self.ready = await self._load(engine)
            if is_first and self._config.nnodes == 1:  # nodes take none, and have equal configurations
                self._keep_adapters(ready)
            self._launch_seconds = time.monotonic() - began
            self._pace = StepPace(self._config.max_batch_tokens)
            self._set_state(EngineState.READY, "loaded")
            if self._spare is not None and self.state is EngineState.READY:
                self._spare.keep()
            return ready
        except (OSError, TransportError) as error:
            await self._reap()
            raise EngineError(EngineErrorCode.UNAVAILABLE, f"the engine cannot be started: {error}") from error
        except CheckpointError:
            await self._reap(grace_seconds=EXIT_SECONDS)  # it ends by itself
            raise
        except BaseException:
            await self._reap()
            raise

    async def _load(self, engine: EngineChild) -> Ready:
        if self.state is EngineState.STOPPED:  # while the process was being started
            raise EngineError(EngineErrorCode.UNAVAILABLE, "the engine was stopped")
        engine.channel.post(Start(config=self._config))
        while (message := await engine.channel.receive()) is not None:
            match message:
                case Loading():
                    self._listener.on_loading(message)
                case Ready():
                    return message
                case Failed() if self.ready is not None:  # it was served before, so its files may come back
                    await engine.end(grace_seconds=EXIT_SECONDS)
                    raise EngineError(EngineErrorCode.UNAVAILABLE, message.message)
                case Failed():
                    raise CheckpointError(message.message)
                case Step():
                    raise TransportError("expected Loading, Ready or Failed, got Step")
                case _:
                    assert_never(message)
        await engine.end(grace_seconds=EXIT_SECONDS)
        raise EngineError(EngineErrorCode.UNAVAILABLE, f"while it loaded, the engine {engine.exit_reason}")

    async def _supervise(self) -> None:
        """Delivers the engine's messages and restarts it when it dies, until it is stopped or has failed."""
        try:
            while (engine := self._engine) is not None:
                began = time.monotonic()
                watch = asyncio.create_task(self._watch(engine))
                try:
                    await self._deliver_all(engine)
                finally:
                    watch.cancel()
                self._set_state(EngineState.RESTARTING, "the engine exited")
                self._listener.on_lost("the engine exited; retry the request")
                await self._reap(grace_seconds=EXIT_SECONDS)
                self._suspects.died(by_itself=not engine.was_ended_by_others)
                if time.monotonic() - began > STABLE_SECONDS:
                    self._backoff.reset()
                await self._restart()
        except Exception:
            _log.exception("the engine is not restarted after an unexpected error in the front end")
            self._set_state(EngineState.FAILED, "an unexpected error in the front end")
        finally:
            self._listener.on_lost("the engine was stopped")

    async def _restart(self) -> None:
        while self.state is EngineState.RESTARTING:
            has_spare = self._spare is not None and self._spare.pid is not None
            pause = self._backoff.take()
            if not has_spare or pause > INITIAL_BACKOFF_SECONDS:
                await asyncio.sleep(pause)
            try:
                await self._launch(None if self._spare is None else await self._spare.take())
            except EngineError as error:
                _log.warning("%s; the next attempt is in %g s", error, self._backoff.seconds)

    async def _deliver_all(self, engine: EngineChild) -> None:
        """Delivers the events of each step until the engine is gone or sends an invalid message."""
        try:
            while (message := await engine.channel.receive()) is not None:
                self._last_message_at = time.monotonic()
                match message:
                    case Step():
                        if message.adapters is not None and self.ready is not None:
                            self.ready = msgspec.structs.replace(self.ready, adapters=message.adapters)
                            self._keep_adapters(self.ready)
                        self._note(message)
                        await self._listener.on_step(message)
                    case Loading() | Ready() | Failed():
                        raise TransportError(f"expected Step, got {type(message).__name__}")
                    case _:
                        assert_never(message)
        except TransportError:
            _log.exception("the engine is killed after an invalid message")
            await engine.end(grace_seconds=0)

    def _keep_adapters(self, ready: Ready) -> None:
        """Makes the next engine load these adapters."""
        paths = {name: adapter.path for name, adapter in ready.adapters.items()}
        self._config = replace(self._config, restored_adapters=paths)

    def _note(self, step: Step) -> None:
        """Notes how long a step took, and what has ended with it."""
        self._pace.add(step.stats)
        self._set_state(EngineState.READY, "the step has ended")
        for event in step.events:
            if event.finish is not None:
                self._suspects.end(event)

    async def _watch(self, engine: EngineChild) -> None:
        """Kills an engine that hangs: a working one sends a message after each step. Before, it counts as stalled."""
        silence, most, num_open = 0.0, self._max_silence_seconds, 0
        while silence < most:
            stalled = max(MIN_STALL_SHARE * most, min(self._pace.unusual_seconds, MAX_STALL_SHARE * most))
            await asyncio.sleep(min(most - silence, stalled / 4, _MAX_SLEEP_SECONDS))
            num_open = len(self._suspects.in_flight)
            silence = time.monotonic() - self._last_message_at if num_open else 0.0
            if silence > stalled:
                self._set_state(EngineState.STALLED, f"{num_open} requests are open, and a step takes {silence:.0f} s")
        _log.error("the engine is killed: %d requests are open, and no message came for %g s", num_open, silence)
        await engine.end(grace_seconds=0)

    async def _reap(self, *, grace_seconds: float = 0) -> None:
        """Ends the process, if there is one. May be called concurrently."""
        engine = self._engine
        if engine is None:
            return
        await engine.end(grace_seconds=grace_seconds)
        if self._engine is engine:
            self._engine = None
            _log.log(self._level, "the engine process %s", engine.exit_reason)

    def _set_state(self, state: EngineState, reason: str) -> None:
        if self.state is EngineState.STOPPED or self.state is state:
            return
        self.state = state
        _log.log(self._level, "the engine is %s: %s", state, reason)
        self._listener.on_state(state, reason)

    @property
    def _level(self) -> int:
        """The level at which its state is logged."""
        is_wrong = self.state in (EngineState.RESTARTING, EngineState.STALLED, EngineState.FAILED)
        return logging.WARNING if is_wrong else logging.INFO
