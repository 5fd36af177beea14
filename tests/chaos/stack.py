"""Servers under a stand-in for a service manager: one that exits is started again on the same ports."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from glimpse.gateway.address import Address
from glimpse.gateway.health import is_serving
from glimpse.usage import USAGE_STATUS
from tests.chaos import processes
from tests.chaos.target import HOST, Target
from tests.e2e.stack import free_ports
from tests.paths import ROOT

GLIMPSE = (sys.executable, "-m", "glimpse")
_START_SECONDS = 180.0
_STOP_SECONDS = 90.0
_RESTART_SECONDS = 0.3


class NotServingError(Exception):
    """The server did not come up, or did not come back."""


def replaced(flags: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Other flags, after those of these, each in one argument, that they do not replace."""
    names = {argument.split("=")[0] for argument in others}
    return (*(flag for flag in flags if flag.split("=")[0] not in names), *others)


Ready = Callable[[], Awaitable[bool]]
"""Whether a server serves."""


@dataclass(slots=True, kw_only=True)
class Stack:
    """A supervised command: `glimpse up`, `glimpse serve` or `glimpse gateway run`."""

    target: Target
    command: Sequence[str]
    log_path: Path
    ready: Ready
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables in addition to this process's."""
    restarts: int = 0
    is_supervised: bool = True
    """Whether an exit leads to a new start."""
    _process: asyncio.subprocess.Process | None = None
    _keeper: asyncio.Task[None] | None = field(default=None)

    @property
    def pid(self) -> int:
        """The front end's process id."""
        if self._process is None:
            raise NotServingError("the server was not started")
        return self._process.pid

    def pids(self, role: str) -> list[int]:
        """The processes of a role, the oldest first."""
        found = [each for each in processes.tree(self.pid) if each.role == role]
        return [each.pid for each in sorted(found, key=lambda each: each.age_ticks)]

    async def start(self) -> None:
        """Starts the server, keeps it running, and waits until it serves.

        Raises:
            NotServingError: it does not, in time.
        """
        self.is_supervised = True
        await self._spawn()
        self._keeper = asyncio.create_task(self._keep())
        try:
            await self.wait_until_ready(seconds=_START_SECONDS)
        except TimeoutError:
            log = self.log_path.read_text(errors="replace")[-2000:]
            raise NotServingError(f"no health for {_START_SECONDS:.0f} s:\n{log}") from None

    async def wait_until_ready(self, *, seconds: float) -> None:
        """
        Raises:
            NotServingError: its flags are wrong.
            TimeoutError: it does not serve by then.
        """
        async with asyncio.timeout(seconds):
            while not await self.ready():
                if self._process is not None and self._process.returncode == USAGE_STATUS:
                    raise NotServingError(f"wrong flags:\n{self.log_path.read_text(errors='replace')[-2000:]}")
                await asyncio.sleep(0.05)

    async def stop(self) -> int | None:
        """Stops the server as a service manager does, and returns its exit status."""
        self.is_supervised = False
        if self._process is None:
            return None
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                return await self._process.wait()
        except TimeoutError:
            for each in processes.tree(self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
            return await self._process.wait()
        finally:
            if self._keeper is not None:
                self._keeper.cancel()

    async def _spawn(self) -> None:
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, **self.environment},
                process_group=0,
            )

    async def _keep(self) -> None:
        while self._process is not None:
            await self._process.wait()
            await asyncio.sleep(_RESTART_SECONDS)
            if not self.is_supervised or self._process.returncode == USAGE_STATUS:
                return
            self.restarts += 1
            await self._spawn()


def http_health(target: Target) -> Ready:
    async def ready() -> bool:
        timeout = aiohttp.ClientTimeout(total=5)
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{target.url}/health", timeout=timeout) as answer,
            ):
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            return False

    return ready


def grpc_health(address: Address) -> Ready:
    """The health service of a server."""
    return lambda: asyncio.to_thread(is_serving, address)


@asynccontextmanager
async def supervised_stack(
    serve_args: Sequence[str], log_path: Path, environment: Mapping[str, str] | None = None
) -> AsyncGenerator[Stack]:
    """`glimpse up` on free ports, serving."""
    http_port, grpc_port, metrics_port, media_port = free_ports(4)
    with TemporaryDirectory(prefix="glimpse-chaos-") as adapters:
        target = Target(
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            media_port=media_port,
            adapters=adapters,
        )
        flags = (
            *(f"--http-port={http_port}", f"--port={grpc_port}", f"--metrics-port={metrics_port}"),
            *(f"--allowed-media-networks={HOST}", f"--allowed-media-ports={media_port}"),
            f"--allowed-lora-path={adapters}",
        )
        stack = Stack(
            target=target,
            command=(*GLIMPSE, "up", *flags, *serve_args),
            log_path=log_path,
            ready=http_health(target),
            environment=environment or {},
        )
        try:
            await stack.start()
            yield stack
        finally:
            await stack.stop()
