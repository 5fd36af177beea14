"""A Redis that the tests of a file share."""

from collections.abc import Iterator

import pytest

from tests.media.shared.redis_server import RedisServer


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
