"""A running server, and both clients of it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.harness import opened
from tests.e2e.media_host import HOST, MediaHost
from tests.e2e.stack import Served
from tests.server.serving import served


@pytest.fixture(scope="session")
def client_server(
    tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, media_host: MediaHost
) -> Iterator[Served]:
    """A server that may fetch media from `media_host`."""
    flags = (f"--allowed-media-networks={HOST}/32", f"--allowed-media-ports={media_host.server_port}")
    flags += ("--image-fetch-timeout=60",)  # a busy machine takes its time
    with served(tiny_checkpoint, tmp_path_factory.mktemp("client_server"), *flags) as server:
        yield server


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def client(kind: str, client_server: Served) -> AsyncIterator[Any]:
    async with opened(kind, f"127.0.0.1:{client_server.port}") as client:
        yield client
