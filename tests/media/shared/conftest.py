"""Two replicas that share a Redis."""

from collections.abc import AsyncIterator

import pytest

from tests.media.shared.redis_server import RedisServer
from tests.media.shared.replicas import Replica, replica


@pytest.fixture
async def one(redis: RedisServer) -> AsyncIterator[Replica]:
    async with replica(redis) as made:
        yield made


@pytest.fixture
async def other(redis: RedisServer) -> AsyncIterator[Replica]:
    async with replica(redis) as made:
        yield made
