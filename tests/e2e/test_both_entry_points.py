"""A request over gRPC and over REST has the same outcome, field by field.

Requests are written twice, in the fields of each API. Responses are compared as JSON, to which the codec encodes the
typed ones; ids, times and media usage are ignored.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from glimpse.server.codec.paths import json_path
from glimpse.server.dialects.openai import OPENAI
from glimpse.v1 import (
    chat_pb2,
    chat_pb2_grpc,
    completion_pb2,
    completion_pb2_grpc,
    content_pb2,
    model_pb2,
    model_pb2_grpc,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
)
from tests.e2e.images import data_url, encoded, tiles
from tests.e2e.requests import CHAT, COMPLETIONS, Answer, ask
from tests.e2e.stack import Stack
from tests.engine.replies import reply_with

VARYING = ("id", "created", "media_usage")
"""Fields that differ between identical requests: the second finds the media in the cache."""
IMAGE = encoded(tiles())
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
PARAMETERS = '{"type": "object", "properties": {"at": {"type": "integer"}}}'


def user(text: str) -> dict[str, Any]:
    return {"role": content_pb2.ROLE_USER, "content": [{"text": text}]}


def asked(text: str, **members: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **members}


CHATS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    # fields of the typed request, fields of the JSON request
    ({"messages": [user(reply_with("Grüße 🦉"))]}, asked(reply_with("Grüße 🦉"))),
    (
        {
            "messages": [user(reply_with("abcdef"))],
            "generation": {
                "max_completion_tokens": 4,
                "n": 3,
                "seed": 2,
                "logprobs": True,
                "top_logprobs": 1,
                "temperature": 0,
            },
            "metadata": {"a": "b"},
            "service_tier": chat_pb2.SERVICE_TIER_AUTO,
            "user": "me",
        },
        asked(reply_with("abcdef"), max_tokens=4, n=3, seed=2, logprobs=True, top_logprobs=1, temperature=0,
              metadata={"a": "b"}, service_tier="auto", user="me"),
    ),
    (
        {"messages": [user(reply_with("one two three"))], "generation": {"stop": ["two"]}},
        asked(reply_with("one two three"), stop="two"),
    ),
    (
        {
            "messages": [user(reply_with(f"See:\n{CALL}\n{CALL}"))],
            "tools": [{"function": {"name": "look", "description": "Looks.", "parameters": PARAMETERS}}],
            "tool_choice": {"mode": chat_pb2.TOOL_CHOICE_MODE_AUTO},
        },
        asked(reply_with(f"See:\n{CALL}\n{CALL}"), tool_choice="auto", tools=[{"type": "function", "function": {
            "name": "look", "description": "Looks.", "parameters": json.loads(PARAMETERS)}}]),
    ),
    (
        {
            "messages": [
                {"role": content_pb2.ROLE_USER, "content": [{"text": "Look."}]},
                {"role": content_pb2.ROLE_ASSISTANT, "tool_calls": [
                    {"id": "c1", "function": {"name": "look", "arguments": "{}"}}]},
                {"role": content_pb2.ROLE_TOOL, "tool_call_id": "c1", "content": [
                    {"text": reply_with("A tree.")}, {"image": {"source": {"data": IMAGE}}}]},
            ],
        },
        {"messages": [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": [
                {"type": "text", "text": reply_with("A tree.")},
                {"type": "image_url", "image_url": {"url": data_url(tiles())}}]},
        ]},
    ),
    (
        {"messages": [user(reply_with("yes"))], "structured_outputs": {"choice": {"values": ["yes", "no"]}}},
        asked(reply_with("yes"), structured_outputs={"choice": ["yes", "no"]}),
    ),
    (
        {"messages": [user(reply_with("{}"))],
         "response_format": {"json_schema": {"name": "s", "schema": '{"type": "object"}'}}},
        asked(reply_with("{}"), response_format={"type": "json_schema", "json_schema": {
            "name": "s", "schema": {"type": "object"}}}),
    ),
    (
        {"messages": [user(reply_with(f"<think>\nSo ä\n</think>\n\n{CALL}"))],
         "tools": [{"function": {"name": "look", "parameters": PARAMETERS}}]},
        asked(reply_with(f"<think>\nSo ä\n</think>\n\n{CALL}"), tools=[{"type": "function", "function": {
            "name": "look", "parameters": json.loads(PARAMETERS)}}]),
    ),
    (
        {"messages": [user("a"), {"role": content_pb2.ROLE_ASSISTANT, "content": [{"text": "b"}], "reasoning": "c"},
                      user(reply_with("<think>So</think>Yes"))], "include_reasoning": False},
        {"messages": [{"role": "user", "content": "a"},
                      {"role": "assistant", "content": "b", "reasoning_content": "c"},
                      {"role": "user", "content": reply_with("<think>So</think>Yes")}], "include_reasoning": False},
    ),
    # refused
    ({"messages": [user("x")], "generation": {"n": 129}}, asked("x", n=129)),
    ({"messages": [user("x")], "generation": {"top_p": 2.0}}, asked("x", top_p=2)),
    ({"messages": [user("x")], "model": "gpt"}, asked("x", model="gpt")),
    ({"messages": [user("x")], "structured_outputs": {"regex": "("}}, asked("x", structured_outputs={"regex": "("})),
    ({"messages": [user("x")], "tool_choice": {"mode": 3}}, asked("x", tool_choice="required")),
    ({"messages": [{**user("x"), "reasoning": "y"}]}, {"messages": [
        {"role": "user", "content": "x", "reasoning": "y"}]}),
    ({"messages": [user("x")], "reasoning_effort": 5}, asked("x", reasoning_effort="high")),
    ({"messages": []}, {"messages": []}),
]  # fmt: skip


@pytest.fixture(scope="module")
def channel(echo_stack: Stack) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(echo_stack.target) as opened:
        yield opened


def outcome_of_call(call: Callable[[Any], Any], request: Message) -> Any:
    """The response as JSON, or the error."""
    try:
        response = call(request)
        messages = [response] if isinstance(response, Message) else list(response)
    except grpc.RpcError as error:
        return failure_of_call(error, request)
    return [json.loads(OPENAI.codec.encode(message)) for message in messages]


def failure_of_call(error: Any, request: Message) -> Any:
    info = error_details_pb2.ErrorInfo()
    status = status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    status.details[0].Unpack(info)
    field = info.metadata.get("param")
    path = None if field is None else json_path(OPENAI.codec.dialect, request.DESCRIPTOR, field)  # pyright: ignore[reportArgumentType]
    return {"code": info.reason.lower(), "param": path}


def outcome_of_post(answer: Answer, *, stream: bool) -> Any:
    if answer.status != 200:
        return {name: answer.body["error"][name] for name in ("code", "param")}
    return answer.events if stream else [answer.body]


def without_varying(outcome: Any) -> Any:
    """Without the fields that vary."""
    match outcome:
        case dict():
            return {name: without_varying(value) for name, value in outcome.items() if name not in VARYING}
        case list():
            return [without_varying(value) for value in outcome]
        case _:
            return outcome


def merged(events: Any) -> Any:
    """Merges the chunks of each choice: where a stream is cut is not part of the comparison."""
    if not isinstance(events, list):
        return events
    answers: dict[int, Any] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        start: dict[str, Any] = {"text": "", "reasoning": "", "tokens": [], "calls": {}, "ends": [], "roles": []}
        answer = answers.setdefault(choice["index"], start)
        delta = choice.get("delta", {})
        answer["text"] += delta.get("content", "") + choice.get("text", "")
        answer["reasoning"] += delta.get("reasoning", "")
        answer["roles"] += [delta["role"]] if "role" in delta else []
        answer["ends"] += [choice["finish_reason"]] if choice["finish_reason"] else []
        answer["tokens"] += tokens_of(choice["logprobs"] or {})
        for call in delta.get("tool_calls", ()):
            made = answer["calls"].setdefault(call["index"], {"name": "", "arguments": ""})
            made["name"] += call["function"].get("name", "")
            made["arguments"] += call["function"].get("arguments", "")
    heads = [{name: value for name, value in event.items() if name != "choices"} for event in events]
    return [answers, heads[0], heads[-1]]


def tokens_of(logprobs: dict[str, Any]) -> list[Any]:
    return logprobs.get("content") or [list(each) for each in zip(*logprobs.values(), strict=True)]


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize(("fields", "members"), CHATS)
def test_grpc_and_rest_give_the_same_chat_completion(
    echo_stack: Stack, channel: grpc.Channel, fields: dict[str, Any], members: dict[str, Any], stream: bool
) -> None:
    chat = chat_pb2_grpc.ChatServiceStub(channel)
    request = chat_pb2.CreateChatCompletionRequest(**fields)
    extra: dict[str, Any] = {}
    if stream:
        request.stream_options.include_usage = True
        extra = {"stream": True, "stream_options": {"include_usage": True}}
    typed = outcome_of_call(chat.StreamChatCompletion if stream else chat.CreateChatCompletion, request)
    posted = outcome_of_post(ask(echo_stack, CHAT, **members, **extra), stream=stream)
    if stream:
        typed, posted = merged(typed), merged(posted)
    assert without_varying(typed) == without_varying(posted)


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize(
    ("fields", "members"),
    [
        ({"prompts": [{"text": reply_with("ä")}, {"text": reply_with("b")}]},
         {"prompt": [reply_with("ä"), reply_with("b")]}),
        ({"prompts": [{"text": reply_with("ab")}], "echo": True, "generation": {"n": 2}},
         {"prompt": reply_with("ab"), "echo": True, "n": 2}),
        ({"prompts": [{"text": reply_with("ab")}], "generation": {"logprobs": True, "top_logprobs": 1}},
         {"prompt": reply_with("ab"), "logprobs": 1}),
        ({"prompts": [{"token_ids": {"ids": [1, 2]}}]}, {"prompt": [1, 2]}),
        ({"prompts": [{"token_ids": {"ids": [10**6]}}]}, {"prompt": [10**6]}),
        ({"prompts": []}, {"prompt": []}),
    ],
)  # fmt: skip
def test_grpc_and_rest_give_the_same_completion(
    echo_stack: Stack, channel: grpc.Channel, fields: dict[str, Any], members: dict[str, Any], stream: bool
) -> None:
    completions = completion_pb2_grpc.CompletionServiceStub(channel)
    request = completion_pb2.CreateCompletionRequest(**fields)
    typed = outcome_of_call(completions.StreamCompletion if stream else completions.CreateCompletion, request)
    posted = outcome_of_post(ask(echo_stack, COMPLETIONS, **members, stream=stream), stream=stream)
    if stream:
        typed, posted = merged(typed), merged(posted)
    assert without_varying(typed) == without_varying(posted)


def test_grpc_and_rest_give_the_same_tokens(echo_stack: Stack, channel: grpc.Channel) -> None:
    tokens = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
    typed = tokens.Tokenize(tokenizer_pb2.TokenizeRequest(prompt="Hello ä", return_token_strs=True))
    assert (
        json.loads(OPENAI.codec.encode(typed))
        == ask(echo_stack, "/tokenize", prompt="Hello ä", return_token_strs=True).body
    )
    back = tokens.Detokenize(tokenizer_pb2.DetokenizeRequest(tokens=typed.tokens))
    assert json.loads(OPENAI.codec.encode(back)) == ask(echo_stack, "/detokenize", tokens=list(typed.tokens)).body


def test_grpc_and_rest_list_the_same_models(echo_stack: Stack, channel: grpc.Channel) -> None:
    (model,) = model_pb2_grpc.ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest()).data
    assert list(model.input_modalities) == [1, 2, 3]
    assert (model.capabilities.tools, model.capabilities.max_choices) == (True, 128)
