"""How open RPCs are interrupted when the server stops."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from glimpse.openai.v1 import openai_pb2_grpc
from glimpse.server.errors import ServerStoppingError
from glimpse.server.rpc.stopping import OpenRpcs, StopSwitch
from tests.server.requests import json_bodies
from tests.server.serving import scripted


class SlowClient:
    """Receives messages once it reads."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.received: list[str] = []

    async def write(self, message: str) -> None:
        await self.reads.wait()
        self.received.append(message)


async def wait_in_guard(switch: StopSwitch) -> None:
    async with switch.guard():
        await asyncio.Event().wait()


async def started(switch: StopSwitch) -> "asyncio.Task[None]":
    task = asyncio.create_task(wait_in_guard(switch))
    await asyncio.sleep(0)
    return task


async def test_interrupts_what_an_rpc_waits_for() -> None:
    switch = StopSwitch()
    task = await started(switch)
    switch.turn_on()
    with pytest.raises(ServerStoppingError):
        await task


async def test_interrupts_the_innermost_guard_only() -> None:
    switch, told = StopSwitch(), asyncio.Event()
    async with switch.guard():
        asyncio.get_running_loop().call_soon(switch.turn_on)
        with pytest.raises(ServerStoppingError):
            await wait_in_guard(switch)
        await asyncio.sleep(0)  # what is said last is not interrupted
        told.set()
    assert told.is_set()


async def test_interrupts_an_rpc_that_begins_later_at_once() -> None:
    switch = StopSwitch()
    switch.turn_on()
    with pytest.raises(ServerStoppingError):
        await wait_in_guard(switch)


async def test_does_not_interrupt_a_write() -> None:
    switch, client = StopSwitch(), SlowClient()

    async def serve() -> None:
        async with switch.guard():
            for message in ("first", "second"):
                await switch.send(client.write, message)

    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    switch.turn_on()
    await asyncio.sleep(0)
    client.reads.set()
    with pytest.raises(ServerStoppingError):
        await task
    assert client.received == ["first"]


async def test_waits_for_what_is_written_last() -> None:
    switch, client = StopSwitch(), SlowClient()

    async def serve() -> None:
        async with switch.guard():
            await switch.send(client.write, "last")
            raise LookupError

    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    assert not task.done()
    client.reads.set()
    with pytest.raises(LookupError):
        await task
    assert client.received == ["last"]


async def test_write_that_nobody_waits_for_keeps_the_next_from_beginning() -> None:
    switch, client = StopSwitch(), SlowClient()

    async with switch.guard():
        assert switch.is_free
        switch.begin(client.write, "only")
        assert not switch.is_free
        await asyncio.sleep(0)
        assert not switch.is_free
        client.reads.set()
        await asyncio.sleep(0)
        assert switch.is_free
        switch.begin(client.write, "one")
        switch.begin(client.write, "another")
    assert client.received == ["only", "one", "another"]
    switch.turn_on()
    assert not switch.is_free


async def test_a_client_s_cancellation_stays_one() -> None:
    task = await started(StopSwitch())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancellation_of_shared_work_is_an_error() -> None:
    """grpc would end the RPC without a word, as if its client had left."""
    shared = asyncio.get_running_loop().create_future()
    shared.cancel()
    with pytest.raises(RuntimeError, match="was cancelled"):
        async with StopSwitch().guard():
            await shared


async def test_waits_for_requests_but_not_for_endless_streams() -> None:
    rpcs, release = OpenRpcs(), asyncio.Event()

    async def serve(*, is_request: bool) -> None:
        switch = StopSwitch()
        rpcs.add(switch, is_request=is_request)
        async with switch.guard():
            await release.wait() if is_request else await asyncio.Event().wait()

    request, watch = (asyncio.create_task(serve(is_request=is_request)) for is_request in (True, False))
    await asyncio.sleep(0)
    idle = asyncio.create_task(rpcs.wait_until_idle())
    await asyncio.sleep(0)
    assert not idle.done()
    release.set()
    await idle
    assert request.done()
    assert not watch.done()
    await rpcs.end_all()
    assert isinstance(watch.exception(), ServerStoppingError)


async def ask(channel: grpc.aio.Channel, request_id: str, begun: asyncio.Event) -> list[bytes]:
    """The events of a REST stream, which may be cut."""
    requests = json_bodies({"messages": [{"role": "user", "content": "Go on."}], "stream": True})
    stub: Any = openai_pb2_grpc.OpenAIServiceStub(channel)
    events: list[bytes] = []
    with suppress(grpc.aio.AioRpcError):
        async for body in stub.CreateChatCompletion(requests, metadata=[("x-request-id", request_id)]):
            events.append(body.data)
            begun.set()
    return events


async def test_streams_that_are_cut_while_they_write_say_so(tiny_checkpoint: Path, tmp_path: Path) -> None:
    ids = [*(f"hold-{number}" for number in range(10)), "flood-1", "flood-2"]
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, channel):
        await server.ready()
        asked: list[asyncio.Task[list[bytes]]] = []
        for request_id in ids:
            begun = asyncio.Event()
            asked.append(asyncio.create_task(ask(channel, request_id, begun)))
            await begun.wait()
        await server.stop(grace_seconds=0)
        answers = dict(zip(ids, await asyncio.gather(*asked), strict=True))
    for request_id, events in answers.items():
        is_cut = b"The server is stopping." in events[-1]
        assert is_cut or (request_id.startswith("flood") and events[-1] == b"data: [DONE]\n\n")
