"""A web server for each test."""

from collections.abc import AsyncIterator

import pytest

from tests.media.web import Web, respond, serve


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with serve() as server:
        server.answers["/cat.png"] = respond(b"cat")
        yield server
