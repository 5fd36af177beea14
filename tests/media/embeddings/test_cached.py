"""Embeddings that have a name: kept whole, found by their tenant, of their own kind."""

from collections.abc import AsyncIterator

import pytest

from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.cache.request_media import Batch, MediaUsage
from glimpse.media.cache.store import MediaStore
from glimpse.media.embeddings.cached import CachedEmbeddings
from glimpse.media.embeddings.embeddings import EmbeddingSpec
from glimpse.media.embeddings.loader import EmbeddingLoader
from glimpse.media.embeddings.tensor_file import SerializedTensor
from glimpse.media.embeddings.torch_files import TorchFileLoader
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.kind import MediaKind
from glimpse.media.sources.source import CachedSource
from tests.media.tensors import HIDDEN_SIZE, good, good_grid, safetensors_file

IMAGE, VIDEO = MediaKind.IMAGE, MediaKind.VIDEO
EMBEDDINGS = SerializedTensor(data=safetensors_file(good()))
GRID = SerializedTensor(data=safetensors_file(good_grid()))
NAME = CachedSource(uuid="cat")


def make_embeddings(max_bytes: int) -> CachedEmbeddings:
    form = EmbeddingSpec(kinds=frozenset(MediaKind), hidden_size=HIDDEN_SIZE, merge_size=2)
    loader = EmbeddingLoader(spec=form, torch_files=TorchFileLoader())
    return CachedEmbeddings(loader=loader, store=MediaStore(max_bytes=max_bytes))


@pytest.fixture
async def embeddings() -> AsyncIterator[CachedEmbeddings]:
    made = make_embeddings(1 << 20)
    yield made
    await made.close()


def batch(namespace: str = "") -> Batch:
    return Batch(namespace=namespace, reservation=MemoryBudget().reservation().__enter__(), usage=MediaUsage())


async def test_named_embeddings_can_be_left_out(embeddings: CachedEmbeddings) -> None:
    sent = await embeddings.load(IMAGE, EMBEDDINGS, GRID, batch=batch("a"), uuid="cat")
    assert await embeddings.load(IMAGE, NAME, None, batch=batch("a"), uuid="cat") is sent


@pytest.mark.parametrize(("kind", "namespace"), [(IMAGE, ""), (IMAGE, "b"), (VIDEO, "a")])
async def test_nobody_else_finds_them(embeddings: CachedEmbeddings, kind: MediaKind, namespace: str) -> None:
    await embeddings.load(IMAGE, EMBEDDINGS, GRID, batch=batch("a"), uuid="cat")
    with pytest.raises(MediaError) as caught:
        await embeddings.load(kind, NAME, None, batch=batch(namespace))
    assert caught.value.code == MediaErrorCode.NOT_CACHED


async def test_without_room_none_are_kept() -> None:
    embeddings = make_embeddings(0)
    await embeddings.load(IMAGE, EMBEDDINGS, GRID, batch=batch(), uuid="cat")
    with pytest.raises(MediaError, match="--media-cache-bytes"):
        await embeddings.load(IMAGE, NAME, None, batch=batch())
    await embeddings.close()


async def test_their_memory_is_their_request_s(embeddings: CachedEmbeddings) -> None:
    mine = batch()
    sent = await embeddings.load(IMAGE, EMBEDDINGS, GRID, batch=mine, uuid="cat")
    assert mine.reservation.num_bytes == len(sent.tensor.data)
