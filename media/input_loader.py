"""Loads the media of a request: `glimpse.media.inputs` → media that are ready for the engine."""

import sys
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, zip_longest
from typing import Any, TypeAlias, TypeVar, assert_never

from glimpse.media.cache.request_media import MediumOrigin, RequestMedia
from glimpse.media.embeddings.loader import EmbeddingLoader
from glimpse.media.errors import MediaError, MediaErrorCode, MediaOptionError
from glimpse.media.inputs import (
    AudioInput,
    DocumentInput,
    EmbeddingInput,
    ImageInput,
    MediumInput,
    VideoInput,
    is_by_reference,
)
from glimpse.media.loader import MediaLoader
from glimpse.media.medium import Medium
from glimpse.media.sources.files import DocumentPage, OpenDocument
from glimpse.tasks import run_all

_OneMedium: TypeAlias = ImageInput | VideoInput | AudioInput | EmbeddingInput
_InputT = TypeVar("_InputT")
_ResultT = TypeVar("_ResultT")


class MediaInputError(Exception):
    """A media input that cannot be loaded, and the field at fault."""

    def __init__(self, field: str, error: MediaError) -> None:
        super().__init__(f"{field}: {error.message}")
        self.field = field
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedInput:
    """What the model reads of a media input."""

    field: str
    """Path of the input in the request."""
    parts: tuple[Medium | str, ...]
    """The medium; for a document, images and texts of its pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A media input whose parts are known."""

    medium: MediumInput
    parts: tuple[_OneMedium | str, ...]
    document: OpenDocument | None = None
    origin: MediumOrigin | None = None
    """Where the document came from."""


def media_of(loaded: Iterable[LoadedInput]) -> list[Medium]:
    """Returns the media of a prompt, in order."""
    return [part for each in loaded for part in each.parts if not isinstance(part, str)]


def field_of(index: int, loaded: Iterable[LoadedInput]) -> str:
    """Returns the path of the input that a medium of the prompt is from."""
    return [each.field for each in loaded for part in each.parts if not isinstance(part, str)][index]


async def load_inputs(
    prompts: Sequence[Sequence[MediumInput]], *, loader: MediaLoader, embeddings: EmbeddingLoader, batch: RequestMedia
) -> list[list[LoadedInput]]:
    """Loads the media of prompts concurrently and returns them in order. Their origins follow in the batch's usage.

    Documents are opened first, since they say how many images there are. Inputs by reference are loaded last, since
    they may refer to media of the same request.

    Raises:
        MediaInputError: the first input that failed to load; the other loads are cancelled.
    """
    media = [medium for prompt in prompts for medium in prompt]
    opened = iter(await _references_last(media, lambda medium: medium, partial(_open, loader=loader, batch=batch)))
    plans = [list(islice(opened, len(prompt))) for prompt in prompts]
    loads = [(part, batch.for_medium(origin), is_alone) for plan in plans for part, origin, is_alone in _loads(plan)]
    load = partial(_load, loader=loader, embeddings=embeddings)
    loaded = iter(await _references_last(loads, lambda each: each[0], lambda each: load(*each)))
    for each in (each for plan in plans for each in plan):
        if each.document is not None:
            loader.close_document(each.document, batch)
    return [
        [
            LoadedInput(
                field=each.medium.field,
                parts=tuple(part if isinstance(part, str) else next(loaded) for part in each.parts),
            )
            for each in plan
        ]
        for plan in plans
    ]


async def _references_last(
    each: Sequence[_InputT],
    medium_of: Callable[[_InputT], MediumInput],
    work: Callable[[_InputT], Coroutine[Any, Any, _ResultT]],
) -> list[_ResultT]:
    """Works on inputs concurrently, on those by reference after the others. Returns the results in order."""
    are_references = [is_by_reference(medium_of(one)) for one in each]
    pairs = list(zip(each, are_references, strict=True))
    sent = iter(await run_all(work(one) for one, is_reference in pairs if not is_reference))
    referenced = iter(await run_all(work(one) for one, is_reference in pairs if is_reference))
    return [next(referenced if is_reference else sent) for is_reference in are_references]


def _loads(plan: Sequence[_Opened]) -> Iterator[tuple[_OneMedium, MediumOrigin | None, bool]]:
    """Yields the media of a prompt, where they came from, and whether each is the only image."""
    images = [part for each in plan for part in each.parts if isinstance(part, ImageInput)]
    for each in plan:
        if isinstance(each.medium, DocumentInput):
            _check_number(each.medium, len(images))
        for part in each.parts:
            if not isinstance(part, str):
                yield part, each.origin, len(images) == 1


async def _open(medium: MediumInput, *, loader: MediaLoader, batch: RequestMedia) -> _Opened:
    if not isinstance(medium, DocumentInput):
        return _Opened(medium=medium, parts=(medium,))
    own = replace(batch, origin=MediumOrigin())
    with _blaming(medium):
        max_texts = 0 if not medium.with_texts else medium.max_images if medium.with_images else sys.maxsize
        document = await loader.open_document(
            medium.source, medium.pages, batch=own, uuid=medium.uuid, max_texts=max_texts
        )
    _check_number(medium, len(document.pages))
    if not medium.with_images and not any(document.texts):
        message = "expected a document with a text layer, since no images were asked for; its pages have none"
        raise MediaInputError(medium.field, MediaError(MediaErrorCode.INVALID_MEDIA, message))
    return _Opened(medium=medium, parts=tuple(_parts(medium, document)), document=document, origin=own.origin)


def _parts(medium: DocumentInput, document: OpenDocument) -> Iterator[ImageInput | str]:
    """Yields images and texts of a document's pages."""
    if not medium.with_images:
        yield "\n\n".join(filter(None, document.texts))
        return
    for number, text in zip_longest(document.pages, document.texts):
        yield ImageInput(
            source=DocumentPage(files=document.files, number=number, dpi=medium.dpi),
            field=medium.field,
            options_field=medium.options_field,
            min_pixels=medium.min_pixels,
            max_pixels=medium.max_pixels,
            detail=medium.detail,
            background=medium.background,
        )
        if text:
            yield f"{text}\n\n"


def _check_number(medium: DocumentInput, num_images: int) -> None:
    """Raises MediaInputError if a prompt would have too many images."""
    if medium.with_images and num_images > medium.max_images:
        message = (
            f"expected at most {medium.max_images} images (the server's --limit-mm-per-prompt), got {num_images} with "
            "the pages of this document; choose pages with first_page and last_page"
        )
        raise MediaInputError(medium.field, MediaError(MediaErrorCode.TOO_MANY_IMAGES, message))


async def _load(
    medium: _OneMedium, batch: RequestMedia, is_alone: bool, *, loader: MediaLoader, embeddings: EmbeddingLoader
) -> Medium:
    with _blaming(medium):
        match medium:
            case ImageInput(source=source, uuid=uuid):
                return await loader.load_image(
                    source,
                    batch=batch,
                    uuid=uuid,
                    min_pixels=medium.min_pixels,
                    max_pixels=medium.max_pixels,
                    detail=medium.detail,
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


@contextmanager
def _blaming(medium: MediumInput) -> Generator[None]:
    """Raises MediaInputError for a MediaError in the block."""
    try:
        yield
    except MediaError as error:
        raise MediaInputError(_field_at_fault(medium, error), error) from error


def _field_at_fault(medium: MediumInput, error: MediaError) -> str:
    match medium:
        case ImageInput() | VideoInput() | DocumentInput() if (
            isinstance(error, MediaOptionError) and medium.options_field is not None
        ):
            return f"{medium.options_field}.{error.name}"
        case _:
            return medium.field
