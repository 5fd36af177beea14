"""Loads the media of a request: `glimpse.media.inputs` → media that are ready for the engine."""

from collections.abc import Sequence
from functools import partial
from typing import assert_never

from glimpse.media.cache.request_media import RequestMedia
from glimpse.media.embeddings.loader import EmbeddingLoader
from glimpse.media.errors import MediaError, MediaOptionError
from glimpse.media.inputs import AudioInput, EmbeddingInput, ImageInput, MediumInput, VideoInput, is_by_reference
from glimpse.media.loader import MediaLoader
from glimpse.media.medium import Medium
from glimpse.tasks import run_all


class MediaInputError(Exception):
    """A media input that cannot be loaded, and the field at fault."""

    def __init__(self, field: str, error: MediaError) -> None:
        super().__init__(f"{field}: {error.message}")
        self.field = field
        self.error = error


async def load_inputs(
    inputs: Sequence[MediumInput], *, loader: MediaLoader, embeddings: EmbeddingLoader, batch: RequestMedia
) -> list[Medium]:
    """Loads media concurrently and returns them in the order of `inputs`. Their origins follow in the batch's usage.

    Inputs by reference are loaded last, since they may refer to media of the same request.

    Raises:
        MediaInputError: the first input that failed to load; the other loads are cancelled.
    """
    num_images = sum(isinstance(medium, ImageInput) for medium in inputs)
    load = partial(_load, loader=loader, embeddings=embeddings, is_alone=num_images == 1)
    each = [(medium, batch.for_medium()) for medium in inputs]
    sent = iter(await run_all(load(medium, batch=own) for medium, own in each if not is_by_reference(medium)))
    referenced = iter(await run_all(load(medium, batch=own) for medium, own in each if is_by_reference(medium)))
    return [next(referenced if is_by_reference(medium) else sent) for medium in inputs]


async def _load(
    medium: MediumInput, *, loader: MediaLoader, embeddings: EmbeddingLoader, batch: RequestMedia, is_alone: bool
) -> Medium:
    try:
        match medium:
            case ImageInput(source=source, uuid=uuid):
                return await loader.load_image(
                    source,
                    batch=batch,
                    uuid=uuid,
                    min_pixels=medium.min_pixels,
                    max_pixels=medium.max_pixels,
                    low_detail=medium.low_detail,
                    background=medium.background,
                    is_alone=is_alone,
                )
            case VideoInput(source=source, uuid=uuid):
                return await loader.load_video(source, medium.options, batch=batch, uuid=uuid)
            case AudioInput(source=source, uuid=uuid):
                return await loader.load_audio(source, batch=batch, uuid=uuid)
            case EmbeddingInput(kind=kind, source=source, uuid=uuid):
                return await embeddings.load(kind, source, medium.grid_thw, medium.size, batch=batch, uuid=uuid)
            case _:
                assert_never(medium)
    except MediaError as error:
        raise MediaInputError(_field_at_fault(medium, error), error) from error


def _field_at_fault(medium: MediumInput, error: MediaError) -> str:
    match medium:
        case ImageInput() | VideoInput() if isinstance(error, MediaOptionError) and medium.options_field is not None:
            return f"{medium.options_field}.{error.name}"
        case _:
            return medium.field
