"""Servers for tests: `glimpse serve` as a process, and one in the event loop with a scripted engine."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from glimpse.server.lifecycle.build_server import start_server
from glimpse.server.lifecycle.served_checkpoint import find_checkpoint
from glimpse.server.lifecycle.server import Server
from glimpse.server.media_settings import MediaSettings
from glimpse.server.settings import AccessSettings, EngineSettings, ListenSettings, Settings
from tests import loop_watchdog
from tests.e2e.stack import children, eventually, free_ports, read_metric
from tests.paths import ROOT

SCRIPTED_ENGINE = ROOT / "tests" / "engine" / "scripted_engine.py"
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running `glimpse serve`."""

    process: subprocess.Popen[bytes]
    port: int
    metrics_port: int

    def channel(self) -> grpc.Channel:
        return grpc.insecure_channel(f"127.0.0.1:{self.port}", options=OPTIONS)

    def metric(self, name: str) -> float:
        """The sum of a metric's samples over its labels."""
        return read_metric(self.metrics_port, name)

    def is_serving(self) -> bool:
        with self.channel() as channel:
            try:
                health = health_stub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
            except grpc.RpcError:
                return False
            return health.status == health_pb2.HealthCheckResponse.SERVING

    def kill_engine(self) -> None:
        (engine,) = children(self.process.pid, "glimpse.engine.worker.process")
        os.kill(engine, signal.SIGKILL)


@contextmanager
def served(checkpoint: Path, folder: Path, *options: str, prelude: str = "") -> Generator[Served]:
    """Starts `glimpse serve` and waits until it serves; `prelude` is code that its process runs first."""
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
    log_path = folder / "serve.log"
    with log_path.open("wb") as log:
        environment = loop_watchdog.watched(os.environ)
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=environment)
    server = Served(process=process, port=port, metrics_port=metrics_port)
    try:
        assert eventually(lambda: server.is_serving() or process.poll() is not None, timeout_seconds=60, pause=0.1)
        assert process.poll() is None, log_path.read_text()
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=30)
    loop_watchdog.check(log_path)


def scripted(
    checkpoint: Path, folder: Path, *scripts: str, **listen: Any
) -> AbstractAsyncContextManager[tuple[Server, grpc.aio.Channel]]:
    """A server in this event loop with a scripted engine, one script per start; it may not be ready yet."""
    engine = EngineSettings(model=str(checkpoint), spare_engine=False)
    return _in_this_loop(engine, [str(SCRIPTED_ENGINE), str(folder / "starts"), *scripts], **listen)


@asynccontextmanager
async def echoing(
    checkpoint: Path,
    *,
    media: MediaSettings | None = None,
    access: AccessSettings | None = None,
    program: Sequence[str] = ("-m", "tests.engine.echo_engine"),
    **settings: Any,
) -> AsyncGenerator[tuple[Server, grpc.aio.Channel]]:
    """A server in this event loop with the echo engine; it is ready. `settings` are those of the engine."""
    engine = EngineSettings(model=str(checkpoint), spare_engine=False, **settings)
    async with _in_this_loop(engine, [*program], media, access, drain_delay=0) as (server, channel):
        async with asyncio.timeout(20):
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
    engine_arguments: list[str],
    media: MediaSettings | None = None,
    access: AccessSettings | None = None,
    **listen: Any,
) -> AsyncGenerator[tuple[Server, grpc.aio.Channel]]:
    listening = ListenSettings(port=0, metrics_port=0, **listen)
    settings = Settings(
        engine=engine, media=media or MediaSettings(), listen=listening, access=access or AccessSettings()
    )
    command = [sys.executable, *engine_arguments]
    server = await start_server(
        settings, find_checkpoint(settings.engine), on_loading=lambda _: None, engine_command=command
    )
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        try:
            yield server, channel
        finally:
            await server.stop(grace_seconds=0)


def health_stub(channel: grpc.Channel | grpc.aio.Channel) -> Any:
    """The health library's stub, which is untyped."""
    return health_pb2_grpc.HealthStub(channel)
