"""A scripted gRPC server, Envoy's upstream in tests of the gateway alone."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.api.httpbody_pb2 import HttpBody
from google.protobuf import any_pb2, struct_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from glimpse.anthropic.v1 import anthropic_pb2_grpc
from glimpse.gateway.address import Address
from glimpse.openai.v1 import openai_pb2_grpc
from glimpse.v1 import chat_pb2, chat_pb2_grpc, model_pb2
from tests.e2e.stack import free_ports

Context = grpc.aio.ServicerContext[Any, Any]
Requests = AsyncIterator[HttpBody]
Script = Callable[[Requests, Context], AsyncIterator[HttpBody]]


async def echo(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
    yield HttpBody(content_type="application/json", data=await read(requests))


async def read(requests: Requests) -> bytes:
    return b"".join([request.data async for request in requests])


def event(text: str) -> HttpBody:
    return HttpBody(content_type="text/event-stream", data=f"data: {text}\n\n".encode())


@dataclass(slots=True)
class Backend:
    """The server, its script, and a record of its calls."""

    server: grpc.aio.Server
    address: Address
    script: Script = echo
    """Handles CreateChatCompletion and CreateMessage; set by each test."""
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    """Metadata of the latest call."""
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a call was cancelled."""
    num_calls: int = 0
    """Calls of the facades, and streams of ChatService."""
    serving: bool = True
    """Whether the health service reports SERVING."""

    def note(self, context: Context) -> None:
        self.num_calls += 1
        self.metadata = {key: str(value) for key, value in context.invocation_metadata() or ()}


class _OpenAI(openai_pb2_grpc.OpenAIServiceServicer):
    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def CreateChatCompletion(self, request_iterator: Requests, context: Context) -> AsyncIterator[HttpBody]:  # noqa: N802
        self._note(context)
        try:
            async for answer in self.backend.script(request_iterator, context):
                yield answer
        except asyncio.CancelledError:
            self.backend.cancelled.set()
            raise

    async def ListModels(self, request: model_pb2.ListModelsRequest, context: Context) -> HttpBody:  # noqa: N802
        self._note(context)
        return HttpBody(content_type="application/json", data=b'{"object":"list","data":[]}')

    async def CreateResponse(self, request_iterator: Requests, context: Context) -> AsyncIterator[HttpBody]:  # noqa: N802
        self._note(context)
        yield HttpBody(content_type="application/json", data=await read(request_iterator))

    async def GetResponse(self, request: Message, context: Context) -> HttpBody:  # noqa: N802
        self._note(context)
        return HttpBody(content_type="application/json", data=b"{}")

    async def ListInputItems(self, request: Message, context: Context) -> HttpBody:  # noqa: N802
        self._note(context)
        return HttpBody(content_type="application/json", data=b"{}")

    async def GetModel(self, request: model_pb2.GetModelRequest, context: Context) -> HttpBody:  # noqa: N802
        self._note(context)
        return HttpBody(content_type="application/json", data=f'{{"id":"{request.model}"}}'.encode())

    def _note(self, context: Context) -> None:
        self.backend.note(context)


class _Anthropic(anthropic_pb2_grpc.AnthropicServiceServicer):
    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def CreateMessage(self, request_iterator: Requests, context: Context) -> AsyncIterator[HttpBody]:  # noqa: N802
        self.backend.note(context)
        async for answer in self.backend.script(request_iterator, context):
            yield answer


class _Chat(chat_pb2_grpc.ChatServiceServicer):
    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def CountTokens(self, request: chat_pb2.CountTokensRequest, context: Context) -> chat_pb2.CountTokensResponse:  # noqa: N802
        if not request.messages:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "no messages", reason="REQUIRED", param="messages")
        return chat_pb2.CountTokensResponse(prompt_tokens=7)

    async def StreamChatCompletion(  # noqa: N802
        self, request: chat_pb2.CreateChatCompletionRequest, context: Context
    ) -> AsyncIterator[chat_pb2.StreamChatCompletionResponse]:
        self.backend.note(context)
        for number in range(3):
            yield chat_pb2.StreamChatCompletionResponse(id=str(number))


class _Health(health_pb2_grpc.HealthServicer):
    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:  # noqa: N802
        status = health_pb2.HealthCheckResponse
        return status(status=status.SERVING if self.backend.serving else status.NOT_SERVING)


# As in glimpse.server.lifecycle.build_server.
_OPTIONS = (
    ("grpc.server.max_pending_requests", 100_000),
    ("grpc.server.max_pending_requests_hard_limit", 100_000),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_metadata_size", 128 << 10),
    ("grpc.absolute_max_metadata_size", 128 << 10),
    ("grpc.so_reuseport", 0),
)


async def start_backend(
    address: Address | None = None, *, credentials: grpc.ServerCredentials | None = None
) -> Backend:
    """Starts a backend on this address, or on a port that nobody takes while it is gone; with TLS if it gets
    credentials."""
    server = grpc.aio.server(options=_OPTIONS)
    address = address or Address(host="127.0.0.1", port=free_ports(1)[0])
    if credentials is None:
        server.add_insecure_port(str(address))
    else:
        server.add_secure_port(str(address), credentials)
    backend = Backend(server=server, address=address)
    openai_pb2_grpc.add_OpenAIServiceServicer_to_server(_OpenAI(backend), server)
    anthropic_pb2_grpc.add_AnthropicServiceServicer_to_server(_Anthropic(backend), server)
    chat_pb2_grpc.add_ChatServiceServicer_to_server(_Chat(backend), server)
    health_pb2_grpc.add_HealthServicer_to_server(_Health(backend), server)
    await server.start()
    return backend


async def abort(
    context: Context,
    code: grpc.StatusCode,
    message: str,
    *,
    reason: str | None = None,
    param: str | None = None,
    document: dict[str, Any] | None = None,
    trailers: tuple[tuple[str, str | bytes], ...] = (),
) -> None:
    """Ends a call with status details, as the real server does: with a document in the facade."""
    details: list[Message] = []
    if reason is not None:
        metadata = {} if param is None else {"param": param}
        details.append(error_details_pb2.ErrorInfo(reason=reason, domain="glimpse", metadata=metadata))
    if document is not None:
        body = struct_pb2.Struct()
        body.update(document)
        details.append(body)
    status = status_pb2.Status(code=code.value[0], message=message, details=map(_packed, details))
    rich = (("grpc-status-details-bin", status.SerializeToString()),) if details else ()
    await context.abort(code, message, (*rich, *trailers))


def _packed(detail: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed


@asynccontextmanager
async def vanishing(server: Address) -> AsyncGenerator[tuple[Address, asyncio.Event]]:
    """Where a server is reached until the event is set. Then nothing passes any more, and no connection closes."""
    gone, relays = asyncio.Event(), set[asyncio.Task[None]]()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if gone.is_set():
                await asyncio.Event().wait()
            writer.write(data)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection(server.host, server.port)
        with closing(writer), closing(other_writer):
            await asyncio.gather(copy(reader, other_writer), copy(other_reader, writer))

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relays.add(asyncio.create_task(relay(reader, writer)))

    async with await asyncio.start_server(begin, "127.0.0.1", 0) as listener:
        yield Address(host="127.0.0.1", port=listener.sockets[0].getsockname()[1]), gone
    for each in relays:
        each.cancel()
    await asyncio.gather(*relays, return_exceptions=True)
