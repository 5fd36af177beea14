"""Embeddings with a uuid: cached for their cache namespace and kind of media."""

from collections.abc import AsyncIterator

import pytest

from glimpse.media.cache.store import MediaStore
from glimpse.media.embeddings.embeddings import EmbeddingSpec
from glimpse.media.embeddings.loader import EmbeddingLoader
from glimpse.media.embeddings.tensor_file import SerializedTensor
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.kind import MediaKind
from glimpse.media.sources.source import CachedSource
from tests.media.loaders import request_media
from tests.media.tensors import HIDDEN_SIZE, good, good_grid, safetensors_file

IMAGE, VIDEO = MediaKind.IMAGE, MediaKind.VIDEO
EMBEDDINGS = SerializedTensor(data=safetensors_file(good()))
GRID = SerializedTensor(data=safetensors_file(good_grid()))
BY_UUID = CachedSource(uuid="cat")


def make_embeddings(max_bytes: int) -> EmbeddingLoader:
    spec = EmbeddingSpec(kinds=frozenset(MediaKind), hidden_size=HIDDEN_SIZE, merge_size=2)
    return EmbeddingLoader(spec=spec, store=MediaStore(max_bytes=max_bytes))


@pytest.fixture
async def embeddings() -> AsyncIterator[EmbeddingLoader]:
    made = make_embeddings(1 << 20)
    yield made
    await made.close()


async def test_embeddings_can_be_passed_by_uuid(embeddings: EmbeddingLoader) -> None:
    sent = await embeddings.load(IMAGE, EMBEDDINGS, GRID, batch=request_media("a"), uuid="cat")
    assert await embeddings.load(IMAGE, BY_UUID, None, batch=request_media("a"), uuid="cat") is sent


@pytest.mark.parametrize(("kind", "namespace"), [(IMAGE, ""), (IMAGE, "b"), (VIDEO, "a")])
async def test_uuids_are_separate_for_each_namespace_and_kind(
    embeddings: EmbeddingLoader, kind: MediaKind, namespace: str
) -> None:
    await embeddings.load(IMAGE, EMBEDDINGS, GRID, batch=request_media("a"), uuid="cat")
    with pytest.raises(MediaError) as caught:
        await embeddings.load(kind, BY_UUID, None, batch=request_media(namespace))
    assert caught.value.code == MediaErrorCode.NOT_CACHED


async def test_disabled_cache_stores_nothing() -> None:
    embeddings = make_embeddings(0)
    await embeddings.load(IMAGE, EMBEDDINGS, GRID, batch=request_media(), uuid="cat")
    with pytest.raises(MediaError, match="--media-cache-bytes"):
        await embeddings.load(IMAGE, BY_UUID, None, batch=request_media())
    await embeddings.close()


async def test_memory_counts_towards_the_request(embeddings: EmbeddingLoader) -> None:
    mine = request_media()
    sent = await embeddings.load(IMAGE, EMBEDDINGS, GRID, batch=mine, uuid="cat")
    assert mine.reservation.num_bytes == len(sent.tensor.data)
