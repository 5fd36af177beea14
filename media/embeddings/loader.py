"""Loads and validates embeddings from requests, off the event loop.

Embeddings that clients give a uuid are cached whole, so that later requests can refer to them by uuid alone. With a
shared store, they are also written there, and what was sent last to any replica counts.
"""

import asyncio
import time

from glimpse.media.cache.request_media import RequestMedia
from glimpse.media.cache.shared_media import SharedMedia
from glimpse.media.cache.store import MediaStore
from glimpse.media.embeddings.embeddings import Embedding, EmbeddingPart, EmbeddingSpec, about, make_embedding
from glimpse.media.embeddings.shared_embeddings import CachedEmbedding, find_later, share
from glimpse.media.embeddings.tensor import Tensor
from glimpse.media.embeddings.tensor_file import SerializedTensor, TensorSource, is_torch_file, read_safetensors
from glimpse.media.embeddings.torch_files import TorchFileLoader
from glimpse.media.errors import store_unavailable
from glimpse.media.key import decoded_key
from glimpse.media.kind import MediaKind
from glimpse.media.shared.values import StoreUnavailableError
from glimpse.media.sources.files import not_cached
from glimpse.media.sources.source import CachedSource


class EmbeddingLoader:
    """Loads and caches the embeddings of all requests of one event loop."""

    def __init__(self, *, spec: EmbeddingSpec, store: MediaStore) -> None:
        self._spec = spec
        self._store = store
        self._torch_files = TorchFileLoader()

    async def load(
        self,
        kind: MediaKind,
        embeddings: TensorSource | CachedSource,
        grid_thw: TensorSource | None,
        size: TensorSource | None = None,
        *,
        batch: RequestMedia,
        uuid: str | None = None,
    ) -> Embedding:
        """Loads embeddings from the request, caching them if they have a uuid, or from the cache.

        Raises:
            MediaError: EmbeddingError, NOT_CACHED for an unknown uuid, or STORE_UNAVAILABLE.
        """
        if isinstance(embeddings, CachedSource):
            cached = await self._get(kind, embeddings.uuid, batch)
            self._reserve(cached.embedding, batch)
            batch.origin.was_decoded = True
            self._cache(cached, embeddings.uuid, batch)
            return cached.embedding
        loaded = await self._load(kind, embeddings, grid_thw, size)
        self._reserve(loaded, batch)
        if uuid is not None:
            cached = CachedEmbedding(sent=time.time(), embedding=loaded)
            self._cache(cached, uuid, batch)
            if self._store.shared is not None:
                share(self._store.shared, batch.namespace, uuid, cached)
        return loaded

    async def close(self) -> None:
        """Closes the loader of files."""
        await self._torch_files.close()

    async def _get(self, kind: MediaKind, uuid: str, batch: RequestMedia) -> CachedEmbedding:
        cached: CachedEmbedding | None = self._store.get_decoded(batch.namespace, _key(kind, uuid, batch))
        shared = self._store.shared
        if shared is not None:
            try:
                cached = await self._later(shared, kind, uuid, batch, cached)
            except StoreUnavailableError:
                if cached is None:
                    raise store_unavailable(f"send the {kind} embeddings with this uuid, or try again") from None
        if cached is None:
            raise not_cached(f"{kind} embeddings", is_enabled=self._store.is_enabled)
        return cached

    async def _later(
        self, shared: SharedMedia, kind: MediaKind, uuid: str, batch: RequestMedia, cached: CachedEmbedding | None
    ) -> CachedEmbedding | None:
        """Returns what was sent last with the uuid, to this replica (`cached`) or to another one."""
        later = await find_later(shared, batch.namespace, kind, uuid, cached.sent if cached else 0)
        if later is None:
            return cached
        with about(kind, EmbeddingPart.EMBEDDINGS):
            embedding = await asyncio.to_thread(
                make_embedding, kind, later.tensor, later.grid, self._spec, size=later.size
            )
        return CachedEmbedding(sent=later.sent, embedding=embedding)

    def _cache(self, cached: CachedEmbedding, uuid: str, batch: RequestMedia) -> None:
        key = _key(cached.embedding.kind, uuid, batch)
        self._store.put_decoded(batch.namespace, key, cached, len(cached.embedding.tensor.data))

    @staticmethod
    def _reserve(embedding: Embedding, batch: RequestMedia) -> None:
        batch.reservation.reserve_shared(embedding, len(embedding.tensor.data))

    async def _load(
        self, kind: MediaKind, embeddings: TensorSource, grid_thw: TensorSource | None, size: TensorSource | None
    ) -> Embedding:
        with about(kind, EmbeddingPart.GRID_THW):
            grid = None if grid_thw is None else await self._tensor(grid_thw)
        with about(kind, EmbeddingPart.SIZE):
            own_size = None if size is None else await self._tensor(size)
        with about(kind, EmbeddingPart.EMBEDDINGS):
            tensor = await self._tensor(embeddings)
        return await asyncio.to_thread(make_embedding, kind, tensor, grid, self._spec, size=own_size)

    async def _tensor(self, source: TensorSource) -> Tensor:
        match source:
            case Tensor():
                return source
            case SerializedTensor(data=data):
                return await self._torch_files.load(data) if is_torch_file(data) else read_safetensors(data)


def _key(kind: MediaKind, uuid: str, batch: RequestMedia) -> bytes:
    return decoded_key(batch.namespace, f"{kind} embeddings", (), uuid)
