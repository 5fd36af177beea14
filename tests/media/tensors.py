"""Serialised tensors for the tests: good ones of a picture of 4 tokens, and such as somebody with bad intentions sends.

The model takes 64 values a token, and the grid is 1×4×4 patches.
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
"""Is there once a pickle has run a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """A serialised tensor that is refused."""

    name: str
    data: bytes
    says: str
    """In its refusal."""
    code: str = "invalid_embeddings"


def good(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Embeddings of a picture."""
    return torch.randn(NUM_TOKENS, HIDDEN_SIZE, generator=torch.Generator().manual_seed(0)).to(dtype)


def good_grid() -> torch.Tensor:
    return torch.tensor([GRID_THW])


def torch_file(value: object, **options: Any) -> bytes:
    """What `torch.save` writes."""
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def safetensors_file(value: torch.Tensor) -> bytes:
    return save({"embeddings": value.contiguous()})


def claiming(body: bytes = b"\0" * 1024, **members: Any) -> bytes:
    """A safetensors file whose header says what is said here of a body that is that of `good()`."""
    entry = {"dtype": "F32", "shape": [NUM_TOKENS, HIDDEN_SIZE], "data_offsets": [0, len(body)]} | members
    return with_header(json.dumps({"x": entry}).encode(), body)


def with_header(header: bytes, body: bytes = b"", *, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + body


def rewritten(
    change: Callable[[str, bytes], bytes] = lambda _, data: data, compression: int = zipfile.ZIP_STORED
) -> bytes:
    """What `torch.save` writes of `good()`, with other contents of its entries."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(torch_file(good()))) as old, zipfile.ZipFile(file, "w", compression) as new:
        for name in old.namelist():
            entry = zipfile.ZipInfo(name)  # which has no time, so that it is the same file each time
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
    """As many elements as a thousand times those that there are."""
    few, many = (
        struct.pack("<BH", 0x4D, NUM_TOKENS * HIDDEN_SIZE),
        struct.pack("<Bi", 0x4A, 1000 * NUM_TOKENS * HIDDEN_SIZE),
    )
    return data.replace(few, many) if name.endswith("data.pkl") else data


def _bomb() -> bytes:
    """A small archive of a large storage."""
    return rewritten(
        lambda name, data: bytes(1 << 28) if name.endswith("data/0") else data, compression=zipfile.ZIP_DEFLATED
    )


def _claiming_archive() -> bytes:
    """One whose directory says of each entry that it has 4 GB."""
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
        warnings.simplefilter("ignore")  # it is going to go
        torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), file)
    return file.getvalue()


def _quantised() -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the same
        return torch_file(torch.quantize_per_tensor(good(), 0.1, 0, torch.qint8))


def _with(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    tensor = good(dtype)
    tensor[2, 7] = value
    return tensor


def _nested_header() -> bytes:
    return with_header(b'{"x":' + b"[" * 30_000 + b"]" * 30_000 + b"}")


def torch_files() -> Iterator[Hostile]:
    """Archives, of which `torch.load` sees those whose directory is innocent."""
    neither = "sparse, quantised, nested or without data"
    yield Hostile(name="sparse", data=torch_file(good().to_sparse()), says=neither)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are in beta state
        yield Hostile(name="sparse rows", data=torch_file(good().to_sparse_csr()), says=neither)
    yield Hostile(name="quantised", data=_quantised(), says=neither)
    yield Hostile(name="meta", data=torch_file(good().to("meta")), says=neither)
    alone = "not a tensor alone"
    yield Hostile(name="command", data=torch_file(Command()), says=alone)
    yield Hostile(name="module", data=torch_file(torch.nn.Linear(2, 2)), says=alone)
    yield Hostile(name="dict", data=torch_file({"image_embeds": good()}), says=alone)
    yield Hostile(name="list", data=torch_file([good()]), says=alone)
    yield Hostile(name="object array", data=torch_file(np.array([Command()], dtype=object)), says=alone)
    yield Hostile(name="other pickle", data=with_pickle(pickle.dumps(Command(), protocol=2)), says=alone)
    yield Hostile(name="script", data=_scripted(), says="the archive is compressed")
    yield Hostile(name="doubles", data=torch_file(good().double()), says="of type torch.float64")
    yield Hostile(name="complex", data=torch_file(good().to(torch.complex64)), says="of type torch.complex64")
    yield Hostile(name="truths", data=torch_file(good() > 0), says="of type torch.bool")
    yield Hostile(
        name="repeated", data=torch_file(torch.zeros(1).expand(1 << 20, 1 << 20)), says="more than 67108864 bytes"
    )
    yield Hostile(name="no rank", data=torch_file(torch.tensor(1.0)), says="0 dimensions")
    yield Hostile(name="no tokens", data=torch_file(torch.zeros(0, HIDDEN_SIZE)), says="a dimension of 0")
    yield Hostile(name="lying storage", data=rewritten(_lying_storage), says="damaged")
    yield Hostile(name="no pickle", data=with_pickle(b"\x80\x02hello"), says="torch.save wrote")
    yield Hostile(name="huge pickle", data=_huge_pickle(), says="not what torch.save writes of one tensor")
    yield Hostile(name="cut short", data=torch_file(good())[:-100], says="damaged or not complete")
    yield Hostile(name="bomb", data=_bomb(), says="compressed or encrypted")
    yield Hostile(name="claims", data=_claiming_archive(), says="claims more bytes than are there")
    yield Hostile(name="many entries", data=_many_entries(), says="more than 64 entries")
    old = torch_file(good(), _use_new_zipfile_serialization=False)
    yield Hostile(name="old format", data=old, says="this is a pickle", code="unsupported_media_format")


def safetensors_files() -> Iterator[Hostile]:
    corrupt, unknown = "the safetensors file is damaged", "unsupported_media_format"
    neither = "neither a safetensors file nor what torch.save writes"
    yield Hostile(name="nothing", data=b"", says=neither, code=unknown)
    yield Hostile(name="words", data=b"hello, here are embeddings", says=neither, code=unknown)
    yield Hostile(name="array file", data=b"\x93NUMPY\x01\0v\0{'descr'", says=neither, code=unknown)
    yield Hostile(name="long header", data=with_header(b"{}", length=1 << 62), says=corrupt)
    yield Hostile(name="endless header", data=with_header(b'{"a":"' + b" " * (1 << 20) + b'"}'), says=corrupt)
    yield Hostile(name="no JSON", data=with_header(b"{hello}"), says=corrupt)
    yield Hostile(name="deep JSON", data=_nested_header(), says=corrupt)
    yield Hostile(name="no UTF-8", data=with_header(b'{"\xff\xfe":{}}'), says=corrupt)
    yield Hostile(name="no tensor", data=with_header(b"{}"), says="has 0 tensors")
    yield Hostile(name="two tensors", data=save({"a": good(), "b": good()}), says="has 2 tensors")
    yield Hostile(name="huge", data=claiming(shape=[1 << 40, HIDDEN_SIZE]), says="and 1024 are there")
    yield Hostile(name="overflow", data=claiming(shape=[1 << 62, 1 << 62]), says="more bytes than there can be")
    yield Hostile(name="no integer", data=claiming(shape=[10**400, 1]), says="more bytes than there can be")
    yield Hostile(name="negative", data=claiming(shape=[-NUM_TOKENS, -HIDDEN_SIZE]), says="a dimension of -4")
    yield Hostile(name="zero", data=claiming(shape=[0, HIDDEN_SIZE]), says="a dimension of 0")
    yield Hostile(name="many dimensions", data=claiming(shape=[1] * 9), says="9 dimensions")
    yield Hostile(name="fractions", data=claiming(shape=[4.5, HIDDEN_SIZE]), says=corrupt)
    yield Hostile(name="beyond", data=claiming(data_offsets=[0, 4096]), says=corrupt)
    yield Hostile(name="backwards", data=claiming(data_offsets=[1024, 0]), says=corrupt)
    yield Hostile(name="unknown type", data=claiming(dtype="F64"), says="of type 'F64'")
    yield Hostile(name="short body", data=safetensors_file(good())[:-1], says=corrupt)


def wrong_embeddings() -> Iterator[Hostile]:
    """Audio tensors, which are not what the model takes of this picture."""
    nan, inf = float("nan"), float("inf")
    for name, tensor, says in [
        ("NaN", _with(nan), "not a finite number"),
        ("infinite", _with(-inf), "not a finite number"),
        ("NaN in half precision", _with(nan, torch.float16), "not a finite number"),
        ("infinite in bfloat16", _with(inf, torch.bfloat16), "not a finite number"),
        ("too large for half precision", _with(1e30, torch.bfloat16), "between -65504 and 65504"),
        ("a row", good().flatten(), "1 dimensions"),
        ("rank 4", good()[None, None], "4 dimensions"),
        ("several pictures", torch.stack([good()] * 2), "the embeddings of 2 media"),
        ("wide", torch.cat([good()] * 2, dim=1), "128 values a token; the model takes 64"),
        ("the other way", good().T, "4 values a token; the model takes 64"),
        ("few tokens", good()[:3], "3 tokens, and a grid of 1×4×4 patches makes 4"),
        ("many tokens", torch.cat([good()] * 2), "8 tokens, and a grid of 1×4×4 patches makes 4"),
        ("whole numbers", good().long(), "of type int64"),
    ]:
        yield Hostile(name=name, data=safetensors_file(tensor), says=says)


def wrong_grids() -> Iterator[Hostile]:
    for name, grid, says in [
        ("fractions", torch.tensor([[1.0, 4, 4]]), "of type float32; a grid is int64"),
        ("two numbers", torch.tensor([4, 4]), "three numbers"),
        ("two grids", torch.tensor([GRID_THW, GRID_THW]), "three numbers"),
        ("none", torch.tensor([0, 4, 4]), "0×4×4 patches has none"),
        ("negative", torch.tensor([1, -4, -4]), "1×-4×-4 patches has none"),
        ("odd", torch.tensor([1, 1, 16]), "not multiples of 2"),
        ("a clip's", torch.tensor([4, 2, 2]), "a picture has 1 patch in time"),
        ("endless", torch.tensor([1, 1 << 62, 1 << 62]), "makes 5316911983139663491615228241121378304"),
    ]:
        yield Hostile(name=name, data=safetensors_file(grid), says=says)
