"""Parses the embeddings that callers of `LLM` pass in vLLM's formats, into one input per medium."""

import math
from collections.abc import Mapping
from dataclasses import replace

from glimpse.engine.offline.fields import InputError, blaming, by_reference, known_fields
from glimpse.engine.offline.media.tensor_inputs import is_of_floats, tensor_of
from glimpse.media.embeddings.tensor import Tensor, TensorType, integers, invalid, rows
from glimpse.media.inputs import EmbeddingInput
from glimpse.media.kind import MediaKind


def are_embeddings(value: object) -> bool:
    """Returns whether the value is a dict of tensors, a tensor of floats, or a list of such tensors.

    A tensor of floats with four dimensions is the frames of a video.
    """
    if isinstance(value, list | tuple):
        return bool(value) and all(map(is_of_floats, value))
    return isinstance(value, Mapping) or is_of_floats(value)


def parse_embeddings(kind: MediaKind, value: object, field: str) -> list[EmbeddingInput]:
    """Parses the embeddings of several media.

    Args:
        kind: of the media.
        value: the embeddings, or a dict of them (`image_embeds`) and their grids (`image_grid_thw`, [media, 3]); audio
            has no grids. Embeddings are [media, tokens, hidden_size], a list of [tokens, hidden_size], or the tokens of
            all media in one [tokens, hidden_size].
        field: its path.

    Raises:
        InputError: it is something else.
    """
    embeds_name, grid_name = f"{kind}_embeds", f"{kind}_grid_thw"
    embeds, grids, embeds_field = value, None, field
    if isinstance(value, Mapping):
        known = (embeds_name,) if kind is MediaKind.AUDIO else (embeds_name, grid_name)
        tensors_by_name = known_fields(value, field, known=known)
        embeds, embeds_field = tensors_by_name.get(embeds_name), f"{field}.{embeds_name}"
        with blaming(f"{field}.{grid_name}"):
            grid = tensors_by_name.get(grid_name)
            grids = None if grid is None else _grids(tensor_of(grid))
    with blaming(embeds_field):
        tensors = _tensors(embeds, grids)
    if grids is not None and len(grids) != len(tensors):
        raise InputError(f"{field}.{grid_name}", f"expected a grid for each of {len(tensors)} media, got {len(grids)}")
    return [
        EmbeddingInput(kind=kind, source=tensor, grid_thw=grid, field=field)
        for tensor, grid in zip(tensors, grids or [None] * len(tensors), strict=True)
    ]


def parse_embedding(kind: MediaKind, value: object, field: str, uuid: str | None = None) -> EmbeddingInput:
    """Parses the embeddings of one medium, in the same formats; None: the cached embeddings of this uuid.

    Raises:
        InputError: it is something else, or the embeddings of several media.
    """
    if uuid is not None and (value is None or is_reference(kind, value)):
        return EmbeddingInput(kind=kind, source=by_reference(uuid, field), grid_thw=None, field=field, uuid=uuid)
    parsed = parse_embeddings(kind, value, field)
    if len(parsed) != 1:
        raise InputError(field, f"expected the embeddings of one medium, got those of {len(parsed)}")
    return replace(parsed[0], uuid=uuid)


def is_reference(kind: MediaKind, value: object) -> bool:
    """Returns whether the value is a dict whose embeddings are None: it refers to cached embeddings."""
    name = f"{kind}_embeds"
    return isinstance(value, Mapping) and set(value) == {name} and value[name] is None


def _grids(tensor: Tensor) -> list[Tensor]:
    """Splits grids into one tensor per medium, [1, 3] or [3]."""
    if tensor.dtype is not TensorType.INT64 or len(tensor.shape) not in (1, 2) or tensor.shape[-1] != 3:
        got = f"{tensor.dtype} {list(tensor.shape)}"
        raise invalid(f"expected patches in time, height and width of each medium, int64 [media, 3], got {got}")
    if len(tensor.shape) == 1:
        return [tensor]
    return [rows(tensor, index, index + 1) for index in range(tensor.shape[0])]


def _tensors(embeds: object, grids: list[Tensor] | None) -> list[Tensor]:
    if isinstance(embeds, list | tuple):
        return [tensor_of(each) for each in embeds]
    tensor = tensor_of(embeds)
    if len(tensor.shape) == 3:
        return [rows(tensor, index, index + 1) for index in range(tensor.shape[0])]
    if len(tensor.shape) == 2 and grids is not None and len(grids) > 1:
        return _split(tensor, grids)
    return [tensor]


def _split(tensor: Tensor, grids: list[Tensor]) -> list[Tensor]:
    """Splits the tokens of several media in proportion to the patches of their grids."""
    patches = [math.prod(integers(grid)) for grid in grids]
    if min(patches) < 1 or any(tensor.shape[0] * some % sum(patches) for some in patches):
        raise invalid(f"expected tokens that fit the {len(grids)} grids, got {tensor.shape[0]} tokens")
    ends = [tensor.shape[0] * sum(patches[: index + 1]) // sum(patches) for index in range(len(patches))]
    return [rows(tensor, start, end) for start, end in zip([0, *ends], ends, strict=False)]
