"""The fuzzing of embeddings: what is fuzzed, and what that begins with.

Apart from other targets because of torch, which takes seconds to import. Files of `torch.save` go the whole way, as in
`glimpse.media.embeddings.torch_worker`'s process: only weights are unpickled, so no code of the fuzzer's is run.
"""

import io
import os
import zipfile
from collections.abc import Callable
from contextlib import suppress

import torch

from glimpse.media.embeddings.tensor import Tensor, largest_magnitude, make_tensor
from glimpse.media.embeddings.tensor_file import check_torch_file, is_torch_file, read_safetensors
from glimpse.media.embeddings.torch_files import Loaded
from glimpse.media.embeddings.torch_worker import answer
from glimpse.media.errors import MediaError
from tests.fuzz.targets import MAX_INPUT_BYTES
from tests.media.tensors import COMMANDED, good, safetensors_file, safetensors_files, torch_file, torch_files


def fuzz_tensor(data: bytes) -> None:
    """Serialised embeddings, in safetensors or archives of torch.save."""
    with suppress(MediaError):
        tensor = _loaded(data) if is_torch_file(data) else read_safetensors(data)
        if tensor is not None:
            largest_magnitude(tensor)


def fuzz_pickle(data: bytes) -> None:
    """The pickle in an archive whose other parts are as they should be."""
    with suppress(MediaError):
        _loaded(_archive(data))


def _loaded(data: bytes) -> Tensor | None:
    """What the front end gets of an archive, if it is a tensor."""
    check_torch_file(data)
    result, elements = answer(data)
    return make_tensor(result.dtype, result.shape, elements) if isinstance(result, Loaded) else None


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
    """Calls a function when it is unpickled, as hostile ones do, and always the same."""

    def __reduce__(self) -> tuple[Callable[[], int], tuple[()]]:
        return os.getpid, ()


def _hostile_archives() -> list[bytes]:
    """Without those that are new each time: they name this process, or its addresses."""
    torch.manual_seed(0)  # of modules' weights
    archives = [hostile.data for hostile in torch_files() if hostile.name != "old format"]
    return [archive for archive in archives if COMMANDED.encode() not in archive]


def _pickles() -> list[bytes]:
    """Those of tensors, of other things, and of such as mean no good."""
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
    """A target's, each small enough to be changed often."""
    return [seed for seed in _SEEDS[target]() if len(seed) <= MAX_INPUT_BYTES]
