"""What `torch.save` wrote, loaded in a process of its own: what that is asked, and what of its answers is believed.

Torch is imported there and nowhere in a server. A process's first file takes the seconds that importing torch takes.
What comes back is a stranger's: its size is checked before there is memory for it, then the tensor like any other.
"""

import asyncio
import math
import sys
from collections.abc import Sequence
from functools import partial
from typing import IO, assert_never

import msgspec

from glimpse.media.decoding.framing import StreamEndedError, read_exactly, read_message, write_message
from glimpse.media.decoding.worker_pool import WorkerLimits, WorkerPool
from glimpse.media.embeddings.tensor import Tensor, TensorType, invalid, make_tensor
from glimpse.media.embeddings.tensor_file import MAX_BYTES, check_torch_file
from glimpse.media.errors import MediaErrorCode

WORKER_COMMAND = (sys.executable, "-m", "glimpse.media.embeddings.torch_worker")
LIMITS = WorkerLimits(memory_bytes=8 * MAX_BYTES, cpu_seconds=60, timeout_seconds=60)
"""The memory is beside what torch takes: a file, its bytes on their way, the tensor in it, a copy in a row; twice."""


class File(msgspec.Struct, frozen=True, kw_only=True):
    """The file that follows."""

    num_bytes: int


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """The tensor whose elements follow."""

    dtype: TensorType
    shape: tuple[int, ...]


class NotLoaded(msgspec.Struct, frozen=True, kw_only=True, tag="not loaded"):
    """Nothing can be made of the file."""

    message: str


_file = msgspec.json.Decoder(File)
_result: msgspec.json.Decoder[Loaded | NotLoaded] = msgspec.json.Decoder(Loaded | NotLoaded)


class TorchFileLoader:
    """Loads the files of all requests, of one event loop, one at a time."""

    def __init__(self, *, limits: WorkerLimits = LIMITS, command: Sequence[str] = WORKER_COMMAND) -> None:
        """
        Args:
            limits: Of the process.
            command: Starts it.
        """
        self._workers = WorkerPool(
            num_workers=1,
            limits=limits,
            environment=dict,
            command=command,
            code_of_lost=MediaErrorCode.INVALID_EMBEDDINGS,
        )

    async def load(self, data: bytes) -> Tensor:
        """The dense tensor in a file; one that waits may be cancelled at any time.

        Raises:
            MediaError: INVALID_EMBEDDINGS, or TOO_LARGE where it took too long.
        """
        await asyncio.to_thread(check_torch_file, data)
        return await self._workers.run(partial(_ask, data), what="tensor")

    async def close(self) -> None:
        """Ends the process; what it has begun is awaited."""
        await self._workers.close()


def _ask(data: bytes, to: IO[bytes], back: IO[bytes]) -> Tensor:
    """Blocks. Raises MediaError for what the process says, OSError or StreamEndedError where it says nothing."""
    write_message(to, File(num_bytes=len(data)), data)
    try:
        result = _result.decode(read_message(back))
    except msgspec.DecodeError as error:
        raise StreamEndedError from error
    match result:
        case Loaded(dtype=dtype, shape=shape):
            num_bytes = math.prod(shape) * dtype.num_bytes
            if not 0 <= num_bytes <= MAX_BYTES:
                raise StreamEndedError
            elements = bytearray(num_bytes)
            read_exactly(back, memoryview(elements))
            return make_tensor(dtype, shape, elements)
        case NotLoaded(message=message):
            raise invalid(message)
        case _:
            assert_never(result)


def read_file(stream: IO[bytes]) -> bytes | None:
    """The process's side: the next file; None once there are no more."""
    try:
        file = _file.decode(read_message(stream))
    except StreamEndedError:
        return None
    return stream.read(file.num_bytes)
