"""The deadline of a call."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from glimpse.server.errors import DeadlineExceededError


@asynccontextmanager
async def within(deadline: float | None) -> AsyncGenerator[None]:
    """Runs a block. Raises DeadlineExceededError if the deadline, in the event loop's time, passes before its end."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError as error:
        raise DeadlineExceededError from error
