"""Tests for ChatService responses: unary and streamed ones agree and have the format that clients expect."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from glimpse.engine.checkpoint.text.output_processor import Delta, TokenText, ToolCallDelta
from glimpse.engine.protocol.media import MediaSpan
from glimpse.engine.protocol.messages import FinishReason, RequestStats
from glimpse.media.cache.request_media import MediaUsage, MediumOrigin
from glimpse.media.kind import MediaKind
from glimpse.server.dialects.openai import OPENAI
from glimpse.server.generation.medium_usage import PromptMedium
from glimpse.server.generation.usage import LoadedPrompt, Usage
from glimpse.server.render.chat import ChunkRenderer, CompletionHead, render_response
from glimpse.server.request import ChatRequest
from glimpse.server.rpc.text_chunks import TextChunk
from glimpse.v1 import chat_pb2, content_pb2, generation_pb2
from tests.server.requests import GENERATION

HEAD = CompletionHead(id="chatcmpl-1", created=5, model="m")
REQUEST = ChatRequest(
    generation=replace(GENERATION, num_completions=2),
    include_usage=False,
    metadata={"a": "b"},
    echoes_service_tier=False,
)


def delta(index: int = 0, text: str = "", **members: Any) -> Delta:
    return Delta(index=index, text=text, **members)


def used() -> Usage:
    """Seven tokens of a prompt, four of them of an image, and an answer of three tokens."""
    span = MediaSpan(kind=MediaKind.IMAGE, start=1, num_tokens=4, runs=((0, 4),), key=b"a", grid=(1, 2, 2))
    image = PromptMedium(span=span, origin=MediumOrigin(), is_embedding=False)
    usage = Usage()
    usage.add_prompt(0, LoadedPrompt(token_ids=[1] * 7, media=[], media_usage=MediaUsage(), seen=(image,)))
    usage.add_delta(0, Delta(token_ids=[1] * 3, stats=RequestStats(num_cached_tokens=2)))
    return usage


def opened(index: int, name: str, arguments: str = "") -> ToolCallDelta:
    return ToolCallDelta(index=index, id=f"call_{index}", name=name, arguments=arguments)


def more(index: int, arguments: str) -> ToolCallDelta:
    return ToolCallDelta(index=index, id=None, name=None, arguments=arguments)


def chunks(*deltas: Delta) -> list[chat_pb2.ChunkChoice]:
    renderer, messages = ChunkRenderer(HEAD, Usage()), list[Any]()
    for chunk in (chunk for each in deltas for chunk in renderer.render(each)):
        messages.append(chunk.copy() if isinstance(chunk, TextChunk) else chunk)
    return [message.choices[0] for message in messages]


def rendered_deltas(*deltas: Delta) -> list[bytes]:
    return [OPENAI.codec.encode(chunk.delta) for chunk in chunks(*deltas)]


def test_each_choice_begins_with_its_role_and_ends_with_its_finish_reason() -> None:
    taken = chunks(
        delta(0, "a"),
        delta(1),
        delta(1, "b", finish=FinishReason.LENGTH),
        delta(0, "c", finish=FinishReason.STOP),
    )
    assert [(chunk.index, chunk.delta.content, chunk.finish_reason) for chunk in taken] == [
        (0, "a", 0),
        (1, "", 0),
        (1, "b", 0),
        (1, "", generation_pb2.FINISH_REASON_LENGTH),
        (0, "c", 0),
        (0, "", generation_pb2.FINISH_REASON_STOP),
    ]
    assert [chunk.delta.role for chunk in taken] == [4, 4, 0, 0, 0, 0]
    assert not taken[3].delta.HasField("content")


def test_empty_delta_is_not_sent() -> None:
    assert rendered_deltas(delta(0, "a"), delta(0), delta(0, "b")) == [
        b'{"role":"assistant","content":"a"}',
        b'{"content":"b"}',
    ]


def test_token_ids_are_sent_before_their_text() -> None:
    first, second, last = chunks(
        delta(0, token_ids=[1]),
        delta(0, "a", token_ids=[2, 3]),
        delta(0, finish=FinishReason.STOP),
    )
    assert [(list(chunk.token_ids), chunk.delta.content) for chunk in (first, second, last)] == [
        ([1], ""),
        ([2, 3], "a"),
        ([], ""),
    ]


def test_tool_call_chunks_have_the_format_clients_expect() -> None:
    assert rendered_deltas(
        delta(0, tool_calls=(opened(0, "f"),)),
        delta(0, tool_calls=(more(0, '{"a"'),)),
        delta(0, tool_calls=(more(0, ": 1}"), opened(1, "g", "{"))),
        delta(0, tool_calls=(more(1, "}"),), finish=FinishReason.TOOL_CALLS),
    ) == [
        b'{"role":"assistant","tool_calls":[{"index":0,"id":"call_0","type":"function",'
        b'"function":{"name":"f","arguments":""}}]}',
        b'{"tool_calls":[{"index":0,"function":{"arguments":"{\\"a\\""}}]}',
        b'{"tool_calls":[{"index":0,"function":{"arguments":": 1}"}},'
        b'{"index":1,"id":"call_1","type":"function","function":{"name":"g","arguments":"{"}}]}',
        b'{"tool_calls":[{"index":1,"function":{"arguments":"}"}}]}',
        b"{}",
    ]


def whole(deltas: Sequence[Delta], usage: Usage | None = None) -> chat_pb2.CreateChatCompletionResponse:
    return render_response(HEAD, REQUEST, deltas, used() if usage is None else usage)


def test_response_joins_deltas_by_choice_index() -> None:
    response = whole(
        [
            delta(1, "x"),
            delta(0, "a"),
            delta(0, tool_calls=(opened(0, "f", "{"),)),
            delta(1, finish=FinishReason.LENGTH),
            delta(0, tool_calls=(more(0, "}"),), finish=FinishReason.TOOL_CALLS),
        ]
    )
    first, second = response.choices
    call = content_pb2.ToolCall(id="call_0", function=content_pb2.FunctionCall(name="f", arguments="{}"))
    assert (first.index, first.message.content, list(first.message.tool_calls)) == (0, "a", [call])
    assert (second.index, second.message.content, second.finish_reason) == (1, "x", 2)
    assert response.usage.prompt_tokens_details.image_tokens == 4
    assert response.metadata == {"a": "b"}
    assert not response.HasField("service_tier")


def test_choice_with_only_tool_calls_has_no_content() -> None:
    (choice,) = whole([delta(0, tool_calls=(opened(0, "f", "{}"),), finish=FinishReason.TOOL_CALLS)]).choices
    assert not choice.message.HasField("content")
    (empty,) = whole([delta(0, finish=FinishReason.STOP)]).choices
    assert empty.message.HasField("content")


def test_reasoning_comes_before_the_content() -> None:
    deltas = [
        delta(0, reasoning="So"),
        delta(0, reasoning="."),
        delta(0, "Yes.", finish=FinishReason.STOP),
    ]
    assert rendered_deltas(*deltas) == [
        b'{"role":"assistant","reasoning":"So"}',
        b'{"reasoning":"."}',
        b'{"content":"Yes."}',
        b"{}",
    ]
    (choice,) = whole(deltas).choices
    assert (choice.message.reasoning, choice.message.content) == ("So.", "Yes.")
    (cut,) = whole(deltas[:2]).choices
    assert not cut.message.HasField("content")


def test_usage_counts_reasoning_tokens() -> None:
    counted = used()
    counted.add_delta(0, Delta(num_reasoning_tokens=2))
    assert whole([delta(0, "a")], counted).usage.completion_tokens_details.reasoning_tokens == 2
    details = whole([delta(0, "a")]).usage.completion_tokens_details
    assert details == generation_pb2.CompletionTokensDetails(), "a model that does not reason"


def test_logprobs_are_sent_with_their_delta_after_the_role() -> None:
    token = TokenText(token_id=1, text="a", bytes=b"a", logprob=-0.5)
    first, second, third = chunks(delta(0, "a", tokens=(token,)), delta(0, "a", tokens=(token,)))
    assert (first.delta.role, first.delta.content) == (content_pb2.ROLE_ASSISTANT, "")
    assert [each.token for each in first.logprobs.content] == []
    for chunk in (second, third):
        assert (chunk.delta.content, [each.token for each in chunk.logprobs.content]) == ("a", ["a"])
