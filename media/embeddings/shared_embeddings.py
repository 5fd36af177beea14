"""Embeddings that a uuid refers to, in the media store that replicas share."""

import struct
from dataclasses import dataclass

import msgspec

from glimpse.media.cache.shared_media import SharedMedia
from glimpse.media.embeddings.embeddings import Embedding
from glimpse.media.embeddings.tensor import Tensor, TensorType, make_tensor
from glimpse.media.embeddings.tensor_file import MAX_BYTES
from glimpse.media.kind import MediaKind

_SECONDS = 30.0
"""Longest wait for a tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedEmbedding:
    """Embeddings, and when a client sent them."""

    sent: float
    """Seconds since 1970-01-01 UTC. Of two replicas' embeddings with one uuid, the later count."""
    embedding: Embedding


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTensors:
    """Tensors as another replica got them, to be checked again: it may serve another model."""

    sent: float
    tensor: Tensor
    grid: Tensor | None
    size: Tensor | None


class _Note(msgspec.Struct, frozen=True):
    sent: float
    dtype: TensorType
    shape: tuple[int, ...]
    grid: tuple[int, int, int] | None
    size: tuple[int, int] | None = None


async def find_later(
    shared: SharedMedia, namespace: str, kind: MediaKind, uuid: str, sent: float
) -> SharedTensors | None:
    """Returns what another replica got later than at `sent`; None if there is none.

    Raises:
        StoreUnavailableError: The store does not answer.
        MediaError: OVERLOADED, or INVALID_EMBEDDINGS if the tensor does not fit its description.
    """
    header = await shared.find_tensor(namespace, kind, uuid)
    if header is None:
        return None
    try:
        note = msgspec.msgpack.decode(header.note, type=_Note)
    except msgspec.MsgspecError:
        return None
    if note.sent <= sent:
        return None
    data = await shared.read_tensor(namespace, kind, uuid, header, MAX_BYTES, _SECONDS)
    if data is None:
        return None
    return SharedTensors(
        sent=note.sent,
        tensor=make_tensor(note.dtype, note.shape, data),
        grid=_integers(note.grid),
        size=_integers(note.size),
    )


def _integers(values: tuple[int, ...] | None) -> Tensor | None:
    if values is None:
        return None
    return make_tensor(TensorType.INT64, (len(values),), struct.pack(f"<{len(values)}q", *values))


def share(shared: SharedMedia, namespace: str, uuid: str, cached: CachedEmbedding) -> None:
    """Writes embeddings in the background."""
    embedding = cached.embedding
    tensor = embedding.tensor
    note = _Note(sent=cached.sent, dtype=tensor.dtype, shape=tensor.shape, grid=embedding.grid_thw, size=embedding.size)
    shared.write_tensor(
        namespace, embedding.kind, uuid, tensor.data, note=msgspec.msgpack.encode(note), content=embedding.key
    )
