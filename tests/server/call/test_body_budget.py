"""Bodies of all requests share one budget, over REST and gRPC, and a body that stalls gives its share back."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest
from google.api.httpbody_pb2 import HttpBody

from glimpse.dialect.bindings import bindings
from glimpse.media.cache.fair_share import FairCapacity
from glimpse.openai.v1 import openai_pb2_grpc
from glimpse.server.dialects.facade import add_facade
from glimpse.server.dialects.openai import OPENAI
from glimpse.server.rpc.errors import HTTP_STATUS_HEADER, RETRY_AFTER_HEADER
from glimpse.server.rpc.interceptors import RpcInterceptor
from glimpse.server.rpc.load_meter import LoadMeter
from glimpse.server.rpc.typed_handlers import add_typed_services
from glimpse.server.telemetry.metrics import Metrics
from glimpse.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from tests.waiting import until

BUDGET_BYTES = 1000
BODY_BYTES = 600
"""Size of bodies of which the budget has room for one."""
TYPED = tokenizer_pb2.DESCRIPTOR.services_by_name["TokenizerService"]
OVERLOADED = "The bodies of the requests in progress leave too little of the server's memory; try again later."
SLOW = "expected the rest of the body at 16 KiB/s or faster, got less for 0.5 seconds"


@dataclass
class Server:
    """A server whose handlers hold their requests until they are told to answer."""

    budget: FairCapacity = field(default_factory=lambda: FairCapacity(BUDGET_BYTES))
    proceed: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: Any, context: Any) -> tokenizer_pb2.DetokenizeResponse:
        await self.proceed.wait()
        return tokenizer_pb2.DetokenizeResponse(prompt="answered")

    async def holds(self, num_bytes: int) -> None:
        """Waits until bodies of this size together are reserved."""
        await until(lambda: self.budget.count.own == num_bytes)


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def channel(server: Server) -> AsyncIterator[grpc.aio.Channel]:
    interceptor = RpcInterceptor(Metrics(), LoadMeter(max_sequences=1), bodies=server.budget)
    grpc_server = grpc.aio.server(interceptors=[interceptor])
    bound = [method for each in bindings(OPENAI.service) for method in (each.unary, each.stream) if method is not None]
    handlers: Any = {method.full_name: server.answer for method in [*bound, *TYPED.methods]}
    add_typed_services(grpc_server, [TYPED], handlers)
    add_facade(grpc_server, OPENAI, handlers, max_body_bytes=1 << 20, ping_seconds=60)
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    await grpc_server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await grpc_server.stop(None)


def rest(channel: grpc.aio.Channel, parts: Any = (), client: str = "") -> Any:
    """A REST request as the gateway sends it, or the parts of one."""
    data = b'{"tokens": [1]}'.ljust(BODY_BYTES)
    return openai_pb2_grpc.OpenAIServiceStub(channel).Detokenize(
        parts or iter([HttpBody(content_type="application/json", data=data)]), metadata=(("x-api-key", client),)
    )


def typed(channel: grpc.aio.Channel) -> Any:
    """Sends a typed request whose message has the same size."""
    return tokenizer_pb2_grpc.TokenizerServiceStub(channel).Detokenize(
        tokenizer_pb2.DetokenizeRequest(tokens=[1] * (BODY_BYTES - 3))
    )


async def failure(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


@pytest.mark.parametrize("second", [rest, typed])
@pytest.mark.parametrize("first", [rest, typed])
async def test_bodies_share_a_budget(server: Server, channel: grpc.aio.Channel, first: Any, second: Any) -> None:
    held = first(channel)
    await server.holds(BODY_BYTES)
    error = await failure(second(channel))
    assert (error.code(), error.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, OVERLOADED)
    assert dict(error.trailing_metadata())[RETRY_AFTER_HEADER] == "1"
    server.proceed.set()
    await held
    await server.holds(0)
    await second(channel)  # there is room again


async def test_a_body_larger_than_the_budget_is_not_told_to_try_again(
    server: Server, channel: grpc.aio.Channel
) -> None:
    large = iter([HttpBody(content_type="application/json", data=b" " * (BUDGET_BYTES + 1))])
    error = await failure(rest(channel, large))
    assert (error.code(), error.details()) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "The body is larger than 1000 bytes, the server's --body-in-flight-bytes.",
    )
    metadata = dict(error.trailing_metadata())
    assert metadata[HTTP_STATUS_HEADER] == "413"
    assert RETRY_AFTER_HEADER not in metadata
    server.proceed.set()
    await rest(channel)


async def test_a_stalled_body_times_out(
    server: Server, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glimpse.server.rpc.http_bodies.MAX_BEHIND_SECONDS", 0.5)
    never = asyncio.Event()

    async def parts() -> AsyncIterator[HttpBody]:
        yield HttpBody(content_type="application/json", data=b" " * BODY_BYTES)
        await never.wait()

    error = await failure(rest(channel, parts()))
    assert error.details() == SLOW
    assert dict(error.trailing_metadata())[HTTP_STATUS_HEADER] == "408"
    await server.holds(0)


async def unfinished(num_bytes: int) -> AsyncIterator[HttpBody]:
    """Yields the parts of a body that begins and never ends."""
    yield HttpBody(content_type="application/json", data=b" " * num_bytes)
    await asyncio.Event().wait()


async def test_unfinished_bodies_of_one_client_refuse_no_other(server: Server, channel: grpc.aio.Channel) -> None:
    calls = [rest(channel, unfinished(200), "greedy") for _ in range(9)]
    await server.holds(400)  # it leaves as much as it holds
    held = rest(channel, client="another")
    await server.holds(1000)
    server.proceed.set()
    await held
    for call in calls:
        call.cancel()
    await server.holds(0)


async def test_client_that_leaves_gives_its_share_back(server: Server, channel: grpc.aio.Channel) -> None:
    held = rest(channel)
    await server.holds(BODY_BYTES)
    held.cancel()
    await server.holds(0)
