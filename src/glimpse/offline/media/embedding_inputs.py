"""Parses the embeddings that callers of `LLM` pass in vLLM's formats, into one input per medium."""

import math
from collections.abc import Mapping

from glimpse.media.embeddings.tensor import Tensor, TensorType, integers, invalid, rows
from glimpse.media.inputs import EmbeddingInput
from glimpse.media.kind import MediaKind
from glimpse.offline.fields import InputError, blaming, known_fields
from glimpse.offline.media.tensor_inputs import is_of_floats, tensor_of


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
        value: the embeddings, or a dict of them (`image_embeds`) and what the model needs besides: their grids
            (`image_grid_thw`, [media, 3]; audio has none), or the widths and heights of images in pixels
            (`image_sizes`, [media, 2]). Embeddings are [media, tokens, hidden_size], a list of [tokens, hidden_size],
            or with grids the tokens of all media in one [tokens, hidden_size].

    Raises:
        InputError: it is something else.
    """
    embeds_name, grid_name, sizes_name = f"{kind}_embeds", f"{kind}_grid_thw", "image_sizes"
    embeds, grids, sizes, embeds_field = value, None, None, field
    if isinstance(value, Mapping):
        extras = {MediaKind.IMAGE: (grid_name, sizes_name), MediaKind.VIDEO: (grid_name,), MediaKind.AUDIO: ()}
        tensors_by_name = known_fields(value, field, known=(embeds_name, *extras[kind]))
        embeds, embeds_field = tensors_by_name.get(embeds_name), f"{field}.{embeds_name}"
        grids = _each(tensors_by_name.get(grid_name), f"{field}.{grid_name}", "patches in time, height and width", 3)
        sizes = _each(tensors_by_name.get(sizes_name), f"{field}.{sizes_name}", "width and height in pixels", 2)
    with blaming(embeds_field):
        tensors = _tensors(embeds, grids)
    for name, each in ((grid_name, grids), (sizes_name, sizes)):
        if each is not None and len(each) != len(tensors):
            raise InputError(f"{field}.{name}", f"expected one for each of {len(tensors)} media, got {len(each)}")
    nothing = [None] * len(tensors)
    return [
        EmbeddingInput(kind=kind, source=tensor, grid_thw=grid, size=size, field=field)
        for tensor, grid, size in zip(tensors, grids or nothing, sizes or nothing, strict=True)
    ]


def read_embedding(kind: MediaKind, value: object, field: str) -> object:
    """Returns the embeddings of one medium, in the same formats, and what JSON has as it is.

    Raises:
        InputError: it is something else, or the embeddings of several media.
    """
    given = value.values() if isinstance(value, Mapping) else [value]
    if isinstance(value, EmbeddingInput) or all(isinstance(each, str | Mapping | None) for each in given):
        return value
    parsed = parse_embeddings(kind, value, field)
    if len(parsed) != 1:
        raise InputError(field, f"expected the embeddings of one medium, got those of {len(parsed)}")
    return parsed[0]


def is_reference(kind: MediaKind, value: object) -> bool:
    """Returns whether the value is a dict whose embeddings are None: it refers to cached embeddings."""
    name = f"{kind}_embeds"
    return isinstance(value, Mapping) and set(value) == {name} and value[name] is None


def _each(value: object, field: str, what: str, size: int) -> list[Tensor] | None:
    """Splits what the model needs besides embeddings into one tensor per medium, [1, size] or [size]."""
    if value is None:
        return None
    with blaming(field):
        tensor = tensor_of(value)
        if tensor.dtype is not TensorType.INT64 or len(tensor.shape) not in (1, 2) or tensor.shape[-1] != size:
            got = f"{tensor.dtype} {list(tensor.shape)}"
            raise invalid(f"expected {what} of each medium, int64 [media, {size}], got {got}")
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
