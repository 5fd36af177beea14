"""Log-probabilities are rendered in pieces, between which the event loop serves others, and no more than can be."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from glimpse.server.generation import generator
from glimpse.server.generation.completion_parser import CompletionParser
from glimpse.v1 import chat_pb2_grpc
from tests.engine.replies import reply_with
from tests.server.requests import request, user
from tests.server.serving import echoing

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chat(tiny_checkpoint: Path) -> AsyncIterator[chat_pb2_grpc.ChatServiceStub]:
    async with echoing(tiny_checkpoint) as (_, channel):
        yield chat_pb2_grpc.ChatServiceStub(channel)


async def test_a_client_s_events_with_log_probabilities_have_turns_of_the_loop_of_their_own(
    chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, rendered = 0, Counter[int]()
    feed = CompletionParser.feed

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        ticking[0] = loop.call_soon(next_turn)

    def feed_told(parser: CompletionParser, event: Any) -> Any:
        rendered[turn] += bool(event.logprobs)
        return feed(parser, event)

    monkeypatch.setattr(CompletionParser, "feed", feed_told)
    loop = asyncio.get_running_loop()
    ticking = [loop.call_soon(next_turn)]
    wire = request(user(reply_with("a long answer")), logprobs=True, top_logprobs=2, max_completion_tokens=20)
    answers = await asyncio.gather(*(chat.CreateChatCompletion(wire) for _ in range(16)))
    ticking[0].cancel()
    assert {len(answer.choices[0].logprobs.content) for answer in answers} == {len("a long answer")}
    assert sum(rendered.values()) > 16
    assert max(rendered.values()) == 1


async def test_more_log_probabilities_of_prompts_than_a_response_may_have_are_refused(
    chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator, "MAX_PROMPT_LOGPROBS", 1000)
    wire = request(user("word " * 100), prompt_logprobs=4, n=2)
    with pytest.raises(
        grpc.aio.AioRpcError, match="at most 1000 log-probabilities of prompts in a response"
    ) as refused:
        await chat.CreateChatCompletion(wire)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "'generation.prompt_logprobs'" in (refused.value.details() or "")
    assert "ask for fewer, or send shorter prompts" in (refused.value.details() or "")
