"""A scripted backend and an Envoy in front of it, shared by the gateway's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from glimpse.gateway.address import Address
from glimpse.gateway.config import GatewayOptions
from glimpse.gateway.run import Envoy
from tests.gateway.backend import Backend, echo, start_backend

ANY_PORT = Address(host="127.0.0.1", port=0)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_backend() -> AsyncIterator[Backend]:
    backend = await start_backend()
    yield backend
    await backend.server.stop(0)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def envoy(shared_backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Envoy]:
    run_dir: Path = tmp_path_factory.mktemp("envoy")
    async with Envoy(GatewayOptions(listen=ANY_PORT, upstream=(shared_backend.address,)), run_dir=run_dir) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def backend(shared_backend: Backend) -> Backend:
    """The shared backend, reset."""
    shared_backend.script = echo
    shared_backend.metadata = {}
    shared_backend.num_calls = 0
    shared_backend.cancelled.clear()
    return shared_backend


@pytest_asyncio.fixture(loop_scope="session")
async def http(envoy: Envoy) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://{envoy.address}") as session:
        yield session
