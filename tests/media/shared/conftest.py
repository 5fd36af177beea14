"""A Redis that the tests of a file share, and two replicas that use it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.media.shared.redis_server import RedisServer
from tests.media.shared.replicas import Replica, replica


@pytest.fixture(scope="module")
def running_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def redis(running_redis: RedisServer) -> RedisServer:
    """Empty."""
    running_redis.client().flushall()
    return running_redis


@pytest.fixture
async def one(redis: RedisServer) -> AsyncIterator[Replica]:
    async with replica(redis) as made:
        yield made


@pytest.fixture
async def other(redis: RedisServer) -> AsyncIterator[Replica]:
    async with replica(redis) as made:
        yield made
