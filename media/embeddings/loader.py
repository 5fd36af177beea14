"""Loads and validates embeddings from requests, off the event loop.

Embeddings that clients give a uuid are cached whole, so that later requests can refer to them by uuid alone.
"""

import asyncio

from glimpse.media.cache.request_media import RequestMedia
from glimpse.media.cache.store import MediaStore
from glimpse.media.embeddings.embeddings import Embedding, EmbeddingPart, EmbeddingSpec, about, make_embedding
from glimpse.media.embeddings.tensor import Tensor
from glimpse.media.embeddings.tensor_file import SerializedTensor, TensorSource, is_torch_file, read_safetensors
from glimpse.media.embeddings.torch_files import TorchFileLoader
from glimpse.media.key import decoded_key
from glimpse.media.kind import MediaKind
from glimpse.media.sources.files import not_cached
from glimpse.media.sources.source import CachedSource


class EmbeddingLoader:
    """Loads and caches the embeddings of all requests of one event loop."""

    def __init__(self, *, spec: EmbeddingSpec, store: MediaStore) -> None:
        """
        Args:
            spec: What the checkpoint accepts.
            store: Caches embeddings.
        """
        self._spec = spec
        self._store = store
        self._torch_files = TorchFileLoader()

    async def load(
        self,
        kind: MediaKind,
        embeddings: TensorSource | CachedSource,
        grid_thw: TensorSource | None,
        *,
        batch: RequestMedia,
        uuid: str | None = None,
    ) -> Embedding:
        """Loads embeddings from the request, caching them if they have a uuid, or from the cache.

        Raises:
            MediaError: EmbeddingError, or NOT_CACHED for an unknown uuid.
        """
        if isinstance(embeddings, CachedSource):
            loaded = self._get(kind, embeddings.uuid, batch)
        else:
            loaded = await self._load(kind, embeddings, grid_thw)
        num_bytes = len(loaded.tensor.data)
        batch.reservation.reserve_shared(loaded, num_bytes)
        if uuid is not None:
            self._store.put_decoded(batch.namespace, _key(kind, uuid, batch), loaded, num_bytes)
        return loaded

    async def close(self) -> None:
        """Closes the loader of files."""
        await self._torch_files.close()

    def _get(self, kind: MediaKind, uuid: str, batch: RequestMedia) -> Embedding:
        cached: Embedding | None = self._store.get_decoded(batch.namespace, _key(kind, uuid, batch))
        if cached is None:
            raise not_cached(f"{kind} embeddings", is_enabled=self._store.is_enabled)
        return cached

    async def _load(self, kind: MediaKind, embeddings: TensorSource, grid_thw: TensorSource | None) -> Embedding:
        with about(kind, EmbeddingPart.GRID_THW):
            grid = None if grid_thw is None else await self._tensor(grid_thw)
        with about(kind, EmbeddingPart.EMBEDDINGS):
            tensor = await self._tensor(embeddings)
        return await asyncio.to_thread(make_embedding, kind, tensor, grid, self._spec)

    async def _tensor(self, source: TensorSource) -> Tensor:
        match source:
            case Tensor():
                return source
            case SerializedTensor(data=data):
                return await self._torch_files.load(data) if is_torch_file(data) else read_safetensors(data)


def _key(kind: MediaKind, uuid: str, batch: RequestMedia) -> bytes:
    return decoded_key(batch.namespace, f"{kind} embeddings", (), uuid)
