"""A front end among several: `python -m glimpse.server.processes.front_end --engine-fd N …`.

It belongs to its supervisor, at the other end of its two sockets, and ends with it. SIGINT and SIGTERM often
reach both at once, so they are ignored here: the supervisor says when to drain and when to end.
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog
import uvloop

from glimpse.engine.client.shared_engine import SharedEngine
from glimpse.engine.client.supervisor import EngineState
from glimpse.engine.errors import CheckpointError, EngineError
from glimpse.frames import Frames, TransportError
from glimpse.identity.errors import IdentityConfigError
from glimpse.log_writer import end_at_once
from glimpse.media.cache.byte_count import SharedByteCounts
from glimpse.media.shared.values import StoreUnavailableError
from glimpse.server.lifecycle.build_server import FrontEndGroup, PortError, make_observers, start_front_end
from glimpse.server.lifecycle.logs import configure_logging
from glimpse.server.lifecycle.observers import Observers
from glimpse.server.lifecycle.served_checkpoint import load_checkpoint
from glimpse.server.lifecycle.server import Server
from glimpse.server.lifecycle.tls import TlsError
from glimpse.server.processes.load_exchange import NO_LOAD, tell_changes
from glimpse.server.processes.messages import (
    AnnounceStop,
    Begin,
    CannotServe,
    Done,
    EndRequests,
    Limit,
    Listening,
    Load,
    Quit,
    Snapshot,
    TakeSnapshot,
    ToFrontEnd,
    Warm,
)
from glimpse.server.processes.peer import Peer
from glimpse.server.processes.tasks import first
from glimpse.server.settings import Settings
from glimpse.server.telemetry.snapshots import MetricsSnapshot, take_snapshot

_logger = logging.getLogger(__name__)

_MESSAGES = Frames[ToFrontEnd](ToFrontEnd)


def main() -> int:
    """Serves until the supervisor says that it ends. Returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parser = argparse.ArgumentParser(prog="python -m glimpse.server.processes.front_end")
    parser.add_argument("--engine-fd", type=int, required=True, help="the inherited socket to the engine's broker")
    parser.add_argument("--control-fd", type=int, required=True, help="the inherited socket to the supervisor")
    parser.add_argument("--counts-fd", type=int, required=True, help="the inherited memory of shared counts")
    arguments = parser.parse_args()
    engine, control = (_inherited(fd) for fd in (arguments.engine_fd, arguments.control_fd))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(engine, control, arguments.counts_fd))


async def _run(engine: socket.socket, control: socket.socket, counts_descriptor: int) -> int:
    return await _FrontEnd(engine, counts_descriptor).run(control)


def _inherited(descriptor: int) -> socket.socket:
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)  # else the decoders would keep it open after this process has ended
    return connection


class _FrontEnd:
    """Front end of this process."""

    def __init__(self, engine: socket.socket, counts_descriptor: int) -> None:
        self._engine = engine
        self._counts_descriptor = counts_descriptor
        self._begin: asyncio.Future[Begin] = asyncio.get_running_loop().create_future()
        self._quit = asyncio.Event()
        self._serving: asyncio.Future[Server] = asyncio.get_running_loop().create_future()
        self._observers: Observers | None = None
        self._load_elsewhere = NO_LOAD

    async def run(self, control: socket.socket) -> int:
        """Serves. Returns the exit status."""
        peer = await Peer.connect(control, _MESSAGES, answer=self._answer, notice=self._notice)
        supervised = asyncio.create_task(peer.serve())
        serving = asyncio.create_task(self._serve(peer))
        await asyncio.wait([supervised, serving], return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            if (error := supervised.exception()) is not None:
                _logger.error("the front end ends after an invalid message of its supervisor", exc_info=error)
            end_at_once(1)  # the supervisor is gone, and with it the engine
        supervised.cancel()
        await asyncio.gather(supervised, return_exceptions=True)
        await peer.close()
        return serving.result()

    async def _serve(self, peer: Peer[ToFrontEnd]) -> int:
        begin = await self._begin
        try:
            server = await self._start(begin)
            self._serving.set_result(server)
            server.access.set_media_elsewhere(self._load_elsewhere.media_bytes)
            peer.tell(Listening())
            await first(self._warm(server, peer), tell_changes(self._load, peer.tell), self._quit.wait())
        except (CheckpointError, IdentityConfigError, PortError, StoreUnavailableError, TlsError) as error:
            peer.tell(CannotServe(kind=type(error).__name__, message=str(error)))
            await self._quit.wait()
            return 1
        await server.stop(grace_seconds=0)
        return 0

    async def _start(self, begin: Begin) -> Server:
        settings = Settings.model_validate_json(begin.settings)
        settings = settings.model_copy(update={"listen": settings.listen.model_copy(update={"port": begin.port})})
        configure_logging(settings.listen.log_level)
        structlog.contextvars.bind_contextvars(front_end=begin.number)
        generation_config = settings.engine.generation_config
        checkpoint = load_checkpoint(Path(begin.checkpoint), begin.folders, begin.names, generation_config)
        observers = self._observers = make_observers(settings.engine, checkpoint.names[0])
        self._set_load_elsewhere(self._load_elsewhere)

        def on_state(state: EngineState, _reason: str) -> None:
            observers.engine_changed(state, shared.ready)

        shared = SharedEngine(self._engine, on_state=on_state, on_stats=observers.engine_stepped)

        counts = SharedByteCounts(self._counts_descriptor, num_processes=begin.num_front_ends)
        os.close(self._counts_descriptor)
        group = FrontEndGroup(
            size=begin.num_front_ends,
            server=begin.server,
            own_port=begin.own_port,
            body_bytes=counts.count(Limit.BODIES, begin.number),
            media_bytes=counts.count(Limit.MEDIA, begin.number),
            client_salt=begin.client_salt,
        )
        return await start_front_end(settings, checkpoint, observers, shared, group=group)

    async def _warm(self, server: Server, peer: Peer[ToFrontEnd]) -> None:
        with suppress(EngineError):  # of which the supervisor knows more
            await server.ready()
            peer.tell(Warm())
        await asyncio.get_running_loop().create_future()

    def _notice(self, message: ToFrontEnd) -> None:
        match message:
            case Begin():
                self._begin.set_result(message)
            case Quit():
                self._quit.set()
            case Load():
                self._set_load_elsewhere(message)
            case _:
                raise TransportError(f"expected a notice, got {type(message).__name__}")

    async def _answer(self, message: ToFrontEnd) -> msgspec.Struct:
        """Answers a call. One that is about requests waits until they are served: `Begin` may know less than it."""
        match message:
            case TakeSnapshot():
                return Snapshot(metrics=self._metrics())
            case AnnounceStop():
                await (await self._server()).announce_stop(0)
            case EndRequests(grace_seconds=grace_seconds):
                await (await self._server()).end_requests(grace_seconds=grace_seconds)
            case _:
                raise TransportError(f"expected a call, got {type(message).__name__}")
        return Done()

    async def _server(self) -> Server:
        return await asyncio.shield(self._serving)

    def _set_load_elsewhere(self, load: Load) -> None:
        """Takes over the load of the others, which may be told before there is anything to tell it to."""
        self._load_elsewhere = load
        if self._observers is not None:
            self._observers.admission.estimator.set_elsewhere(load.waiting)
            self._observers.load.set_elsewhere(load.rpcs_per_second, load.failures_per_second)
        if self._serving.done():
            self._serving.result().access.set_media_elsewhere(load.media_bytes)

    def _load(self) -> Load:
        if self._observers is None:
            return NO_LOAD
        rpcs, failures = self._observers.load.rates
        return Load(
            waiting=dict(self._observers.admission.estimator.waiting_tokens),
            rpcs_per_second=rpcs,
            failures_per_second=failures,
            media_bytes=self._serving.result().access.media_bytes(),
        )

    def _metrics(self) -> MetricsSnapshot:
        if self._observers is None:
            return ()
        metrics = self._observers.metrics
        return take_snapshot(metrics.registry, without=metrics.engine_families)


if __name__ == "__main__":
    sys.exit(main())
