"""What `torch.save` wrote, loaded in a process of its own: one file at a time, with bounds on memory and time.

Torch is imported there and nowhere in a server. A process that crashes or takes too long costs one file; the next gets
a new one, and its first takes the seconds that importing torch takes. What comes back is checked like any tensor.
"""

import asyncio
import contextlib
import os
import struct
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from typing import IO, assert_never

import msgspec

from media.errors import MediaError, MediaErrorCode
from media.tensor import Tensor, TensorType, invalid, make_tensor
from media.tensor_file import MAX_BYTES, check_torch_file

WORKER_COMMAND = (sys.executable, "-m", "media.torch_worker")
TIMEOUT_SECONDS = 60.0

_LENGTH = struct.Struct("<I")
_MAX_RESULT_BYTES = 64 << 10


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """The tensor whose elements follow."""

    dtype: TensorType
    shape: tuple[int, ...]


class NotLoaded(msgspec.Struct, frozen=True, kw_only=True, tag="not loaded"):
    """Nothing can be made of the file."""

    message: str


_result: msgspec.json.Decoder[Loaded | NotLoaded] = msgspec.json.Decoder(Loaded | NotLoaded)


class TorchFiles:
    """Loads the files of all requests, of one event loop. The process is started when the first comes."""

    def __init__(self, *, timeout_seconds: float = TIMEOUT_SECONDS, command: Sequence[str] = WORKER_COMMAND) -> None:
        """
        Args:
            timeout_seconds: For loading one file, the start of the process included.
            command: Starts the process.
        """
        self._timeout_seconds = timeout_seconds
        self._command = command
        self._turn = asyncio.Lock()
        self._process: Process | None = None

    async def load(self, data: bytes) -> Tensor:
        """The dense tensor in a file; one that waits may be cancelled at any time.

        Raises:
            MediaError: INVALID_EMBEDDINGS, or TOO_LARGE where it took too long.
        """
        await asyncio.to_thread(check_torch_file, data)
        async with self._turn:
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    return await self._ask(data)
            except TimeoutError:
                message = f"the tensor takes longer than {self._timeout_seconds:g} s to load"
                raise MediaError(MediaErrorCode.TOO_LARGE, message) from None
            except (OSError, asyncio.IncompleteReadError, msgspec.DecodeError) as error:
                raise invalid("the file cannot be loaded: it stopped the loader") from error

    async def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()  # closes the streams, and waits

    async def _ask(self, data: bytes) -> Tensor:
        process = self._process
        if process is None or process.returncode is not None:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=PIPE, env=environment)
            self._process = process
        is_in_step = False
        try:
            result, payload = await _converse(process, data)
            is_in_step = True
        finally:
            if not is_in_step:
                await asyncio.shield(self.close())
        match result:
            case Loaded():
                return make_tensor(result.dtype, result.shape, payload)
            case NotLoaded():
                raise invalid(result.message)
            case _:
                assert_never(result)


async def _converse(process: Process, data: bytes) -> tuple[Loaded | NotLoaded, bytes]:
    """Gives the process a file and takes what it says."""
    if process.stdin is None or process.stdout is None:
        raise BrokenPipeError
    process.stdin.write(_LENGTH.pack(len(data)))
    process.stdin.write(data)
    await process.stdin.drain()
    result = _result.decode(await _read(process.stdout, _MAX_RESULT_BYTES))
    return result, await _read(process.stdout, MAX_BYTES)


async def _read(stream: asyncio.StreamReader, max_bytes: int) -> bytes:
    (num_bytes,) = _LENGTH.unpack(await stream.readexactly(_LENGTH.size))
    if num_bytes > max_bytes:
        raise asyncio.IncompleteReadError(b"", num_bytes)
    return await stream.readexactly(num_bytes)


def read_file(stream: IO[bytes]) -> bytes | None:
    """The process's side: the next file; None once there are no more."""
    length = stream.read(_LENGTH.size)
    if len(length) < _LENGTH.size:
        return None
    return stream.read(_LENGTH.unpack(length)[0])


def write_result(stream: IO[bytes], result: Loaded | NotLoaded, payload: bytes | memoryview = b"") -> None:
    """The process's side: a result, and the elements of a tensor."""
    encoded = msgspec.json.encode(result)
    stream.write(_LENGTH.pack(len(encoded)) + encoded)
    stream.write(_LENGTH.pack(len(payload)))
    stream.write(payload)
    stream.flush()
