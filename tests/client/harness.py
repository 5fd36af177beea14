"""The two clients behind one interface, so that each test covers both."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from glimpse import AsyncClient, Client
from glimpse.client import Chunk


class ThreadedClient:
    """A `Client` whose methods run in threads."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def stream(self, *arguments: Any, **options: Any) -> AsyncGenerator[Chunk]:
        """Yields as the client does, in a thread for each chunk."""
        chunks = self._client.stream(*arguments, **options)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            yield chunk

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            return await asyncio.to_thread(getattr(self._client, name), *arguments, **options)

        return call


@asynccontextmanager
async def opened(kind: str, target: str, **options: Any) -> AsyncGenerator[Any]:
    """Opens the client of this kind, "sync" or "async"."""
    if kind == "async":
        async with AsyncClient(target, **options) as client:
            yield client
    else:
        with Client(target, **options) as client:
            yield ThreadedClient(client)
