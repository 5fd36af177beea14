"""Tools, their choice, calls and results: what they mean, and which are refused under which field."""

from dataclasses import replace
from typing import Any

import pytest

from glimpse.engine.checkpoint.text.conversation import (
    ChatMessage,
    MediaSlot,
    NamedTool,
    ToolCall,
    ToolChoice,
    ToolDefinition,
    ToolMode,
)
from glimpse.media.kind import MediaKind
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.content import parse_conversation
from glimpse.server.parse.tools import NO_PARAMETERS, parse_tools
from glimpse.v1 import chat_pb2, content_pb2
from tests.server.parse.served import MODEL
from tests.server.requests import image_part, png, text_part, user

SCHEMA = '{ "type": "object", "properties": {"z": {}, "a": {}} }'


def function(name: str = "f", **members: Any) -> chat_pb2.Tool:
    return chat_pb2.Tool(function=chat_pb2.FunctionDefinition(name=name, **members))


def mode(choice: chat_pb2.ToolChoiceMode) -> chat_pb2.ToolChoice:
    return chat_pb2.ToolChoice(mode=choice)


def named(name: str) -> chat_pb2.ToolChoice:
    return chat_pb2.ToolChoice(named_tool=chat_pb2.NamedToolChoice(function=chat_pb2.FunctionName(name=name)))


def allowed(*names: str, mode: chat_pb2.AllowedToolsMode = chat_pb2.ALLOWED_TOOLS_MODE_AUTO) -> chat_pb2.ToolChoice:
    tools = [chat_pb2.AllowedTool(function=chat_pb2.FunctionName(name=name)) for name in names]
    listed = chat_pb2.AllowedTools(mode=mode, tools=tools)
    return chat_pb2.ToolChoice(named_tool=chat_pb2.NamedToolChoice(allowed_tools=listed))


def request(*tools: chat_pb2.Tool, **members: Any) -> chat_pb2.CreateChatCompletionRequest:
    return chat_pb2.CreateChatCompletionRequest(tools=tools, **members)


def test_parses_tools() -> None:
    tools = parse_tools(request(function("look", description="Looks.", parameters=SCHEMA, strict=True), function("f")))
    assert tools.definitions == (
        ToolDefinition(name="look", description="Looks.", parameters=SCHEMA, strict=True),
        ToolDefinition(name="f", description=None, parameters=NO_PARAMETERS, strict=False),
    )
    assert (tools.choice, tools.parallel) == (ToolMode.AUTO, True)


@pytest.mark.parametrize("name", ["files.read", "github/list_issues", "mcp:docs:search", "a" * 128])
def test_names_of_tools_are_those_of_mcp(name: str) -> None:
    (tool,) = parse_tools(request(function(name), tool_choice=named(name))).definitions
    assert tool.name == name


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (mode(chat_pb2.TOOL_CHOICE_MODE_NONE), ToolMode.NONE),
        (mode(chat_pb2.TOOL_CHOICE_MODE_AUTO), ToolMode.AUTO),
        (mode(chat_pb2.TOOL_CHOICE_MODE_REQUIRED), ToolMode.REQUIRED),
        (mode(chat_pb2.TOOL_CHOICE_MODE_UNSPECIFIED), ToolMode.AUTO),
        (named("f"), NamedTool(name="f")),
    ],
)
def test_a_tool_choice_is_a_mode_or_a_name(choice: chat_pb2.ToolChoice, expected: ToolChoice) -> None:
    tools = parse_tools(request(function(), tool_choice=choice, parallel_tool_calls=False))
    assert (tools.choice, tools.parallel) == (expected, False)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (chat_pb2.ALLOWED_TOOLS_MODE_UNSPECIFIED, ToolMode.AUTO),
        (chat_pb2.ALLOWED_TOOLS_MODE_AUTO, ToolMode.AUTO),
        (chat_pb2.ALLOWED_TOOLS_MODE_REQUIRED, ToolMode.REQUIRED),
    ],
)
def test_allowed_tools_leave_all_tools_to_see_and_some_to_call(
    mode: chat_pb2.AllowedToolsMode, expected: ToolMode
) -> None:
    offered = (function("f"), function("g"), function("h"))
    tools = parse_tools(request(*offered, tool_choice=allowed("h", "f", mode=mode)))
    assert [tool.name for tool in tools.definitions] == ["f", "g", "h"]
    assert [tool.name for tool in tools.definitions if tools.may_call(tool)] == ["f", "h"]
    assert tools.choice is expected


@pytest.mark.parametrize("members", [{}, {"tool_choice": mode(chat_pb2.TOOL_CHOICE_MODE_NONE)}])
def test_the_tool_choice_is_none_without_tools(members: dict[str, Any]) -> None:
    tools = parse_tools(request(**members))
    assert (tools.definitions, tools.choice) == ((), ToolMode.NONE)


@pytest.mark.parametrize(
    ("wire", "field", "reason"),
    [
        (request(chat_pb2.Tool()), "tools[0].function", "missing_value"),
        (request(function("")), "tools[0].function.name", "missing_value"),
        (request(function(), function("a b")), "tools[1].function.name", "invalid_value"),
        (request(function("é")), "tools[0].function.name", "invalid_value"),
        (request(function("a" * 129)), "tools[0].function.name", "invalid_value"),
        (request(function("a>")), "tools[0].function.name", "invalid_value"),
        (request(function("a[ARGS]")), "tools[0].function.name", "invalid_value"),
        (request(function("a\n")), "tools[0].function.name", "invalid_value"),
        (request(function(), function()), "tools[1].function.name", "invalid_value"),
        (request(function(parameters="{")), "tools[0].function.parameters", "invalid_value"),
        (request(function(parameters="[" * 9999)), "tools[0].function.parameters", "invalid_value"),
        (request(function(parameters="true")), "tools[0].function.parameters", "invalid_type"),
        (request(function(parameters='{"type": "string"}')), "tools[0].function.parameters.type", "invalid_value"),
        (request(function(), tool_choice=named("g")), "tool_choice.named_tool.function.name", "invalid_value"),
        (
            request(function(), tool_choice=allowed("f", "g")),
            "tool_choice.named_tool.allowed_tools.tools[1].function.name",
            "invalid_value",
        ),
        (
            request(function(), tool_choice={"named_tool": {"allowed_tools": {"mode": 9}}}),
            "tool_choice.named_tool.allowed_tools.mode",
            "invalid_value",
        ),
        (request(tool_choice=allowed("f")), "tool_choice", "invalid_value"),
        (request(function(), tool_choice={"mode": 9}), "tool_choice", "invalid_value"),
        (request(tool_choice=mode(chat_pb2.TOOL_CHOICE_MODE_REQUIRED)), "tool_choice", "invalid_value"),
        (request(tool_choice=mode(chat_pb2.TOOL_CHOICE_MODE_AUTO)), "tool_choice", "invalid_value"),
        (request(tool_choice=named("f")), "tool_choice", "invalid_value"),
        (request(parallel_tool_calls=False), "parallel_tool_calls", "invalid_value"),
    ],
)
def test_refuses_invalid_tools_and_tool_choices(
    wire: chat_pb2.CreateChatCompletionRequest, field: str, reason: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_tools(wire)
    assert (refused.value.field, refused.value.reason) == (field, reason)


def call(call_id: str = "c1", name: str = "f", arguments: str = "{}") -> content_pb2.ToolCall:
    return content_pb2.ToolCall(id=call_id, function=content_pb2.FunctionCall(name=name, arguments=arguments))


def assistant(*calls: content_pb2.ToolCall, says: str | None = None) -> content_pb2.Message:
    content = [] if says is None else [text_part(says)]
    return content_pb2.Message(role=content_pb2.ROLE_ASSISTANT, content=content, tool_calls=calls)


def result(call_id: str | None, *parts: content_pb2.ContentPart) -> content_pb2.Message:
    content = parts or [text_part("ok")]
    return content_pb2.Message(role=content_pb2.ROLE_TOOL, content=content, tool_call_id=call_id)


def test_parses_tool_calls_and_their_results_in_order() -> None:
    arguments = '{ "z": 1.50, "a": "é" }'
    conversation = parse_conversation(
        [
            user("Hi"),
            assistant(call("c1", "look", arguments), call("c2", arguments="")),
            result("c2"),
            result("c1", text_part("Here:"), image_part(png())),
            assistant(says="Well."),
        ],
        MODEL,
    )
    calls = (ToolCall(id="c1", name="look", arguments=arguments), ToolCall(id="c2", name="f", arguments="{}"))
    assert conversation.messages[1:] == (
        ChatMessage(role="assistant", content=(), tool_calls=calls),
        ChatMessage(role="tool", content=("ok",), tool_call_id="c2"),
        ChatMessage(role="tool", content=("Here:", MediaSlot(kind=MediaKind.IMAGE)), tool_call_id="c1"),
        ChatMessage(role="assistant", content=("Well.",)),
    )
    assert [medium.field for medium in conversation.media] == ["messages[3].content[1].image.source"]


def other(role: content_pb2.Role, **members: Any) -> content_pb2.Message:
    return content_pb2.Message(role=role, content=[text_part("x")], **members)


@pytest.mark.parametrize(
    ("messages", "field", "reason"),
    [
        ([assistant()], "messages[0].content", "missing_value"),
        ([other(content_pb2.ROLE_USER, tool_calls=[call()])], "messages[0].tool_calls", "invalid_value"),
        ([other(content_pb2.ROLE_USER, tool_call_id="c1")], "messages[0].tool_call_id", "invalid_value"),
        ([assistant(call()), result(None)], "messages[1].tool_call_id", "missing_value"),
        ([assistant(call()), result("c2")], "messages[1].tool_call_id", "invalid_value"),
        ([result("c1"), assistant(call())], "messages[0].tool_call_id", "invalid_value"),
        ([content_pb2.Message(role=content_pb2.ROLE_USER)], "messages[0].content", "missing_value"),
        ([assistant(call(""))], "messages[0].tool_calls[0].id", "missing_value"),
        ([assistant(content_pb2.ToolCall(id="1"))], "messages[0].tool_calls[0].function", "missing_value"),
        ([assistant(call(), call(name="a b"))], "messages[0].tool_calls[1].function.name", "invalid_value"),
        ([assistant(call(arguments="{"))], "messages[0].tool_calls[0].function.arguments", "invalid_value"),
        ([assistant(call(arguments="[1]"))], "messages[0].tool_calls[0].function.arguments", "invalid_value"),
        (
            [assistant(call(arguments='{"a":' * 9999))],
            "messages[0].tool_calls[0].function.arguments",
            "invalid_value",
        ),
        (
            [assistant(call()), result("c1", *[image_part(png())] * 3)],
            "messages",
            "too_many_images",
        ),
    ],
)
@pytest.mark.parametrize("supports_tools", [True, False])
def test_refuses_tool_results_without_a_matching_call(
    messages: list[content_pb2.Message], field: str, reason: str, *, supports_tools: bool
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_conversation(messages, replace(MODEL, supports_tools=supports_tools))
    assert (refused.value.field, refused.value.reason) == (field, reason)
