"""Fuzz targets and seeds for embeddings.

They are separate from other targets because importing torch takes seconds. Files of `torch.save` are loaded completely,
as in the process of `glimpse.media.embeddings.torch_worker`: only weights are unpickled, so no code of the input runs.
"""

import io
import os
import zipfile
from collections.abc import Callable
from contextlib import suppress

import torch

from glimpse.media.embeddings.tensor import Tensor, largest_magnitude, make_tensor
from glimpse.media.embeddings.tensor_file import check_torch_file, is_torch_file, read_safetensors
from glimpse.media.embeddings.torch_files import LoadedTensor
from glimpse.media.embeddings.torch_worker import answer
from glimpse.media.errors import MediaError
from tests.fuzz.targets import MAX_INPUT_BYTES
from tests.media.tensors import COMMANDED, good, safetensors_file, safetensors_files, torch_file, torch_files


def fuzz_tensor(data: bytes) -> None:
    """Reads serialized embeddings, in safetensors or archives of torch.save."""
    with suppress(MediaError):
        tensor = _loaded(data) if is_torch_file(data) else read_safetensors(data)
        if tensor is not None:
            largest_magnitude(tensor)


def fuzz_pickle(data: bytes) -> None:
    """Reads an archive with this pickle and otherwise valid entries."""
    with suppress(MediaError):
        _loaded(_archive(data))


def _loaded(data: bytes) -> Tensor | None:
    """Returns the tensor that the front end receives for an archive, if it contains one."""
    check_torch_file(data)
    result, elements = answer(data)
    return make_tensor(result.dtype, result.shape, elements) if isinstance(result, LoadedTensor) else None


def _entries(archive: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


_GOOD = _entries(torch_file(good()))


def _archive(pickled: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, body in _GOOD.items():
            archive.writestr(name, pickled if name.endswith("data.pkl") else body)
    return file.getvalue()


class _Call:
    """Calls a function when it is unpickled, like a hostile object, but always the same function."""

    def __reduce__(self) -> tuple[Callable[[], int], tuple[()]]:
        return os.getpid, ()


def _hostile_archives() -> list[bytes]:
    """Returns the hostile archives that are the same in every run. Others contain this process's id or addresses."""
    torch.manual_seed(0)  # for the weights of modules
    archives = [hostile.data for hostile in torch_files() if hostile.name != "old format"]
    return [archive for archive in archives if COMMANDED.encode() not in archive]


def _pickles() -> list[bytes]:
    """Returns pickles of tensors, of other objects, and of hostile objects."""
    values = [good(), good(torch.bfloat16).T, torch.nn.Parameter(good()), good().to_sparse(), {"a": [good()]}, _Call()]
    archives = [torch_file(value) for value in values] + _hostile_archives()
    pickles: list[bytes] = []
    for archive in archives:
        with suppress(zipfile.BadZipFile, EOFError, ValueError, NotImplementedError):
            pickles += (body for name, body in _entries(archive).items() if name.endswith("data.pkl"))
    return pickles


def _files() -> list[bytes]:
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.float64)
    tensors = [torch.ones(2, 4, dtype=dtype) for dtype in dtypes]
    made = [file(tensor) for tensor in tensors for file in (torch_file, safetensors_file)]
    return [*made, torch_file(_Call()), *_hostile_archives(), *(hostile.data for hostile in safetensors_files())]


TARGETS: dict[str, Callable[[bytes], None]] = {"tensor": fuzz_tensor, "pickle": fuzz_pickle}
_SEEDS = {"tensor": _files, "pickle": _pickles}


def seeds_of(target: str) -> list[bytes]:
    """Returns the seeds of a target that are within the maximum input size."""
    return [seed for seed in _SEEDS[target]() if len(seed) <= MAX_INPUT_BYTES]
