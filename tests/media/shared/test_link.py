"""The connection to Redis, without one."""

import asyncio

from glimpse.media.shared.address import parse_store_url
from glimpse.media.shared.link import Client, RedisLink


async def test_closes_at_the_moment_in_which_the_connection_is_lost() -> None:
    async def answers(_client: Client) -> None:
        return

    async def fails(_client: Client) -> None:
        raise ConnectionError

    link = RedisLink(parse_store_url("redis://127.0.0.1:1"), probe=answers, on_change=lambda _: None)
    await link.start()
    command = asyncio.create_task(link.run(fails))
    await asyncio.sleep(0)  # it fails, and wakes what watches the connection
    await asyncio.wait_for(link.close(), 30)
    await asyncio.gather(command, return_exceptions=True)
    assert isinstance(command.exception(), Exception)
