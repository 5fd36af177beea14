"""gRPC and grpc-web on the port of REST, with gRPC errors."""

import asyncio
import base64
import re
import struct
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.api.httpbody_pb2 import HttpBody
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from glimpse.gateway.run import Envoy
from glimpse.openai.v1 import openai_pb2_grpc
from glimpse.v1 import chat_pb2, chat_pb2_grpc
from tests.gateway.backend import Backend, Context, Requests, event

pytestmark = pytest.mark.asyncio(loop_scope="session")

ONE_MESSAGE = chat_pb2.CountTokensRequest(messages=[{"name": "someone"}])


@pytest_asyncio.fixture(loop_scope="session")
async def channel(envoy: Envoy, backend: Backend) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(str(envoy.address), options=options) as channel:
        yield channel


async def test_serves_a_unary_rpc(channel: grpc.aio.Channel) -> None:
    answer = await chat_pb2_grpc.ChatServiceStub(channel).CountTokens(ONE_MESSAGE)
    assert answer.prompt_tokens == 7


async def test_serves_a_streaming_rpc(channel: grpc.aio.Channel) -> None:
    stream = chat_pb2_grpc.ChatServiceStub(channel).StreamChatCompletion(chat_pb2.CreateChatCompletionRequest())
    assert [chunk.id async for chunk in stream] == ["0", "1", "2"]


async def test_passes_a_30_mib_message(channel: grpc.aio.Channel) -> None:
    large = chat_pb2.CountTokensRequest(messages=[{"name": "x" * (30 << 20)}])
    assert (await chat_pb2_grpc.ChatServiceStub(channel).CountTokens(large)).prompt_tokens == 7


async def test_errors_keep_status_and_details(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await chat_pb2_grpc.ChatServiceStub(channel).CountTokens(chat_pb2.CountTokensRequest())
    assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "no messages")
    details = raised.value.trailing_metadata()["grpc-status-details-bin"]
    assert isinstance(details, bytes)
    status = status_pb2.Status.FromString(details)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.metadata["param"]) == ("REQUIRED", "messages")


async def test_unknown_method_is_unimplemented(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.unary_unary("/no.Such/Method")(b"")
    assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_serves_the_health_service(channel: grpc.aio.Channel) -> None:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def frames(body: bytes) -> list[tuple[int, bytes]]:
    """Returns the (flags, payload) pairs of a grpc-web body."""
    found: list[tuple[int, bytes]] = []
    while body:
        flags, length = struct.unpack_from(">BI", body)
        found.append((flags, body[5 : 5 + length]))
        body = body[5 + length :]
    return found


def frame(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


async def grpc_web(http: aiohttp.ClientSession, method: str, message: bytes, content_type: str) -> bytes:
    body = frame(message)
    text = content_type == "application/grpc-web-text"
    headers = {"content-type": content_type, "accept": content_type, "x-grpc-web": "1"}
    path = f"/glimpse.v1.ChatService/{method}"
    async with http.post(path, data=base64.b64encode(body) if text else body, headers=headers) as answer:
        assert answer.status == 200
        assert answer.headers["content-type"].startswith(content_type)
        raw = await answer.read()
    # Each part is encoded separately, with its own padding.
    return b"".join(map(base64.b64decode, re.findall(b"[^=]+=*", raw))) if text else raw


@pytest.mark.parametrize("content_type", ["application/grpc-web+proto", "application/grpc-web-text"])
async def test_serves_grpc_web(http: aiohttp.ClientSession, backend: Backend, content_type: str) -> None:
    body = await grpc_web(http, "CountTokens", ONE_MESSAGE.SerializeToString(), content_type)
    (_, message), (flags, trailers) = frames(body)
    assert chat_pb2.CountTokensResponse.FromString(message).prompt_tokens == 7
    assert flags == 0x80
    assert b"grpc-status:0" in trailers


async def test_serves_grpc_web_streams(http: aiohttp.ClientSession, backend: Backend) -> None:
    body = await grpc_web(http, "StreamChatCompletion", b"", "application/grpc-web+proto")
    messages = [payload for flags, payload in frames(body) if flags == 0]
    assert [chat_pb2.StreamChatCompletionResponse.FromString(message).id for message in messages] == ["0", "1", "2"]


async def test_grpc_web_errors_are_grpc_statuses(http: aiohttp.ClientSession, backend: Backend) -> None:
    headers = {"content-type": "application/grpc-web+proto"}
    async with http.post("/glimpse.v1.ChatService/CountTokens", data=frame(b""), headers=headers) as answer:
        assert answer.status == 200
        assert answer.headers["grpc-status"] == "3"
        assert answer.headers["grpc-message"] == "no messages"


async def test_client_cancellation_reaches_the_server(channel: grpc.aio.Channel, backend: Backend) -> None:
    async def script(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        yield event("first")
        await asyncio.Event().wait()

    backend.script = script
    call = openai_pb2_grpc.OpenAIServiceStub(channel).CreateChatCompletion(iter([HttpBody()]))
    assert (await call.read()).data == b"data: first\n\n"
    call.cancel()
    await backend.cancelled.wait()
