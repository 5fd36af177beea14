"""Chunks of Chat Completions: however a completion is cut, OpenAI's types take them, and its SDK joins them to it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import given
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from glimpse.engine.checkpoint.text.output_processor import Delta
from glimpse.server.dialects.openai import OPENAI
from glimpse.server.generation.usage import Usage
from glimpse.server.render.chat import ChunkRenderer, CompletionHead, render_response
from glimpse.server.request import ChatRequest
from glimpse.server.rpc.text_chunks import JsonChunks
from tests.server.dialects.completions import completions
from tests.server.requests import GENERATION

HEAD = CompletionHead(id="chatcmpl-1", created=5, model="m")
REQUEST = ChatRequest(
    generation=replace(GENERATION, num_completions=2), include_usage=False, metadata={}, echoes_service_tier=False
)


def twice(deltas: Sequence[Delta]) -> Iterator[Delta]:
    """The deltas of two completions, in turns."""
    for delta in deltas:
        yield from (msgspec.structs.replace(delta, index=index) for index in range(2))


def chunks(deltas: Sequence[Delta]) -> Iterator[ChatCompletionChunk]:
    renderer, documents = ChunkRenderer(HEAD, Usage()), JsonChunks(OPENAI.codec.encode)
    for delta in twice(deltas):
        for chunk in renderer.render(delta):
            yield ChatCompletionChunk.model_validate_json(documents.encode(chunk), strict=True)


def told(completion: Any) -> list[Any]:
    """What a client reads of each choice."""
    return [
        (
            choice["index"],
            choice["finish_reason"],
            message.get("content") or "",
            message.get("reasoning") or "",
            calls,
            [token["token"] for token in logprobs.get("content") or ()],
        )
        for choice in completion["choices"]
        for message, logprobs in [(choice["message"], choice["logprobs"] or {})]
        for calls in [[(call["id"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]]
    ]


@given(deltas=completions())
def test_chunks_join_to_the_completion(deltas: list[Delta]) -> None:
    document = OPENAI.codec.encode(render_response(HEAD, REQUEST, [*twice(deltas)], Usage()))
    whole = ChatCompletion.model_validate_json(document, strict=True)
    state = ChatCompletionStreamState()
    for chunk in chunks(deltas):
        state.handle_chunk(chunk)
    assert (
        told(state.current_completion_snapshot.model_dump()) == told(whole.model_dump()) == told(json.loads(document))
    )
