"""Requests of real clients, recorded as transcripts: REST and SSE with aiohttp, typed gRPC with grpc.aio."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from glimpse.v1 import chat_pb2, chat_pb2_grpc
from tests.chaos.endpoints import CHAT, MESSAGES, RESPONSES
from tests.chaos.transcript import Transcript

JSON = {"content-type": "application/json"}
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
ATTACKER = "chaos-attacker"
"""The API key of attackers: to the server they are one client."""
Metadata = tuple[tuple[str, str], ...]
_DETAILS = "grpc-status-details-bin"


@dataclass(slots=True, kw_only=True)
class Call:
    """A request under way or ended."""

    transcript: Transcript
    start: float = field(default_factory=time.monotonic)
    first: float | None = None
    """When the first text came."""
    end: float = 0.0

    def text(self, delta: str, index: int = 0) -> None:
        if delta and self.first is None:
            self.first = time.monotonic()
        self.transcript.text(delta, index)


Send = Callable[[Call], Awaitable[None]]


async def record(send: Send, transcript: Transcript, *, seconds: float) -> Call:
    """Sends a request and records it to its ending, which comes within `seconds` or counts as hung."""
    call = Call(transcript=transcript)
    try:
        async with asyncio.timeout(seconds):
            await send(call)
    except TimeoutError:
        transcript.hung()
    except (aiohttp.ClientError, OSError) as error:
        transcript.broke(f"{type(error).__name__}: {error}"[:200])
    except grpc.aio.AioRpcError as error:
        _record_status(error, transcript)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        transcript.malformed(f"{type(error).__name__}: {error}"[:200])
    call.end = time.monotonic()
    return call


@asynccontextmanager
async def http_session(target_url: str, *, key: str = ATTACKER) -> AsyncGenerator[aiohttp.ClientSession]:
    """A REST client with an API key, which tells clients apart, and with any number of connections of its own."""
    headers = {"authorization": f"Bearer {key}"}
    timeout = aiohttp.ClientTimeout(total=None)  # `record` has one; a busy client connects slowly too
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3)
    async with aiohttp.ClientSession(target_url, connector=connector, timeout=timeout, headers=headers) as session:
        yield session


def rest_unary(session: aiohttp.ClientSession, body: Mapping[str, Any], path: str = CHAT) -> Send:
    """A chat completion, a message or a response in one answer."""
    return _rest(session, path, body, _READERS[path])


def _rest(
    session: aiohttp.ClientSession, path: str, body: Mapping[str, Any], read: Callable[[Mapping[str, Any], Call], None]
) -> Send:
    async def send(call: Call) -> None:
        async with session.post(path, data=json.dumps(body).encode(), headers=JSON) as response:
            if await refused(response, call.transcript):
                return
            if document := await response.read():
                read(json.loads(document), call)

    return send


def _read_choices(document: Mapping[str, Any], call: Call) -> None:
    for choice in document["choices"]:
        call.text(choice["message"]["content"] or "", choice["index"])
        if choice["finish_reason"]:
            call.transcript.finish(choice["index"])


def _read_message(document: Mapping[str, Any], call: Call) -> None:
    for block in document["content"]:
        call.text(block.get("text", ""))
    if document["stop_reason"]:
        call.transcript.finish()


def _read_response(document: Mapping[str, Any], call: Call) -> None:
    for item in document["output"]:
        for part in item.get("content", ()):
            call.text(part.get("text", ""))
    if document["status"] in _COMPLETE:
        call.transcript.finish()


_COMPLETE = ("completed", "incomplete")
"""The second: it has as many tokens as were asked for."""
_READERS: Mapping[str, Callable[[Mapping[str, Any], Call], None]] = {
    CHAT: _read_choices,
    MESSAGES: _read_message,
    RESPONSES: _read_response,
}


def rest_stream(
    session: aiohttp.ClientSession,
    body: Mapping[str, Any],
    path: str = CHAT,
    *,
    leave_after_seconds: float | None = None,
) -> Send:
    """A chat completion, a message or a response over SSE; a client that leaves early closes its connection."""

    async def send(call: Call) -> None:
        data = json.dumps({**body, "stream": True}).encode()
        try:
            async with (
                asyncio.timeout(leave_after_seconds),
                session.post(path, data=data, headers=JSON) as response,
            ):
                if not await refused(response, call.transcript):
                    await _read_events(response, call)
        except TimeoutError:
            if leave_after_seconds is None:
                raise
            call.transcript.left()

    return send


def rest_value(session: aiohttp.ClientSession, path: str, body: Mapping[str, Any], member: str) -> Send:
    """One member of an answer, such as a count of tokens, as text."""

    def read(document: Mapping[str, Any], call: Call) -> None:
        call.text(str(document[member]))
        call.transcript.finish()

    return _rest(session, path, body, read)


def rest_read(session: aiohttp.ClientSession, path: str) -> Send:
    """A document that is there already."""

    async def send(call: Call) -> None:
        async with session.get(path) as response:
            if not await refused(response, call.transcript):
                json.loads(await response.read())
                call.transcript.finish()

    return send


async def refused(response: aiohttp.ClientResponse, transcript: Transcript) -> bool:
    """Whether the response is an error, which is recorded."""
    if response.status == 200:
        return False
    body = await response.read()
    try:
        error = json.loads(body)["error"]
        code, message = error["code"], error["message"]
    except (ValueError, KeyError, TypeError):
        code, message = None, body[:200].decode(errors="replace")
    transcript.error(code or f"http:{response.status}", f"{response.status} {message}")
    return True


async def _read_events(response: aiohttp.ClientResponse, call: Call) -> None:
    waiting = b""
    async for data in response.content.iter_any():
        *events, waiting = (waiting + data).split(b"\n\n")
        for event in events:
            _read_event(event, call)


def _read_event(event: bytes, call: Call) -> None:
    data = event.partition(b"data: ")[2]
    if data == b"[DONE]":
        call.transcript.done()
        return
    document = json.loads(data)
    if "error" in document:
        error = document["error"]
        call.transcript.error(error.get("code") or "error event without a code", error.get("message") or "")
        return
    if "type" in document:
        _read_typed_event(document, call)
        return
    for choice in document["choices"]:
        call.text(choice["delta"].get("content") or "", choice["index"])
        if choice["finish_reason"]:
            call.transcript.finish(choice["index"])


def _read_typed_event(document: Mapping[str, Any], call: Call) -> None:
    """Reads an event of a message or of a response. Another event follows one that says that a response failed."""
    match document["type"]:
        case "content_block_delta":
            call.text(document["delta"].get("text", ""))
        case "message_delta":
            call.transcript.finish()
        case "message_stop":
            call.transcript.done()
        case "response.output_text.delta":
            call.text(document["delta"])
        case "response.completed" | "response.incomplete":
            call.transcript.finish()
            call.transcript.done()
        case _:
            pass


def grpc_unary(
    channel: grpc.aio.Channel, request: chat_pb2.CreateChatCompletionRequest, metadata: Metadata = ()
) -> Send:
    """A typed completion in one answer."""
    stub = chat_pb2_grpc.ChatServiceStub(channel)

    async def send(call: Call) -> None:
        for choice in (await stub.CreateChatCompletion(request, metadata=metadata)).choices:
            call.text(choice.message.content, choice.index)
            if choice.finish_reason:
                call.transcript.finish(choice.index)

    return send


def grpc_stream(
    channel: grpc.aio.Channel, request: chat_pb2.CreateChatCompletionRequest, metadata: Metadata = ()
) -> Send:
    stub = chat_pb2_grpc.ChatServiceStub(channel)

    async def send(call: Call) -> None:
        async for message in stub.StreamChatCompletion(request, metadata=metadata):
            for choice in message.choices:
                call.text(choice.delta.content, choice.index)
                if choice.finish_reason:
                    call.transcript.finish(choice.index)

    return send


def grpc_count(channel: grpc.aio.Channel, request: chat_pb2.CountTokensRequest, metadata: Metadata = ()) -> Send:
    """A count of tokens, as text."""
    stub = chat_pb2_grpc.ChatServiceStub(channel)

    async def send(call: Call) -> None:
        call.text(str((await stub.CountTokens(request, metadata=metadata)).prompt_tokens))
        call.transcript.finish()

    return send


def _record_status(error: grpc.aio.AioRpcError, transcript: Transcript) -> None:
    # What the client's library makes up about a lost connection has no trailers.
    trailers = dict(error.trailing_metadata() or ())
    if not trailers and error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL):
        transcript.broke(f"{error.code().name}: {error.details()}"[:200])
        return
    code = _reason(trailers.get(_DETAILS)) or f"grpc:{error.code().name}"
    transcript.error(code, (error.details() or "")[:200])


def _reason(details: str | bytes | None) -> str:
    if not isinstance(details, bytes):
        return ""
    info = error_details_pb2.ErrorInfo()
    for detail in status_pb2.Status.FromString(details).details:
        if detail.Unpack(info):
            return info.reason.lower()
    return ""
