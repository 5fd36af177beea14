"""Embeddings as callers of the offline door pass them, in vLLM's forms, made into one input for each medium."""

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from glimpse.engine.offline.audio_inputs import AudioInput
from glimpse.engine.offline.tensor_inputs import is_of_floats, tensor_of
from glimpse.engine.offline.visual_inputs import ImageInput, InputError, VideoInput, known_fields, left_out
from glimpse.media.embeddings.tensor import Tensor, TensorType, invalid, rows, whole_numbers
from glimpse.media.errors import MediaError
from glimpse.media.kind import MediaKind
from glimpse.media.sources.source import CachedSource


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EmbeddingInput:
    """Embeddings in the place of a medium of a request, not checked yet against what the model takes."""

    kind: MediaKind
    """Of the medium that they stand for."""
    embeddings: Tensor | CachedSource
    grid_thw: Tensor | None
    """The medium's patches in time, height and width, where they are said."""
    path: str
    """Where the caller wrote them, for errors."""
    uuid: str | None = None
    """The caller's name for them, under which they are kept."""


MediumInput: TypeAlias = ImageInput | VideoInput | AudioInput | EmbeddingInput


def is_left_out(given: MediumInput) -> bool:
    """Nothing of it is given but its name."""
    match given:
        case ImageInput(picture=medium) | VideoInput(clip=medium):
            return isinstance(medium, CachedSource)
        case AudioInput(sound=medium) | EmbeddingInput(embeddings=medium):
            return isinstance(medium, CachedSource)
        case _:
            assert_never(given)


def are_embeddings(value: object) -> bool:
    """Whether callers mean embeddings: a dict of tensors, a tensor of floats, or a list of such tensors."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(is_of_floats, value))
    return isinstance(value, Mapping) or is_of_floats(value)


def parse_embeddings(kind: MediaKind, value: object, path: str) -> list[EmbeddingInput]:
    """The embeddings of media.

    Args:
        kind: of the media.
        value: the embeddings, or a dict of them (`image_embeds`) and their grids (`image_grid_thw`, [media, 3]), which
            sounds have not. The embeddings are [media, tokens, hidden_size], a list of [tokens, hidden_size], or one
            such of all media's tokens.
        path: where.

    Raises:
        InputError: it is something else.
    """
    embeds, grid_thw = f"{kind}_embeds", f"{kind}_grid_thw"
    given, grids, embeds_path = value, None, path
    if isinstance(value, Mapping):
        has_grid = kind is not MediaKind.AUDIO
        fields = known_fields(value, path, known=(embeds, grid_thw) if has_grid else (embeds,))
        given, embeds_path = fields.get(embeds), f"{path}.{embeds}"
        with _at(f"{path}.{grid_thw}"):
            grids = None if fields.get(grid_thw) is None else _grids(tensor_of(fields[grid_thw]))
    with _at(embeds_path):
        tensors = _tensors(given, grids)
    if grids is not None and len(grids) != len(tensors):
        raise InputError(f"{path}.{grid_thw}", f"there are {len(grids)} grids and {len(tensors)} media")
    return [
        EmbeddingInput(kind=kind, embeddings=tensor, grid_thw=grid, path=path)
        for tensor, grid in zip(tensors, grids or [None] * len(tensors), strict=True)
    ]


def parse_embedding(kind: MediaKind, value: object, path: str, uuid: str | None = None) -> EmbeddingInput:
    """The embeddings of one medium, in the same forms; None: they are left out. Raises InputError."""
    if uuid is not None and (value is None or are_left_out(kind, value)):
        return EmbeddingInput(kind=kind, embeddings=left_out(uuid, path), grid_thw=None, path=path, uuid=uuid)
    parsed = parse_embeddings(kind, value, path)
    if len(parsed) != 1:
        raise InputError(path, f"these are the embeddings of {len(parsed)} media; give a part for each")
    return replace(parsed[0], uuid=uuid)


def are_left_out(kind: MediaKind, value: object) -> bool:
    """Whether it is a dict of embeddings that are None."""
    name = f"{kind}_embeds"
    return isinstance(value, Mapping) and set(value) == {name} and value[name] is None


@contextmanager
def _at(path: str) -> Generator[None]:
    try:
        yield
    except MediaError as error:
        raise InputError(path, error.message, error.code) from error


def _grids(tensor: Tensor) -> list[Tensor]:
    """[1, 3] each."""
    if tensor.dtype is not TensorType.INT64 or len(tensor.shape) not in (1, 2) or tensor.shape[-1] != 3:
        raise invalid("grids are three numbers for each medium: patches in time, height and width, int64 [media, 3]")
    if len(tensor.shape) == 1:
        return [tensor]
    return [rows(tensor, index, index + 1) for index in range(tensor.shape[0])]


def _tensors(given: object, grids: list[Tensor] | None) -> list[Tensor]:
    if isinstance(given, list | tuple):
        return [tensor_of(each) for each in given]
    tensor = tensor_of(given)
    if len(tensor.shape) == 3:
        return [rows(tensor, index, index + 1) for index in range(tensor.shape[0])]
    if len(tensor.shape) == 2 and grids is not None and len(grids) > 1:
        return _split(tensor, grids)
    return [tensor]


def _split(tensor: Tensor, grids: list[Tensor]) -> list[Tensor]:
    """The tokens of several media, as many of each as its share of the patches."""
    patches = [math.prod(whole_numbers(grid)) for grid in grids]
    if min(patches) < 1 or any(tensor.shape[0] * some % sum(patches) for some in patches):
        raise invalid(f"the {tensor.shape[0]} tokens are not those of the {len(grids)} media whose grids are given")
    ends = [tensor.shape[0] * sum(patches[: index + 1]) // sum(patches) for index in range(len(patches))]
    return [rows(tensor, start, end) for start, end in zip([0, *ends], ends, strict=False)]
