"""Embeddings in a medium's place: what an encoder made of it elsewhere, checked against what the model takes.

Knows Qwen2-VL's grids, and that sounds have none. What is wrong is said of the tensor by the name under which clients
give it, such as `image_grid_thw`.
"""

import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from glimpse.media.embeddings.tensor import Tensor, TensorType, invalid, largest_magnitude, whole_numbers
from glimpse.media.errors import MediaError
from glimpse.media.key import embedding_key
from glimpse.media.kind import MediaKind

MAX_MAGNITUDE = 65504.0
"""The largest number of half precision: what is larger could become infinite in the type that the model computes in."""


class EmbeddingPart(StrEnum):
    """The tensors of which embeddings consist."""

    EMBEDDINGS = "embeddings"
    GRID_THW = "grid_thw"


_NAMES = {EmbeddingPart.EMBEDDINGS: "embeds", EmbeddingPart.GRID_THW: "grid_thw"}
_MEDIA = {MediaKind.IMAGE: "pictures", MediaKind.VIDEO: "clips", MediaKind.AUDIO: "audio"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSpec:
    """What a checkpoint's embeddings look like."""

    kinds: frozenset[MediaKind]
    """Of the media that it takes."""
    hidden_size: int
    """Values of a token."""
    merge_size: int
    """Patches of a side that become one token, where it has patches."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embedding:
    """Embeddings that are ready for the engine."""

    kind: MediaKind
    tensor: Tensor
    """Of floats, [1, tokens, hidden_size] or [tokens, hidden_size]; each is finite in half precision too."""
    grid_thw: tuple[int, int, int]
    """Patches in time, height and width, before merging; of a sound 1, 1 and its tokens."""
    num_tokens: int
    """Tokens that it takes in a prompt."""
    key: bytes
    """SHA-256 of the elements, their type and shape, and the grid."""


class EmbeddingError(MediaError):
    """Embeddings that cannot be used, and which of their tensors is at fault."""

    def __init__(self, kind: MediaKind, part: EmbeddingPart, error: MediaError) -> None:
        super().__init__(error.code, f"{kind}_{_NAMES[part]}: {error.message}")
        self.part = part


@contextmanager
def about(kind: MediaKind, part: EmbeddingPart) -> Generator[None]:
    """What is raised inside is said of this tensor. Raises EmbeddingError."""
    try:
        yield
    except MediaError as error:
        raise EmbeddingError(kind, part, error) from error


def make_embedding(kind: MediaKind, tensor: Tensor, grid: Tensor | None, form: EmbeddingSpec) -> Embedding:
    """Checks embeddings; the dear check, of each value, is the last.

    Args:
        kind: of the medium that they stand for.
        tensor: the embeddings, [tokens, hidden_size], or the only ones in [1, tokens, hidden_size].
        grid: INT64 [3] or [1, 3]: patches in time, height and width, before merging; of a sound None.
        form: what the checkpoint takes.

    Raises:
        EmbeddingError: INVALID_EMBEDDINGS.
    """
    with about(kind, EmbeddingPart.EMBEDDINGS):
        if kind not in form.kinds:
            raise invalid(f"the model takes no {_MEDIA[kind]}")
    with about(kind, EmbeddingPart.GRID_THW):
        said = None if kind is MediaKind.AUDIO else _read_grid(kind, grid, form)
    with about(kind, EmbeddingPart.EMBEDDINGS):
        num_tokens = _check_form(tensor, form)
        grid_thw = said or (1, 1, num_tokens)
        if said is not None:
            _check_number(num_tokens, said, form)
        if not largest_magnitude(tensor) <= MAX_MAGNITUDE:  # so that NaN is refused
            raise invalid(f"a value is not a finite number between -{MAX_MAGNITUDE:g} and {MAX_MAGNITUDE:g}")
    return Embedding(
        kind=kind,
        tensor=tensor,
        grid_thw=grid_thw,
        num_tokens=num_tokens,
        key=embedding_key(kind, tensor.dtype, (len(tensor.shape), *tensor.shape, *grid_thw), tensor.data),
    )


def _check_form(tensor: Tensor, form: EmbeddingSpec) -> int:
    """The number of rows."""
    if tensor.dtype is TensorType.INT64:
        raise invalid("the tensor is of type int64; embeddings are float32, float16 or bfloat16")
    if len(tensor.shape) == 3 and tensor.shape[0] != 1:
        raise invalid(f"the tensor holds the embeddings of {tensor.shape[0]} media; give a part for each")
    if len(tensor.shape) not in (2, 3):
        raise invalid(f"the tensor has {len(tensor.shape)} dimensions; embeddings are [tokens, {form.hidden_size}]")
    if tensor.shape[-1] != form.hidden_size:
        raise invalid(f"the tensor has {tensor.shape[-1]} values a token; the model takes {form.hidden_size}")
    return tensor.shape[-2]


def _check_number(num_rows: int, grid_thw: tuple[int, int, int], form: EmbeddingSpec) -> None:
    num_tokens = math.prod(grid_thw) // form.merge_size**2
    if num_rows != num_tokens:
        grid = _text(grid_thw)
        raise invalid(f"the tensor has {num_rows} tokens, and a grid of {grid} patches makes {num_tokens}")


def _read_grid(kind: MediaKind, grid: Tensor | None, form: EmbeddingSpec) -> tuple[int, int, int]:
    if grid is None:
        raise invalid("the model needs it beside embeddings: patches in time, height and width, [1, 3]")
    if grid.dtype is not TensorType.INT64:
        raise invalid(f"the tensor is of type {grid.dtype}; a grid is int64")
    if grid.shape not in ((3,), (1, 3)):
        raise invalid("a grid is three numbers, [3] or [1, 3]: patches in time, height and width")
    time, height, width = whole_numbers(grid)
    if min(time, height, width) < 1:
        raise invalid(f"a grid of {_text((time, height, width))} patches has none")
    if height % form.merge_size or width % form.merge_size:
        raise invalid(f"height and width, {height} and {width} patches, are not multiples of {form.merge_size}")
    if kind is MediaKind.IMAGE and time != 1:
        raise invalid(f"a picture has 1 patch in time, not {time}; a clip's embeddings are video_embeds")
    return time, height, width


def _text(grid_thw: tuple[int, int, int]) -> str:
    return "×".join(map(str, grid_thw))
