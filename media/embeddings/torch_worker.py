"""Worker process that loads files of `torch.save`, which keeps torch and hostile files out of the server.

`python -m glimpse.media.embeddings.torch_worker MEMORY_BYTES CPU_SECONDS` reads files from standard input, writes
results to standard output and exits at the end of its input. It unpickles tensors only, and limits its memory in
addition to torch's own, and its CPU time for each file.
"""

import io
import os
import pickle
import sys
import warnings

import torch

from glimpse.frames import write_message
from glimpse.media.embeddings.tensor import TensorType, invalid
from glimpse.media.embeddings.tensor_file import MAX_BYTES
from glimpse.media.embeddings.torch_files import LoadedTensor, UnusableFile, read_file
from glimpse.media.errors import MediaError
from glimpse.media.workers.rlimits import limit_memory, limit_time, memory_in_use

_DTYPES = {getattr(torch, dtype): dtype for dtype in TensorType}


def main() -> None:
    """Loads files until the input ends."""
    memory_bytes, cpu_seconds = map(int, sys.argv[1:3])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch warns about clients' files
    limit_memory(memory_in_use() + memory_bytes)
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps what libraries print out of the results
    while (data := read_file(sys.stdin.buffer)) is not None:
        limit_time(cpu_seconds)
        write_message(results, *answer(data))
        del data  # frees the file while waiting for the next one


def answer(data: bytes) -> tuple[LoadedTensor | UnusableFile, memoryview]:
    """Returns the result for a file and the elements of its tensor."""
    nothing = memoryview(b"")
    try:
        loaded = _load(data)
    except MediaError as error:
        return UnusableFile(message=error.message), nothing
    except MemoryError:
        return UnusableFile(message="loading the tensor exceeds the loader's memory limit"), nothing
    elements = loaded.flatten().view(torch.uint8).numpy().data
    return LoadedTensor(dtype=_DTYPES[loaded.dtype], shape=tuple(loaded.shape)), elements


def _load(data: bytes) -> torch.Tensor:
    """Loads the dense tensor in a file and makes it contiguous.

    Raises:
        MediaError: INVALID_EMBEDDINGS.
    """
    try:
        value = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise invalid("expected a file of torch.save with a single tensor, got other objects") from error
    except MemoryError:
        raise
    except Exception as error:  # any failure of torch is the file's fault
        raise invalid("the file of torch.save is corrupt") from error
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise invalid("expected a file of torch.save with a single tensor, got another object")
    _check(value)
    return value.detach().resolve_neg().contiguous()


def _check(tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.device.type != "cpu":
        raise invalid("expected a dense tensor, got a sparse, quantized, nested or meta one")
    if tensor.dtype not in _DTYPES:
        raise invalid(f"expected a tensor of type {', '.join(TensorType)}, got {tensor.dtype}")
    # A view can be larger than the stored elements.
    if tensor.numel() * tensor.element_size() > MAX_BYTES:
        raise invalid(f"expected a tensor of at most {MAX_BYTES} bytes, got more")


if __name__ == "__main__":
    main()
