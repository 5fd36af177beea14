"""The front end's client of the engine process: starts it, exchanges messages with it, and restarts it when it dies.

It upholds the guarantee of the protocol: whatever happens to a request, exactly one event has `finish` set, and it is
the last one.
"""

import asyncio
import logging
import math
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from enum import StrEnum
from typing import assert_never

from glimpse.engine.config import EngineConfig
from glimpse.engine.errors import CheckpointError, EngineError, EngineErrorCode
from glimpse.engine.ipc.child import EngineChild
from glimpse.engine.ipc.mailbox import Mailbox
from glimpse.engine.ipc.spare import SpareEngine
from glimpse.engine.ipc.transport import MessageTooLargeError, TransportError
from glimpse.engine.protocol import (
    Cancel,
    Embed,
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

INITIAL_BACKOFF_SECONDS = 0.5
"""Wait before a dead engine is restarted. Doubled after each failure."""
MAX_BACKOFF_SECONDS = 30.0
STABLE_SECONDS = 10.0
"""An engine that has served this long is stable: when it dies, the backoff starts again from the initial one."""
STOP_SECONDS = 10.0
"""Time for the running step and for the process to end before it is killed."""
EXIT_SECONDS = 2.0
"""Time for a process that has closed its socket to exit before it is killed."""
_MIN_RETRY_SECONDS = 1.0
_EVENTS_PER_TURN = 16
"""Events without log-probabilities that are handled in one turn of the event loop."""
_MAX_SLEEP_SECONDS = 3600.0
"""Event loops cannot sleep forever."""

OnAbandoned = Callable[[TokenEvent], None]
"""Called with the last event of an answer that nobody waits for any more."""

ENGINE_COMMAND = (sys.executable, "-m", "glimpse.engine.process")

_log = logging.getLogger(__name__)


class EngineState(StrEnum):
    """State of the engine, as the health service reports it."""

    LOADING = "loading"
    """Not started, or loading for the first time."""
    READY = "ready"
    """Serving requests."""
    RESTARTING = "restarting"
    """It died and is being restarted."""
    FAILED = "failed"
    """It cannot serve this checkpoint, or its first start failed. Final."""
    STOPPED = "stopped"
    """`stop` was called. Final."""


class EngineClient:
    """One engine process and the requests in flight. Belongs to the event loop in which `start` is called.

    Callbacks are called in that loop and must not block it: `on_state` with each new state and its reason, `on_loading`
    with the progress of each load, `on_stats` with the statistics of each step.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        command: Sequence[str] = ENGINE_COMMAND,
        on_state: Callable[[EngineState, str], None] | None = None,
        on_loading: Callable[[Loading], None] | None = None,
        on_stats: Callable[[StepStats], None] | None = None,
        max_silence_seconds: float = math.inf,
        keep_spare: bool = False,
    ) -> None:
        """An engine that has requests and sends nothing for `max_silence_seconds` is killed and restarted.

        With `keep_spare`, a spare process replaces an engine that dies.
        """
        self.state = EngineState.LOADING
        self.ready: Ready | None = None
        """The engine's last Ready message. None until it has loaded once."""
        self._config = config
        self._command = command
        self._on_state = on_state
        self._on_loading = on_loading
        self._on_stats = on_stats
        self._engine: EngineChild | None = None
        self._spare = SpareEngine(command) if keep_spare else None
        self._mailboxes: dict[str, Mailbox] = {}
        self._abandoned: dict[str, OnAbandoned] = {}  # request id → who is told of its end
        self._supervisor: asyncio.Task[None] | None = None
        self._backoff_seconds = INITIAL_BACKOFF_SECONDS
        self._launch_seconds = 0.0  # the last launch
        self._max_silence_seconds = max_silence_seconds
        self._last_message_at = 0.0  # or when it got its first request, if that is later

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
            case EngineState.READY | EngineState.STOPPED:
                return _MIN_RETRY_SECONDS
            case EngineState.LOADING | EngineState.FAILED:
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

    def generate(
        self, request: Generate, *, on_abandoned: OnAbandoned | None = None
    ) -> AsyncGenerator[TokenEvent, None]:
        """Returns the events of a request and its siblings. The last event of each answer has `finish` set.

        Events that arrive while the consumer is busy are merged into one for each answer. If the engine is not ready,
        or dies, the last event is an ERROR of UNAVAILABLE. Closing the iterator early cancels the answers that have not
        ended; `on_abandoned` is called with their last events, unless the engine dies first.

        Raises:
            ValueError: a request id is already in use.
        """
        request_ids = [request.request_id, *(sibling.request_id for sibling in request.siblings)]
        return self._events(request, request_ids, on_abandoned)

    async def embed(self, request: Embed, *, on_abandoned: OnAbandoned | None = None) -> TokenEvent:
        """Returns the last event of a request, as `generate` yields it. Cancelling this call cancels the request.

        Raises:
            ValueError: the request id is already in use.
        """
        async with aclosing(self._events(request, [request.request_id], on_abandoned)) as events:
            return await anext(events)

    async def _events(
        self, request: Generate | Embed, request_ids: Sequence[str], on_abandoned: OnAbandoned | None
    ) -> AsyncGenerator[TokenEvent, None]:
        if taken := self._mailboxes.keys() & set(request_ids):
            raise ValueError(f"request id {min(taken)!r} is already in use")
        if (refusal := self._post(request)) is not None:
            for request_id in request_ids:
                yield _error(request_id, refusal.code, refusal.message)
            return
        if not self._mailboxes:
            self._last_message_at = time.monotonic()
        mailbox = Mailbox()
        self._mailboxes |= dict.fromkeys(request_ids, mailbox)
        try:
            num_open = len(request_ids)
            while num_open:
                for index, event in enumerate(await mailbox.take()):
                    if event.logprobs or index % _EVENTS_PER_TURN == _EVENTS_PER_TURN - 1:
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
        if request_id in self._mailboxes and self._engine is not None:
            self._engine.channel.post(Cancel(request_id=request_id))

    def _post(self, request: Generate | Embed) -> EngineError | None:
        """Sends a request to the engine. Returns the error if that is not possible."""
        if self.state is not EngineState.READY or self._engine is None:
            return EngineError(EngineErrorCode.UNAVAILABLE, f"the engine is not ready: {self.state}")
        try:
            self._engine.channel.post(request)
        except MessageTooLargeError as error:
            return EngineError(EngineErrorCode.UNSUPPORTED, str(error))
        return None

    async def stop(self) -> None:
        """Ends the engine. Requests in flight end as CANCELLED. May be called at any time, and repeatedly.

        A running step has `STOP_SECONDS` to finish, unless `stop` is called a second time.
        """
        was_ready = self.state is EngineState.READY
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
            ready = self.ready = await self._load(engine)
            self._launch_seconds = time.monotonic() - began
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
                    if self._on_loading is not None:
                        self._on_loading(message)
                case Ready():
                    return message
                case Failed():
                    raise CheckpointError(message.message)
                case Step():
                    raise TransportError("expected Loading, Ready or Failed, got Step")
                case _:
                    assert_never(message)
        status = await engine.end(grace_seconds=EXIT_SECONDS)
        raise EngineError(EngineErrorCode.UNAVAILABLE, f"the engine exited with status {status} while loading")

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
                self._end_all("the engine exited; retry the request")
                await self._reap(grace_seconds=EXIT_SECONDS)
                if time.monotonic() - began > STABLE_SECONDS:
                    self._backoff_seconds = INITIAL_BACKOFF_SECONDS
                await self._restart()
        except Exception:
            _log.exception("the engine is not restarted after an unexpected error in the front end")
            self._set_state(EngineState.FAILED, "an unexpected error in the front end")
        finally:
            self._end_all("the engine was stopped")

    async def _restart(self) -> None:
        while self.state is EngineState.RESTARTING:
            has_spare = self._spare is not None and self._spare.pid is not None
            if not has_spare or self._backoff_seconds > INITIAL_BACKOFF_SECONDS:
                await asyncio.sleep(self._backoff_seconds)
            self._backoff_seconds = min(2 * self._backoff_seconds, MAX_BACKOFF_SECONDS)
            try:
                await self._launch(None if self._spare is None else await self._spare.take())
            except CheckpointError as error:
                self._set_state(EngineState.FAILED, str(error))
            except EngineError as error:
                _log.warning("%s; the next attempt is in %g s", error, self._backoff_seconds)

    async def _deliver_all(self, engine: EngineChild) -> None:
        """Delivers the events of each step until the engine is gone or sends an invalid message."""
        try:
            while (message := await engine.channel.receive()) is not None:
                self._last_message_at = time.monotonic()
                match message:
                    case Step():
                        await self._deliver(message)
                    case Loading() | Ready() | Failed():
                        raise TransportError(f"expected Step, got {type(message).__name__}")
                    case _:
                        assert_never(message)
        except TransportError:
            _log.exception("the engine is killed after an invalid message")
            await engine.end(grace_seconds=0)

    async def _watch(self, engine: EngineChild) -> None:
        """Kills an engine that hangs: a working one sends a message after each step."""
        silence = 0.0
        while silence < self._max_silence_seconds:
            await asyncio.sleep(min(self._max_silence_seconds - silence, _MAX_SLEEP_SECONDS))
            silence = time.monotonic() - self._last_message_at if self._mailboxes else 0.0
        _log.error(
            "the engine is killed: %d requests are open, and no message came for %g s", len(self._mailboxes), silence
        )
        await engine.end(grace_seconds=0)

    async def _deliver(self, step: Step) -> None:
        """Puts the events of a step into their mailboxes, some in each turn of the event loop.

        A consumer takes about 0.1 ms for an event. The RPCs that arrive meanwhile begin between two turns.
        """
        if self._on_stats is not None:
            self._on_stats(step.stats)
        # First tokens come first: a consumer is woken in its turn, and a large step wakes hundreds.
        events = sorted(step.events, key=self._has_begun)
        for index, event in enumerate(events, start=1):
            mailbox = self._mailboxes.get(event.request_id)
            if mailbox is not None:
                mailbox.put(event)
                if event.finish is not None:
                    del self._mailboxes[event.request_id]
            elif event.finish is not None and event.request_id in self._abandoned:
                self._abandoned.pop(event.request_id)(event)
            if index % _EVENTS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _has_begun(self, event: TokenEvent) -> bool:
        mailbox = self._mailboxes.get(event.request_id)
        return mailbox is not None and mailbox.has_begun

    def _abandon(self, request_id: str, on_abandoned: OnAbandoned | None) -> None:
        """Forgets a request whose consumer has left, and cancels it unless it has ended."""
        if self._mailboxes.pop(request_id, None) is not None and self._engine is not None:
            if on_abandoned is not None:
                self._abandoned[request_id] = on_abandoned
            self._engine.channel.post(Cancel(request_id=request_id))

    def _end_all(self, reason: str) -> None:
        """Ends each request in flight with an error."""
        for request_id, mailbox in self._mailboxes.items():
            mailbox.put(_error(request_id, EngineErrorCode.UNAVAILABLE, reason))
        self._mailboxes.clear()
        self._abandoned.clear()

    async def _reap(self, *, grace_seconds: float = 0) -> None:
        """Ends the process, if there is one. May be called concurrently."""
        engine = self._engine
        if engine is None:
            return
        status = await engine.end(grace_seconds=grace_seconds)
        if self._engine is engine:
            self._engine = None
            # Real-time signals have a description, but are not in `signal.Signals`.
            how = f"exited with status {status}" if status >= 0 else f"was ended by: {signal.strsignal(-status)}"
            _log.info("the engine process %s", how)

    def _set_state(self, state: EngineState, reason: str) -> None:
        if self.state is EngineState.STOPPED or self.state is state:
            return
        self.state = state
        _log.info("the engine is %s: %s", state, reason)
        if self._on_state is not None:
            self._on_state(state, reason)


def _error(request_id: str, code: EngineErrorCode, message: str) -> TokenEvent:
    return TokenEvent(request_id=request_id, finish=FinishReason.ERROR, error=code, message=message)
