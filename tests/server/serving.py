"""Servers without a gateway: `glimpse serve` as a process, and one in the event loop with a scripted engine."""

import signal
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from glimpse.server.lifecycle.build_server import start_server
from glimpse.server.lifecycle.served_checkpoint import find_checkpoint
from glimpse.server.lifecycle.server import Server
from glimpse.server.media_settings import MediaSettings
from glimpse.server.settings import AccessSettings, BatchSettings, EngineSettings, ListenSettings, Settings
from tests.e2e.stack import Served, free_ports, health_stub, start
from tests.engine.client.scripted import scripted_command


@contextmanager
def served(checkpoint: Path, folder: Path, *options: str, prelude: str = "", forks: bool = True) -> Generator[Served]:
    """Starts `glimpse serve` and waits until it serves; `prelude` is code that its process runs first.

    With `forks`, it and its engine are some (`tests.fork_server`).
    """
    port, metrics_port = free_ports(2)
    flags = [
        f"--model={checkpoint}",
        f"--port={port}",
        f"--metrics-port={metrics_port}",
        "--dtype=float32",
        "--no-spare-engine",
    ]
    code = f"{prelude}\nfrom glimpse.server.cli.main import main; main()"
    command = [sys.executable, "-c", code, "serve", *flags, *options]
    server = start(
        partial(Served, port=port, metrics_port=metrics_port, log=folder / "serve.log"), command, forks=forks
    )
    try:
        yield server
    finally:
        server.stop(signal.SIGINT)


def scripted(
    checkpoint: Path, folder: Path, *scripts: str, **listen: Any
) -> AbstractAsyncContextManager[tuple[Server, grpc.aio.Channel]]:
    """A server in this event loop with a scripted engine, one script per start; it may not be ready yet."""
    engine = EngineSettings(model=str(checkpoint), spare_engine=False)
    return _in_this_loop(engine, scripted_command(*scripts, starts=folder / "starts"), **listen)


@asynccontextmanager
async def echoing(
    checkpoint: Path,
    *,
    media: MediaSettings | None = None,
    access: AccessSettings | None = None,
    batches: BatchSettings | None = None,
    step_ms: float = 0.5,
    **settings: Any,
) -> AsyncGenerator[tuple[Server, grpc.aio.Channel]]:
    """A server in this event loop, ready, with an engine that says what prompts say. `settings` are the engine's."""
    engine = EngineSettings(model=str(checkpoint), spare_engine=False, **settings)
    command = scripted_command("replies", step_ms=step_ms)
    async with _in_this_loop(engine, command, media, access, batches, drain_delay=0) as (server, channel):
        watch = health_stub(channel).Watch(health_pb2.HealthCheckRequest())
        async for health in watch:
            if health.status == health_pb2.HealthCheckResponse.SERVING:
                break
        if media is not None:  # connects to the media store
            await server._media.warm()  # pyright: ignore[reportPrivateUsage]
        yield server, channel


@asynccontextmanager
async def _in_this_loop(
    engine: EngineSettings,
    engine_command: list[str],
    media: MediaSettings | None = None,
    access: AccessSettings | None = None,
    batches: BatchSettings | None = None,
    **listen: Any,
) -> AsyncGenerator[tuple[Server, grpc.aio.Channel]]:
    listening = ListenSettings(port=0, metrics_port=0, **listen)
    settings = Settings(
        engine=engine,
        media=media or MediaSettings(),
        listen=listening,
        access=access or AccessSettings(),
        batches=batches or BatchSettings(),
    )
    server = await start_server(
        settings, find_checkpoint(settings.engine), on_loading=lambda _: None, engine_command=engine_command
    )
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        try:
            yield server, channel
        finally:
            await server.stop(grace_seconds=0)
