"""Embeddings that a client gives a name are kept under it, whole, and can be left out later."""

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
    """Loads and keeps the embeddings of all requests, of one event loop."""

    def __init__(self, *, loader: EmbeddingLoader, store: MediaStore) -> None:
        """`loader` loads those that are sent; it is closed with this."""
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
        """Embeddings that are sent, and kept where they have a name, or those that have this name.

        Raises:
            MediaError: whatever is wrong with them: EmbeddingError, or NOT_CACHED where they are only named.
        """
        if isinstance(embeddings, CachedSource):
            made = self._kept(kind, embeddings.uuid, batch)
        else:
            made = await self._loader.load(kind, embeddings, grid_thw)
        num_bytes = len(made.tensor.data)
        batch.reservation.take_shared(made, num_bytes)
        if uuid is not None:
            self._store.cache_medium(_key(kind, uuid, batch), made, num_bytes)
        return made

    async def close(self) -> None:
        """Ends what loads files."""
        await self._loader.close()

    def _kept(self, kind: MediaKind, uuid: str, batch: Batch) -> Embedding:
        made: Embedding | None = self._store.cached_medium(_key(kind, uuid, batch))
        if made is None:
            raise not_cached(f"{kind}'s embeddings", can_be=self._store.is_enabled)
        return made


def _key(kind: MediaKind, uuid: str, batch: Batch) -> bytes:
    """By which embeddings are known that have this name: it is all that is said of them."""
    return decoded_key(batch.namespace, f"{kind} embeddings", (), uuid)
