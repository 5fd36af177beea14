"""The connection to Redis, without one."""

import asyncio

from glimpse.media.shared.address import parse_store_url
from glimpse.media.shared.link import Client, RedisLink
from glimpse.media.shared.values import StoreUnavailableError


async def test_closes_at_the_moment_in_which_the_connection_is_lost() -> None:
    async def answers(_client: Client) -> None:
        return

    async def fails(_client: Client) -> None:
        raise ConnectionError

    link = RedisLink(parse_store_url("redis://127.0.0.1:1"), probe=answers, on_change=lambda _: None)
    await link.start()
    command = asyncio.create_task(link.run(fails))
    await asyncio.sleep(0)  # it fails, and wakes what watches the connection
    await link.close()
    await asyncio.gather(command, return_exceptions=True)
    assert isinstance(command.exception(), Exception)


async def test_closes_although_the_client_swallows_a_cancellation() -> None:
    probing = asyncio.Event()
    swallowed = list[bool]()

    async def swallows_one(_client: Client) -> None:
        probing.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if swallowed:
                raise
            swallowed.append(True)

    link = RedisLink(parse_store_url("redis://127.0.0.1:1"), probe=swallows_one, on_change=lambda _: None)
    starting = asyncio.create_task(link.start())
    await probing.wait()
    await link.close()
    assert swallowed
    await starting


async def test_many_commands_at_once_do_not_make_it_unavailable() -> None:
    """Commands that others keep waiting for too long fail alone."""

    async def answers(_client: Client) -> None:
        await asyncio.sleep(0.1)

    changes = list[bool]()
    link = RedisLink(parse_store_url("redis://127.0.0.1:1"), probe=answers, on_change=changes.append, command_seconds=3)
    await link.start()
    results = await asyncio.gather(*(link.run(answers) for _ in range(400)), return_exceptions=True)
    assert {type(result) for result in results} == {type(None), StoreUnavailableError}
    assert changes == [True]
    await link.close()
