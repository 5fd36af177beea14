"""Tests for text chunks: clients receive what they would receive if each message were built and encoded whole."""

from dataclasses import replace
from typing import Any

from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.checkpoint.text.output_processor import Delta
from glimpse.server.dialects.openai import OPENAI
from glimpse.server.generation.usage import Usage
from glimpse.server.render.chat import ChunkRenderer, CompletionHead
from glimpse.server.render.completion import CompletionRenderer
from glimpse.server.request import CompletionRequest
from glimpse.server.rpc.text_chunks import JsonChunks, TextChunk
from glimpse.v1 import chat_pb2, completion_pb2
from tests.server.requests import GENERATION

HEAD = CompletionHead(id='"text":"","content":""', created=5, model='m "\\ é', system_fingerprint="f")
PAIR = replace(GENERATION, num_completions=2)
TEXTS = st.lists(
    st.tuples(st.integers(0, 1), st.text(st.characters(exclude_categories=["Cs"]), min_size=1)), min_size=1
)
"""(completion index, text), without surrogates, which no decoded text has."""


def delta(index: int, text: str) -> Delta:
    return Delta(index=index, text=text)


def chat_chunk(index: int, text: str) -> Message:
    choice = chat_pb2.ChunkChoice(index=index, delta=chat_pb2.Delta(content=text))
    return chat_pb2.StreamChatCompletionResponse(choices=[choice], **head_members())


def completion_chunk(index: int, text: str) -> Message:
    choice = completion_pb2.CompletionChoice(index=index, text=text)
    return completion_pb2.StreamCompletionResponse(choices=[choice], **head_members())


def head_members() -> dict[str, Any]:
    return {
        "id": HEAD.id,
        "created": HEAD.created,
        "model": HEAD.model,
        "system_fingerprint": HEAD.system_fingerprint,
    }


def check(chunk: object, expected: Message, documents: JsonChunks) -> None:
    assert isinstance(chunk, TextChunk)
    assert documents.encode(chunk) == OPENAI.codec.encode(expected)
    assert type(expected).FromString(chunk.serialize()) == expected
    assert chunk.copy() == expected


@given(TEXTS)
def test_chunks_of_a_chat_equal_whole_messages(texts: list[tuple[int, str]]) -> None:
    renderer, documents = ChunkRenderer(HEAD, Usage()), JsonChunks(OPENAI.codec.encode)
    for index in (0, 1):
        (first,) = renderer.render(delta(index, "x"))
        assert isinstance(first, chat_pb2.StreamChatCompletionResponse)
        assert documents.encode(first) == OPENAI.codec.encode(first)
    for index, text in texts:
        (chunk,) = renderer.render(delta(index, text))
        check(chunk, chat_chunk(index, text), documents)


@given(TEXTS)
def test_chunks_of_a_completion_equal_whole_messages(texts: list[tuple[int, str]]) -> None:
    request = CompletionRequest(generation=PAIR, include_usage=False, echo=False)
    renderer, documents = CompletionRenderer(HEAD, request, ["", ""]), JsonChunks(OPENAI.codec.encode)
    for index in (0, 1):
        renderer.chunk(delta(index, "x"))
    for index, text in texts:
        check(renderer.chunk(delta(index, text)), completion_chunk(index, text), documents)


def test_copy_of_a_chunk_keeps_its_text() -> None:
    renderer = ChunkRenderer(HEAD, Usage())
    list(renderer.render(delta(0, "x")))
    (first,), (second,) = renderer.render(delta(0, "a")), renderer.render(delta(0, "b"))
    assert isinstance(first, TextChunk)
    assert isinstance(second, TextChunk)
    copied = first.copy()
    assert second.copy() == chat_chunk(0, "b")
    assert copied == chat_chunk(0, "a")
