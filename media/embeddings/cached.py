"""Embeddings that clients give a uuid: cached whole, so that later requests can refer to them by uuid alone."""

from glimpse.media.cache.request_media import Batch
from glimpse.media.cache.store import MediaStore
from glimpse.media.embeddings.embeddings import Embedding
from glimpse.media.embeddings.loader import EmbeddingLoader
from glimpse.media.embeddings.tensor_file import TensorSource
from glimpse.media.key import decoded_key
from glimpse.media.kind import MediaKind
from glimpse.media.sources.files import not_cached
from glimpse.media.sources.source import CachedSource


class CachedEmbeddings:
    """Loads and caches the embeddings of all requests of one event loop."""

    def __init__(self, *, loader: EmbeddingLoader, store: MediaStore) -> None:
        """
        Args:
            loader: Loads embeddings that requests contain. Closed by `close`.
            store: Caches embeddings.
        """
        self._loader = loader
        self._store = store

    async def load(
        self,
        kind: MediaKind,
        embeddings: TensorSource | CachedSource,
        grid_thw: TensorSource | None,
        *,
        batch: Batch,
        uuid: str | None = None,
    ) -> Embedding:
        """Loads embeddings from the request, caching them if they have a uuid, or from the cache.

        Raises:
            MediaError: EmbeddingError, or NOT_CACHED for an unknown uuid.
        """
        if isinstance(embeddings, CachedSource):
            loaded = self._get(kind, embeddings.uuid, batch)
        else:
            loaded = await self._loader.load(kind, embeddings, grid_thw)
        num_bytes = len(loaded.tensor.data)
        batch.reservation.reserve_shared(loaded, num_bytes)
        if uuid is not None:
            self._store.put_decoded(_key(kind, uuid, batch), loaded, num_bytes)
        return loaded

    async def close(self) -> None:
        """Closes the loader."""
        await self._loader.close()

    def _get(self, kind: MediaKind, uuid: str, batch: Batch) -> Embedding:
        cached: Embedding | None = self._store.get_decoded(_key(kind, uuid, batch))
        if cached is None:
            raise not_cached(f"{kind} embeddings", is_enabled=self._store.is_enabled)
        return cached


def _key(kind: MediaKind, uuid: str, batch: Batch) -> bytes:
    return decoded_key(batch.namespace, f"{kind} embeddings", (), uuid)
