"""Processes that decode files for others: one job each at a time, with bounds on memory and time.

A process that crashes, or is killed because it takes too long or nobody waits for it any more, costs one job; the next
gets a new process. Knows what jobs cost and nothing of what they are: `glimpse.media.decoding.worker_client` does.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, TypeAlias, TypeVar

from glimpse.media.decoding.framing import StreamEndedError
from glimpse.media.errors import MediaError, MediaErrorCode

ResultT = TypeVar("ResultT")
Process: TypeAlias = "subprocess.Popen[bytes]"

WORKER_COMMAND = (sys.executable, "-m", "glimpse.media.decoding.worker")

_PIPE_BYTES = 1 << 20
"""As much as Linux lets anyone have: a small picture crosses without a wait."""
_GRACE_SECONDS = 1.0
"""Given to a job whose caller has left: most end by then, and a new process costs more than what is left of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """What one process may use."""

    memory_bytes: int
    """Address space."""
    cpu_seconds: int
    """Processor time for one job."""
    timeout_seconds: float
    """From a job's beginning to its end, a process's start among it: for one that waits for what never comes."""


class _LostError(Exception):
    """A process that died, or made no sense."""


class _OutOfTimeError(Exception):
    """A process that the kernel ended because a job took too much of the processor."""


class WorkerPool:
    """As many processes as there are jobs at the same time; each is started when it is first needed."""

    def __init__(
        self,
        *,
        num_workers: int,
        limits: WorkerLimits,
        environment: Callable[[], dict[str, str]],
        command: Sequence[str] = WORKER_COMMAND,
        code_of_lost: MediaErrorCode = MediaErrorCode.INVALID_MEDIA,
    ) -> None:
        """
        Args:
            num_workers: Jobs at the same time; further ones wait.
            limits: Of each process.
            environment: Variables for it beside this process's; may take time to find out.
            command: Starts a process; its limits are its last arguments.
            code_of_lost: Of the error for files at which a process died.
        """
        self._code_of_lost = code_of_lost
        self._limits = limits
        self._environment = environment
        self._command = (*command, str(limits.memory_bytes), str(limits.cpu_seconds))
        self._turns = asyncio.Semaphore(num_workers)
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="workers")
        self._idle: list[Process] = []

    async def run(self, ask: Callable[[IO[bytes], IO[bytes]], ResultT], *, what: str) -> ResultT:
        """Gives a process a job and takes its result.

        Args:
            ask: Does both, blocking, over the process's input and output. It raises MediaError for what the process
                says against the files, and OSError or StreamEndedError where the process says nothing or no sense.
            what: Messages to clients call the files so, such as "video".

        Raises:
            MediaError: `ask`'s; `code_of_lost` where the process died; TOO_LARGE where it took too long.
        """
        running = _Running()
        loop = asyncio.get_running_loop()
        async with self._turns:
            try:
                async with asyncio.timeout(self._limits.timeout_seconds):
                    return await loop.run_in_executor(self._threads, self._run, running, ask)
            except TimeoutError:
                running.give_up()
                raise _too_long(what, self._limits.timeout_seconds) from None
            except _OutOfTimeError:
                raise _too_long(what, self._limits.cpu_seconds) from None
            except _LostError as error:
                message = f"the {what} cannot be decoded: it stopped the decoder"
                raise MediaError(self._code_of_lost, message) from error
            except asyncio.CancelledError:
                loop.call_later(_GRACE_SECONDS, running.give_up)
                raise

    async def warm(self) -> None:
        """Starts a process before it is needed, if there is none yet that has nothing to do."""
        if not self._idle:
            self._idle.append(await asyncio.to_thread(self._start))

    async def close(self) -> None:
        """Ends the processes; jobs that run are awaited."""
        await asyncio.to_thread(self._threads.shutdown)
        while self._idle:
            await asyncio.to_thread(_end, self._idle.pop())

    def _run(self, running: "_Running", ask: Callable[[IO[bytes], IO[bytes]], ResultT]) -> ResultT:
        with contextlib.suppress(IndexError, _LostError):
            # One that is lost may have died while it had nothing to do: that is not this job's fault.
            return self._in_process(self._idle.pop(), running, ask)
        return self._in_process(self._start(), running, ask)

    def _in_process(
        self, process: Process, running: "_Running", ask: Callable[[IO[bytes], IO[bytes]], ResultT]
    ) -> ResultT:
        """Raises MediaError, _OutOfTimeError, or _LostError where the process has no answer."""
        running.begin(process)
        is_in_step = False
        try:
            if process.stdin is None or process.stdout is None:
                raise StreamEndedError
            result = ask(process.stdin, process.stdout)
            is_in_step = True
            return result
        except MediaError:
            is_in_step = True
            raise
        except (OSError, StreamEndedError) as error:
            _end(process)
            raise (_OutOfTimeError if process.returncode == -signal.SIGXCPU else _LostError) from error
        finally:
            if running.finish() and is_in_step:
                self._idle.append(process)
            else:
                _end(process)

    def _start(self) -> Process:
        # One thread: libraries that reserve memory for each would use up the address space.
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"} | self._environment()
        process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None and hasattr(fcntl, "F_SETPIPE_SZ"):
                with contextlib.suppress(OSError):  # the user's pipes have had their share; smaller ones do
                    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        return process


class _Running:
    """A job's hold on the process that works at it, which may be killed from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Process | None = None
        self._is_given_up = False

    def begin(self, process: Process) -> None:
        with self._lock:
            self._process = process
            if self._is_given_up:
                process.kill()

    def finish(self) -> bool:
        """Lets go of the process; whether it may serve another job."""
        with self._lock:
            self._process = None
            return not self._is_given_up

    def give_up(self) -> None:
        """Kills the process unless the job is finished."""
        with self._lock:
            self._is_given_up = True
            if self._process is not None:
                self._process.kill()


def _end(process: Process) -> None:
    process.kill()
    with contextlib.suppress(OSError), process:  # closes the streams, and waits
        pass


def _too_long(what: str, seconds: float) -> MediaError:
    return MediaError(MediaErrorCode.TOO_LARGE, f"the {what} takes longer than {seconds:g} s to decode")
