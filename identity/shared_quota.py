"""Quotas that several servers count together, in the Redis of their media store.

Each process counts for itself too (`glimpse.identity.quota`): while Redis is gone, its own count is all. Several front
ends of one server also count its requests in progress here.
"""

import asyncio
import itertools
import secrets
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from glimpse.identity.quota import quota_exceeded, too_many_requests
from glimpse.identity.tenant import Limits
from glimpse.media.shared.address import StoreAddress
from glimpse.media.shared.link import Client, RedisLink
from glimpse.media.shared.script import Script
from glimpse.media.shared.values import StoreUnavailableError

COMMAND_SECONDS = 0.5
"""Longest wait of a request for Redis. After one such wait no other waits until Redis answers again."""
LEASE_SECONDS = 6.0
"""How long a request in progress counts after its process has last renewed it, which it does three times as often."""
_LATE_SECONDS = 0.2
"""How long it may take to hear that a request has ended. Its client may hear so first, and send the next one."""
_BUSY = [0, 0]
"""What quota.lua returns if too many requests run."""


class SharedQuotas:
    """Counts of one deployment, for the tasks of one event loop.

    It has a connection of its own: on the media store's, requests would wait for chunks of files.
    """

    def __init__(
        self,
        address: StoreAddress,
        *,
        prefix: str,
        server: str = "",
        on_change: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """
        Args:
            prefix: Begins all keys. Servers that count together have the same.
            server: Name of the server, of which this is one of several front ends; they count requests in progress
                together. Empty: it has one.
            on_change: Told whether Redis is available, whenever that changes.
        """
        self._prefix = prefix
        self._server = server
        process = secrets.token_hex(8)
        self._names = (f"{process}-{number}" for number in itertools.count())
        self._running: defaultdict[str, list[str]] = defaultdict(list)
        """By tenant, the names of requests in progress that are counted in Redis."""
        self._script = Script("quota", package=__package__)
        self._tasks = set[asyncio.Task[None]]()
        self._link = RedisLink(
            address, probe=self._probe, on_change=on_change, name="quota store", command_seconds=COMMAND_SECONDS
        )

    async def watch(self) -> None:
        """Stays connected until it is cancelled."""
        try:
            await self._link.start()
            while True:
                await asyncio.sleep(LEASE_SECONDS / 3)
                if self._running:
                    with suppress(StoreUnavailableError):
                        await self._link.run(self._renew)
        finally:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._link.close()

    async def admit(self, tenant: str, limits: Limits) -> None:
        """Counts a request that begins, unless a limit is reached. Counts nothing while Redis is unavailable.

        Raises QuotaExceededError: a limit is reached, by the requests of all processes.
        """
        most = limits.max_concurrent_requests if self._server else None
        all_quotas = [("tokens", limits.tokens_per_minute, 0), ("requests", limits.requests_per_minute, 1)]
        quotas = [(name, per_minute, amount) for name, per_minute, amount in all_quotas if per_minute is not None]
        if not quotas and most is None:
            return
        arguments = [part for name, per_minute, amount in quotas for part in (name, per_minute, 1, amount)]
        found = await self._begin(tenant, most, arguments)
        if found == _BUSY:
            await asyncio.sleep(_LATE_SECONDS)
            found = await self._begin(tenant, most, arguments)
        if found == _BUSY and most is not None:
            raise too_many_requests(most)
        if found:
            position, microseconds = found
            name, per_minute, _ = quotas[position - 1]
            raise quota_exceeded(name, per_minute, microseconds / 1e6)

    def release(self, tenant: str) -> None:
        """A request has ended."""
        if names := self._running[tenant]:
            self._end(tenant, names.pop())
        if not names:
            del self._running[tenant]

    def charge(self, tenant: str, num_tokens: int, tokens_per_minute: int) -> None:
        """Counts tokens in the background, whether or not they are left. While Redis is unavailable they are lost."""
        if num_tokens:
            self._later(self._run(tenant, ["tokens", tokens_per_minute, 0, num_tokens]))

    async def _begin(self, tenant: str, most: int | None, quotas: Sequence[str | int]) -> list[int]:
        """Counts a request that begins. Returns what quota.lua does; nothing while Redis is unavailable."""
        if not self._link.is_available:
            return []
        name = next(self._names)
        asking = asyncio.ensure_future(self._run(tenant, quotas, most=most or 0, name=name))
        try:
            found = await asyncio.shield(asking)
        except StoreUnavailableError:
            return []
        except asyncio.CancelledError:  # it may be counted none the less
            asking.add_done_callback(lambda done: done.cancelled() or done.exception() or self._end(tenant, name))
            raise
        if not found and most is not None:
            self._running[tenant].append(name)
        return found

    def _end(self, tenant: str, name: str) -> None:
        self._later(self._link.run(lambda client: client.zrem(self._key("running", tenant), name)))

    async def _renew(self, client: Client) -> None:
        seconds, microseconds = await client.time()
        until = 1_000_000 * (seconds + LEASE_SECONDS) + microseconds
        async with client.pipeline(transaction=False) as commands:
            for tenant, names in self._running.items():
                key = self._key("running", tenant)
                commands.zadd(key, dict.fromkeys(names, until), xx=True)  # those that have ended meanwhile stay away
                commands.pexpire(key, int(1000 * LEASE_SECONDS))
            await commands.execute()

    def _later(self, work: Coroutine[Any, Any, object]) -> None:
        """Does something in the background, unless Redis is unavailable."""

        async def run() -> None:
            with suppress(StoreUnavailableError):
                await work

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, tenant: str, quotas: Sequence[str | int], *, most: int = 0, name: str = "") -> Any:
        keys = [self._key("quota", tenant), self._key("running", tenant)]
        lease = int(1000 * LEASE_SECONDS)
        return await self._link.run(lambda client: self._script.run(client, keys, [most, name, lease, *quotas]))

    def _key(self, kind: str, tenant: str) -> str:
        return f"{self._prefix}{kind}:{tenant}" if kind == "quota" else f"{self._prefix}{kind}:{self._server}:{tenant}"

    async def _probe(self, client: Client) -> None:
        """Shows whether Redis takes writes and runs scripts, with the quotas of no one."""
        keys = [self._key("quota", ""), self._key("running", "")]
        await client.delete(*keys)
        await self._script.run(client, keys, [0, "", 0, "tokens", 1, 1, 0])
