"""Pool of worker processes that run one job at a time, with limits on memory and time.

A worker that crashes, or is killed because its job timed out or was cancelled, fails one job; the next job gets a new
worker. A job whose worker is killed from outside is repeated once. Independent of what the jobs are, which
`glimpse.media.decoding.worker_client` defines.
"""

import asyncio
import contextlib
import fcntl
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import IO, TypeVar

from glimpse.frames import TransportError
from glimpse.media.cache.fair_share import FairPlaces
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.workers.process import Process, end_worker, start_worker

ResultT = TypeVar("ResultT")

WORKER_COMMAND = (sys.executable, "-m", "glimpse.media.decoding.worker")

_PIPE_BYTES = 1 << 20
"""Largest pipe that Linux gives unprivileged processes; a small image fits into it."""
_EXIT_SECONDS = 1.0
"""Time for a worker whose output has ended to exit, so that its exit status can tell why."""
_GRACE_SECONDS = 1.0
"""Time for a cancelled job to finish, because most do and the rest of a job costs less than a new worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """Resource limits of one worker."""

    memory_bytes: int
    """Address space."""
    cpu_seconds: int
    """CPU time for one job."""
    timeout_seconds: float
    """Wall time for one job, including the worker's start."""


class _CrashedError(Exception):
    """The worker died or sent an invalid result."""


class _OutOfTimeError(Exception):
    """The kernel ended the worker because a job exceeded its CPU time."""


class _KilledError(Exception):
    """Something outside, such as the kernel when memory is short, killed the worker. That is not the job's fault."""


class WorkerPool:
    """Runs jobs in worker processes, which are started on demand and reused."""

    def __init__(
        self,
        *,
        num_workers: int,
        limits: WorkerLimits,
        environment: Callable[[], dict[str, str]],
        command: Sequence[str] = WORKER_COMMAND,
        crash_code: MediaErrorCode = MediaErrorCode.INVALID_MEDIA,
    ) -> None:
        """
        Args:
            num_workers: Number of concurrent jobs of one client; further ones wait. Twice as many for several clients.
            environment: Returns environment variables to add for workers; may block.
            command: Command that starts a worker; the limits are appended as arguments.
        """
        self._crash_code = crash_code
        self._limits = limits
        self._environment = environment
        self._command = (*command, str(limits.memory_bytes), str(limits.cpu_seconds))
        self._places = FairPlaces(num_workers)
        self._threads = ThreadPoolExecutor(2 * num_workers, thread_name_prefix="workers")
        self._max_idle = num_workers
        self._idle: list[Process] = []

    async def run(self, request: Callable[[IO[bytes], IO[bytes]], ResultT], *, what: str, client: str = "") -> ResultT:
        """Runs a job in a worker.

        Args:
            request: Sends the job to the worker's standard input and reads the result from its standard output;
                blocks. Raises MediaError if the worker reports a failure, and OSError, EOFError or TransportError if
                the worker fails itself.
            what: Name of the files in error messages, such as "video".
            client: Whose job it is. Clients that wait get workers in turn.

        Raises:
            MediaError: From `request`; `crash_code` if the job crashed the worker; TOO_LARGE if the job took too long;
                WORKER_KILLED if two workers in a row were killed from outside.
        """
        running = _Running()
        loop = asyncio.get_running_loop()
        # A cancelled job has its place until its worker is free again.
        job = await self._places.submit(self._threads, client, partial(self._run, running, request))
        try:
            async with asyncio.timeout(self._limits.timeout_seconds):
                return await asyncio.wrap_future(job)
        except TimeoutError:
            running.kill()
            raise _too_long(what, self._limits.timeout_seconds) from None
        except _OutOfTimeError:
            raise _too_long(what, self._limits.cpu_seconds) from None
        except _CrashedError as error:
            message = f"the {what} cannot be decoded: it crashed the decoder"
            raise MediaError(self._crash_code, message) from error
        except _KilledError as error:
            message = f"the {what} was not decoded: the server's decoder was killed; retry the request"
            raise MediaError(MediaErrorCode.WORKER_KILLED, message) from error
        except asyncio.CancelledError:
            loop.call_later(_GRACE_SECONDS, running.kill)
            raise
        finally:
            del job  # an error's traceback leads to this frame, which must not lead back to the error

    async def warm(self) -> None:
        """Starts a worker in advance, unless one is idle."""
        if not self._idle:
            self._idle.append(await asyncio.to_thread(self._start))

    async def close(self) -> None:
        """Ends the workers after their current jobs."""
        await asyncio.to_thread(self._threads.shutdown)
        while self._idle:
            await asyncio.to_thread(end_worker, self._idle.pop())

    def _run(self, running: "_Running", request: Callable[[IO[bytes], IO[bytes]], ResultT]) -> ResultT:
        with contextlib.suppress(IndexError, _CrashedError, _KilledError):
            # An idle worker may have died before this job, which is not the job's fault: retry in a new one.
            return self._run_in_process(self._idle.pop(), running, request)
        with contextlib.suppress(_KilledError):
            return self._run_in_process(self._start(), running, request)
        return self._run_in_process(self._start(), running, request)

    def _run_in_process(
        self, process: Process, running: "_Running", request: Callable[[IO[bytes], IO[bytes]], ResultT]
    ) -> ResultT:
        """Raises MediaError, _OutOfTimeError, _CrashedError or _KilledError."""
        running.begin(process)
        is_reusable = False
        try:
            if process.stdin is None or process.stdout is None:
                raise EOFError
            result = request(process.stdin, process.stdout)
            is_reusable = True
            return result
        except MediaError:
            is_reusable = True
            raise
        except (OSError, EOFError, TransportError) as error:
            raise _failure(process, is_ours=running.is_killed) from error
        finally:
            if running.finish() and is_reusable and len(self._idle) < self._max_idle:
                self._idle.append(process)
            else:
                end_worker(process)

    def _start(self) -> Process:
        process = start_worker(self._command, self._environment())
        for pipe in (process.stdin, process.stdout):
            if pipe is not None and hasattr(fcntl, "F_SETPIPE_SZ"):
                with contextlib.suppress(OSError):  # the user's quota for pipes is used up; smaller pipes work too
                    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        return process


class _Running:
    """The worker of a running job, which another thread may kill."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Process | None = None
        self._is_killed = False

    def begin(self, process: Process) -> None:
        with self._lock:
            self._process = process
            if self._is_killed:
                process.kill()

    @property
    def is_killed(self) -> bool:
        """Whether `kill` was called."""
        return self._is_killed

    def finish(self) -> bool:
        """Releases the worker. Returns whether it may run another job."""
        with self._lock:
            self._process = None
            return not self._is_killed

    def kill(self) -> None:
        """Kills the worker unless the job is finished."""
        with self._lock:
            self._is_killed = True
            if self._process is not None:
                self._process.kill()


def _failure(process: Process, *, is_ours: bool) -> type[Exception]:
    """Says why a worker ended, or ends it. `is_ours`: we have killed it."""
    with contextlib.suppress(subprocess.TimeoutExpired):  # it sent nonsense and still runs
        process.wait(_EXIT_SECONDS)
    if process.returncode == -signal.SIGXCPU:
        return _OutOfTimeError
    # No limit of a worker ends in these signals: one of memory ends in a reply, SIGABRT or SIGSEGV.
    is_killed = process.returncode in (-signal.SIGKILL, -signal.SIGTERM)
    return _KilledError if is_killed and not is_ours else _CrashedError


def _too_long(what: str, seconds: float) -> MediaError:
    return MediaError(
        MediaErrorCode.TOO_LARGE, f"expected decoding of the {what} to take at most {seconds:g} s; send a smaller file"
    )
