"""Anthropic's Messages API and ChatService give the same answers, with a real engine."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import grpc
import pytest

from glimpse.anthropic.v1 import anthropic_pb2_grpc
from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2
from tests.server.requests import image_part, json_bodies, png, request, text_part, user

Chat = chat_pb2_grpc.ChatServiceStub
PNG = png()
IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()},
}
SCHEMA = {
    "type": "object",
    "properties": {"at": {"enum": [1, 2, 3]}},
    "required": ["at"],
    "additionalProperties": False,
}
TOOL = {"name": "look", "description": "Looks.", "input_schema": SCHEMA, "strict": True}


def typed_tool() -> chat_pb2.Tool:
    function = chat_pb2.FunctionDefinition(
        name="look", description="Looks.", parameters=json.dumps(SCHEMA), strict=True
    )
    return chat_pb2.Tool(function=function)


def post(channel: grpc.Channel, **members: Any) -> tuple[bytes, Mapping[str, str]]:
    body = {"max_tokens": 8, "temperature": 0} | members
    stub: Any = anthropic_pb2_grpc.AnthropicServiceStub(channel)
    call = stub.CreateMessage(json_bodies(body))
    return b"".join(piece.data for piece in call), dict(call.initial_metadata())


def ask(channel: grpc.Channel, **members: Any) -> Any:
    return json.loads(post(channel, **members)[0])


def events(channel: grpc.Channel, **members: Any) -> list[Any]:
    data, _ = post(channel, stream=True, **members)
    return [json.loads(event.partition(b"\ndata: ")[2]) for event in data.split(b"\n\n") if event]


def one(role: str, *content: Any) -> Any:
    return {"role": role, "content": list(content)}


def text(value: str) -> Any:
    return {"type": "text", "text": value}


def assistant(*parts: content_pb2.ContentPart, **members: Any) -> content_pb2.Message:
    return content_pb2.Message(role=content_pb2.ROLE_ASSISTANT, content=parts, **members)


def test_the_same_answer_about_an_image(channel: grpc.Channel) -> None:
    wire = request(content_pb2.Message(role=content_pb2.ROLE_SYSTEM, content=[text_part("Be brief.")]),
                   user(image_part(PNG), "the other"))  # fmt: skip
    whole = Chat(channel).CreateChatCompletion(wire)
    asked = {"system": "Be brief.", "messages": [one("user", IMAGE, text("the other"))]}
    found = ask(channel, **asked)
    assert found["content"] == [text(whole.choices[0].message.content)]
    assert found["stop_reason"] == "max_tokens"
    assert found["id"].startswith("msg_")
    usage = found["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == whole.usage.prompt_tokens
    assert usage["output_tokens"] == whole.usage.completion_tokens
    deltas = [event["delta"]["text"] for event in events(channel, **asked) if event["type"] == "content_block_delta"]
    assert "".join(deltas) == whole.choices[0].message.content
    data = base64.encodebytes(PNG).decode()
    wrapped = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    assert (
        ask(channel, **asked | {"messages": [one("user", wrapped, text("the other"))]})["content"] == found["content"]
    )
    stub: Any = anthropic_pb2_grpc.AnthropicServiceStub(channel)
    assert json.loads(stub.CountMessageTokens(json_bodies(asked)).data) == {"input_tokens": whole.usage.prompt_tokens}


@pytest.mark.parametrize(
    ("messages", "same"),
    [
        (["Hello"], [user("Hello")]),
        (
            [one("user", text("a"), text("b")), one("assistant", text("c")), one("user", text("d"))],
            [user("a", "b"), assistant(text_part("c")), user("d")],
        ),
        (
            [one("user", {"type": "document", "title": "T", "source": {"type": "text", "data": "D"}}, text("q"))],
            [user("T\n", "D", "q")],
        ),
        (
            [one("user", text("a")), {"role": "system", "content": "b"}, one("user", text("c"))],
            [user("a"), content_pb2.Message(role=content_pb2.ROLE_SYSTEM, content=[text_part("b")]), user("c")],
        ),
    ],
    ids=["bare text", "turns", "document", "system"],
)
def test_the_same_prompt(channel: grpc.Channel, messages: list[Any], same: list[content_pb2.Message]) -> None:
    sent = [one("user", text(each)) if isinstance(each, str) else each for each in messages]
    found = ask(channel, messages=sent)
    whole = Chat(channel).CreateChatCompletion(request(*same))
    assert found["content"] == [text(whole.choices[0].message.content)]
    usage = found["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == whole.usage.prompt_tokens


def test_the_model_continues_the_assistant_s_last_message(channel: grpc.Channel) -> None:
    wire = request(user("the other"), assistant(text_part("It is")))
    wire.continue_final_message = True
    whole = Chat(channel).CreateChatCompletion(wire)
    found = ask(channel, messages=[one("user", text("the other")), {"role": "assistant", "content": "It is"}])
    assert found["content"] == [text(whole.choices[0].message.content)]


def test_a_tool_is_called_and_its_result_read(channel: grpc.Channel) -> None:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    asked: Any = {
        "messages": [one("user", text("the other"))],
        "tools": [TOOL],
        "tool_choice": choice,
        "max_tokens": 100,
    }
    found = ask(channel, **asked)
    (use,) = found["content"]
    assert (use["type"], use["name"], found["stop_reason"]) == ("tool_use", "look", "tool_use")
    wire = request(user("the other"), max_completion_tokens=100)
    required = chat_pb2.ToolChoice(mode=chat_pb2.TOOL_CHOICE_MODE_REQUIRED)
    typed = chat_pb2.CreateChatCompletionRequest(tools=[typed_tool()], tool_choice=required, parallel_tool_calls=False)
    wire.MergeFrom(typed)
    (call,) = Chat(channel).CreateChatCompletion(wire).choices[0].message.tool_calls
    assert use["input"] == json.loads(call.function.arguments)
    streamed = [event["delta"] for event in events(channel, **asked) if event["type"] == "content_block_delta"]
    assert "".join(delta["partial_json"] for delta in streamed) == call.function.arguments
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": [text("A tree."), IMAGE]}
    answer = ask(channel, messages=[*asked["messages"], one("assistant", use), one("user", result)])
    made = assistant(tool_calls=[call])
    made.tool_calls[0].id = use["id"]
    read = content_pb2.Message(role=content_pb2.ROLE_TOOL, tool_call_id=use["id"],
                               content=[text_part("A tree."), image_part(PNG)])  # fmt: skip
    same = Chat(channel).CreateChatCompletion(request(user("the other"), made, read))
    assert answer["content"] == [text(same.choices[0].message.content)]


def test_a_call_of_a_named_tool_is_a_use_of_tools_too(channel: grpc.Channel) -> None:
    asked: Any = {
        "messages": [one("user", text("the other"))],
        "tools": [TOOL],
        "tool_choice": {"type": "tool", "name": "look"},
        "max_tokens": 100,
    }
    assert ask(channel, **asked)["stop_reason"] == "tool_use"
    (end,) = (event["delta"] for event in events(channel, **asked) if event["type"] == "message_delta")
    assert end["stop_reason"] == "tool_use"


def test_a_schema_holds(channel: grpc.Channel) -> None:
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    found = ask(channel, messages=[one("user", text("the other"))], output_config=form, max_tokens=100)
    assert json.loads(found["content"][0]["text"])["at"] in (1, 2, 3)
    same = ask(channel, messages=[one("user", text("the other"))], output_format=form["format"], max_tokens=100)
    assert same["content"] == found["content"]


def test_a_stop_sequence_ends_the_answer_and_is_told(channel: grpc.Channel) -> None:
    asked = {"messages": [one("user", text("the other"))], "max_tokens": 40}
    whole = ask(channel, **asked)["content"][0]["text"]
    stop = whole[len(whole) // 2 :][:3]
    found = ask(channel, **asked, stop_sequences=["\0\0", stop])
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", stop)
    assert found["content"][0]["text"] == whole[: whole.index(stop)]


def test_what_has_no_effect_is_told(channel: grpc.Channel) -> None:
    cached = text("a") | {"cache_control": {"type": "ephemeral"}}
    _, headers = post(channel, messages=[one("user", cached)], output_config={"effort": "high"}, colour=1)
    told = headers["x-glimpse-ignored-fields"].split(",")
    assert set(told) == {"messages[0].content[0].cache_control", "output_config.effort", "colour"}


@pytest.mark.parametrize(
    ("members", "field", "words"),
    [
        ({"messages": []}, "messages", "required"),
        ({"max_tokens": None}, "max_tokens", "required"),
        ({"max_tokens": 0}, "max_tokens", "expected"),
        ({"temperature": 3}, "temperature", "expected"),
        ({"stop_sequences": [""]}, "stop_sequences[0]", "expected a string"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role", "'user', 'assistant', 'system'"),
        ({"messages": [one("user")]}, "messages[0].content", "expected content"),
        ({"messages": [one("user", {"type": "image", "source": {"type": "url", "url": "data:,a"}})]},
         "messages[0].content[0].source", "expected an image"),
        ({"messages": [one("user", {"type": "image", "source": {"type": "file", "file_id": "a"},
                                    "transformations": {"oversized_image": "error"}})]},
         "messages[0].content[0].transformations", "always reduced"),
        ({"messages": [one("user", {"type": "text", "content": "a"})]}, "messages[0].content[0].text", "required"),
        ({"system": [{"type": "text"}]}, "system[0].text", "required"),
        ({"messages": [one("assistant", {"type": "tool_use", "id": "a", "name": "look", "arguments": {"at": 1}})]},
         "messages[0].content[0].arguments", "A tool_use has input."),
        ({"messages": [one("user", {"type": "tool_result", "tool_use_id": "a", "output": "b"})]},
         "messages[0].content[0].output", "A tool_result has content."),
        ({"messages": [one("user", {"type": "document", "source": {"type": "text"}})]},
         "messages[0].content[0].source.data", "required"),
        ({"messages": [one("assistant", {"type": "tool_use", "id": "a", "name": "b", "input": {}})]},
         "messages[0].content[0]", "cannot be continued; send what they returned"),
        ({"messages": [one("user", {"type": "image_url", "image_url": "a"})]}, "messages[0].content[0].type", "Use {"),
        ({"messages": [one("user", text("a"), {"type": "tool_use", "id": "a", "name": "b", "input": {}})]},
         "messages[0].content[1]", "only assistant messages"),
        ({"messages": [one("assistant", {"type": "tool_result", "tool_use_id": "a"})]},
         "messages[0].content[0]", "only messages of the user"),
        ({"messages": [one("user", {"type": "tool_result", "tool_use_id": "a", "content": "b"})]},
         "messages[0].content[0].tool_use_id", "an earlier tool call"),
        ({"tools": [{"name": "a b"}]}, "tools[0].name", "expected"),
        ({"tools": [{"name": "a", "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type", "'object'"),
        ({"tools": [{"name": "a"}], "tool_choice": {"type": "tool", "name": "b"}}, "tool_choice.name", "got 'b'"),
        ({"tools": [{"type": "web_search_20260318", "name": "web_search"}]}, "tools[0].type", "'custom'"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking.budget_tokens", "reasoning"),
        ({"max_completion_tokens": 3}, "max_completion_tokens", "Use max_tokens."),
        ({"cache_salt": "s"}, "cache_salt", "/v1/chat/completions"),
        ({"mesages": []}, "mesages", "did you mean 'messages'"),
    ],
)  # fmt: skip
def test_refusals_name_what_was_sent(channel: grpc.Channel, members: Any, field: str, words: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        post(channel, **{"messages": [one("user", text("a"))]} | members)
    call: Any = caught.value
    assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert call.details().startswith(f"'{field}'")
    assert words in call.details()


def test_refusals_name_what_was_sent_where_messages_are_counted_otherwise(channel: grpc.Channel) -> None:
    """The system's text is a message of the prompt, and so is each result of a tool."""
    result = {"type": "tool_result", "tool_use_id": "a"}
    nested = result | {"content": [result]}
    called = {"type": "tool_use", "id": "a", "name": "look", "input": [1]}
    for members, field in (
        ({"messages": [one("assistant", result)]}, "messages[0].content[0]"),
        ({"messages": [one("user", nested)]}, "messages[0].content[0].content[0]"),
        ({"messages": [one("user", text("a"), nested)]}, "messages[0].content[1].content[0]"),
        ({"messages": [one("user", text("a")), one("user", result)]}, "messages[1].content[0].tool_use_id"),
        ({"messages": [one("assistant", called)]}, "messages[0].content[0].input': expected a JSON object, got"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            post(channel, system="b", **members)
        call: Any = caught.value
        assert call.details().startswith(f"'{field}")


def test_what_cannot_be_enforced_is_told(channel: grpc.Channel) -> None:
    """The unenforced part of a schema is told by the name that was sent."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "no-such"}}}
    form = {"format": {"type": "json_schema", "schema": schema}}
    _, headers = post(channel, messages=[one("user", text("a"))], output_config=form)
    assert headers["x-glimpse-unenforced"].startswith("output_config.format.schema#/properties/a")
    wire = request(user("a"))
    wire.response_format.json_schema.schema = json.dumps(schema)
    wire.response_format.json_schema.name = "a"
    call = Chat(channel).CreateChatCompletion.with_call(wire)[1]
    assert dict(call.initial_metadata())["x-glimpse-unenforced"].startswith("response_format.json_schema.schema#/")
