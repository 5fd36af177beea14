"""Loads hostile files with isolated decoders, as a server does: each has its documented error."""

import asyncio
from dataclasses import dataclass, replace

import pytest

from glimpse.media.decoding.decoders import Decoders
from glimpse.media.decoding.jobs import PageJob
from glimpse.media.decoding.worker_client import IMAGE_LIMITS, IsolatedDecoders
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.input_loader import MediaInputError, load_inputs
from glimpse.media.loader import MediaLoader
from glimpse.media.processing.image import Image
from glimpse.media.processing.video_options import VideoOptions
from glimpse.media.sources.source import DataSource
from tests.hostile.documents import HOSTILE_DOCUMENTS, endless_documents, hostile_documents
from tests.hostile.images import HOSTILE_IMAGES, hostile_images
from tests.hostile.videos import HOSTILE_VIDEOS, hostile_videos
from tests.media.loaders import FETCHER, MEDIA_PROCESSING, NO_EMBEDDINGS, PROCESSING, document_input
from tests.media.sizes import num_tokens


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of loading a file."""

    code: MediaErrorCode | None
    message: str
    num_tokens: int


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """The outcome of each file, by name."""
    return asyncio.run(_try_all())


async def _try_all() -> dict[str, Outcome]:
    loader = MediaLoader(processing=MEDIA_PROCESSING, fetcher=FETCHER, decoders=Decoders(num_images=1))
    source_images = {f"image: {name}": await _try_image(loader, data) for name, (data, _) in hostile_images().items()}
    loaded_videos = {f"video: {name}": await _try_video(loader, data) for name, (data, _) in hostile_videos().items()}
    documents = {
        f"document: {name}": await _try_document(loader, data) for name, (data, _) in hostile_documents().items()
    }
    await loader.close()
    return source_images | loaded_videos | documents


async def _try_image(loader: MediaLoader, data: bytes) -> Outcome:
    try:
        return Outcome(None, "", num_tokens(await loader.load_image(DataSource(data=data))))
    except MediaError as error:
        return Outcome(error.code, error.message, 0)


async def _try_video(loader: MediaLoader, data: bytes) -> Outcome:
    try:
        return Outcome(None, "", num_tokens(await loader.load_video(DataSource(data=data), VideoOptions())))
    except MediaError as error:
        return Outcome(error.code, error.message, 0)


async def _try_document(loader: MediaLoader, data: bytes) -> Outcome:
    medium = document_input(data, with_texts=True)
    try:
        with loader.batch() as batch:
            ((loaded,),) = await load_inputs([[medium]], loader=loader, embeddings=NO_EMBEDDINGS, batch=batch)
        return Outcome(None, "", sum(num_tokens(part) for part in loaded.parts if isinstance(part, Image)))
    except MediaInputError as failed:
        return Outcome(failed.error.code, failed.error.message, 0)


def test_covers_enough_files() -> None:
    assert len(HOSTILE_IMAGES) + len(HOSTILE_VIDEOS) >= 40
    assert len(HOSTILE_DOCUMENTS) >= 30


@pytest.mark.parametrize("name", HOSTILE_IMAGES)
def test_image_has_its_documented_error(outcomes: dict[str, Outcome], name: str) -> None:
    _check(outcomes[f"image: {name}"], HOSTILE_IMAGES[name][1])


@pytest.mark.parametrize("name", HOSTILE_VIDEOS)
def test_video_has_its_documented_error(outcomes: dict[str, Outcome], name: str) -> None:
    _check(outcomes[f"video: {name}"], HOSTILE_VIDEOS[name][1])


@pytest.mark.parametrize("name", HOSTILE_DOCUMENTS)
def test_document_has_its_documented_error(outcomes: dict[str, Outcome], name: str) -> None:
    _check(outcomes[f"document: {name}"], HOSTILE_DOCUMENTS[name][1])


@pytest.mark.parametrize("name", endless_documents())
async def test_a_page_that_takes_too_long_is_refused(name: str) -> None:
    limits = replace(IMAGE_LIMITS, cpu_seconds=1)
    decoders = IsolatedDecoders(num_images=1, num_videos=1, max_decoded_pixels=1_000_000, image_limits=limits)
    try:
        with pytest.raises(MediaError, match="expected decoding of the document's page 1 to take at most") as refused:
            await decoders.decode(PageJob(processing=PROCESSING, number=1, dpi=None), [endless_documents()[name]])
        assert refused.value.code == MediaErrorCode.TOO_LARGE
    finally:
        await decoders.close()


def _check(outcome: Outcome, expected: MediaErrorCode | None) -> None:
    assert outcome.code == expected, outcome.message
    assert (outcome.num_tokens > 0) == (expected is None)


def test_no_file_crashes_a_worker(outcomes: dict[str, Outcome]) -> None:
    assert not [name for name, outcome in outcomes.items() if "crashed the decoder" in outcome.message]


def test_errors_reveal_nothing_about_the_host(outcomes: dict[str, Outcome]) -> None:
    messages = " ".join(outcome.message for outcome in outcomes.values())
    for word in ("Errno", "/work", "site-packages", "Traceback", "PIL", "avcodec", "PDFium", "root:"):
        assert word not in messages
