"""A process that loads what `torch.save` wrote, so that neither torch nor what is wrong with a file is in the server.

`python -m glimpse.media.embeddings.torch_worker MEMORY_BYTES CPU_SECONDS`: files come on standard input, results go to
standard output, and the process ends when its input does. Nothing but tensors is unpickled. Beside what torch takes it
may have no more memory than said, and no more processor time for one file; it leaves no core.
"""

import io
import os
import pickle
import signal
import sys
import warnings

import torch

from glimpse.media.decoding.framing import write_message
from glimpse.media.decoding.rlimits import limit_memory, limit_time, memory_in_use
from glimpse.media.embeddings.tensor import TensorType, invalid
from glimpse.media.embeddings.tensor_file import MAX_BYTES
from glimpse.media.embeddings.torch_files import Loaded, NotLoaded, read_file
from glimpse.media.errors import MediaError

_DTYPES = {getattr(torch, dtype): dtype for dtype in TensorType}


def main() -> None:
    """Serves files."""
    memory_bytes, cpu_seconds = map(int, sys.argv[1:3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the front end, which lets running answers end
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch's, of what strangers send
    limit_memory(memory_in_use() + memory_bytes)
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no result
    while (data := read_file(sys.stdin.buffer)) is not None:
        limit_time(cpu_seconds)
        write_message(results, *answer(data))
        del data  # a file takes memory, and the next may be long in coming


def answer(data: bytes) -> tuple[Loaded | NotLoaded, memoryview]:
    """What is said of a file, and the elements of its tensor."""
    nothing = memoryview(b"")
    try:
        loaded = _load(data)
    except MediaError as error:
        return NotLoaded(message=error.message), nothing
    except MemoryError:
        return NotLoaded(message="the tensor takes more memory to load than there is"), nothing
    elements = loaded.flatten().view(torch.uint8).numpy().data
    return Loaded(dtype=_DTYPES[loaded.dtype], shape=tuple(loaded.shape)), elements


def _load(data: bytes) -> torch.Tensor:
    """The dense tensor in a file, its elements in a row.

    Raises:
        MediaError: INVALID_EMBEDDINGS.
    """
    try:
        value = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise invalid("what torch.save wrote is not a tensor alone: nothing else is unpickled") from error
    except MemoryError:
        raise
    except Exception as error:  # whatever torch stumbles over is in the file
        raise invalid("what torch.save wrote is damaged") from error
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise invalid("what torch.save wrote is not a tensor alone")
    _check(value)
    return value.detach().resolve_neg().contiguous()


def _check(tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.device.type != "cpu":
        raise invalid("the tensor is sparse, quantised, nested or without data; a dense one is expected")
    if tensor.dtype not in _DTYPES:
        raise invalid(f"the tensor is of type {tensor.dtype}; {', '.join(TensorType)} are accepted")
    # A view can repeat the few elements that are stored.
    if tensor.numel() * tensor.element_size() > MAX_BYTES:
        raise invalid(f"the tensor has more than {MAX_BYTES} bytes")


if __name__ == "__main__":
    main()
