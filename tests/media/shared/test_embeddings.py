"""Embeddings with a uuid: sent to one replica, used on another, and checked again there."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import torch

from glimpse.media.embeddings.embeddings import EmbeddingSpec
from glimpse.media.embeddings.loader import EmbeddingLoader
from glimpse.media.embeddings.tensor_file import SerializedTensor
from glimpse.media.errors import MediaErrorCode
from glimpse.media.kind import MediaKind
from tests.media.loaders import request_media
from tests.media.shared.redis_server import RedisServer
from tests.media.shared.replicas import BY_UUID, Replica, refusal, replica
from tests.media.tensors import HIDDEN_SIZE, good, good_grid, safetensors_file
from tests.waiting import until

IMAGE, AUDIO = MediaKind.IMAGE, MediaKind.AUDIO
GRID = SerializedTensor(data=safetensors_file(good_grid()))
NOT_CACHED = MediaErrorCode.NOT_CACHED


@asynccontextmanager
async def embeddings(of: Replica, hidden_size: int = HIDDEN_SIZE) -> AsyncGenerator[EmbeddingLoader]:
    spec = EmbeddingSpec(kinds=frozenset(MediaKind), hidden_size=hidden_size, merge_size=2)
    loader = EmbeddingLoader(spec=spec, store=of.caching.store)
    yield loader
    await loader.close()


def serialized(dtype: torch.dtype = torch.float32) -> SerializedTensor:
    return SerializedTensor(data=safetensors_file(good(dtype)))


async def test_embeddings_that_one_replica_got_can_be_passed_by_uuid_to_another(one: Replica, other: Replica) -> None:
    async with embeddings(one) as mine, embeddings(other) as yours:
        for kind, grid in ((IMAGE, GRID), (AUDIO, None)):
            for dtype in (torch.float32, torch.bfloat16):  # the later counts
                sent = await mine.load(kind, serialized(dtype), grid, batch=request_media("a"), uuid="cat")
                await one.shared.written()
                found = await yours.load(kind, BY_UUID, None, batch=request_media("a"))
                assert (found.key, found.grid, found.tensor.data) == (sent.key, sent.grid, sent.tensor.data)
        newer = await yours.load(IMAGE, serialized(torch.float16), GRID, batch=request_media("a"), uuid="cat")
        await other.shared.written()
        assert (await mine.load(IMAGE, BY_UUID, None, batch=request_media("a"))).key == newer.key
        assert await refusal(yours.load(IMAGE, BY_UUID, None, batch=request_media("b"))) == NOT_CACHED
        assert await refusal(yours.load(MediaKind.VIDEO, BY_UUID, None, batch=request_media("a"))) == NOT_CACHED


async def test_the_size_of_an_image_passes_to_another_replica(one: Replica, other: Replica) -> None:
    """The model lays out images by their size."""
    spec = EmbeddingSpec(
        kinds=frozenset({IMAGE}), hidden_size=HIDDEN_SIZE, grids_of_size=lambda width, height: {4: (width, height)}
    )
    mine, yours = (EmbeddingLoader(spec=spec, store=each.caching.store) for each in (one, other))
    size = SerializedTensor(data=safetensors_file(torch.tensor([[30, 20]])))
    sent = await mine.load(IMAGE, serialized(), None, size, batch=request_media("a"), uuid="cat")
    await one.shared.written()
    found = await yours.load(IMAGE, BY_UUID, None, batch=request_media("a"))
    assert (found.key, found.grid, found.size) == (sent.key, (30, 20), (30, 20))
    await mine.close()
    await yours.close()


async def test_embeddings_of_another_model_are_refused(one: Replica, other: Replica) -> None:
    async with embeddings(one) as mine, embeddings(other, hidden_size=HIDDEN_SIZE * 2) as yours:
        await mine.load(IMAGE, serialized(), GRID, batch=request_media(), uuid="cat")
        await one.shared.written()
        code = await refusal(yours.load(IMAGE, BY_UUID, None, batch=request_media()))
        assert code == MediaErrorCode.INVALID_EMBEDDINGS


async def test_tampered_embeddings_are_refused(one: Replica, other: Replica, redis: RedisServer) -> None:
    async with embeddings(one) as mine, embeddings(other) as yours:
        await mine.load(IMAGE, serialized(), GRID, batch=request_media(), uuid="cat")
        await one.shared.written()
        for key in redis.client().scan_iter():
            if redis.client().type(key) == b"hash" and redis.client().hexists(key, "0"):
                redis.client().hset(key, "0", bytes(redis.client().hstrlen(key, "0")))
        assert await refusal(yours.load(IMAGE, BY_UUID, None, batch=request_media())) == NOT_CACHED


async def test_without_redis_embeddings_are_used_where_they_are(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as redis:
        async with replica(redis) as one, replica(redis) as other, embeddings(one) as mine, embeddings(other) as yours:
            sent = await mine.load(IMAGE, serialized(), GRID, batch=request_media(), uuid="cat")
            redis.stop()
            await until(lambda: not one.shared.store.is_available and not other.shared.store.is_available)
            assert (await mine.load(IMAGE, BY_UUID, None, batch=request_media())).key == sent.key
            code = await refusal(yours.load(IMAGE, BY_UUID, None, batch=request_media()))
            assert code == MediaErrorCode.STORE_UNAVAILABLE
