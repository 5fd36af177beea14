"""Client of the worker process that loads files of `torch.save`.

Only the worker imports torch, so its first file takes the seconds of that import. A worker may have been compromised by
a file, so its results are not trusted: sizes are checked before memory is allocated, then the tensor like any other.
"""

import asyncio
import math
import sys
from collections.abc import Sequence
from functools import partial
from typing import IO, assert_never

import msgspec

from glimpse.frames import Frames, TransportError, read_exactly, write_message
from glimpse.media.decoding.worker_pool import WorkerLimits, WorkerPool
from glimpse.media.embeddings.tensor import Tensor, TensorType, invalid, make_tensor
from glimpse.media.embeddings.tensor_file import MAX_BYTES, check_torch_file
from glimpse.media.errors import MediaErrorCode

WORKER_COMMAND = (sys.executable, "-m", "glimpse.media.embeddings.torch_worker")
LIMITS = WorkerLimits(memory_bytes=8 * MAX_BYTES, cpu_seconds=60, timeout_seconds=60)
"""The memory is in addition to torch's: a file, its bytes in transit, the tensor and a contiguous copy, all twice."""


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A request; the file follows."""

    num_bytes: int


class LoadedTensor(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """A loaded tensor; its elements follow."""

    dtype: TensorType
    shape: tuple[int, ...]


class UnusableFile(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The file cannot be used."""

    message: str


_FILES = Frames[File](File)
_RESULTS = Frames[LoadedTensor | UnusableFile](LoadedTensor | UnusableFile, max_bytes=1 << 20)


class TorchFileLoader:
    """Loads the files of all requests of one event loop, one at a time."""

    def __init__(self, *, limits: WorkerLimits = LIMITS, command: Sequence[str] = WORKER_COMMAND) -> None:
        self._workers = WorkerPool(
            num_workers=1,
            limits=limits,
            environment=dict,
            command=command,
            crash_code=MediaErrorCode.INVALID_EMBEDDINGS,
        )

    async def load(self, data: bytes) -> Tensor:
        """Loads the dense tensor in a file. May be cancelled at any time.

        Raises:
            MediaError: INVALID_EMBEDDINGS, or TOO_LARGE if it took too long.
        """
        await asyncio.to_thread(check_torch_file, data)
        return await self._workers.run(partial(_request, data), what="tensor")

    async def close(self) -> None:
        """Ends the worker after its current file."""
        await self._workers.close()


def _request(data: bytes, stdin: IO[bytes], stdout: IO[bytes]) -> Tensor:
    """Blocks. Raises MediaError if the worker reports an error; OSError, EOFError or TransportError if it fails."""
    write_message(stdin, File(num_bytes=len(data)), data)
    result = _RESULTS.read(stdout)
    match result:
        case LoadedTensor(dtype=dtype, shape=shape):
            num_bytes = math.prod(shape) * dtype.num_bytes
            if not 0 <= num_bytes <= MAX_BYTES:
                raise TransportError("the tensor is too large")
            elements = read_exactly(stdout, num_bytes)
            if elements is None:
                raise EOFError
            return make_tensor(dtype, shape, elements)
        case UnusableFile(message=message):
            raise invalid(message)
        case None:
            raise EOFError
        case _:
            assert_never(result)


def read_file(stream: IO[bytes]) -> bytes | None:
    """Reads the next file, in the worker. Returns None at the end of the stream."""
    file = _FILES.read(stream)
    return None if file is None else stream.read(file.num_bytes)
