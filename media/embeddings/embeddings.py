"""Embeddings that clients send instead of media, validated against what the model accepts.

The number of rows decides how they are laid out in a prompt, unless it takes a grid of patches, as in Qwen's models, or
an image's size besides. Error messages name the tensor as clients do, such as `image_grid_thw`.
"""

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from glimpse.media.embeddings.tensor import Tensor, TensorType, integers, invalid, largest_magnitude
from glimpse.media.errors import MediaError
from glimpse.media.key import embedding_key
from glimpse.media.kind import MediaKind

MAX_MAGNITUDE = 65504.0
"""Largest float16: larger values could become infinite in the model's type."""


class EmbeddingPart(StrEnum):
    """One of the tensors that a client sends."""

    EMBEDDINGS = "embeddings"
    GRID_THW = "grid_thw"
    SIZE = "size"


_NAMES = {EmbeddingPart.EMBEDDINGS: "embeds", EmbeddingPart.GRID_THW: "grid_thw", EmbeddingPart.SIZE: "sizes"}
_MEDIA = {
    MediaKind.IMAGE: "images",
    MediaKind.VIDEO: "videos",
    MediaKind.AUDIO: "audio",
    MediaKind.DOCUMENT: "documents",
}


Grid: TypeAlias = tuple[int, ...]
"""Grid of a model family; see `MediaSpan`."""


def _one_run(_kind: MediaKind, num_rows: int) -> Grid:
    return (1, 1, num_rows)


def _of_no_size(_width: int, _height: int) -> Mapping[int, Grid]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSpec:
    """Embeddings that a checkpoint accepts."""

    kinds: frozenset[MediaKind]
    """Kinds of media that embeddings may replace."""
    hidden_size: int
    """Values per token."""
    merge_size: int | None = None
    """Side of a token in patches, for models that need the grids of images and videos in patches."""
    grid_of_rows: Callable[[MediaKind, int], Grid | None] = _one_run
    """Returns the grid of a medium with so many rows, for other models and for audio. None: an image's size decides it.

    Raises:
        ValueError: no medium has so many rows.
    """
    grids_of_size: Callable[[int, int], Mapping[int, Grid]] = _of_no_size
    """Returns the grids that an image of this width and height may have, by the number of rows; not for models that
    need grids in patches.

    Raises:
        MediaError: the model cannot read images of this size.
    """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embedding:
    """Validated embeddings."""

    kind: MediaKind
    tensor: Tensor
    """Floats [1, tokens, hidden_size] or [tokens, hidden_size], finite also in float16."""
    grid: Grid
    """How they are laid out in a prompt."""
    num_tokens: int
    """Rows of the embeddings, one for each placeholder token."""
    key: bytes
    """Content key: SHA-256 of the elements, their type and shape, and the grid."""
    grid_thw: tuple[int, int, int] | None = None
    """Patches in time, height and width, before merging, as the client sent them."""
    size: tuple[int, int] | None = None
    """Width and height of the image in pixels, as the client sent them."""


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


def make_embedding(
    kind: MediaKind, tensor: Tensor, grid: Tensor | None, spec: EmbeddingSpec, *, size: Tensor | None = None
) -> Embedding:
    """Validates embeddings. The expensive check, of each value, comes last.

    Args:
        tensor: Embeddings [tokens, hidden_size] or [1, tokens, hidden_size].
        grid: INT64 [3] or [1, 3]: patches in time, height and width, before merging.
        size: INT64 [2] or [1, 2]: width and height of an image in pixels.

    Raises:
        EmbeddingError: INVALID_EMBEDDINGS.
    """
    with about(kind, EmbeddingPart.EMBEDDINGS):
        if kind not in spec.kinds:
            raise invalid(f"the model does not accept embeddings of {_MEDIA[kind]}")
    with about(kind, EmbeddingPart.SIZE):
        own_size = _read_size(size, spec)
    with about(kind, EmbeddingPart.GRID_THW):
        grid_thw = _read_grid(kind, grid, spec)
    with about(kind, EmbeddingPart.EMBEDDINGS):
        num_tokens = _check_shape(tensor, spec)
        if grid_thw is not None:
            _check_number(num_tokens, grid_thw, spec.merge_size or 1)
    own_grid = grid_thw if spec.merge_size is not None and grid_thw else _find_grid(kind, num_tokens, own_size, spec)
    with about(kind, EmbeddingPart.EMBEDDINGS):
        if not largest_magnitude(tensor) <= MAX_MAGNITUDE:  # written so that NaN fails
            raise invalid(f"expected finite values from -{MAX_MAGNITUDE:g} to {MAX_MAGNITUDE:g}")
    return Embedding(
        kind=kind,
        tensor=tensor,
        grid=own_grid,
        num_tokens=num_tokens,
        key=embedding_key(kind, tensor.dtype, (len(tensor.shape), *tensor.shape, *own_grid), tensor.data),
        grid_thw=grid_thw,
        size=own_size,
    )


def _find_grid(kind: MediaKind, num_rows: int, size: tuple[int, int] | None, spec: EmbeddingSpec) -> Grid:
    """Returns the grid of embeddings that have none in patches."""
    if size is None:
        with about(kind, EmbeddingPart.EMBEDDINGS):
            found = _grid_of_rows(kind, num_rows, spec)
        with about(kind, EmbeddingPart.SIZE):
            if found is None:
                raise invalid(
                    f"expected the width and height of the image, which decide where its {num_rows} tokens go"
                )
        return found
    with about(kind, EmbeddingPart.SIZE):
        found = spec.grids_of_size(*size)
    with about(kind, EmbeddingPart.EMBEDDINGS):
        if num_rows not in found:
            expected = " or ".join(map(str, found))
            raise invalid(f"expected {expected} tokens for an image of {_text(size)} pixels, got {num_rows}")
    return found[num_rows]


def _grid_of_rows(kind: MediaKind, num_rows: int, spec: EmbeddingSpec) -> Grid | None:
    try:
        return spec.grid_of_rows(kind, num_rows)
    except ValueError as error:
        raise invalid(f"{error}, got {num_rows}") from error


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


def _check_number(num_rows: int, grid_thw: tuple[int, int, int], merge_size: int) -> None:
    num_tokens = math.prod(grid_thw) // merge_size**2
    if num_rows != num_tokens:
        grid = _text(grid_thw)
        raise invalid(f"expected {num_tokens} tokens for a grid of {grid} patches, got {num_rows}")


def _read_grid(kind: MediaKind, grid: Tensor | None, spec: EmbeddingSpec) -> tuple[int, int, int] | None:
    if grid is None or kind is MediaKind.AUDIO:
        if spec.merge_size is None or kind is MediaKind.AUDIO:
            return None
        raise invalid("expected a grid with the embeddings: patches in time, height and width, [1, 3]")
    if grid.dtype is not TensorType.INT64:
        raise invalid(f"expected a tensor of type int64, got {grid.dtype}")
    if grid.shape not in ((3,), (1, 3)):
        raise invalid("expected a tensor [3] or [1, 3]: patches in time, height and width")
    time, height, width = integers(grid)
    if min(time, height, width) < 1:
        raise invalid(f"expected at least 1 patch in each dimension, got {_text((time, height, width))}")
    merge_size = spec.merge_size or 1
    if height % merge_size or width % merge_size:
        raise invalid(f"expected a height and width in multiples of {merge_size} patches, got {height} and {width}")
    if kind is MediaKind.IMAGE and time != 1:
        raise invalid(f"expected 1 patch in time for an image, got {time}; send a video's embeddings as video_embeds")
    return time, height, width


def _read_size(size: Tensor | None, spec: EmbeddingSpec) -> tuple[int, int] | None:
    if size is None:
        return None
    if spec.merge_size is not None:
        raise invalid("expected none, since the model needs image_grid_thw instead")
    if size.dtype is not TensorType.INT64 or size.shape not in ((2,), (1, 2)):
        got = f"{size.dtype} {list(size.shape)}"
        raise invalid(f"expected the width and height of the image in pixels, int64 [2] or [1, 2], got {got}")
    width, height = integers(size)
    return width, height


def _text(sizes: tuple[int, ...]) -> str:
    return "×".join(map(str, sizes))
