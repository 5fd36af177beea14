"""Runs a server from start to stop, with or without a gateway: it listens, loads, serves and drains."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glimpse.engine.client.supervisor import ENGINE_COMMAND
from glimpse.engine.protocol.messages import Loading, Ready
from glimpse.gateway.options import PublicOptions
from glimpse.server.lifecycle.addresses import PortError, address, local_host
from glimpse.server.lifecycle.build_server import start_server
from glimpse.server.lifecycle.served_checkpoint import Checkpoint
from glimpse.server.lifecycle.server import END_SECONDS, Server
from glimpse.server.processes.front_ends import FrontEnds
from glimpse.server.processes.gateway_child import GatewayChild, start_gateway
from glimpse.server.processes.ports import free_port
from glimpse.server.settings import ListenSettings, Settings
from glimpse.stop_signals import StopSignals
from glimpse.tasks import first

_Serving = Server | FrontEnds
"""One front end with an engine of its own, or several that share one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where a server listens."""

    grpc: int
    http: int | None
    """Port of the gateway; None if there is none."""
    metrics: int


async def run(
    settings: Settings,
    checkpoint: Checkpoint,
    *,
    http_port: int | None,
    gateway_flags: PublicOptions | None = None,
    on_loading: Callable[[Loading], None],
    on_ready: Callable[[Ready, Ports], None],
    engine_command: Sequence[str] = ENGINE_COMMAND,
) -> bool:
    """Serves until SIGTERM or SIGINT, then drains; a second signal stops at once.

    Returns whether SIGINT came before it served.

    Args:
        http_port: the gateway's port; 0 takes a free one, None starts no gateway.
        gateway_flags: the gateway's. Default: its defaults.
        on_loading: called with the progress of loading.
        on_ready: called once requests are served, also through the gateway.

    Raises:
        CheckpointError: the checkpoint cannot be served.
        EngineError: the engine died while it loaded.
        IdentityConfigError: a file that says who may call, a certificate or its key cannot be used.
        PortError: a port cannot be listened on.
        GatewayDiedError: the gateway ended by itself.
    """
    signals = StopSignals()
    has_served = False

    def begin(ready: Ready) -> None:
        nonlocal has_served
        has_served = True
        on_ready(ready, Ports(grpc=server.port, http=http_port, metrics=server.metrics_port))

    with signals.catching():
        gateway: GatewayChild | None = None
        if http_port is not None:
            http_port = _gateway_port(settings.listen.host, http_port)
        server = await _start(settings, checkpoint, on_loading, engine_command, has_gateway=http_port is not None)
        try:
            if isinstance(server, FrontEnds):
                await server.listening()
            if http_port is not None:
                gateway = await _start_gateway(settings.listen, http_port, server, gateway_flags)
            await first(signals.stop_requested.wait(), _serve(server, gateway, begin))
        finally:
            await _stop(server, gateway, settings.listen, signals)
    return signals.by_keyboard and not has_served


async def _serve(server: _Serving, gateway: GatewayChild | None, on_ready: Callable[[Ready], None]) -> None:
    """Serves until it is cancelled. Raises the error that ends the server."""
    if gateway is not None:
        await gateway.ready()
    on_ready(await server.ready())
    if gateway is not None:
        await gateway.watch()
    await asyncio.get_running_loop().create_future()


async def _stop(server: _Serving, gateway: GatewayChild | None, listen: ListenSettings, signals: StopSignals) -> None:
    if signals.stop_requested.is_set():
        await first(signals.stop_now.wait(), _drain(server, gateway, listen, by_keyboard=signals.by_keyboard))
    await _end(server, gateway, grace_seconds=0)


async def _drain(server: _Serving, gateway: GatewayChild | None, listen: ListenSettings, *, by_keyboard: bool) -> None:
    await server.announce_stop(0 if by_keyboard else listen.drain_delay)
    await _end(server, gateway, grace_seconds=listen.drain_timeout)


async def _end(server: _Serving, gateway: GatewayChild | None, *, grace_seconds: float) -> None:
    """Stops both; running requests get `grace_seconds`. Idempotent.

    The gateway stays until the server has ended its requests: responses pass through it.
    """
    if gateway is not None:
        gateway.drain()
    await server.end_requests(grace_seconds=grace_seconds)
    async with asyncio.TaskGroup() as endings:
        if gateway is not None:
            endings.create_task(gateway.stop())
        endings.create_task(server.stop(grace_seconds=0))


async def _start(
    settings: Settings,
    checkpoint: Checkpoint,
    on_loading: Callable[[Loading], None],
    engine_command: Sequence[str],
    *,
    has_gateway: bool,
) -> _Serving:
    if settings.listen.front_ends > 1:
        return FrontEnds(
            settings, checkpoint, has_gateway=has_gateway, on_loading=on_loading, engine_command=engine_command
        )
    return await start_server(settings, checkpoint, on_loading=on_loading, engine_command=engine_command)


async def _start_gateway(
    listen: ListenSettings, http_port: int, server: _Serving, flags: PublicOptions | None
) -> GatewayChild:
    own = [address(local_host(listen.host), server.port)]
    return await start_gateway(
        listen=address(listen.host, http_port),
        upstreams=server.upstreams if isinstance(server, FrontEnds) else own,
        drain_seconds=listen.drain_timeout + 2 * END_SECONDS,
        flags=flags,
    )


def _gateway_port(host: str, port: int) -> int:
    """Returns the port, or one that is free for 0.

    Raises PortError: the gateway's own error would come later and name one of the gateway's flags.
    """
    try:
        return free_port(host, port)
    except OSError as error:
        raise PortError(host, port, "--http-port") from error
