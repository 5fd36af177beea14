"""Requests whose schemas are checked for long hold up nobody else, and leave nothing running."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from threading import Event
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.descriptor import Descriptor

from glimpse.engine.checkpoint.grammar.matcher import GrammarCompiler
from glimpse.engine.protocol.sampling_params import Grammar
from glimpse.server.lifecycle.server import Server
from glimpse.server.parse.message_types import described_type
from glimpse.server.parse.message_types.descriptors import find_message_type
from glimpse.v1 import chat_pb2, chat_pb2_grpc
from tests.engine.replies import reply_with
from tests.protos.compiled import file_descriptor_set, message_class
from tests.server.requests import request, user
from tests.server.serving import echoing
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

REFUSED = {"properties": {"at": {"type": "string", "pattern": "(left"}}}
"""With it, the schema of each tool is compiled alone."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tiny_checkpoint: Path) -> AsyncIterator[tuple[Server, grpc.aio.Channel]]:
    async with echoing(tiny_checkpoint, tool_call_parser="hermes") as running:
        yield running


def with_tools(name: str, num_tools: int) -> chat_pb2.CreateChatCompletionRequest:
    """A request like no other."""
    wire = request(user(reply_with("yes")))
    for index in range(num_tools):
        schema = REFUSED if index == 0 else {"title": f"{name} {index}"}
        function = chat_pb2.FunctionDefinition(name=f"f{index}", parameters=json.dumps(schema))
        wire.tools.append(chat_pb2.Tool(function=function))
    return wire


async def test_schemas_of_clients_that_leave_hold_up_nobody(
    served: tuple[Server, grpc.aio.Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = list[Grammar](), Event()
    compile_grammar = GrammarCompiler._compile  # pyright: ignore[reportPrivateUsage]

    def compile_slowly(compiler: GrammarCompiler, grammar: Grammar) -> Any:
        begun.append(grammar)
        go_on.wait(120)
        return compile_grammar(compiler, grammar)

    monkeypatch.setattr(GrammarCompiler, "_compile", compile_slowly)
    server, channel = served
    chat = chat_pb2_grpc.ChatServiceStub(channel)
    calls = [
        chat.CreateChatCompletion(with_tools(f"leaves {index}", 16), metadata=(("x-api-key", "leaves"),))
        for index in range(8)
    ]
    try:
        await until(lambda: len(begun) >= 2)
        answer = await chat.CreateChatCompletion(request(user(reply_with("hello"))))  # while all of them wait
        for call in calls:
            call.cancel()
        await server._open_rpcs.wait_until_idle()  # pyright: ignore[reportPrivateUsage]
    finally:
        go_on.set()
    assert answer.choices[0].message.content == "hello"
    stays = await chat.CreateChatCompletion(with_tools("stays", 3), metadata=(("x-api-key", "stays"),))
    assert stays.choices[0].message.content == "yes"
    assert sum("leaves" in grammar.text for grammar in begun) <= 2, "those that were being compiled when all left"


async def test_message_types_are_read_beside_other_requests(
    served: tuple[Server, grpc.aio.Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = Event(), Event()

    def read_slowly(data: bytes, name: str) -> Descriptor:
        begun.set()
        go_on.wait(120)
        return find_message_type(data, name)

    monkeypatch.setattr(described_type, "find_message_type", read_slowly)
    chat = chat_pb2_grpc.ChatServiceStub(served[1])
    wire = request(user(reply_with('{"x": 1, "y": 2}')), max_completion_tokens=64)
    wire.response_format.protobuf.name = "answers.v1.Point"
    wire.response_format.protobuf.file_descriptor_set = file_descriptor_set("answers.proto")
    call = chat.CreateChatCompletion(wire)
    try:
        await until(begun.is_set)
        answer = await chat.CreateChatCompletion(request(user(reply_with("hello"))))
    finally:
        go_on.set()
    assert answer.choices[0].message.content == "hello"
    point = message_class("Point")()
    assert (await call).choices[0].answer.Unpack(point)
    assert (point.x, point.y) == (1, 2)
