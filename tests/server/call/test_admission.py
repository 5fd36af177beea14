"""Requests that would wait too long are refused before any work; the others are prepared a few at a time, in turn."""

import asyncio
import re
from collections.abc import Callable
from contextlib import closing

import pytest

from glimpse.dialect.bindings import bindings
from glimpse.engine.errors import EngineError, EngineErrorCode
from glimpse.server.call.admission import MAX_PREPARED_AT_ONCE, Admission, Ticket
from glimpse.server.dialects.anthropic.dialect import ANTHROPIC
from glimpse.server.dialects.openai import OPENAI
from glimpse.server.rpc.errors import to_status
from tests.server.services.step_stats import stats

CHAT = "/glimpse.v1.ChatService/CreateChatCompletion"
WITH_JSON = [
    f"/{method.containing_service.full_name}/{method.name}"
    for dialect in (OPENAI, ANTHROPIC)
    for binding in bindings(dialect.service)
    if binding.facade.client_streaming and binding.form is None
    for method in (binding.facade, binding.unary, binding.stream)
    if method is not None
]
"""The methods whose requests are documents, and the typed ones behind them."""


def measured(tokens_per_second: int, *, max_queue_seconds: float = 60.0) -> Admission:
    """Returns an admission that knows this rate of what waits."""
    admission = Admission(max_queue_seconds=max_queue_seconds, clock=lambda: 0.0)
    admission.engine_stepped(stats(running=8, waiting=5, token_seconds=1 / tokens_per_second))
    return admission


async def in_call(admission: Admission, client: str, work: Callable[[Ticket], object], method: str = CHAT) -> None:
    with closing(admission.ticket(method, client)) as ticket:
        await ticket.arrive()
        await ticket.begin()
        work(ticket)


async def test_request_that_would_wait_too_long_is_refused():
    admission = measured(100)
    admission.estimator.add_waiting("a", 9000)
    with pytest.raises(EngineError, match="--max-queue-seconds") as refused:
        await in_call(admission, "a", lambda _: None)
    assert (refused.value.code, refused.value.retry_after_seconds) == (EngineErrorCode.OVERLOADED, 30.0)
    failure = to_status(refused.value, "id")
    assert (failure.reason, failure.retry_after_seconds) == ("overloaded", 30.0)
    await in_call(admission, "b", lambda _: None)


async def test_a_refusal_tells_no_shorter_time_than_its_header():
    admission = measured(100)
    admission.estimator.add_waiting("a", 6240)
    with pytest.raises(EngineError, match=r"for about 63 s .* longer than 60 s .* retry in 3 s") as refused:
        admission.check("a")
    assert refused.value.retry_after_seconds == 3


async def test_a_refusal_tells_no_longer_time_than_clients_obey():
    admission = measured(100)
    admission.estimator.add_waiting("a", 90_000)
    with pytest.raises(EngineError, match=r"for about 900 s .* retry in 60 s") as refused:
        admission.check("a")
    assert refused.value.retry_after_seconds == 60


async def test_the_time_of_the_running_step_is_waited_no_more():
    """On a slow machine a step takes half of the longest wait."""
    now = 1000.0  # long after the engine had its last step
    admission = Admission(max_queue_seconds=60.0, clock=lambda: now)
    admission.engine_stepped(stats(running=0, token_seconds=0.01))
    now += 500.0
    admission.add_waiting("a", 9000)
    now += 20.0
    with pytest.raises(EngineError, match="wait for about 70 s"):
        admission.check("a")
    now += 11.0
    admission.check("a")
    admission.engine_stepped(stats(running=1, waiting=1, token_seconds=0.01))
    with pytest.raises(EngineError, match="wait for about 90 s"):
        admission.check("a")


async def test_work_waits_until_the_first_token_and_leaves_nothing_behind():
    admission = measured(100)
    seen: list[float] = []

    def generate(ticket: Ticket) -> None:
        ticket.expect(num_prompt_tokens=1000, num_completions=2, max_tokens=100)
        seen.append(admission.estimator.wait_seconds("a"))
        ticket.end_waiting()
        seen.append(admission.estimator.wait_seconds("a"))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await in_call(admission, "a", generate)
    assert seen == [12.0, 0.0]
    await in_call(admission, "a", lambda _: None)
    assert admission.estimator.wait_seconds("a") == 0.0


async def test_few_requests_are_prepared_at_a_time():
    admission, running, most = Admission(), 0, 0

    async def prepare() -> None:
        nonlocal running, most
        with closing(admission.ticket(CHAT, "a")) as ticket:
            await ticket.begin()
            running, most = running + 1, max(most, running + 1)
            for _ in range(20):  # longer than the turns in which others begin
                await asyncio.sleep(0)
            running -= 1
            ticket.end_preparing()

    await asyncio.gather(*(prepare() for _ in range(100)))
    assert (running, most) == (0, MAX_PREPARED_AT_ONCE)


async def test_a_client_s_requests_begin_in_turns_of_the_event_loop_which_accepts_others_in_between():
    admission, turn, begun = Admission(), 0, dict[str, list[int]]()

    async def request(client: str) -> None:
        await in_call(admission, client, lambda _: begun.setdefault(client, []).append(turn))

    requests = [asyncio.create_task(request("many")) for _ in range(20)]
    while not all(each.done() for each in requests):
        if turn == 10:
            requests.append(asyncio.create_task(request("other")))
        turn += 1
        await asyncio.sleep(0)
    assert len(set(begun["many"])) == 20
    assert begun["other"][0] < 15


async def test_other_methods_do_not_wait():
    admission = Admission()
    for index in range(2 * MAX_PREPARED_AT_ONCE):
        await admission.places.acquire(f"a{index}")
    await in_call(admission, "b", lambda _: None, method="/glimpse.v1.ModelService/ListModels")


@pytest.mark.parametrize("method", WITH_JSON)
async def test_every_document_waits_to_be_parsed(method: str):
    admission = Admission()
    for _ in range(MAX_PREPARED_AT_ONCE):
        await admission.places.acquire("a")
    with closing(admission.ticket(method, "a")) as ticket:
        waiting = asyncio.create_task(ticket.begin())
        await asyncio.sleep(0)
        assert not waiting.done()
        admission.places.release("a")
        await waiting


@pytest.mark.parametrize("method", [each for each in WITH_JSON if re.search(r"/(Create(?!Batch)|Stream)", each)])
async def test_what_the_engine_computes_is_refused_where_it_would_wait_too_long(method: str):
    admission = measured(100)
    admission.estimator.add_waiting("a", 9000)
    with pytest.raises(EngineError, match="--max-queue-seconds"):
        await in_call(admission, "a", lambda _: None, method=method)
