"""The order in which the server accepts RPCs: no method waits behind a flood of another one."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any
from unittest.mock import Mock

import grpc
import grpc.aio
import pytest
from google.api.httpbody_pb2 import HttpBody

from glimpse.dialect.bindings import bindings
from glimpse.server.dialects.facade import add_facade
from glimpse.server.dialects.openai import OPENAI
from glimpse.server.lifecycle.build_server import GRPC_OPTIONS, MAX_PENDING
from glimpse.server.rpc import accepting_server as accepting_server_module
from glimpse.server.rpc.accepting_server import accepting_server
from glimpse.server.rpc.interceptors import MethodHandler, RpcInterceptor
from glimpse.server.rpc.load_meter import LoadMeter
from glimpse.server.rpc.typed_handlers import Handler, add_typed_services
from glimpse.server.telemetry.metrics import Metrics
from glimpse.v1 import chat_pb2, model_pb2
from tests.http2 import ACK, END_STREAM, HEADERS, PING, RST_STREAM
from tests.server.http2 import Connection, connected
from tests.waiting import until

FLOOD = 300
FEW = 30
CANCEL = b"\0\0\0\x08"
CHAT_BODY = HttpBody(content_type="application/json", data=b'{"messages": []}').SerializeToString()
LIST_MODELS = "/glimpse.v1.ModelService/ListModels"
TYPED_CHAT = ("/glimpse.v1.ChatService/CreateChatCompletion", b"")
REST_CHAT = ("/glimpse.openai.v1.OpenAIService/CreateChatCompletion", CHAT_BODY)


class Accepted(grpc.aio.ServerInterceptor):
    """The methods of the RPCs that the server accepted, in order."""

    def __init__(self) -> None:
        self.methods: list[str] = []
        self.metrics = Metrics()
        self.turn = 0
        self.turns = set[int]()
        """The turns of the event loop in which some were accepted."""

    async def count_turns(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[MethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> MethodHandler:
        self.methods.append(handler_call_details.method)
        self.turns.add(self.turn)
        return await continuation(handler_call_details)


async def create(request: Any, context: Any) -> chat_pb2.CreateChatCompletionResponse:
    return chat_pb2.CreateChatCompletionResponse()


async def stream(request: Any, context: Any) -> AsyncGenerator[chat_pb2.StreamChatCompletionResponse, None]:
    yield chat_pb2.StreamChatCompletionResponse()


async def list_models(request: Any, context: Any) -> model_pb2.ListModelsResponse:
    return model_pb2.ListModelsResponse()


def handlers() -> dict[str, Handler]:
    """One for each method; only those for chat and ListModels give answers of their method's type."""
    typed = (service for module in (chat_pb2, model_pb2) for service in module.DESCRIPTOR.services_by_name.values())
    bound = (method for binding in bindings(OPENAI.service) for method in (binding.unary, binding.stream) if method)
    methods = (*bound, *(method for service in typed for method in service.methods))
    found: dict[str, Handler] = {each.full_name: stream if each.server_streaming else create for each in methods}
    return found | {"glimpse.v1.ModelService.ListModels": list_models}


def arrive(connection: Connection) -> None:
    """Waits until the server's transport has read what was sent."""
    connection.ping()
    assert connection.until(PING, flags=ACK)


@pytest.fixture
async def served() -> AsyncGenerator[tuple[int, Accepted]]:
    """A server's port, and what it accepts. Its process has used gRPC before."""
    channel = grpc.aio.insecure_channel("127.0.0.1:1")
    accepted = Accepted()
    interceptors = [accepted, RpcInterceptor(accepted.metrics, LoadMeter(max_sequences=1))]
    server = accepting_server(interceptors, GRPC_OPTIONS)
    services = [module.DESCRIPTOR.services_by_name for module in (chat_pb2, model_pb2)]
    add_typed_services(server, [each for names in services for each in names.values()], handlers())
    add_facade(server, OPENAI, handlers(), max_body_bytes=1000, ping_seconds=60)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield port, accepted
    await server.stop(None)
    await channel.close()


@pytest.mark.parametrize("chat", [TYPED_CHAT, REST_CHAT], ids=["typed", "rest"])
@pytest.mark.parametrize("cheap", [LIST_MODELS, "/glimpse.openai.v1.OpenAIService/ListModels"], ids=["typed", "rest"])
async def test_list_models_is_accepted_before_most_of_a_flood_that_came_first(
    served: tuple[int, Accepted], chat: tuple[str, bytes], cheap: str
) -> None:
    port, accepted = served
    with connected(port) as flood, connected(port) as other:
        # Without an await: gRPC's threads receive everything before the event loop accepts anything.
        for number in range(FLOOD):
            flood.call(*chat, stream=2 * number + 1)
        arrive(flood)
        other.call(cheap, b"")
        arrive(other)
        assert accepted.methods == []
        assert await asyncio.to_thread(other.until, HEADERS)
        assert accepted.methods.index(cheap) < FEW
        assert await asyncio.to_thread(flood.until, HEADERS, flags=END_STREAM, times=FLOOD)
    assert len(accepted.methods) == FLOOD + 1


async def test_several_rpcs_of_a_flood_are_accepted_in_a_turn_of_the_event_loop(served: tuple[int, Accepted]) -> None:
    port, accepted = served
    with connected(port) as flood:
        for number in range(FLOOD):
            flood.call(*TYPED_CHAT, stream=2 * number + 1)
        arrive(flood)
        counting = asyncio.create_task(accepted.count_turns())
        assert await asyncio.to_thread(flood.until, HEADERS, flags=END_STREAM, times=FLOOD)
        counting.cancel()
    assert len(accepted.methods) == FLOOD
    assert len(accepted.turns) < FLOOD / 2


async def test_what_an_rpc_waits_for_does_not_come_at_one_event_a_turn_behind_a_flood(
    served: tuple[int, Accepted], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, _ = served
    wake_ups = accepting_server_module._WakeUps  # pyright: ignore[reportPrivateUsage]
    receive = Mock(side_effect=wake_ups.recv)
    monkeypatch.setattr(wake_ups, "recv", lambda reader, num_bytes: receive(reader, num_bytes))
    with connected(port) as flood, connected(port) as other:
        for number in range(3 * FLOOD):
            flood.call(*TYPED_CHAT, stream=2 * number + 1)
        arrive(flood)
        other.call(*TYPED_CHAT, authorization="Bearer other")
        arrive(other)
        answered = asyncio.create_task(asyncio.to_thread(other.until, HEADERS, flags=END_STREAM))
        while not answered.done():
            time.sleep(0.002)  # noqa: ASYNC251 - other work of the loop, in which gRPC's events come
            await asyncio.sleep(0)
        assert answered.result()
    assert 0 < receive.call_count < 3 * FLOOD / 10


async def test_most_rpcs_of_a_flood_that_are_cancelled_when_they_are_accepted_are_not_begun(
    served: tuple[int, Accepted],
) -> None:
    port, accepted = served
    begun = Mock(wraps=accepted.metrics.rpc_ended)
    accepted.metrics.rpc_ended = begun
    with connected(port) as flood, connected(port) as other:
        for stream_id in range(1, 2 * FLOOD, 2):
            flood.call(*TYPED_CHAT, stream=stream_id)
            flood.send(RST_STREAM, CANCEL, stream=stream_id)
        arrive(flood)
        other.call(*TYPED_CHAT)  # accepted after them
        assert await asyncio.to_thread(other.until, HEADERS, flags=END_STREAM)
    assert len(accepted.methods) == FLOOD + 1
    assert begun.call_count < FLOOD / 2


async def test_rpcs_that_are_cancelled_as_they_open_wait_in_bounded_number(served: tuple[int, Accepted]) -> None:
    port, accepted = served
    with connected(port) as flood, connected(port) as other:
        for stream_id in range(1, 4 * MAX_PENDING, 2):
            flood.call(*TYPED_CHAT, stream=stream_id)
            flood.send(RST_STREAM, CANCEL, stream=stream_id)
        arrive(flood)
        other.call(LIST_MODELS, b"")
        assert await asyncio.to_thread(other.until, HEADERS, flags=END_STREAM)
        await until(lambda: len(accepted.methods) >= MAX_PENDING)
        other.call(*TYPED_CHAT, stream=3)  # accepted after them
        assert await asyncio.to_thread(other.until, HEADERS, flags=END_STREAM)
    assert len(accepted.methods) < 1.1 * MAX_PENDING
