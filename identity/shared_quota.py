"""Quotas that several servers count together, in the Redis of their media store.

Each server counts for itself too (`glimpse.identity.quota`): while Redis is gone, its own count is all.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from glimpse.identity.quota import quota_exceeded
from glimpse.identity.tenant import Limits
from glimpse.media.shared.address import StoreAddress
from glimpse.media.shared.link import Client, RedisLink
from glimpse.media.shared.script import Script
from glimpse.media.shared.values import StoreUnavailableError

COMMAND_SECONDS = 0.5
"""Longest wait of a request for Redis. After one such wait no other waits until Redis answers again."""


class SharedQuotas:
    """Counts of one deployment, for the tasks of one event loop.

    It has a connection of its own: on the media store's, requests would wait for chunks of files.
    """

    def __init__(
        self,
        address: StoreAddress,
        *,
        prefix: str,
        on_change: Callable[[bool], None] = lambda _: None,
        command_seconds: float = COMMAND_SECONDS,
    ) -> None:
        """
        Args:
            address: Where Redis is.
            prefix: Begins all keys. Servers that count together have the same.
            on_change: Told whether Redis is available, whenever that changes.
            command_seconds: Limit on one command.
        """
        self._prefix = prefix
        self._script = Script("quota", package=__package__)
        self._charges = set[asyncio.Task[None]]()
        self._link = RedisLink(
            address, probe=self._probe, on_change=on_change, name="quota store", command_seconds=command_seconds
        )

    async def watch(self) -> None:
        """Stays connected until it is cancelled."""
        try:
            await self._link.start()
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.gather(*self._charges, return_exceptions=True)
            await self._link.close()

    async def admit(self, tenant: str, limits: Limits) -> None:
        """Counts a request that begins, unless a quota is used up. Counts nothing while Redis is unavailable.

        Raises QuotaExceededError: a quota is used up, by the requests of all servers.
        """
        all_quotas = [("tokens", limits.tokens_per_minute, 0), ("requests", limits.requests_per_minute, 1)]
        quotas = [(name, most, amount) for name, most, amount in all_quotas if most is not None]
        if not quotas:
            return
        try:
            found = await self._run(tenant, [part for name, most, amount in quotas for part in (name, most, 1, amount)])
        except StoreUnavailableError:
            return
        if found:
            position, microseconds = found
            name, most, _ = quotas[int(position) - 1]
            raise quota_exceeded(name, most, microseconds / 1e6)

    def withdraw(self, tenant: str, limits: Limits) -> None:
        """Gives a request back that was counted and does not begin."""
        if limits.requests_per_minute is not None:
            self._later(tenant, ["requests", limits.requests_per_minute, 0, -1])

    def release(self, tenant: str) -> None:
        """Nothing: servers limit requests in progress each for themselves."""

    def charge(self, tenant: str, num_tokens: int, tokens_per_minute: int) -> None:
        """Counts tokens in the background, whether or not they are left. While Redis is unavailable they are lost."""
        if num_tokens:
            self._later(tenant, ["tokens", tokens_per_minute, 0, num_tokens])

    def _later(self, tenant: str, arguments: list[str | bytes | int]) -> None:
        """Runs the script in the background, unless Redis is unavailable."""
        if self._link.is_available:
            task = asyncio.create_task(self._count(tenant, arguments))
            self._charges.add(task)
            task.add_done_callback(self._charges.discard)

    async def _count(self, tenant: str, arguments: list[str | bytes | int]) -> None:
        with suppress(StoreUnavailableError):
            await self._run(tenant, arguments)

    async def _run(self, tenant: str, arguments: list[str | bytes | int]) -> Any:
        key = f"{self._prefix}quota:{tenant}"
        return await self._link.run(lambda client: self._script.run(client, [key], arguments))

    async def _probe(self, client: Client) -> None:
        """Shows whether Redis takes writes and runs scripts, with the quotas of no one."""
        await client.delete(f"{self._prefix}quota:")
        await self._script.run(client, [f"{self._prefix}quota:"], ["tokens", 1, 1, 0])
