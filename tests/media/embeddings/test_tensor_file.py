"""Serialized tensors: valid ones are read unchanged; hostile ones are refused without allocating what they claim."""

import asyncio
import os
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
import pytest_asyncio
import torch

from glimpse.media.cache.store import MediaStore
from glimpse.media.embeddings.embeddings import EmbeddingSpec
from glimpse.media.embeddings.loader import EmbeddingLoader
from glimpse.media.embeddings.tensor_file import MAX_BYTES, SerializedTensor, is_torch_file
from glimpse.media.embeddings.torch_files import LIMITS, TorchFileLoader
from glimpse.media.errors import MediaError
from glimpse.media.kind import MediaKind
from tests.e2e.stack import children
from tests.media.loaders import request_media
from tests.media.tensors import (
    COMMANDED,
    HIDDEN_SIZE,
    NUM_TOKENS,
    Hostile,
    good,
    good_grid,
    safetensors_file,
    safetensors_files,
    torch_file,
    torch_files,
    wrong_embeddings,
    wrong_grids,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SPEC = EmbeddingSpec(kinds=frozenset(MediaKind), hidden_size=HIDDEN_SIZE, merge_size=2)
GRID = SerializedTensor(data=safetensors_file(good_grid()))
EMBEDDINGS = SerializedTensor(data=safetensors_file(good()))
MAX_EXTRA_BYTES = 8 << 20
"""Limit of this process's memory for a hostile tensor, in addition to the size of its file."""
HOSTILE = [*torch_files(), *safetensors_files(), *wrong_embeddings()]
GRIDS = list(wrong_grids())
REPLIES = """import msgspec, struct, sys
reply = msgspec.msgpack.encode(msgspec.json.decode(b'{}'))
sys.stdout.buffer.write(struct.pack("<I", len(reply)) + reply)
sys.stdout.flush()
sys.stdin.read()"""
"""A program that replies with this header to any file."""
SPINS = """import glimpse.media.embeddings.torch_worker as worker
def spin(_):
    while True: pass
worker.answer = spin
worker.main()"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def loader() -> AsyncIterator[EmbeddingLoader]:
    loader = EmbeddingLoader(spec=SPEC, store=MediaStore(max_bytes=0))
    yield loader
    await loader.close()


def elements(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("write", [torch_file, safetensors_file])
@pytest.mark.parametrize("shape", [(NUM_TOKENS, HIDDEN_SIZE), (1, NUM_TOKENS, HIDDEN_SIZE)])
async def test_reads_tensors_unchanged(
    loader: EmbeddingLoader, write: Callable[[torch.Tensor], bytes], dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = good(dtype).view(shape)
    grid = SerializedTensor(data=write(good_grid()))
    read = await loader.load(MediaKind.IMAGE, SerializedTensor(data=write(tensor)), grid, batch=request_media())
    assert (read.tensor.dtype, read.tensor.shape) == (str(dtype).removeprefix("torch."), shape)
    assert read.tensor.data == elements(tensor)
    assert (read.grid, read.num_tokens) == ((1, 4, 4), NUM_TOKENS)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(torch.nn.Parameter(good()), id="parameter"),
        pytest.param(torch.cat([good()] * 2)[2:6], id="part"),
        pytest.param(good().T.contiguous().T, id="transposed"),
        pytest.param(good()[:1].expand(NUM_TOKENS, HIDDEN_SIZE), id="repeated"),
    ],
)
async def test_reads_torch_files_of_views(loader: EmbeddingLoader, value: torch.Tensor) -> None:
    read = await loader.load(MediaKind.IMAGE, SerializedTensor(data=torch_file(value)), GRID, batch=request_media())
    assert read.tensor.data == elements(value.detach())


@pytest.mark.parametrize("hostile", HOSTILE, ids=[hostile.name for hostile in HOSTILE])
async def test_refuses_hostile_tensors_without_allocating_memory(loader: EmbeddingLoader, hostile: Hostile) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MediaError) as caught:
            await loader.load(MediaKind.IMAGE, SerializedTensor(data=hostile.data), GRID, batch=request_media())
        assert tracemalloc.get_traced_memory()[1] < MAX_EXTRA_BYTES + 2 * len(hostile.data)
    finally:
        tracemalloc.stop()
    assert caught.value.message.startswith("image_embeds: ")
    assert (caught.value.code, hostile.message in caught.value.message) == (hostile.code, True), caught.value.message
    assert not await asyncio.to_thread(os.path.exists, COMMANDED)


@pytest.mark.parametrize("hostile", GRIDS, ids=[hostile.name for hostile in GRIDS])
async def test_refuses_invalid_grids(loader: EmbeddingLoader, hostile: Hostile) -> None:
    with pytest.raises(MediaError) as caught:
        await loader.load(MediaKind.IMAGE, EMBEDDINGS, SerializedTensor(data=hostile.data), batch=request_media())
    assert caught.value.code == hostile.code
    assert hostile.message in caught.value.message


async def test_requires_a_grid(loader: EmbeddingLoader) -> None:
    with pytest.raises(MediaError, match="video_grid_thw: expected a grid with the embeddings"):
        await loader.load(MediaKind.VIDEO, EMBEDDINGS, None, batch=request_media())


async def test_refuses_too_large_tensors_before_reading() -> None:
    for beginning in (b"PK\x03\x04", b"\0" * 8 + b"{"):
        with pytest.raises(MediaError, match="at most 67108864 bytes") as caught:
            is_torch_file(beginning + bytes(MAX_BYTES))
        assert caught.value.code == "media_too_large"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import os; os.abort()", "it crashed the decoder"),
        ("print('hello, this is no result' * 9)", "it crashed the decoder"),
        (
            REPLIES.format('{"type": "loaded", "dtype": "int64", "shape": [99999999, 99999999]}'),
            "it crashed the decoder",
        ),
        (REPLIES.format('{"type": "loaded", "dtype": "int64", "shape": [-1]}'), "it crashed the decoder"),
        ("import time; time.sleep(60)", "to take at most 0.5 s"),
    ],
)
async def test_failing_worker_fails_only_its_file(program: str, message: str) -> None:
    limits = replace(LIMITS, timeout_seconds=0.5) if "sleep" in program else LIMITS
    files = TorchFileLoader(command=(sys.executable, "-c", program), limits=limits)
    for _ in range(2):
        with pytest.raises(MediaError, match=message) as caught:
            await files.load(torch_file(good()))
        assert caught.value.code == ("media_too_large" if "sleep" in program else "invalid_embeddings")
    await files.close()


async def test_limits_cpu_time_of_each_file() -> None:
    files = TorchFileLoader(command=(sys.executable, "-c", SPINS), limits=replace(LIMITS, cpu_seconds=1))
    with pytest.raises(MediaError, match="to take at most 1 s"):
        await files.load(torch_file(good()))
    await files.close()


async def test_killed_worker_is_replaced(loader: EmbeddingLoader) -> None:
    file = SerializedTensor(data=torch_file(good()))
    first = await loader.load(MediaKind.IMAGE, file, GRID, batch=request_media())
    (process,) = children(os.getpid(), "glimpse.media.embeddings.torch_worker")
    os.kill(process, 9)
    again = await loader.load(MediaKind.IMAGE, file, GRID, batch=request_media())
    assert again.tensor.data == first.tensor.data
