"""A web server for each test, and loaders."""

from collections.abc import AsyncIterator

import pytest

from glimpse.media.loader import MediaLoader
from tests.media.caching import CachingLoader, caching_loader
from tests.media.loaders import make_loader
from tests.media.web import Web, respond, serve


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with serve() as server:
        server.answers["/cat.png"] = respond(b"cat")
        yield server


@pytest.fixture
async def loader() -> AsyncIterator[MediaLoader]:
    """A loader of images, videos and documents, without a cache."""
    loader = make_loader()
    yield loader
    await loader.close()


@pytest.fixture
async def caching() -> AsyncIterator[CachingLoader]:
    async with caching_loader() as made:
        yield made
