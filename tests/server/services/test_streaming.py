"""Tests for streaming over both APIs: priorities and clients reach the engine, and slow readers receive everything."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.api.httpbody_pb2 import HttpBody

from glimpse.openai.v1 import openai_pb2_grpc
from glimpse.server.rpc.context import GRACE_HEADER
from glimpse.v1 import chat_pb2_grpc, completion_pb2, completion_pb2_grpc
from tests.checkpoints.tokenizer import PLAIN_TOKENS
from tests.e2e.stack import read_metric
from tests.engine.replies import reply_with
from tests.engine.scripted_engine import FLOOD_TOKENS
from tests.server.requests import json_bodies, request
from tests.server.serving import echoing, scripted
from tests.waiting import eventually

SECOND_TOKEN = PLAIN_TOKENS[1]


def ask_typed(channel: grpc.aio.Channel, script: str, priority: int = 0, authorization: str = "") -> Any:
    chat: Any = chat_pb2_grpc.ChatServiceStub(channel)
    wire = request()
    wire.priority = priority
    return chat.StreamChatCompletion(wire, metadata=[("x-request-id", f"{script}-1"), ("authorization", authorization)])


def ask_in_json(channel: grpc.aio.Channel, script: str, priority: int = 0, authorization: str = "") -> Any:
    openai: Any = openai_pb2_grpc.OpenAIServiceStub(channel)
    body = {"messages": [{"role": "user", "content": "Hello"}], "stream": True, "priority": priority}
    metadata = [("x-request-id", f"{script}-1"), ("authorization", authorization)]
    return openai.CreateChatCompletion(json_bodies(body), metadata=metadata)


def text_of_json(event: HttpBody) -> str:
    data = event.data.decode().removeprefix("data: ")
    return "" if data.startswith("[DONE]") else json.loads(data)["choices"][0]["delta"].get("content", "")


def text_of_typed(piece: Any) -> str:
    return piece.choices[0].delta.content


APIS = pytest.mark.parametrize(
    ("ask", "text_of"),
    [pytest.param(ask_typed, text_of_typed, id="typed"), pytest.param(ask_in_json, text_of_json, id="json")],
)


@APIS
async def test_priority_reaches_the_engine(tiny_checkpoint: Path, tmp_path: Path, ask: Any, text_of: Any) -> None:
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, channel):
        await server.ready()
        pieces = [piece async for piece in ask(channel, "rank", PLAIN_TOKENS.index("k"))]
    assert "".join(map(text_of, pieces)) == "k"


@APIS
async def test_client_reaches_the_engine(tiny_checkpoint: Path, tmp_path: Path, ask: Any, text_of: Any) -> None:
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, channel):
        await server.ready()
        answers: list[str] = []
        for key in ("", "Bearer a", "Bearer b", "Bearer a", ""):
            pieces = [piece async for piece in ask(channel, "who", authorization=key)]
            answers.append("".join(map(text_of, pieces)))
    assert answers == [PLAIN_TOKENS[index] for index in (0, 1, 2, 1, 0)]


@APIS
async def test_slow_reader_receives_fewer_and_larger_chunks(
    tiny_checkpoint: Path, tmp_path: Path, ask: Any, text_of: Any
) -> None:
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, channel):
        await server.ready()
        call = ask(channel, "flood")
        pieces = [await call.read()]

        def has_all() -> bool:
            return read_metric(server.metrics_port, "glimpse_engine_step_seconds_count") > FLOOD_TOKENS

        assert await asyncio.to_thread(eventually, has_all)
        while piece := await call.read():
            pieces.append(piece)
    assert "".join(map(text_of, pieces)) == SECOND_TOKEN * FLOOD_TOKENS
    assert len(pieces) < FLOOD_TOKENS


async def half_a_body() -> AsyncIterator[HttpBody]:
    yield HttpBody(content_type="application/json", data=b'{"messages": [')
    await asyncio.Event().wait()


@pytest.mark.parametrize("is_whole", [True, False])
async def test_time_that_the_gateway_adds_is_for_the_server_s_last_word(
    tiny_checkpoint: Path, tmp_path: Path, is_whole: bool
) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, channel):
        await server.ready()
        openai: Any = openai_pb2_grpc.OpenAIServiceStub(channel)
        metadata = [("x-request-id", "hold-1"), (GRACE_HEADER, "30")]
        bodies = json_bodies(body) if is_whole else half_a_body()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in openai.CreateChatCompletion(bodies, metadata=metadata, timeout=30):
                pass
    assert caught.value.details() == "The deadline passed before the response was complete."


async def test_headers_come_first_where_the_first_token_is_part_of_a_character(tiny_checkpoint: Path) -> None:
    answer = "\N{SHRUG}" * 4  # has as many tokens as a completion has by default
    async with echoing(tiny_checkpoint, step_ms=5) as (_, channel):
        completions: Any = completion_pb2_grpc.CompletionServiceStub(channel)
        wire = completion_pb2.CreateCompletionRequest(prompts=[{"text": reply_with(answer)}], generation={"seed": 1})
        call = completions.StreamCompletion(wire, metadata=[("x-request-id", "shrug")])
        pieces = [piece async for piece in call]
    assert ("x-request-id", "shrug") in tuple(await call.initial_metadata())
    assert "".join(choice.text for piece in pieces for choice in piece.choices) == answer
