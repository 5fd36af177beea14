"""Media that are refused leave no reference cycles: their memory returns without the cycle collector."""

import asyncio
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import pytest_asyncio

from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.cache.store import MediaStore
from glimpse.media.decoding.worker_client import IMAGE_LIMITS, VIDEO_LIMITS, IsolatedDecoders
from glimpse.media.embeddings.embeddings import EmbeddingSpec
from glimpse.media.embeddings.loader import EmbeddingLoader
from glimpse.media.embeddings.tensor_file import SerializedTensor
from glimpse.media.input_loader import MediaInputError, load_inputs
from glimpse.media.inputs import EmbeddingInput, ImageInput, MediumInput, VideoInput
from glimpse.media.kind import MediaKind
from glimpse.media.loader import MediaLoader
from glimpse.media.processing.video_options import VideoOptions
from glimpse.media.sources.source import CachedSource, DataSource, FrameSources, Source, UploadSource, parse_url_text
from tests.garbage import no_cycles
from tests.media.images import encode, png_header, scene
from tests.media.loaders import FETCHER, MEDIA_PROCESSING, document_input
from tests.media.pdfs import document
from tests.media.web import Web, respond, serve, stall_after

pytestmark = pytest.mark.asyncio(loop_scope="module")

LARGE = bytes(1 << 20)
LARGE_PDF = document(["", ""]) + LARGE
TRUNCATED = encode(scene(64, 64), "JPEG")[:400] + LARGE


def image(data: bytes, **members: Any) -> ImageInput:
    return ImageInput(source=DataSource(data=data), field="image", **members)


def frames(*sources: Source) -> VideoInput:
    return VideoInput(source=FrameSources(frames=sources), options=VideoOptions(), field="video")


def link(url: str) -> ImageInput:
    return ImageInput(source=parse_url_text(url), field="image")


REFUSED: dict[str, Callable[[str], list[MediumInput]]] = {
    "no image": lambda _: [image(LARGE)],
    "truncated": lambda _: [image(TRUNCATED)],
    "bomb": lambda _: [image(png_header(20000, 20000) + LARGE)],
    "two at once": lambda _: [image(TRUNCATED), image(LARGE), image(TRUNCATED)],
    "invalid bounds": lambda _: [image(LARGE, min_pixels=2000, max_pixels=1000)],
    "video": lambda _: [VideoInput(source=DataSource(data=LARGE), options=VideoOptions(), field="video")],
    "frames": lambda _: [frames(*(DataSource(data=data) for data in (TRUNCATED, TRUNCATED, LARGE)))],
    "unknown uuid": lambda _: [image(LARGE), ImageInput(source=CachedSource(uuid="x"), field="image")],
    "unknown upload": lambda _: [ImageInput(source=UploadSource(handle="x"), field="image"), image(LARGE)],
    "over the budget": lambda _: [image(LARGE)] * 5,
    "not found": lambda web: [link(f"{web}/missing"), image(LARGE)],
    "too long a body": lambda web: [link(f"{web}/long")],
    "no image at the URL": lambda web: [link(f"{web}/large")],
    "slow": lambda web: [VideoInput(source=parse_url_text(f"{web}/slow"), options=VideoOptions(), field="video")],
    "slow frames": lambda web: [frames(parse_url_text(f"{web}/slow"), parse_url_text(f"{web}/slow"))],
    "refused address": lambda _: [link("http://127.0.0.2:1/"), image(LARGE)],
    "closed port": lambda _: [link("http://127.0.0.1:1/"), image(LARGE)],
    "no document": lambda _: [document_input(LARGE), image(LARGE)],
    "corrupt document": lambda _: [document_input(b"%PDF-1.7" + LARGE)],
    "too many pages": lambda _: [document_input(LARGE_PDF, max_images=1)],
    "a page that cannot be read": lambda _: [document_input(LARGE_PDF, max_pixels=1), image(LARGE)],
    "a scan without text": lambda _: [document_input(LARGE_PDF, with_images=False, with_texts=True)],
    "embeddings": lambda _: [
        EmbeddingInput(
            kind=MediaKind.IMAGE, source=SerializedTensor(data=LARGE), grid_thw=None, field="embeddings", uuid=None
        )
    ],
}


class Loaders:
    """Everything that loads media, with a worker per kind."""

    def __init__(self, *worker: str) -> None:
        store = MediaStore(max_bytes=1 << 20)
        command = {"command": (sys.executable, "-c", *worker)} if worker else {}
        decoders: Any = IsolatedDecoders(
            num_images=2,
            num_videos=1,
            max_decoded_pixels=1_000_000,
            image_limits=IMAGE_LIMITS,
            video_limits=VIDEO_LIMITS,
            **command,
        )
        self.embeddings = EmbeddingLoader(
            spec=EmbeddingSpec(kinds=frozenset(MediaKind), hidden_size=64, merge_size=2), store=store
        )
        self.media = MediaLoader(
            processing=MEDIA_PROCESSING,
            fetcher=FETCHER,
            decoders=decoders,
            store=store,
            memory_budget=MemoryBudget(max_bytes=(4 << 20) + 2000),
            # Frames are videos, and each is an image: so they are late together, none alone.
            # Others are not late, though the machine stalls.
            fetch_timeouts={**dict.fromkeys(MediaKind, 140.0), MediaKind.VIDEO: 0.05},
        )

    async def load(self, inputs: Sequence[MediumInput]) -> None:
        with self.media.batch() as batch:
            await load_inputs([inputs], loader=self.media, embeddings=self.embeddings, batch=batch)

    async def refuse(self, inputs: Sequence[MediumInput]) -> None:
        # Not `pytest.raises`, which keeps the error.
        try:
            await self.load(inputs)
        except MediaInputError:
            return
        raise AssertionError("expected a refusal")

    async def close(self) -> None:
        await self.media.close()
        await self.embeddings.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def loaders() -> AsyncIterator[Loaders]:
    loaders = Loaders()
    yield loaders
    await loaders.close()


@pytest_asyncio.fixture(loop_scope="module")
async def web() -> AsyncIterator[Web]:
    async with serve() as server:
        yield server


@pytest.mark.parametrize("kind", REFUSED)
async def test_refused_media_leave_no_cycles(loaders: Loaders, web: Web, kind: str) -> None:
    web.answers["/large"] = respond(LARGE)
    web.answers["/long"] = respond(LARGE, headers={"Content-Length": "99999999999"})
    web.answers["/slow"] = stall_after(b"HTTP/1.1 200 OK\r\n\r\n" + LARGE)
    with no_cycles():
        for _ in range(3):
            await loaders.refuse(REFUSED[kind](web.url("")))
        await asyncio.sleep(0)


async def test_refusals_that_requests_share_leave_no_cycles(loaders: Loaders, web: Web) -> None:
    web.answers["/large"] = respond(LARGE)
    inputs = [link(web.url("/large")), image(LARGE)]
    with no_cycles():
        await asyncio.gather(*(loaders.refuse(inputs) for _ in range(3)))
        await asyncio.sleep(0)


async def test_crashes_of_the_decoder_leave_no_cycles() -> None:
    loaders = Loaders("import os, sys; sys.stdin.buffer.read(1 << 16); os._exit(1)")
    with no_cycles():
        for _ in range(3):
            await loaders.refuse([image(LARGE)])
        await asyncio.sleep(0)
    await loaders.close()


@pytest.mark.parametrize("path", ["/slow", "/decoded"])
async def test_cancelled_loads_leave_no_cycles(web: Web, path: str) -> None:
    loaders = Loaders("import time; time.sleep(600)")
    web.answers["/slow"] = stall_after(b"HTTP/1.1 200 OK\r\n\r\n" + LARGE)
    inputs = [link(web.url("/slow"))] if path == "/slow" else [image(LARGE)]
    with no_cycles():
        for _ in range(2):
            task = asyncio.create_task(loaders.load(inputs))
            done, _ = await asyncio.wait([task], timeout=0.03)
            assert not done
            task.cancel()
            await asyncio.wait([task])
            del task, done
        await asyncio.sleep(1.5)  # the worker of a cancelled job is killed after a second of grace
    await loaders.close()


async def test_memory_returns_while_a_thousand_images_are_refused(loaders: Loaders) -> None:
    await loaders.refuse([image(LARGE)])  # what is only made once
    with no_cycles():
        tracemalloc.start()
        try:
            for index in range(1000):
                await loaders.refuse([image(bytes([index % 256]) * len(LARGE))])
            await asyncio.sleep(0)
            after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert after < 4 * len(LARGE)  # threads may take a moment to let go of the last ones
    assert peak < 10 * len(LARGE)
