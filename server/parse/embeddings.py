"""Embeddings of the wire → tensors that are what is said of them. What a model takes is not known here."""

from typing import TypeAlias

from glimpse.media.embeddings.tensor import TensorType, make_tensor
from glimpse.media.embeddings.tensor_file import SerializedTensor, TensorSource
from glimpse.media.errors import MediaError
from glimpse.media.kind import MediaKind
from glimpse.media.sources.source import CachedSource
from glimpse.server.request import EmbeddingInput
from glimpse.server.rpc.errors import InvalidRequest
from glimpse.v1 import content_pb2

_TYPES = {
    content_pb2.TENSOR_TYPE_FLOAT32: TensorType.FLOAT32,
    content_pb2.TENSOR_TYPE_FLOAT16: TensorType.FLOAT16,
    content_pb2.TENSOR_TYPE_BFLOAT16: TensorType.BFLOAT16,
    content_pb2.TENSOR_TYPE_INT64: TensorType.INT64,
}


Part: TypeAlias = content_pb2.ImageEmbeddings | content_pb2.VideoEmbeddings | content_pb2.AudioEmbeddings


def parse_embeddings(kind: MediaKind, part: Part, path: str, uuid: str | None) -> EmbeddingInput:
    """`path` is that of the content part. Raises InvalidRequest."""
    named, path = f"{path}.uuid", f"{path}.{kind}_embeddings"
    embeddings = _parse_source(part.embeddings, f"{path}.embeddings")
    grid = _grid_of(part)
    if uuid is not None and embeddings is None and grid is None:
        return EmbeddingInput(kind=kind, embeddings=CachedSource(uuid=uuid), grid_thw=None, field=named, uuid=uuid)
    if embeddings is None:
        raise InvalidRequest(f"{path}.embeddings", "There are no embeddings.", "missing_value")
    return EmbeddingInput(
        kind=kind,
        embeddings=embeddings,
        grid_thw=None if grid is None else _parse_source(grid, f"{path}.grid_thw"),
        field=path,
        uuid=uuid,
    )


def _grid_of(part: Part) -> content_pb2.TensorSource | None:
    if isinstance(part, content_pb2.AudioEmbeddings) or not part.HasField("grid_thw"):
        return None
    return part.grid_thw


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
        raise InvalidRequest(f"{path}.type", "The type of the tensor's elements is not said.", "missing_value")
    try:
        return make_tensor(dtype, tuple(tensor.shape), tensor.data)
    except MediaError as error:
        raise InvalidRequest(path, error.message, error.code.value) from error
