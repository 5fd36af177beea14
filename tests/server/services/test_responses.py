"""OpenAI's Responses API and ChatService give the same answers, with a real engine."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import grpc
import pytest

from glimpse.openai.v1 import openai_pb2_grpc
from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2
from tests.media.pdfs import document
from tests.server.dialects.responses_client import EVENT, RESPONSE, document_of, joined
from tests.server.requests import image_part, json_bodies, png, request, text_part, user

Chat = chat_pb2_grpc.ChatServiceStub
PNG = png()
IMAGE = {"type": "input_image", "image_url": f"data:image/png;base64,{base64.b64encode(PNG).decode()}"}
SCHEMA = {
    "type": "object",
    "properties": {"at": {"enum": [1, 2, 3]}},
    "required": ["at"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "name": "look", "description": "Looks.", "parameters": SCHEMA, "strict": True}
FORMAT = {"type": "json_schema", "name": "at", "schema": SCHEMA, "strict": True}


def post(channel: grpc.Channel, headers: Any = None, **members: Any) -> tuple[bytes, Mapping[str, str]]:
    body = {"max_output_tokens": 8, "temperature": 0, "input": "the other"} | members
    stub: Any = openai_pb2_grpc.OpenAIServiceStub(channel)
    call = stub.CreateResponse(json_bodies(body), metadata=headers)
    return b"".join(piece.data for piece in call), dict(call.initial_metadata())


def ask(channel: grpc.Channel, **members: Any) -> Any:
    return document_of(RESPONSE, post(channel, **members)[0])


def streamed(channel: grpc.Channel, **members: Any) -> Any:
    """The response that a stream's events join to."""
    data, _ = post(channel, stream=True, **members)
    events = (event.partition(b"\ndata: ")[2] for event in data.split(b"\n\n") if event)
    return joined([document_of(EVENT, event) for event in events])


def text(value: str) -> Any:
    return {"type": "input_text", "text": value}


def said(role: str, *content: Any) -> Any:
    return {"type": "message", "role": role, "content": list(content)}


def text_of(found: Any) -> str:
    (item,) = found["output"]
    (part,) = item["content"]
    return part["text"]


def assistant(*parts: content_pb2.ContentPart, **members: Any) -> content_pb2.Message:
    return content_pb2.Message(role=content_pb2.ROLE_ASSISTANT, content=parts, **members)


def system(value: str) -> content_pb2.Message:
    return content_pb2.Message(role=content_pb2.ROLE_SYSTEM, content=[text_part(value)])


def test_the_same_answer_about_an_image(channel: grpc.Channel) -> None:
    whole = Chat(channel).CreateChatCompletion(request(system("Be brief."), user(image_part(PNG), "the other")))
    asked = {"instructions": "Be brief.", "input": [said("user", IMAGE, text("the other"))]}
    found = ask(channel, **asked)
    assert text_of(found) == whole.choices[0].message.content
    assert (found["status"], found["incomplete_details"]["reason"]) == ("incomplete", "max_output_tokens")
    assert found["id"].startswith("resp_")
    usage = found["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (
        whole.usage.prompt_tokens,
        whole.usage.completion_tokens,
    )
    again = streamed(channel, **asked)
    assert text_of(again) == text_of(found)
    assert again["usage"]["output_tokens"] == usage["output_tokens"]


def test_a_file_of_low_detail_has_fewer_tokens(channel: grpc.Channel) -> None:
    pdf = base64.b64encode(document([""], size=(600, 600))).decode()
    stub: Any = openai_pb2_grpc.OpenAIServiceStub(channel)

    def num_tokens(detail: str) -> int:
        file = {"type": "input_file", "file_data": f"data:application/pdf;base64,{pdf}", "detail": detail}
        return json.loads(stub.CountInputTokens(json_bodies({"input": [said("user", file)]})).data)["input_tokens"]

    assert num_tokens("low") < num_tokens("high") == num_tokens("auto")


@pytest.mark.parametrize(
    ("items", "same"),
    [
        ("Hello", [user("Hello")]),
        ([{"role": "user", "content": "Hello"}], [user("Hello")]),
        ([said("system", text("Be brief.")), said("user", text("a"))], [system("Be brief."), user("a")]),
        (
            [
                said("user", text("a"), text("b")),
                {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                 "content": [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []}]},
                said("user", text("d")),
            ],
            [user("a", "b"), assistant(text_part("c")), user("d")],
        ),
        (
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
             {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}],
            [user("a"), assistant(text_part("b")), assistant(text_part("c")), user("d")],
        ),
    ],
    ids=["bare text", "without a type", "system", "turns", "two answers"],
)  # fmt: skip
def test_the_same_prompt(channel: grpc.Channel, items: Any, same: list[content_pb2.Message]) -> None:
    found = ask(channel, input=items)
    whole = Chat(channel).CreateChatCompletion(request(*same))
    assert text_of(found) == whole.choices[0].message.content
    assert found["usage"]["input_tokens"] == whole.usage.prompt_tokens


def test_a_function_is_called_and_its_output_read(channel: grpc.Channel) -> None:
    asked: Any = {
        "input": [said("user", text("the other"))],
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_output_tokens": 100,
    }
    found = ask(channel, **asked)
    (made,) = found["output"]
    assert (made["type"], made["name"], found["status"]) == ("function_call", "look", "completed")
    assert (found["tools"], found["tool_choice"], found["parallel_tool_calls"]) == ([TOOL], "required", False)
    wire = request(user("the other"), max_completion_tokens=100)
    function = chat_pb2.FunctionDefinition(
        name="look", description="Looks.", parameters=json.dumps(SCHEMA), strict=True
    )
    required = chat_pb2.ToolChoice(mode=chat_pb2.TOOL_CHOICE_MODE_REQUIRED)
    wire.MergeFrom(
        chat_pb2.CreateChatCompletionRequest(
            tools=[chat_pb2.Tool(function=function)], tool_choice=required, parallel_tool_calls=False
        )
    )
    (call,) = Chat(channel).CreateChatCompletion(wire).choices[0].message.tool_calls
    assert made["arguments"] == call.function.arguments
    (again,) = streamed(channel, **asked)["output"]
    assert again["arguments"] == call.function.arguments
    output = {"type": "function_call_output", "call_id": made["call_id"], "output": [text("A tree."), IMAGE]}
    answer = ask(channel, input=[*asked["input"], made, output])
    call.id = made["call_id"]
    read = content_pb2.Message(role=content_pb2.ROLE_TOOL, tool_call_id=made["call_id"],
                               content=[text_part("A tree."), image_part(PNG)])  # fmt: skip
    same = Chat(channel).CreateChatCompletion(request(user("the other"), assistant(tool_calls=[call]), read))
    assert text_of(answer) == same.choices[0].message.content
    assert answer["usage"]["input_tokens"] == same.usage.prompt_tokens


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "look"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]},
    ],
)
def test_the_function_that_is_named_is_called(channel: grpc.Channel, choice: Any) -> None:
    other = TOOL | {"name": "listen"}
    found = ask(channel, tools=[other, TOOL], tool_choice=choice, max_output_tokens=100, parallel_tool_calls=False)
    assert [item["name"] for item in found["output"]] == ["look"]
    assert found["tool_choice"] == choice


def test_an_answer_of_several_items_is_one_message_of_the_prompt(channel: grpc.Channel) -> None:
    function = {"arguments": '{"at":1}', "name": "look"}
    items = [
        {"role": "user", "content": "a"},
        {"type": "message", "role": "assistant", "content": "b"},
        *({"type": "function_call", "call_id": each, **function} for each in "xy"),
        *({"type": "function_call_output", "call_id": each, "output": ""} for each in "xy"),
        {"type": "function_call", "call_id": "z", **function},
        {"type": "function_call_output", "call_id": "z", "output": "d"},
    ]
    calls = [content_pb2.ToolCall(id=each, function=content_pb2.FunctionCall(**function)) for each in "xyz"]
    results = [
        content_pb2.Message(role=content_pb2.ROLE_TOOL, tool_call_id=each, content=[text_part(result)])
        for each, result in zip("xyz", ("", "", "d"), strict=True)
    ]
    same = request(
        user("a"),
        assistant(text_part("b"), tool_calls=calls[:2]),
        *results[:2],
        assistant(tool_calls=calls[2:]),
        results[2],
    )
    whole = Chat(channel).CreateChatCompletion(same)
    found = ask(channel, input=items)
    assert text_of(found) == whole.choices[0].message.content
    assert found["usage"]["input_tokens"] == whole.usage.prompt_tokens


def test_a_schema_holds(channel: grpc.Channel) -> None:
    found = ask(channel, text={"format": FORMAT}, max_output_tokens=100)
    assert json.loads(text_of(found))["at"] in (1, 2, 3)
    assert found["text"] == {"format": FORMAT}
    assert (
        json.loads(text_of(ask(channel, text={"format": {"type": "json_object"}}, max_output_tokens=500))) is not None
    )


def test_log_probabilities_are_those_of_chat(channel: grpc.Channel) -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    found = ask(channel, **asked)
    (part,) = found["output"][0]["content"]
    wire = request(user("the other"), logprobs=True, top_logprobs=2)
    whole = Chat(channel).CreateChatCompletion(wire).choices[0].logprobs.content
    assert [each["token"] for each in part["logprobs"]] == [each.token for each in whole]
    assert [each["top_logprobs"][1]["token"] for each in part["logprobs"]] == [
        each.top_logprobs[1].token for each in whole
    ]
    assert streamed(channel, **asked)["output"][0]["content"][0]["logprobs"] == part["logprobs"]


def test_the_response_repeats_what_it_was_asked(channel: grpc.Channel) -> None:
    asked = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "service_tier": "auto",
        "user": "me",
        "top_p": 0.5,
        "max_output_tokens": 3,
    }
    for found in (ask(channel, **asked), streamed(channel, **asked)):
        assert {name: found[name] for name in asked} == asked | {"service_tier": "default"}
        assert (found["temperature"], found["truncation"], found["tool_choice"]) == (0.0, "disabled", "auto")
        assert found["text"] == {"format": {"type": "text"}}
        assert found["model"] == "tiny"


def test_what_has_no_effect_is_told(channel: grpc.Channel) -> None:
    item = said("user", text("a") | {"prompt_cache_breakpoint": {"mode": "explicit"}})
    _, headers = post(
        channel,
        input=[item],
        reasoning={"effort": "high", "summary": "auto"},
        include=["reasoning.encrypted_content"],
        top_logprobs=2,
        colour=1,
        tool_choice="auto",
        parallel_tool_calls=True,
        truncation="disabled",
        background=False,
    )
    told = headers["x-glimpse-ignored-fields"].split(",")
    assert set(told) == {
        "input[0].content[0].prompt_cache_breakpoint",
        "reasoning.effort",
        "reasoning.summary",
        "include[0]",
        "top_logprobs",
        "colour",
    }


CALL = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}


@pytest.mark.parametrize(
    ("members", "field", "words"),
    [
        ({"input": None}, "input", "required"),
        ({"input": 3}, "input", "expected a string or an array"),
        ({"max_output_tokens": 0}, "max_output_tokens", "expected"),
        ({"temperature": 3}, "temperature", "expected"),
        ({"model": "other"}, "model", "other"),
        ({"input": [{"content": "a"}]}, "input[0].role", "required"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role", "'user', 'assistant'"),
        ({"input": [said("user")]}, "input[0].content", "required"),
        ({"instructions": "b", "input": [said("user", {"type": "input_image", "image_url": "data:,a"})]},
         "input[0].content[0].image_url", "expected an image"),
        ({"input": [said("user", {"type": "input_image", "file_id": "a"})]}, "input[0].content[0].file_id", "upload"),
        ({"input": [said("user", {"type": "input_image"})]}, "input[0].content[0].image_url", "expected"),
        ({"input": [said("user", {"type": "image_url", "image_url": "a"})]}, "input[0].content[0].type", "input_image"),
        ({"input": [said("user", {"type": "input_file", "file_id": "a"})]}, "input[0].content[0].file_id", "upload"),
        ({"input": [said("user", {"type": "input_file", "file_data": "data:;base64,iVBORw0KGgo=", "filename": "a"})]},
         "input[0].content[0].file_data", "PDF"),
        ({"input": [said("user", {"type": "input_file"})]}, "input[0].content[0].file_data", "expected"),
        ({"input": [said("user", {"type": "reasoning_text", "text": "a"})]}, "input[0].content[0]", "expected text"),
        ({"input": [said("user", text("a")), CALL | {"call_id": ""}]}, "input[1].call_id", "required"),
        ({"input": [CALL | {"input": {"at": 1}}]}, "input[0].input", "A function_call has arguments."),
        ({"input": [CALL, {"type": "function_call_output", "call_id": "a", "content": "b"}]}, "input[1].content",
         "A function_call_output has output."),
        ({"input": [CALL | {"name": "a b"}]}, "input[0].name", "expected"),
        ({"input": [CALL | {"arguments": "{"}]}, "input[0].arguments", "JSON"),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": "b"}]}, "input[0].call_id", "earlier"),
        ({"input": [{"type": "web_search_call", "id": "a"}]}, "input[0].type", "web search"),
        ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "a"}]}, "input[0].encrypted_content",
         "Only the server"),
        ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
        ({"background": True}, "background", "not supported"),
        ({"truncation": "auto"}, "truncation", "never truncated"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "web search"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "expected"),
        ({"tools": [{"type": "function", "name": "a", "parameters": {"type": "array"}}]}, "tools[0].parameters.type",
         "'object'"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "b"}}, "tool_choice.name", "got 'b'"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "b"}]}},
         "tool_choice.tools[0].name", "got 'b'"),
        ({"tool_choice": "required"}, "tool_choice", "only allowed with tools"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema", "required"),
        ({"text": {"format": FORMAT | {"schema": {"type": "no-such"}}}}, "text.format.schema", ""),
        ({"include": ["logprobs"]}, "include[0]", "message.output_text.logprobs"),
        ({"max_completion_tokens": 3}, "max_completion_tokens", "Use max_output_tokens."),
        ({"messages": []}, "messages", "Use input."),
        ({"input": None}, "input", "required, but missing or empty; send at least one element"),
        ({"input": [said("user", {"type": "input_text"})]}, "input[0].content[0].text", "required, but missing"),
        ({"input": [said("assistant", {"type": "output_text"})]}, "input[0].content[0].text", "required, but missing"),
        ({"input": []}, "input", "required, but missing or empty; send at least one element"),
        ({"cache_salt": "s"}, "cache_salt", "/v1/chat/completions"),
        ({"inputs": "a"}, "inputs", "did you mean 'input'"),
    ],
)  # fmt: skip
def test_refusals_name_what_was_sent(channel: grpc.Channel, members: Any, field: str, words: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        post(channel, **members)
    call: Any = caught.value
    if call.code() is not grpc.StatusCode.NOT_FOUND:
        assert call.details().startswith(f"'{field}")
    assert words in call.details()


def test_what_cannot_be_enforced_is_told(channel: grpc.Channel) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "no-such"}}}
    _, headers = post(channel, text={"format": FORMAT | {"schema": schema}})
    assert headers["x-glimpse-unenforced"].startswith("text.format.schema#/properties/a")
