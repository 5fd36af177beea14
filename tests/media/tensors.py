"""Serialized tensors for tests: valid ones of an image of 4 tokens, and hostile ones.

The model takes 64 values per token, and the grid is 1×4×4 patches.
"""

import io
import json
import os
import pickle
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

HIDDEN_SIZE = 64
NUM_TOKENS = 4
GRID_THW = (1, 4, 4)
COMMANDED = f"{tempfile.gettempdir()}/glimpse-command-{os.getpid()}"
"""A file that exists if a pickle has run its command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """A serialized tensor that must be refused."""

    name: str
    data: bytes
    message: str
    """Part of the error message."""
    code: str = "invalid_embeddings"


def good(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns embeddings of an image."""
    return torch.randn(NUM_TOKENS, HIDDEN_SIZE, generator=torch.Generator().manual_seed(0)).to(dtype)


def good_grid() -> torch.Tensor:
    return torch.tensor([GRID_THW])


def torch_file(value: object, **options: Any) -> bytes:
    """Returns a file of `torch.save`."""
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def safetensors_file(value: torch.Tensor) -> bytes:
    return save({"embeddings": value.contiguous()})


def claiming(body: bytes = b"\0" * 1024, **members: Any) -> bytes:
    """Returns a safetensors file with these header members and the body of `good()`."""
    entry = {"dtype": "F32", "shape": [NUM_TOKENS, HIDDEN_SIZE], "data_offsets": [0, len(body)]} | members
    return with_header(json.dumps({"x": entry}).encode(), body)


def with_header(header: bytes, body: bytes = b"", *, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + body


def rewritten(
    change: Callable[[str, bytes], bytes] = lambda _, data: data, compression: int = zipfile.ZIP_STORED
) -> bytes:
    """Returns the file of `good()` by `torch.save` with changed contents of its entries."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(torch_file(good()))) as old, zipfile.ZipFile(file, "w", compression) as new:
        for name in old.namelist():
            entry = zipfile.ZipInfo(name)  # without a time, so that the file is the same each time
            entry.compress_type = compression
            new.writestr(entry, change(name, old.read(name)))
    return file.getvalue()


def with_pickle(data: bytes) -> bytes:
    return rewritten(lambda name, old: data if name.endswith("data.pkl") else old)


class Command:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (COMMANDED,)


def _lying_storage(name: str, data: bytes) -> bytes:
    """Claims a thousand times as many elements as there are."""
    few, many = (
        struct.pack("<BH", 0x4D, NUM_TOKENS * HIDDEN_SIZE),
        struct.pack("<Bi", 0x4A, 1000 * NUM_TOKENS * HIDDEN_SIZE),
    )
    return data.replace(few, many) if name.endswith("data.pkl") else data


def _bomb() -> bytes:
    """Returns a small compressed archive of a large storage."""
    return rewritten(
        lambda name, data: bytes(1 << 26) if name.endswith("data/0") else data, compression=zipfile.ZIP_DEFLATED
    )


def _claiming_archive() -> bytes:
    """Returns an archive whose directory claims 4 GB for each entry."""
    data = bytearray(torch_file(good()))
    place = data.find(b"PK\x01\x02")
    while place >= 0:
        data[place + 20 : place + 28] = b"\xfe\xff\xff\xff" * 2
        place = data.find(b"PK\x01\x02", place + 4)
    return bytes(data)


def _many_entries() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for index in range(1000):
            archive.writestr(zipfile.ZipInfo(f"archive/{index}"), b"")
    return file.getvalue()


def _huge_pickle() -> bytes:
    return with_pickle(pickle.dumps([0] * 200_000, protocol=2))


def _scripted() -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), file)
    return file.getvalue()


def _quantized() -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        return torch_file(torch.quantize_per_tensor(good(), 0.1, 0, torch.qint8))


def _with(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    tensor = good(dtype)
    tensor[2, 7] = value
    return tensor


def _nested_header() -> bytes:
    return with_header(b'{"x":' + b"[" * 30_000 + b"]" * 30_000 + b"}")


def torch_files() -> Iterator[Hostile]:
    """Yields archives. Those with an innocent directory reach `torch.load`."""
    dense = "expected a dense tensor"
    yield Hostile(name="sparse", data=torch_file(good().to_sparse()), message=dense)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in beta
        yield Hostile(name="sparse rows", data=torch_file(good().to_sparse_csr()), message=dense)
    yield Hostile(name="quantized", data=_quantized(), message=dense)
    yield Hostile(name="meta", data=torch_file(good().to("meta")), message=dense)
    alone = "with a single tensor"
    yield Hostile(name="command", data=torch_file(Command()), message=alone)
    yield Hostile(name="module", data=torch_file(torch.nn.Linear(2, 2)), message=alone)
    yield Hostile(name="dict", data=torch_file({"image_embeds": good()}), message=alone)
    yield Hostile(name="list", data=torch_file([good()]), message=alone)
    yield Hostile(name="object array", data=torch_file(np.array([Command()], dtype=object)), message=alone)
    yield Hostile(name="other pickle", data=with_pickle(pickle.dumps(Command(), protocol=2)), message=alone)
    yield Hostile(name="script", data=_scripted(), message="without compression and encryption")
    yield Hostile(name="doubles", data=torch_file(good().double()), message="got torch.float64")
    yield Hostile(name="complex", data=torch_file(good().to(torch.complex64)), message="got torch.complex64")
    yield Hostile(name="truths", data=torch_file(good() > 0), message="got torch.bool")
    yield Hostile(
        name="repeated", data=torch_file(torch.zeros(1).expand(1 << 20, 1 << 20)), message="at most 67108864 bytes"
    )
    yield Hostile(name="no rank", data=torch_file(torch.tensor(1.0)), message="got 0 dimensions")
    yield Hostile(name="no tokens", data=torch_file(torch.zeros(0, HIDDEN_SIZE)), message="at least 1, got 0")
    yield Hostile(name="lying storage", data=rewritten(_lying_storage), message="the file of torch.save is corrupt")
    yield Hostile(name="no pickle", data=with_pickle(b"\x80\x02hello"), message="file of torch.save")
    yield Hostile(name="huge pickle", data=_huge_pickle(), message="that torch.save writes of one tensor")
    yield Hostile(name="cut short", data=torch_file(good())[:-100], message="corrupt or truncated")
    yield Hostile(name="bomb", data=_bomb(), message="without compression and encryption")
    yield Hostile(name="claims", data=_claiming_archive(), message="claims more bytes than it has")
    yield Hostile(name="many entries", data=_many_entries(), message="at most 64 entries")
    old = torch_file(good(), _use_new_zipfile_serialization=False)
    yield Hostile(name="old format", data=old, message="got a pickle", code="unsupported_media_format")


def safetensors_files() -> Iterator[Hostile]:
    corrupt, unknown = "the safetensors file is corrupt", "unsupported_media_format"
    neither = "got an unknown format"
    yield Hostile(name="nothing", data=b"", message=neither, code=unknown)
    yield Hostile(name="words", data=b"hello, here are embeddings", message=neither, code=unknown)
    yield Hostile(name="array file", data=b"\x93NUMPY\x01\0v\0{'descr'", message=neither, code=unknown)
    yield Hostile(name="long header", data=with_header(b"{}", length=1 << 62), message=corrupt)
    yield Hostile(name="endless header", data=with_header(b'{"a":"' + b" " * (1 << 20) + b'"}'), message=corrupt)
    yield Hostile(name="no JSON", data=with_header(b"{hello}"), message=corrupt)
    yield Hostile(name="deep JSON", data=_nested_header(), message=corrupt)
    yield Hostile(name="no UTF-8", data=with_header(b'{"\xff\xfe":{}}'), message=corrupt)
    yield Hostile(name="no tensor", data=with_header(b"{}"), message="with one tensor, got 0")
    yield Hostile(name="two tensors", data=save({"a": good(), "b": good()}), message="with one tensor, got 2")
    yield Hostile(name="huge", data=claiming(shape=[1 << 40, HIDDEN_SIZE]), message="got 1024")
    yield Hostile(name="overflow", data=claiming(shape=[1 << 62, 1 << 62]), message="expected more than 2^63 bytes")
    yield Hostile(name="no integer", data=claiming(shape=[10**400, 1]), message="expected more than 2^63 bytes")
    yield Hostile(name="negative", data=claiming(shape=[-NUM_TOKENS, -HIDDEN_SIZE]), message="at least 1, got -4")
    yield Hostile(name="zero", data=claiming(shape=[0, HIDDEN_SIZE]), message="at least 1, got 0")
    yield Hostile(name="many dimensions", data=claiming(shape=[1] * 9), message="at most 8 dimensions, got 9")
    yield Hostile(name="fractions", data=claiming(shape=[4.5, HIDDEN_SIZE]), message=corrupt)
    yield Hostile(name="beyond", data=claiming(data_offsets=[0, 4096]), message=corrupt)
    yield Hostile(name="backwards", data=claiming(data_offsets=[1024, 0]), message=corrupt)
    yield Hostile(name="unknown type", data=claiming(dtype="F64"), message="got 'F64'")
    yield Hostile(name="short body", data=safetensors_file(good())[:-1], message=corrupt)


def wrong_embeddings() -> Iterator[Hostile]:
    """Yields valid tensors that do not fit the model or the image."""
    nan, inf = float("nan"), float("inf")
    for name, tensor, message in [
        ("NaN", _with(nan), "expected finite values"),
        ("infinite", _with(-inf), "expected finite values"),
        ("NaN in half precision", _with(nan, torch.float16), "expected finite values"),
        ("infinite in bfloat16", _with(inf, torch.bfloat16), "expected finite values"),
        ("too large for half precision", _with(1e30, torch.bfloat16), "from -65504 to 65504"),
        ("a row", good().flatten(), "got 1 dimensions"),
        ("rank 4", good()[None, None], "got 4 dimensions"),
        ("several images", torch.stack([good()] * 2), "one media input, got 2"),
        ("wide", torch.cat([good()] * 2, dim=1), "expected 64 values per token, got 128"),
        ("the other way", good().T, "expected 64 values per token, got 4"),
        ("few tokens", good()[:3], "expected 4 tokens for a grid of 1×4×4 patches, got 3"),
        ("many tokens", torch.cat([good()] * 2), "expected 4 tokens for a grid of 1×4×4 patches, got 8"),
        ("integers", good().long(), "got int64"),
    ]:
        yield Hostile(name=name, data=safetensors_file(tensor), message=message)


def wrong_grids() -> Iterator[Hostile]:
    for name, grid, message in [
        ("fractions", torch.tensor([[1.0, 4, 4]]), "expected a tensor of type int64, got float32"),
        ("two numbers", torch.tensor([4, 4]), "expected a tensor [3] or [1, 3]"),
        ("two grids", torch.tensor([GRID_THW, GRID_THW]), "expected a tensor [3] or [1, 3]"),
        ("none", torch.tensor([0, 4, 4]), "in each dimension, got 0×4×4"),
        ("negative", torch.tensor([1, -4, -4]), "in each dimension, got 1×-4×-4"),
        ("odd", torch.tensor([1, 1, 16]), "multiples of 2 patches"),
        ("a video's", torch.tensor([4, 2, 2]), "expected 1 patch in time for an image, got 4"),
        ("endless", torch.tensor([1, 1 << 62, 1 << 62]), "expected 5316911983139663491615228241121378304 tokens"),
    ]:
        yield Hostile(name=name, data=safetensors_file(grid), message=message)
