"""Tenants' limits over several front ends: the ledger, and front ends that ask it over real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import msgspec
import pytest

from glimpse.frames import Frames
from glimpse.identity.errors import QuotaExceededError
from glimpse.identity.tenant import Limits, Tenant
from glimpse.server.processes import ledger
from glimpse.server.processes.ledger import Ledger, LedgerCounts
from glimpse.server.processes.messages import (
    AdmitRequest,
    ChargeTokens,
    EndRequest,
    FromFrontEnd,
    ToFrontEnd,
)
from glimpse.server.processes.peer import Peer
from tests.engine.processes import until

NUM_FRONT_ENDS = 2
FROM = Frames[FromFrontEnd](FromFrontEnd)
TO = Frames[ToFrontEnd](ToFrontEnd)


class Supervisor:
    """A ledger, and the counts of the front ends that ask it."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.num_asked = 0
        self.counts: list[LedgerCounts] = []

    async def connect(self, stack: AsyncExitStack) -> None:
        """Adds a front end."""
        number = len(self.counts)
        near, far = socket.socketpair()
        here = await Peer.connect(
            near,
            FROM,
            answer=lambda message: self._answer(number, message),
            notice=lambda each: self._take(number, each),
        )
        there = await Peer.connect(far, TO, answer=_nothing, notice=lambda _: None)
        for peer in (here, there):
            task = asyncio.create_task(peer.serve())
            stack.push_async_callback(peer.close)
            stack.push_async_callback(_end, task)
        self.counts.append(LedgerCounts(there))

    def tenant(self, front_end: int, **limits: int) -> Tenant:
        """A tenant as one front end knows it."""
        tenant = Tenant("acme", shared=[self.counts[front_end]])
        tenant.set_limits(Limits(**limits))
        return tenant

    async def _answer(self, number: int, message: FromFrontEnd) -> msgspec.Struct:
        assert isinstance(message, AdmitRequest)
        self.num_asked += 1
        return await self.ledger.admit(number, message)

    def _take(self, number: int, message: FromFrontEnd) -> None:
        if isinstance(message, EndRequest):
            self.ledger.end(number, message)
        elif isinstance(message, ChargeTokens):
            self.ledger.charge(message)


async def _nothing(message: ToFrontEnd) -> msgspec.Struct:
    raise AssertionError(message)


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])


@pytest.fixture(autouse=True)
def quick_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "LATE_SECONDS", 0.0)


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    supervisor = Supervisor()
    async with AsyncExitStack() as stack:
        for _ in range(NUM_FRONT_ENDS):
            await supervisor.connect(stack)
        yield supervisor


async def is_admitted(tenant: Tenant) -> bool:
    try:
        await tenant.begin_request()
    except QuotaExceededError:
        return False
    return True


async def admitted_at_last(tenant: Tenant) -> None:
    """Waits until a request is admitted: notices take a moment."""
    async with asyncio.timeout(10):
        while not await is_admitted(tenant):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_requests_in_progress_count_over_all_front_ends(supervisor: Supervisor) -> None:
    here, there = (supervisor.tenant(number, max_concurrent_requests=2) for number in range(NUM_FRONT_ENDS))
    assert await is_admitted(here)
    assert await is_admitted(there)
    with pytest.raises(QuotaExceededError, match="expected at most 2 requests of your tenant at a time"):
        await there.begin_request()
    here.end_request(0)
    assert await is_admitted(here)
    assert not await is_admitted(there)


async def test_next_request_may_come_before_the_end_of_the_last_one_is_heard(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends one request after the other, to any front end, never exceeds its limit."""
    monkeypatch.setattr(ledger, "LATE_SECONDS", 30.0)
    here, there = (supervisor.tenant(number, max_concurrent_requests=1) for number in range(NUM_FRONT_ENDS))
    assert await is_admitted(here)
    following = asyncio.create_task(is_admitted(there))
    await until(lambda: supervisor.num_asked == 2)
    here.end_request(0)
    assert await following


async def test_quotas_count_over_all_front_ends(supervisor: Supervisor) -> None:
    here, there = (supervisor.tenant(number, requests_per_minute=3) for number in range(NUM_FRONT_ENDS))
    assert [await is_admitted(each) for each in (here, there, here, there, here)] == [True, True, True, False, False]


async def test_tokens_count_over_all_front_ends(supervisor: Supervisor) -> None:
    here, there = (supervisor.tenant(number, tokens_per_minute=10) for number in range(NUM_FRONT_ENDS))
    assert await is_admitted(here)
    here.end_request(1000)
    assert not await is_admitted(here)
    with pytest.raises(QuotaExceededError) as caught:
        await there.begin_request()
    assert caught.value.retry_after_seconds > 1


async def test_refused_request_counts_nowhere(supervisor: Supervisor) -> None:
    """Neither here, where it was counted first, nor in the ledger."""
    limits = {"max_concurrent_requests": 1, "requests_per_minute": 4}
    here, there = (supervisor.tenant(number, **limits) for number in range(NUM_FRONT_ENDS))
    assert await is_admitted(here)
    for _ in range(10):
        assert not await is_admitted(there)
    here.end_request(0)
    for _ in range(3):
        assert await is_admitted(there)
        there.end_request(0)
    assert not await is_admitted(there)


async def test_requests_of_a_front_end_that_is_gone_have_ended(supervisor: Supervisor) -> None:
    here, there = (supervisor.tenant(number, max_concurrent_requests=2) for number in range(NUM_FRONT_ENDS))
    assert await is_admitted(here)
    assert await is_admitted(here)
    assert not await is_admitted(there)
    supervisor.ledger.lose(0)
    assert await is_admitted(there)
    assert await is_admitted(there)
    assert not await is_admitted(there)


async def test_request_that_is_cancelled_while_it_is_admitted_is_taken_back(supervisor: Supervisor) -> None:
    here, there = (supervisor.tenant(number, max_concurrent_requests=1) for number in range(NUM_FRONT_ENDS))
    beginning = asyncio.create_task(here.begin_request())
    await asyncio.sleep(0)
    beginning.cancel()
    await asyncio.wait([beginning])
    assert beginning.cancelled()
    await admitted_at_last(there)
    assert supervisor.num_asked >= 2


async def test_limits_may_come_and_go_while_a_request_runs(supervisor: Supervisor) -> None:
    here, there = (supervisor.tenant(number) for number in range(NUM_FRONT_ENDS))
    await here.begin_request()
    assert supervisor.num_asked == 0, "tenants without limits cost no call"
    for tenant in (here, there):
        tenant.set_limits(Limits(max_concurrent_requests=1))
    here.end_request(0)
    assert await is_admitted(here)
    here.set_limits(Limits())
    here.end_request(0)
    assert await is_admitted(there)


async def test_request_that_another_count_refuses_is_withdrawn(supervisor: Supervisor) -> None:
    class Full:
        async def admit(self, tenant: str, limits: Limits) -> None:
            raise QuotaExceededError("full", retry_after_seconds=1.0)

        def withdraw(self, tenant: str, limits: Limits) -> None: ...
        def release(self, tenant: str) -> None: ...
        def charge(self, tenant: str, num_tokens: int, tokens_per_minute: int) -> None: ...

    refused = Tenant("acme", shared=[supervisor.counts[0], Full()])
    refused.set_limits(Limits(requests_per_minute=1, max_concurrent_requests=1))
    with pytest.raises(QuotaExceededError, match="full"):
        await refused.begin_request()
    tenant = supervisor.tenant(1, requests_per_minute=1, max_concurrent_requests=1)
    await admitted_at_last(tenant)
