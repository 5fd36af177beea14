"""Converts loaded media to the engine's `MediaInput`, and reads from a checkpoint how media are processed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import assert_never

import numpy as np

from glimpse.engine.checkpoint.families.registry import family_of
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, TokenLayout
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.errors import TemplateError
from glimpse.engine.protocol.media import Embeddings, MediaContent, MediaSpan
from glimpse.engine.protocol.messages import MediaInput
from glimpse.media.embeddings.embeddings import Embedding, EmbeddingSpec
from glimpse.media.embeddings.tensor import TensorType
from glimpse.media.kind import MediaKind
from glimpse.media.medium import Medium
from glimpse.media.processing.audio import Audio
from glimpse.media.processing.image import Image
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.sizing.placement import ImagePlacement, ImageSource
from glimpse.media.processing.video import Video


def embedding_spec(model: ModelConfig, processing: MediaProcessing) -> EmbeddingSpec:
    """Returns the shape of embeddings that may replace media, which are processed this way."""
    family = family_of(model)
    merge_size = family.embedding_merge_size
    return EmbeddingSpec(
        kinds=frozenset(map(MediaKind, model.placeholder_ids)) & (family.embedding_kinds or frozenset(MediaKind)),
        hidden_size=model.text.encoder_row_width,
        merge_size=None if merge_size is None else merge_size(model),
        grid_of_rows=partial(family.embedding_grid, model),
        grids_of_size=partial(_grids_of_size, model, processing),
    )


def _grids_of_size(
    model: ModelConfig, processing: MediaProcessing, width: int, height: int
) -> dict[int, tuple[int, ...]]:
    """Returns the grids of an image, alone in a prompt or among others, by the number of its rows."""
    assert processing.images is not None, "embeddings of images have sizes"
    context = LayoutContext(model=model, encode=lambda _text: [])
    found: dict[int, tuple[int, ...]] = {}
    for sizing in (processing.images.sizing, processing.images.sizing.among_others()):
        source = ImageSource(width=width, height=height)
        placement = ImagePlacement(source=source, plan=sizing.plan(height, width))
        grid = placement.plan.grid
        layout = family_of(model).layout(Image(pixels=_NO_PIXELS, grid=grid, key=b"", placement=placement), context)
        found[sum(length for _, length in layout.runs)] = grid
    return found


_NO_PIXELS = np.empty((0, 0, 3), np.uint8)


def read_media(path: Path, model: ModelConfig) -> MediaProcessing:
    """Returns how the checkpoint in this folder processes media.

    Raises:
        ValueError: a preprocessor file is missing or damaged, contradicts `config.json` or is not supported.
    """
    return family_of(model).read_media(path, model)


class MediaLayouts:
    """Lays out the media of prompts as a checkpoint's family does."""

    def __init__(self, model: ModelConfig, tokenizer: Tokenizer) -> None:
        self._layout = family_of(model).layout
        self._context = LayoutContext(model=model, encode=tokenizer.encode)

    def of(self, media: Sequence[Medium]) -> list[TokenLayout]:
        """Returns the layout of each medium.

        Raises:
            TemplateError: the model does not support one's kind.
        """
        for medium in media:
            if medium.kind not in self._context.model.placeholder_ids:
                raise TemplateError(f"the model does not support {medium.kind} input")
        seen: Counter[MediaKind] = Counter()
        layouts: list[TokenLayout] = []
        for medium in media:
            layouts.append(self._layout(medium, replace(self._context, index=seen[medium.kind])))
            seen[medium.kind] += 1
        return layouts


def media_inputs(media: Sequence[Medium], layouts: Sequence[TokenLayout], starts: Sequence[int]) -> list[MediaInput]:
    """Pairs media in prompt order with their tokens in the prompt. `starts`: see `Prompt`."""
    return [
        MediaInput(
            span=MediaSpan(
                kind=medium.kind,
                start=start,
                num_tokens=layout.num_tokens,
                runs=layout.runs,
                key=medium.key,
                grid=medium.grid,
                mrope_time_interval=layout.mrope_time_interval,
            ),
            content=_content(medium),
        )
        for medium, layout, start in zip(media, layouts, starts, strict=True)
    ]


def _content(medium: Medium) -> MediaContent:
    match medium:
        case Image() | Video():
            return medium.pixels.data.cast("B")
        case Audio():
            return medium.features.data.cast("B")
        case Embedding():
            dtype = medium.tensor.dtype
            assert dtype is not TensorType.INT64, "embeddings are floats"
            return Embeddings(dtype=dtype.value, data=medium.tensor.data)
        case _:
            assert_never(medium)
