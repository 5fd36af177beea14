"""What tenants use of a server with several front ends: the supervisor's ledger, and the front ends' access to it."""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from glimpse.identity.errors import QuotaExceededError
from glimpse.identity.tenant import Limits, Tenant
from glimpse.server.processes.messages import AdmitRequest, Admitted, ChargeTokens, EndRequest
from glimpse.server.processes.peer import Peer

LATE_SECONDS = 0.2
"""How long it may take to hear that a request has ended. Its client may hear so first, and send the next one."""


@dataclass(frozen=True, slots=True)
class _Account:
    """What the ledger knows of a tenant."""

    tenant: Tenant
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when one of its requests has ended."""

    async def wait_until_free(self) -> None:
        """Waits a moment if as many requests run as may."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LATE_SECONDS):
                while self.tenant.is_busy:
                    self.ended.clear()
                    await self.ended.wait()


class Ledger:
    """The supervisor's counts, over all front ends. A tenant's limits are those of its last request."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        """By the tenants' tags."""
        self._running = Counter[tuple[int, str]]()
        """Requests in progress, by front end and tenant."""

    async def admit(self, front_end: int, request: AdmitRequest) -> Admitted:
        """Counts a request that begins, or says why it may not."""
        account = self._accounts.get(request.tenant)
        if account is None:
            account = self._accounts[request.tenant] = _Account(Tenant(request.tenant))
        account.tenant.set_limits(request.limits)
        await account.wait_until_free()
        try:
            await account.tenant.begin_request()
        except QuotaExceededError as error:
            return Admitted(refusal=error.message, retry_after_seconds=error.retry_after_seconds)
        self._running[front_end, request.tenant] += 1
        return Admitted()

    def end(self, front_end: int, request: EndRequest) -> None:
        """Counts the end of a request that was admitted, or that it does not begin."""
        self._running[front_end, request.tenant] -= 1
        account = self._accounts[request.tenant]
        if request.has_begun:
            account.tenant.end_request(0)
        else:
            account.tenant.withdraw_request()
        account.ended.set()

    def charge(self, request: ChargeTokens) -> None:
        """Counts tokens, whether or not they are left."""
        if (account := self._accounts.get(request.tenant)) is not None:
            account.tenant.charge(request.num_tokens)

    def lose(self, front_end: int) -> None:
        """A front end is gone: its requests have ended."""
        for key in [key for key in self._running if key[0] == front_end]:
            account = self._accounts[key[1]]
            for _ in range(self._running.pop(key)):
                account.tenant.end_request(0)
            account.ended.set()


class LedgerCounts:
    """The ledger as a front end's tenants see it. Asks nothing about tenants without limits."""

    def __init__(self, supervisor: Peer[Any]) -> None:
        self._supervisor = supervisor
        self._open = Counter[str]()
        """Requests that were admitted, by tenant. Limits may change while a request runs."""

    async def admit(self, tenant: str, limits: Limits) -> None:
        """Counts a request that begins. Raises QuotaExceededError, without counting it."""
        if not _are_counted(limits):
            return
        asking = asyncio.ensure_future(self._supervisor.call(AdmitRequest(tenant=tenant, limits=limits), Admitted))
        try:
            admitted = await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(lambda _: self._take_back(tenant, asking))
            raise
        if admitted.refusal:
            raise QuotaExceededError(admitted.refusal, retry_after_seconds=admitted.retry_after_seconds)
        self._open[tenant] += 1

    def withdraw(self, tenant: str, limits: Limits) -> None:
        """A request that was admitted does not begin."""
        del limits
        self._end(tenant, has_begun=False)

    def release(self, tenant: str) -> None:
        """A request has ended."""
        self._end(tenant, has_begun=True)

    def charge(self, tenant: str, num_tokens: int, tokens_per_minute: int) -> None:
        """Counts tokens, whether or not they are left."""
        del tokens_per_minute  # the ledger knows it
        if num_tokens:
            self._supervisor.tell(ChargeTokens(tenant=tenant, num_tokens=num_tokens))

    def _end(self, tenant: str, *, has_begun: bool) -> None:
        if self._open[tenant]:
            self._open[tenant] -= 1
            self._supervisor.tell(EndRequest(tenant=tenant, has_begun=has_begun))

    def _take_back(self, tenant: str, asking: "asyncio.Future[Admitted]") -> None:
        """Takes a request back that was cancelled while it was being admitted."""
        if not asking.cancelled() and asking.exception() is None and not asking.result().refusal:
            self._supervisor.tell(EndRequest(tenant=tenant, has_begun=False))


def _are_counted(limits: Limits) -> bool:
    counted = (limits.max_concurrent_requests, limits.requests_per_minute, limits.tokens_per_minute)
    return any(limit is not None for limit in counted)
