"""The server's life: it listens, loads, serves, drains, stops; with a gateway beside it or without.

How a server is put together is `glimpse.server.lifecycle.assemble`'s; what is printed is the command line's.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence

from glimpse.engine.ipc.client import ENGINE_COMMAND
from glimpse.engine.protocol import Loading, Ready
from glimpse.server.lifecycle.assemble import Checkpoint, PortError, start_server
from glimpse.server.lifecycle.gateway_child import GatewayChild, start_gateway
from glimpse.server.lifecycle.running import Server
from glimpse.server.lifecycle.signals import StopSignals
from glimpse.server.settings import ListenSettings, Settings


async def run(
    settings: Settings,
    checkpoint: Checkpoint,
    *,
    http_port: int | None,
    on_loading: Callable[[Loading], None],
    on_ready: Callable[[Ready], None],
    engine_command: Sequence[str] = ENGINE_COMMAND,
) -> None:
    """Serves until SIGTERM or SIGINT, then drains; a second signal stops at once.

    Args:
        settings: of the server.
        checkpoint: what is served.
        http_port: the gateway's; None: no gateway is started.
        on_loading: told how far loading is.
        on_ready: called once, when requests are served, through the gateway too.
        engine_command: the engine's program and its arguments.

    Raises:
        CheckpointError: the checkpoint cannot be served.
        EngineError: the engine died while it loaded.
        PortError: a port cannot be listened on.
        GatewayDiedError: the gateway ended by itself.
    """
    signals = StopSignals()
    with signals.catching():
        gateway: GatewayChild | None = None
        if http_port is not None:
            _check_free(settings.listen.host, http_port, "--http-port")
        server = await start_server(settings, checkpoint, on_loading=on_loading, engine_command=engine_command)
        try:
            if http_port is not None:
                gateway = await _start_gateway(settings.listen, http_port, server.port)
            await _first(signals.asked.wait(), _serve(server, gateway, on_ready))
        finally:
            await _stop(server, gateway, settings.listen, signals)


async def _serve(server: Server, gateway: GatewayChild | None, on_ready: Callable[[Ready], None]) -> None:
    """Never returns; raises what ends the serving."""
    if gateway is not None:
        await gateway.ready()
    on_ready(await server.ready())
    if gateway is not None:
        await gateway.watch()
    await asyncio.get_running_loop().create_future()


async def _stop(server: Server, gateway: GatewayChild | None, listen: ListenSettings, signals: StopSignals) -> None:
    if signals.asked.is_set():
        await _first(signals.insisted.wait(), _drain(server, gateway, listen, by_keyboard=signals.by_keyboard))
    await _end(server, gateway, grace_seconds=0)


async def _drain(server: Server, gateway: GatewayChild | None, listen: ListenSettings, *, by_keyboard: bool) -> None:
    await server.announce_stop(0 if by_keyboard else listen.drain_delay)
    await _end(server, gateway, grace_seconds=listen.drain_timeout)


async def _end(server: Server, gateway: GatewayChild | None, *, grace_seconds: float) -> None:
    """Running answers have `grace_seconds`. What has ended already ends no second time."""
    async with asyncio.TaskGroup() as endings:
        if gateway is not None:
            endings.create_task(gateway.stop())
        endings.create_task(server.stop(grace_seconds=grace_seconds))


async def _first(*coroutines: Coroutine[object, object, object]) -> None:
    """Waits for the first to end, cancels the others, and raises what the first raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _start_gateway(listen: ListenSettings, http_port: int, grpc_port: int) -> GatewayChild:
    return await start_gateway(
        listen=address(listen.host, http_port),
        upstream=address(local_host(listen.host), grpc_port),
        drain_seconds=listen.drain_timeout,
    )


def local_host(host: str) -> str:
    """Where this machine reaches a server that listens on `host`."""
    match host:
        case "0.0.0.0":  # noqa: S104 - compared, not bound
            return "127.0.0.1"
        case "::":
            return "::1"
        case _:
            return host


def address(host: str, port: int) -> str:
    """HOST:PORT, as gRPC and URLs have it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_free(host: str, port: int, flag: str) -> None:
    """The gateway's own complaint would come later, and name a flag of the gateway's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortError(host, port, flag) from error
