"""Parses the embeddings of content parts. Does not check them against the model."""

from typing import TypeAlias

from glimpse.media.embeddings.tensor import TensorType, make_tensor
from glimpse.media.embeddings.tensor_file import SerializedTensor, TensorSource
from glimpse.media.inputs import EmbeddingInput
from glimpse.media.kind import MediaKind
from glimpse.media.sources.source import CachedSource
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.media import blaming
from glimpse.v1 import content_pb2

_TYPES = {
    content_pb2.TENSOR_TYPE_FLOAT32: TensorType.FLOAT32,
    content_pb2.TENSOR_TYPE_FLOAT16: TensorType.FLOAT16,
    content_pb2.TENSOR_TYPE_BFLOAT16: TensorType.BFLOAT16,
    content_pb2.TENSOR_TYPE_INT64: TensorType.INT64,
}


_EmbeddingsPart: TypeAlias = content_pb2.ImageEmbeddings | content_pb2.VideoEmbeddings | content_pb2.AudioEmbeddings


def parse_embeddings(kind: MediaKind, part: _EmbeddingsPart, path: str, uuid: str | None) -> EmbeddingInput:
    """Parses embeddings; `path` is that of the content part. Raises InvalidRequest."""
    field = f"{path}.{kind}_embeddings"
    embeddings = _parse_source(part.embeddings, f"{field}.embeddings")
    if uuid is not None and embeddings is None and not {"grid_thw", "size"} & _sent(part):
        return EmbeddingInput(kind=kind, source=CachedSource(uuid=uuid), grid_thw=None, field=f"{path}.uuid", uuid=uuid)
    if embeddings is None:
        message = "expected a tensor, or the uuid of embeddings sent before"
        raise InvalidRequest(f"{field}.embeddings", message, "missing_value")
    return EmbeddingInput(
        kind=kind,
        source=embeddings,
        grid_thw=_tensor_of(part, "grid_thw", field),
        size=_tensor_of(part, "size", field),
        field=field,
        uuid=uuid,
    )


def _tensor_of(part: _EmbeddingsPart, name: str, field: str) -> TensorSource | None:
    """Parses a further tensor of the embeddings, if the message has it."""
    return _parse_source(getattr(part, name), f"{field}.{name}") if name in _sent(part) else None


def _sent(part: _EmbeddingsPart) -> set[str]:
    return {field.name for field, _ in part.ListFields()}


def _parse_source(source: content_pb2.TensorSource, path: str) -> TensorSource | None:
    match source.WhichOneof("source"):
        case "serialized":
            return SerializedTensor(data=source.serialized)
        case "tensor":
            return _parse_tensor(source.tensor, f"{path}.tensor")
        case _:
            return None


def _parse_tensor(tensor: content_pb2.Tensor, path: str) -> TensorSource:
    dtype = _TYPES.get(tensor.type)
    if dtype is None:
        raise InvalidRequest(f"{path}.type", "expected the type of the tensor's elements", "missing_value")
    with blaming(path):
        return make_tensor(dtype, tuple(tensor.shape), tensor.data)
