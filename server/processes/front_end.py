"""A front end among several: `python -m glimpse.server.processes.front_end --engine-fd N …`.

It belongs to its supervisor, at the other end of its two sockets, and ends with it. SIGINT and SIGTERM often
reach both at once, so they are ignored, SIGINT before the process begins: the supervisor says when to drain and when
to end.
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog
import uvloop

from glimpse.engine.client.shared_engine import SharedEngine
from glimpse.engine.client.supervisor import EngineState
from glimpse.engine.errors import CheckpointError, EngineError
from glimpse.frames import AsyncChannel, Frames, TransportError
from glimpse.identity.errors import IdentityConfigError
from glimpse.log_writer import end_at_once
from glimpse.media.cache.byte_count import SharedByteCounts
from glimpse.media.shared.values import StoreUnavailableError
from glimpse.server.lifecycle.addresses import PortError
from glimpse.server.lifecycle.build_server import FrontEndGroup, make_observers, start_front_end
from glimpse.server.lifecycle.logs import configure_logging
from glimpse.server.lifecycle.observers import Observers
from glimpse.server.lifecycle.served_checkpoint import load_checkpoint
from glimpse.server.lifecycle.server import Server
from glimpse.server.processes.load_exchange import send_changes
from glimpse.server.processes.messages import (
    AnnounceStop,
    Begin,
    CannotServe,
    EndRequests,
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
from glimpse.server.settings import Settings
from glimpse.server.telemetry.snapshots import MetricsSnapshot, take_snapshot
from glimpse.tasks import first

_logger = logging.getLogger(__name__)

_MESSAGES = Frames[ToFrontEnd](ToFrontEnd)


def main() -> int:
    """Serves until the supervisor says that it ends. Returns the exit status."""
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
    """Serves. Returns the exit status."""
    channel = await AsyncChannel.connect(control, _MESSAGES)
    begin = await channel.receive()
    if not isinstance(begin, Begin):
        return 1  # the supervisor is gone
    try:
        front_end = await _start(begin, channel, engine, counts_descriptor)
    except (CheckpointError, IdentityConfigError, PortError, StoreUnavailableError) as error:
        channel.post(CannotServe(kind=type(error).__name__, message=str(error)))
        while not isinstance(await channel.receive(), Quit | None):
            pass
        return 1
    await front_end.serve()
    await channel.close()
    return 0


def _inherited(descriptor: int) -> socket.socket:
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)  # else the decoders would keep it open after this process has ended
    return connection


async def _start(
    begin: Begin, channel: AsyncChannel[ToFrontEnd], connection: socket.socket, counts_descriptor: int
) -> "_FrontEnd":
    """Starts to listen. `connection` leads to the engine. Raises as `start_front_end`, and CheckpointError."""
    settings = Settings.model_validate_json(begin.settings)
    settings = settings.model_copy(update={"listen": settings.listen.model_copy(update={"port": begin.port})})
    configure_logging(settings.listen.log_level)
    structlog.contextvars.bind_contextvars(front_end=begin.number)
    generation_config = settings.engine.generation_config
    checkpoint = load_checkpoint(Path(begin.checkpoint), begin.folders, begin.names, generation_config, begin.created)
    observers = make_observers(settings.engine, checkpoint.names[0])

    def on_state(state: EngineState, _reason: str) -> None:
        observers.engine_changed(state, engine.ready)

    engine = SharedEngine(connection, on_state=on_state, on_stats=observers.engine_stepped)
    counts = SharedByteCounts(counts_descriptor, num_processes=begin.num_front_ends)
    os.close(counts_descriptor)
    group = FrontEndGroup(
        size=begin.num_front_ends,
        server=begin.server,
        own_port=begin.own_port,
        body_bytes=counts.count(Limit.BODIES, begin.number),
        media_bytes=counts.count(Limit.MEDIA, begin.number),
        client_salt=begin.client_salt,
    )
    server = await start_front_end(settings, checkpoint, observers, engine, group=group)
    return _FrontEnd(channel, server, observers)


class _FrontEnd:
    """Front end of this process, which listens."""

    def __init__(self, channel: AsyncChannel[ToFrontEnd], server: Server, observers: Observers) -> None:
        self._channel = channel
        self._server = server
        self._observers = observers
        self._tasks = set[asyncio.Task[None]]()

    async def serve(self) -> None:
        """Serves until the supervisor says that it ends, and stops."""
        self._channel.post(Listening())
        await first(self._receive(), self._announce_ready(), send_changes(self._load, self._channel.post))
        await self._server.stop(grace_seconds=0)

    async def _announce_ready(self) -> None:
        with suppress(EngineError):  # of which the supervisor knows more
            await self._server.ready()
            self._channel.post(Serving())
        await asyncio.get_running_loop().create_future()

    async def _receive(self) -> None:
        """Receives messages until `Quit`. Ends the process if the supervisor is gone, and with it the engine."""
        try:
            while (message := await self._channel.receive()) is not None:
                match message:
                    case Quit():
                        return
                    case FrontEndLoad():
                        self._set_load_of_others(message)
                    case TakeSnapshot():
                        self._channel.post(Snapshot(metrics=self._metrics()))
                    case AnnounceStop():
                        self._do(self._server.announce_stop(0), StopAnnounced())
                    case EndRequests(grace_seconds=grace_seconds):
                        self._do(self._server.end_requests(grace_seconds=grace_seconds), RequestsEnded())
                    case Begin():
                        raise TransportError("expected no second Begin")
        except TransportError:
            _logger.exception("the front end ends after an invalid message of its supervisor")
        end_at_once(1)

    def _do(self, work: Coroutine[Any, Any, None], reply: Reply) -> None:
        """Does something while other messages are received, and replies."""

        async def run() -> None:
            await work
            self._channel.post(reply)

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _set_load_of_others(self, load: FrontEndLoad) -> None:
        self._observers.admission.estimator.set_others(load.waiting)
        self._observers.load.set_others(load.rpcs_per_second, load.failures_per_second)
        self._server.access.set_media_of_others(load.media_bytes)

    def _load(self) -> FrontEndLoad:
        rpcs, failures = self._observers.load.rates
        return FrontEndLoad(
            waiting=dict(self._observers.admission.estimator.waiting_tokens),
            rpcs_per_second=rpcs,
            failures_per_second=failures,
            media_bytes=self._server.access.media_bytes(),
        )

    def _metrics(self) -> MetricsSnapshot:
        metrics = self._observers.metrics
        return take_snapshot(metrics.registry, without=metrics.engine_families)


if __name__ == "__main__":
    sys.exit(main())
