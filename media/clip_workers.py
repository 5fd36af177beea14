"""Video files decoded in other processes: one file each at a time, with bounds on memory and time.

A process that crashes, or is killed because it takes too long or nobody waits for it any more, costs one clip; the next
file gets a new one. What comes back is not trusted either: its size is checked, and the clip's key is made here.
"""

import asyncio
import contextlib
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import IO, TypeAlias, assert_never

import numpy as np

from media.clip import Clip, VideoProcessing, clip_of_pixels
from media.clip_jobs import Decoded, Job, Refused, StreamEndedError, read_exactly, read_result, write_message
from media.clip_options import LARGEST_TOTAL_PIXELS, ClipOptions
from media.errors import MediaError, MediaErrorCode

Process: TypeAlias = "subprocess.Popen[bytes]"
WORKER_COMMAND = (sys.executable, "-m", "media.clip_worker")


class _LostError(Exception):
    """A process that died, or made no sense."""


class ClipWorkers:
    """As many processes as files are decoded at the same time; each is started when it is first needed."""

    def __init__(
        self,
        *,
        num_workers: int,
        memory_bytes: int,
        timeout_seconds: float,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        """
        Args:
            num_workers: Files that are decoded at the same time; further ones wait.
            memory_bytes: Address space of each process.
            timeout_seconds: For decoding one file.
            command: Starts a process; the memory is its last argument.
        """
        self._timeout_seconds = timeout_seconds
        self._command = (*command, str(memory_bytes))
        self._turns = asyncio.Semaphore(num_workers)
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="clip-workers")
        self._idle: list[Process] = []

    async def clip_of_file(self, data: bytes, processing: VideoProcessing, options: ClipOptions) -> Clip:
        """As `media.clip_file.clip_of_file`.

        Raises:
            MediaError: also INVALID_MEDIA where the process died, TOO_LARGE where it took too long.
        """
        job = _Running()
        decode = (self._decode, job, data, processing, options)
        async with self._turns:
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    return await asyncio.get_running_loop().run_in_executor(self._threads, *decode)
            except TimeoutError:
                message = f"the video takes longer than {self._timeout_seconds:g} s to decode"
                raise MediaError(MediaErrorCode.TOO_LARGE, message) from None
            finally:
                job.give_up()

    async def close(self) -> None:
        """Ends the processes; what they have begun is awaited."""
        await asyncio.to_thread(self._threads.shutdown)
        while self._idle:
            await asyncio.to_thread(_end, self._idle.pop())

    def _decode(self, job: "_Running", data: bytes, processing: VideoProcessing, options: ClipOptions) -> Clip:
        ask = partial(_ask, data=data, processing=processing, options=options)
        with contextlib.suppress(IndexError, _LostError):
            # One that is lost may have died while it had nothing to do: that is not this file's fault.
            return self._in_process(self._idle.pop(), job, ask)
        try:
            return self._in_process(self._start(), job, ask)
        except _LostError as error:
            message = "the video cannot be decoded: it stopped the decoder"
            raise MediaError(MediaErrorCode.INVALID_MEDIA, message) from error

    def _in_process(self, process: Process, job: "_Running", ask: Callable[[Process], Clip]) -> Clip:
        """Raises MediaError, or _LostError where the process has no answer."""
        job.begin(process)
        is_healthy = True
        try:
            return ask(process)
        except (OSError, StreamEndedError) as error:
            is_healthy = False
            raise _LostError from error
        finally:
            if job.finish() and is_healthy:
                self._idle.append(process)
            else:
                _end(process)

    def _start(self) -> Process:
        # One thread: libraries that reserve memory for each would use up the address space.
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


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


def _ask(process: Process, data: bytes, processing: VideoProcessing, options: ClipOptions) -> Clip:
    """Blocks. Raises MediaError for what the process says, OSError or StreamEndedError where it says nothing."""
    if process.stdin is None or process.stdout is None:
        raise StreamEndedError
    write_message(process.stdin, Job(processing=processing, options=options, num_bytes=len(data)), data)
    result = read_result(process.stdout)
    match result:
        case Refused(code=code, message=message):
            raise MediaError(code, message)
        case Decoded():
            return _read_clip(process.stdout, result, processing)
        case _:
            assert_never(result)


def _read_clip(stream: IO[bytes], decoded: Decoded, processing: VideoProcessing) -> Clip:
    largest = processing.temporal_patch_size * LARGEST_TOTAL_PIXELS * 3
    if decoded.shape[3] != 3 or min(decoded.shape) < 1 or math.prod(decoded.shape) > largest:
        raise StreamEndedError
    pixels = np.empty(decoded.shape, np.uint8)
    read_exactly(stream, pixels.data.cast("B"))
    return clip_of_pixels(pixels, processing, frame_seconds=decoded.frame_seconds, fps=decoded.fps)


def _end(process: Process) -> None:
    process.kill()
    with contextlib.suppress(OSError), process:  # closes the streams, and waits
        pass
