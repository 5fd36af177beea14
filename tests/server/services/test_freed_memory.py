"""The memory of requests returns: refusals leave no reference cycles, and bytes are freed before the answer begins."""

import asyncio
import base64
import ctypes
import gc
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.api.httpbody_pb2 import HttpBody

from glimpse.openai.v1 import openai_pb2_grpc
from glimpse.server.lifecycle.server import Server
from tests.e2e.stack import read_metric
from tests.garbage import no_cycles
from tests.media.images import encode, png_header, scene
from tests.server.requests import image_part, png, request, user
from tests.server.serving import scripted

pytestmark = pytest.mark.asyncio(loop_scope="module")

LARGE = bytes(1 << 20)
FILES = {
    "no image": LARGE,
    "truncated": encode(scene(64, 64), "JPEG")[:400] + LARGE,
    "bomb": png_header(20000, 20000) + LARGE,
}
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(
    tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Server, grpc.aio.Channel]]:
    async with scripted(tiny_checkpoint, tmp_path_factory.mktemp("scripted"), "ready") as (server, _):
        await server.ready()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=OPTIONS) as channel:
            yield server, channel


@pytest.fixture
def channel(served: tuple[Server, grpc.aio.Channel]) -> grpc.aio.Channel:
    return served[1]


def typed(channel: grpc.aio.Channel, data: bytes, *, stream: bool, **call: Any) -> Any:
    kind, name = ("stream_stream", "StreamChatCompletion") if stream else ("stream_unary", "CreateChatCompletion")

    # As a stream, which is the same on the wire: the client would keep a unary request until the call ends.
    async def requests() -> AsyncGenerator[bytes, None]:
        yield request(user(image_part(data))).SerializeToString()

    return getattr(channel, kind)(f"/glimpse.v1.ChatService/{name}")(requests(), **call)


def rest(channel: grpc.aio.Channel, data: bytes | str, *, stream: bool, **call: Any) -> Any:
    url = data if isinstance(data, str) else f"data:image/png;base64,{base64.b64encode(data).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}]
    body = json.dumps({"messages": [{"role": "user", "content": content}], "stream": stream}).encode()
    openai: Any = openai_pb2_grpc.OpenAIServiceStub(channel)
    parts = [HttpBody(data=body[start : start + 65536]) for start in range(0, len(body), 65536)]
    parts[0].content_type = "application/json"
    return openai.CreateChatCompletion(iter(parts), **call)


async def refused(call: Any) -> str:
    """Returns the status of a call. Not `pytest.raises`, which keeps the error."""
    try:
        if isinstance(call, grpc.aio.StreamUnaryCall):
            await call
        else:
            async for _ in call:
                pass
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


class _Allocations(ctypes.Structure):
    """The C library's `struct mallinfo2`."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names.split())


def allocated_bytes() -> int:
    """Returns the bytes that this process has allocated, those of protobuf and gRPC included."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Allocations
    allocations = mallinfo()
    return allocations.uordblks + allocations.hblkhd


async def reaches(condition: Callable[[], bool]) -> bool:
    """Returns whether a condition became true in time."""
    for _ in range(2000):
        if condition():
            return True
        await asyncio.sleep(0.005)
    return False


Ask = Callable[..., Any]
ASK: Any = pytest.mark.parametrize("ask", [typed, rest])
STREAM: Any = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])


@ASK
@STREAM
@pytest.mark.parametrize("kind", FILES)
async def test_refused_files_leave_no_cycles(channel: grpc.aio.Channel, ask: Ask, kind: str, stream: bool) -> None:
    with no_cycles():
        for _ in range(3):
            assert await refused(ask(channel, FILES[kind], stream=stream)) == "INVALID_ARGUMENT"
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("url", ["A" * (1 << 20) + "?", "http://127.0.0.1:1/" + "a" * 9000, "http://127.0.0.1/"])
async def test_refused_texts_leave_no_cycles(channel: grpc.aio.Channel, url: str) -> None:
    with no_cycles():
        for _ in range(3):
            assert await refused(rest(channel, url, stream=False)) == "INVALID_ARGUMENT"
        await asyncio.sleep(0.05)


@ASK
@STREAM
async def test_deadlines_and_cancelled_calls_leave_no_cycles(channel: grpc.aio.Channel, ask: Ask, stream: bool) -> None:
    hold = [("x-request-id", "hold-it")]
    with no_cycles():
        status = await refused(ask(channel, png(), stream=stream, metadata=hold, timeout=0.5))
        assert status == "DEADLINE_EXCEEDED"
        call = ask(channel, png(), stream=stream, metadata=hold)
        await asyncio.sleep(0.2)
        call.cancel()
        await asyncio.sleep(0.2)
        del call


@ASK
@STREAM
async def test_files_are_freed_before_the_answer_begins(
    served: tuple[Server, grpc.aio.Channel], ask: Ask, stream: bool
) -> None:
    server, channel = served
    data = png() + bytes(8 << 20)
    assert await refused(ask(channel, data, stream=stream, metadata=[("x-request-id", "echo-first")])) == "OK"
    gc.collect()
    gc.disable()
    calls: list[tuple[Any, asyncio.Task[str]]] = []
    try:
        await asyncio.sleep(0.3)  # the end of the first call
        before = allocated_bytes()
        for number in (1, 2, 3):
            call = ask(channel, data, stream=stream, metadata=[("x-request-id", "hold-it")])
            calls.append((call, asyncio.create_task(refused(call))))
            # The engine has the request, so its file has been read.
            assert await reaches(lambda n=number: read_metric(server.metrics_port, "glimpse_running_sequences") == n)
            # A connection of gRPC's may keep what it has allocated for one message, however many calls it has.
            assert await reaches(lambda: allocated_bytes() - before < 2 * len(data))
        assert not any(answer.done() for _, answer in calls)
    finally:
        for call, answer in calls:
            call.cancel()
            await asyncio.wait([answer])
        gc.enable()
