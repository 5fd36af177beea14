"""Servers behind one gateway, as processes."""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from glimpse.gateway import admin
from glimpse.gateway.replicas.clusters import BY_KEY, BY_LOAD
from tests.chaos.attacks.restarts import replica
from tests.chaos.processes import tree
from tests.chaos.stack import GLIMPSE, Stack, http_health
from tests.chaos.target import HOST, Target
from tests.e2e.stack import free_ports
from tests.waiting import until

_LINE = re.compile(r"request_id=(\S+) server=(\S+)")
_SECONDS = 120.0


@dataclass(slots=True, kw_only=True)
class Mesh:
    """Servers, a gateway of them all, and a gateway of the first alone."""

    replicas: list[Stack]
    gateway: Stack
    alone: Stack
    run_dir: Path

    async def kill(self, number: int) -> None:
        """Kills all processes of a replica, as the loss of its machine does."""
        replica = self.replicas[number]
        replica.is_supervised = False
        for process in tree(replica.pid):
            with contextlib.suppress(ProcessLookupError):  # it ended with its parent
                os.kill(process.pid, signal.SIGKILL)

    async def restart(self, number: int) -> None:
        """Stops a replica as a service manager does, starts it again, and waits until the gateway uses it."""
        await self.replicas[number].stop()
        await self.start(number)

    async def start(self, number: int) -> None:
        """Starts a replica that is not running and waits until the gateway uses it."""
        await self.replicas[number].start()
        await self.until_healthy(len(self.replicas))

    async def until_healthy(self, count: int) -> None:
        """Waits until the gateway counts so many replicas as healthy, in both of its clusters."""

        async def are_healthy() -> bool:
            return {await self._num_healthy(cluster) for cluster in (BY_KEY, BY_LOAD)} == {count}

        await until(are_healthy, seconds=_SECONDS, pause=0.1)

    async def num_disturbances(self) -> int:
        """Returns how often the gateway had a reason to pass a server over: failed health checks and retries so far."""
        prefix = f"cluster.{BY_KEY}"
        names = (f"{prefix}.health_check.failure", f"{prefix}.upstream_rq_retry")
        return await asyncio.to_thread(admin.total, self.run_dir / "admin.sock", names)

    async def num_requests_by_load(self) -> list[int]:
        """Returns for each replica how many requests without a key it has got so far."""
        servers = await asyncio.to_thread(admin.servers, self.run_dir / "admin.sock", BY_LOAD)
        counts = {server.address: server.num_requests for server in servers}
        return [counts[f"{HOST}:{replica.target.grpc_port}"] for replica in self.replicas]

    async def _num_healthy(self, cluster: str) -> int:
        servers = await asyncio.to_thread(admin.servers, self.run_dir / "admin.sock", cluster)
        return sum(server.is_healthy for server in servers)

    async def servers_of(self, request_ids: Iterable[str]) -> dict[str, int]:
        """Returns which replica answered each request, as the gateway's access log says."""
        numbers = {f"{HOST}:{replica.target.grpc_port}": number for number, replica in enumerate(self.replicas)}
        asked = set(request_ids)
        async with asyncio.timeout(_SECONDS):
            while not asked <= (found := dict(_LINE.findall(self.gateway.log_path.read_text()))).keys():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        return {request: numbers.get(server, -1) for request, server in found.items()}


@asynccontextmanager
async def running_mesh(folder: Path, *serve_args: str, num_replicas: int = 3) -> AsyncGenerator[Mesh]:
    """Starts servers and gateways, and stops them at the end.

    Args:
        folder: where logs go. Its path must be short enough for a Unix socket.
    """
    http_port, alone_port, *ports = free_ports(2 + 2 * num_replicas)
    pairs = zip(ports[:num_replicas], ports[num_replicas:], strict=True)
    flags = ("--no-spare-engine", *serve_args)
    replicas = [replica(folder, port, metrics_port, flags, http_port=http_port) for port, metrics_port in pairs]
    run_dir = folder / "gateway"
    gateway = _gateway(folder, http_port, replicas, f"--run-dir={run_dir}")
    alone = _gateway(folder, alone_port, replicas[:1])
    mesh = Mesh(replicas=replicas, gateway=gateway, alone=alone, run_dir=run_dir)
    stacks = [gateway, alone, *replicas]
    try:
        await asyncio.gather(*(stack.start() for stack in stacks))
        await mesh.until_healthy(num_replicas)
        yield mesh
    finally:
        await asyncio.gather(*(stack.stop() for stack in stacks))


def _gateway(folder: Path, http_port: int, replicas: Sequence[Stack], *flags: str) -> Stack:
    target = Target(
        http_port=http_port, grpc_port=replicas[0].target.grpc_port, metrics_port=replicas[0].target.metrics_port
    )
    upstreams = (f"--upstream={HOST}:{replica.target.grpc_port}" for replica in replicas)
    listen = f"--listen={HOST}:{http_port}"
    return Stack(
        target=target,
        command=(*GLIMPSE, "gateway", "run", listen, *upstreams, "--access-log", "--workers=1", *flags),
        log_path=folder / f"{http_port}.log",
        ready=http_health(target),
    )
