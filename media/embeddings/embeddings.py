"""Embeddings that clients send instead of media, validated against what the model accepts.

Images and videos have Qwen2-VL's grids; audio has none. Error messages name the tensor as clients do, such as
`image_grid_thw`.
"""

import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from glimpse.media.embeddings.tensor import Tensor, TensorType, integers, invalid, largest_magnitude
from glimpse.media.errors import MediaError
from glimpse.media.key import embedding_key
from glimpse.media.kind import MediaKind

MAX_MAGNITUDE = 65504.0
"""Largest float16: larger values could become infinite in the model's type."""


class EmbeddingPart(StrEnum):
    """One of the two tensors that a client sends."""

    EMBEDDINGS = "embeddings"
    GRID_THW = "grid_thw"


_NAMES = {EmbeddingPart.EMBEDDINGS: "embeds", EmbeddingPart.GRID_THW: "grid_thw"}
_MEDIA = {MediaKind.IMAGE: "images", MediaKind.VIDEO: "videos", MediaKind.AUDIO: "audio"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSpec:
    """Embeddings that a checkpoint accepts."""

    kinds: frozenset[MediaKind]
    """Kinds of media that embeddings may replace."""
    hidden_size: int
    """Values per token."""
    merge_size: int
    """Side of a token in patches, for models with patches."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embedding:
    """Validated embeddings."""

    kind: MediaKind
    tensor: Tensor
    """Floats [1, tokens, hidden_size] or [tokens, hidden_size], finite also in float16."""
    grid: tuple[int, int, int]
    """Patches in time, height and width, before merging; (1, 1, tokens) for audio."""
    num_tokens: int
    """Rows of the embeddings, one for each placeholder token."""
    key: bytes
    """Content key: SHA-256 of the elements, their type and shape, and the grid."""


class EmbeddingError(MediaError):
    """Embeddings that cannot be used, and the tensor that is invalid."""

    def __init__(self, kind: MediaKind, part: EmbeddingPart, error: MediaError) -> None:
        super().__init__(error.code, f"{kind}_{_NAMES[part]}: {error.message}")
        self.part = part


@contextmanager
def about(kind: MediaKind, part: EmbeddingPart) -> Generator[None]:
    """Turns MediaErrors of the block into EmbeddingErrors about this tensor."""
    try:
        yield
    except MediaError as error:
        raise EmbeddingError(kind, part, error) from error


def make_embedding(kind: MediaKind, tensor: Tensor, grid: Tensor | None, spec: EmbeddingSpec) -> Embedding:
    """Validates embeddings. The expensive check, of each value, comes last.

    Args:
        kind: Kind of media that the embeddings stand for.
        tensor: Embeddings [tokens, hidden_size] or [1, tokens, hidden_size].
        grid: INT64 [3] or [1, 3]: patches in time, height and width, before merging; None for audio.
        spec: What the checkpoint accepts.

    Raises:
        EmbeddingError: INVALID_EMBEDDINGS.
    """
    with about(kind, EmbeddingPart.EMBEDDINGS):
        if kind not in spec.kinds:
            raise invalid(f"the model does not accept embeddings of {_MEDIA[kind]}")
    with about(kind, EmbeddingPart.GRID_THW):
        own_grid = None if kind is MediaKind.AUDIO else _read_grid(kind, grid, spec)
    with about(kind, EmbeddingPart.EMBEDDINGS):
        num_tokens = _check_shape(tensor, spec)
        grid_thw = own_grid or (1, 1, num_tokens)
        if own_grid is not None:
            _check_number(num_tokens, own_grid, spec)
        if not largest_magnitude(tensor) <= MAX_MAGNITUDE:  # written so that NaN fails
            raise invalid(f"expected finite values from -{MAX_MAGNITUDE:g} to {MAX_MAGNITUDE:g}")
    return Embedding(
        kind=kind,
        tensor=tensor,
        grid=grid_thw,
        num_tokens=num_tokens,
        key=embedding_key(kind, tensor.dtype, (len(tensor.shape), *tensor.shape, *grid_thw), tensor.data),
    )


def _check_shape(tensor: Tensor, spec: EmbeddingSpec) -> int:
    """Checks type and shape. Returns the number of rows."""
    if tensor.dtype is TensorType.INT64:
        raise invalid("expected a tensor of type float32, float16 or bfloat16, got int64")
    if len(tensor.shape) == 3 and tensor.shape[0] != 1:
        raise invalid(
            f"expected the embeddings of one media input, got {tensor.shape[0]}; send a content part for each"
        )
    if len(tensor.shape) not in (2, 3):
        raise invalid(f"expected a tensor [tokens, {spec.hidden_size}], got {len(tensor.shape)} dimensions")
    if tensor.shape[-1] != spec.hidden_size:
        raise invalid(f"expected {spec.hidden_size} values per token, got {tensor.shape[-1]}")
    return tensor.shape[-2]


def _check_number(num_rows: int, grid_thw: tuple[int, int, int], spec: EmbeddingSpec) -> None:
    num_tokens = math.prod(grid_thw) // spec.merge_size**2
    if num_rows != num_tokens:
        grid = _text(grid_thw)
        raise invalid(f"expected {num_tokens} tokens for a grid of {grid} patches, got {num_rows}")


def _read_grid(kind: MediaKind, grid: Tensor | None, spec: EmbeddingSpec) -> tuple[int, int, int]:
    if grid is None:
        raise invalid("expected a grid with the embeddings: patches in time, height and width, [1, 3]")
    if grid.dtype is not TensorType.INT64:
        raise invalid(f"expected a tensor of type int64, got {grid.dtype}")
    if grid.shape not in ((3,), (1, 3)):
        raise invalid("expected a tensor [3] or [1, 3]: patches in time, height and width")
    time, height, width = integers(grid)
    if min(time, height, width) < 1:
        raise invalid(f"expected at least 1 patch in each dimension, got {_text((time, height, width))}")
    if height % spec.merge_size or width % spec.merge_size:
        raise invalid(
            f"expected a height and width in multiples of {spec.merge_size} patches, got {height} and {width}"
        )
    if kind is MediaKind.IMAGE and time != 1:
        raise invalid(f"expected 1 patch in time for an image, got {time}; send a video's embeddings as video_embeds")
    return time, height, width


def _text(grid_thw: tuple[int, int, int]) -> str:
    return "×".join(map(str, grid_thw))
