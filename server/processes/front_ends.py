"""Several front ends that share one engine, and the process that supervises them.

It runs the engine, hands events to their front ends (`EngineBroker`), replaces front ends that die, and adds up their
metrics.
"""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from glimpse.backoff import Backoff
from glimpse.engine.client.broker import EngineBroker
from glimpse.engine.client.child import describe_exit
from glimpse.engine.client.supervisor import ENGINE_COMMAND, EngineState
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.messages import Loading, Ready
from glimpse.frames import TransportError
from glimpse.identity.errors import IdentityConfigError
from glimpse.media.cache.byte_count import SharedByteCounts
from glimpse.server.lifecycle.addresses import PortError, address
from glimpse.server.lifecycle.observers import serve_metrics
from glimpse.server.lifecycle.served_checkpoint import Checkpoint
from glimpse.server.lifecycle.watches import watch_loop_delay
from glimpse.server.processes.front_end_process import FrontEndProcess
from glimpse.server.processes.load_exchange import LoadExchange, send_changes
from glimpse.server.processes.messages import (
    AnnounceStop,
    Begin,
    CannotServe,
    EndRequests,
    FromFrontEnd,
    FrontEndLoad,
    Limit,
    Listening,
    Quit,
    Reply,
    RequestsEnded,
    Serving,
    Snapshot,
    StopAnnounced,
    TakeSnapshot,
    ToFrontEnd,
)
from glimpse.server.processes.ports import reserved_port
from glimpse.server.settings import Settings
from glimpse.server.telemetry.merged_metrics import MergedMetrics
from glimpse.server.telemetry.metrics import Metrics
from glimpse.server.telemetry.snapshots import MetricsSnapshot

INITIAL_BACKOFF_SECONDS = 0.5
"""Wait before a dead front end is replaced. Doubled after each failure."""
MAX_BACKOFF_SECONDS = 30.0
STABLE_SECONDS = 10.0
"""A front end that has served this long is stable: when it dies, the backoff starts again from the initial one."""
_QUIT_SECONDS = 10.0
"""Time for a front end without requests to end before it is killed."""
_ANSWER_SECONDS = 10.0
"""Time for a front end to do what it is asked, besides the time that its requests get."""
_SCRAPE_SECONDS = 2.0
"""A front end that does not return its metrics within this time counts as it last answered."""
_LOOPBACK = "127.0.0.1"
_CONFIG_ERRORS = {each.__name__: each for each in (CheckpointError, IdentityConfigError)}

_logger = logging.getLogger(__name__)


class FrontEndDiedError(Exception):
    """A front end ended before it listened."""


@dataclass(slots=True)
class _Slot:
    """Slot of a front end and of those that replace it."""

    own_port: int | None = None
    process: FrontEndProcess | None = None
    problem: CannotServe | None = None
    """Why the process ends, if it said so."""
    has_listened: asyncio.Event = field(default_factory=asyncio.Event)
    has_served: asyncio.Event = field(default_factory=asyncio.Event)


class FrontEnds:
    """The front ends of one server, and its engine. Used as `Server` is, in the event loop in which it is made."""

    def __init__(
        self,
        settings: Settings,
        checkpoint: Checkpoint,
        *,
        has_gateway: bool,
        on_loading: Callable[[Loading], None],
        engine_command: Sequence[str] = ENGINE_COMMAND,
    ) -> None:
        """Starts all processes.

        Args:
            has_gateway: Whether front ends have ports of their own too, for a gateway on this machine.
            on_loading: Called with the progress of loading.

        Raises:
            PortError: a port cannot be listened on.
        """
        self._settings = settings
        self._checkpoint = checkpoint
        self._salt, self._server = secrets.token_bytes(32), secrets.token_hex(8)
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._loads = LoadExchange()
        self._metrics = Metrics(checkpoint.names[0])
        self._merged = MergedMetrics(self._metrics.registry, self._take_snapshots)
        self._broker = EngineBroker(
            settings.engine.engine_config(checkpoint.path, checkpoint.folders),
            command=engine_command,
            on_state=self._engine_changed,
            on_loading=on_loading,
            on_stats=self._metrics.engine_stepped,
            max_silence_seconds=settings.engine.engine_timeout,
            keep_spare=settings.engine.spare_engine,
        )
        listen = settings.listen
        with ExitStack() as stack:
            self.port = _reserve(stack, listen.host, listen.port)
            """Port that all front ends listen on."""
            self._slots = [_Slot() for _ in range(listen.front_ends)]
            if has_gateway:
                for slot in self._slots:
                    slot.own_port = _reserve(stack, _LOOPBACK, 0)
            self._metrics_server = serve_metrics(self._metrics, listen, merged=self._merged)
            stack.callback(self._metrics_server.close)
            self._counts, self._counts_descriptor = SharedByteCounts.create(
                num_processes=listen.front_ends, num_limits=len(Limit)
            )
            stack.callback(os.close, self._counts_descriptor)
            self._resources = stack.pop_all()
        self._supervising = [asyncio.create_task(self._supervise(number)) for number in range(listen.front_ends)]
        self._watch = asyncio.create_task(watch_loop_delay(self._metrics.loop_delayed))
        self._loading = asyncio.create_task(self._broker.start())

    @property
    def upstreams(self) -> Sequence[str]:
        """HOST:PORT of each front end alone, for the gateway on this machine."""
        return [address(_LOOPBACK, slot.own_port) for slot in self._slots if slot.own_port is not None]

    @property
    def metrics_port(self) -> int:
        """Port of the Prometheus endpoint."""
        return self._metrics_server.port

    async def listening(self) -> None:
        """Waits until all front ends listen. Raises what keeps one of them from it, as `start_server` does."""
        await self._unless_failed(slot.has_listened.wait() for slot in self._slots)

    async def ready(self) -> Ready:
        """Waits until the model is loaded and all front ends serve. Raises CheckpointError, EngineError."""
        ready = await asyncio.shield(self._loading)
        await self._unless_failed(slot.has_served.wait() for slot in self._slots)
        return ready

    async def announce_stop(self, delay_seconds: float) -> None:
        """Turns health to NOT_SERVING and gives proxies time to notice. Requests are still served."""
        await self._ask_all(AnnounceStop(), StopAnnounced)
        await asyncio.sleep(delay_seconds)

    async def end_requests(self, *, grace_seconds: float) -> None:
        """Refuses new requests, gives running ones `grace_seconds` and ends the others with UNAVAILABLE. Idempotent."""
        self._stopping.set()
        await self._ask_all(
            EndRequests(grace_seconds=grace_seconds), RequestsEnded, seconds=grace_seconds + _ANSWER_SECONDS
        )

    async def stop(self, *, grace_seconds: float) -> None:
        """Ends the requests, then stops everything. Idempotent."""
        await self.end_requests(grace_seconds=grace_seconds)
        await asyncio.gather(*(process.quit(grace_seconds=_QUIT_SECONDS) for process in self._processes()))
        self._watch.cancel()
        await asyncio.gather(*self._supervising, self._watch, return_exceptions=True)
        await self._broker.stop()
        await asyncio.gather(self._loading, return_exceptions=True)
        await asyncio.to_thread(self._resources.close)

    def _processes(self) -> list[FrontEndProcess]:
        return [slot.process for slot in self._slots if slot.process is not None]

    def _engine_changed(self, state: EngineState, _reason: str) -> None:
        self._metrics.engine_changed(state, self._broker.ready)

    async def _unless_failed(self, waits: Iterable[Coroutine[Any, Any, object]]) -> None:
        """Waits for all. Raises the error of the first front end that cannot serve."""
        waiting = asyncio.create_task(_all(waits))
        done, _ = await asyncio.wait([waiting, *self._supervising], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        for task in done:
            task.result()

    async def _supervise(self, number: int) -> None:
        """Runs one front end after another until the server stops. Raises what keeps the first one from listening."""
        slot, backoff = self._slots[number], Backoff(INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        while not self._stopping.is_set():
            began = time.monotonic()
            error = await self._run(number, slot)
            if self._stopping.is_set():
                return
            if not slot.has_listened.is_set():
                raise error
            if time.monotonic() - began > STABLE_SECONDS:
                backoff.reset()
            _logger.warning("front end %d: %s; another starts in %g s", number, error, backoff.seconds)
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff.take()):
                    await self._stopping.wait()

    async def _run(self, number: int, slot: _Slot) -> Exception:
        """Runs a front end until it ends. Returns why it did."""
        slot.problem = None
        try:
            process = await FrontEndProcess.spawn(
                self._begin(number, slot),
                self._broker,
                self._counts_descriptor,
                on_message=partial(self._take, number),
            )
        except OSError as error:
            return error
        slot.process = process
        if self._stopping.is_set():  # meanwhile
            process.kill()
        sending = asyncio.create_task(send_changes(partial(self._loads.of_others, number), process.send))
        try:
            status = await process.wait()
        finally:
            slot.process = None
            sending.cancel()
            self._counts.clear(number)
            self._loads.remove(number)
            self._merged.retire(number)
        if slot.problem is not None:
            return _CONFIG_ERRORS.get(slot.problem.kind, FrontEndDiedError)(slot.problem.message)
        return FrontEndDiedError(f"its process {describe_exit(status)}; the lines above may say why")

    def _begin(self, number: int, slot: _Slot) -> Begin:
        checkpoint = self._checkpoint
        return Begin(
            number=number,
            num_front_ends=len(self._slots),
            settings=self._settings.model_dump_json(),
            checkpoint=str(checkpoint.path),
            folders=checkpoint.folders,
            names=checkpoint.names,
            created=checkpoint.created,
            port=self.port,
            own_port=slot.own_port,
            client_salt=self._salt,
            server=self._server,
        )

    def _take(self, number: int, message: FromFrontEnd) -> None:
        slot = self._slots[number]
        match message:
            case Listening():
                slot.has_listened.set()
            case Serving():
                slot.has_served.set()
            case FrontEndLoad():
                self._loads.set(number, message)
            case CannotServe():
                slot.problem = message
                if slot.process is not None:
                    slot.process.send(Quit())
            case _:
                raise TransportError(f"expected no reply, got {type(message).__name__}")

    async def _ask_all(self, message: ToFrontEnd, reply_type: type[Reply], *, seconds: float = _ANSWER_SECONDS) -> None:
        """Waits until all front ends have done something, except for those that die or hang."""
        processes = self._processes()
        await asyncio.gather(*(process.ask(message, reply_type, seconds=seconds) for process in processes))

    def _take_snapshots(self) -> Mapping[int, MetricsSnapshot]:
        """Returns the metrics of front ends that answer in time, by number. The metrics server's thread calls this."""
        return asyncio.run_coroutine_threadsafe(self._collect(), self._loop).result()

    async def _collect(self) -> Mapping[int, MetricsSnapshot]:
        running = {number: slot.process for number, slot in enumerate(self._slots) if slot.process is not None}
        asking = (each.ask(TakeSnapshot(), Snapshot, seconds=_SCRAPE_SECONDS) for each in running.values())
        answers = zip(running, await asyncio.gather(*asking), strict=True)
        return {number: answer.metrics for number, answer in answers if answer is not None}


async def _all(waits: Iterable[Coroutine[Any, Any, object]]) -> None:
    await asyncio.gather(*waits)


def _reserve(stack: ExitStack, host: str, port: int) -> int:
    """Reserves a port until the stack is closed, and returns its number. Raises PortError."""
    try:
        return stack.enter_context(reserved_port(host, port))
    except OSError as error:
        raise PortError(host, port, "--port") from error
