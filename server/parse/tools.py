"""Parses tools and the tool choice. Does not check whether the model and the grammar support them."""

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar, assert_never

from glimpse.engine.checkpoint.text.conversation import NamedTool, ToolChoice, ToolDefinition, ToolMode
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.json_text import parse_object
from glimpse.server.request import Tools
from glimpse.v1 import chat_pb2

NAME_PATTERN = re.compile(r"[A-Za-z0-9_./:-]{1,128}")
"""Names as MCP servers write them. None has a character of the tags around names in a format of tool calls."""
NO_PARAMETERS = '{"type": "object", "properties": {}, "additionalProperties": false}'
"""The schema of a function without parameters."""

_MODES = {
    chat_pb2.TOOL_CHOICE_MODE_UNSPECIFIED: ToolMode.AUTO,
    chat_pb2.TOOL_CHOICE_MODE_NONE: ToolMode.NONE,
    chat_pb2.TOOL_CHOICE_MODE_AUTO: ToolMode.AUTO,
    chat_pb2.TOOL_CHOICE_MODE_REQUIRED: ToolMode.REQUIRED,
}
_ALLOWED_MODES = {
    chat_pb2.ALLOWED_TOOLS_MODE_UNSPECIFIED: ToolMode.AUTO,
    chat_pb2.ALLOWED_TOOLS_MODE_AUTO: ToolMode.AUTO,
    chat_pb2.ALLOWED_TOOLS_MODE_REQUIRED: ToolMode.REQUIRED,
}

_Mode = TypeVar("_Mode", chat_pb2.ToolChoiceMode, chat_pb2.AllowedToolsMode)
_Request: TypeAlias = chat_pb2.CreateChatCompletionRequest | chat_pb2.CountTokensRequest


def parse_tools(request: _Request) -> Tools:
    """Parses the tools of a request. Raises InvalidRequest."""
    if not request.tools:
        _check_no_tool_choice(request)
        return Tools(definitions=(), choice=ToolMode.NONE, parallel=True)
    definitions = tuple(_parse_tool(tool, f"tools[{index}]") for index, tool in enumerate(request.tools))
    _check_unique_names(definitions)
    choice, allowed = _parse_choice(request, definitions)
    return Tools(definitions=definitions, choice=choice, parallel=_allows_parallel_calls(request), allowed=allowed)


def _allows_parallel_calls(request: _Request) -> bool:
    if isinstance(request, chat_pb2.CountTokensRequest) or not request.HasField("parallel_tool_calls"):
        return True
    return request.parallel_tool_calls


def _check_no_tool_choice(request: _Request) -> None:
    choice = request.tool_choice
    chooses_none = choice.WhichOneof("choice") == "mode" and choice.mode == chat_pb2.TOOL_CHOICE_MODE_NONE
    if request.HasField("tool_choice") and not chooses_none:
        raise InvalidRequest("tool_choice", "only allowed with tools")
    if isinstance(request, chat_pb2.CreateChatCompletionRequest) and request.HasField("parallel_tool_calls"):
        raise InvalidRequest("parallel_tool_calls", "only allowed with tools")


def _parse_tool(tool: chat_pb2.Tool, path: str) -> ToolDefinition:
    if tool.WhichOneof("tool") != "function":
        raise InvalidRequest(f"{path}.function", "expected a function", "missing_value")
    function = tool.function
    return ToolDefinition(
        name=check_name(function.name, f"{path}.function.name"),
        description=function.description if function.HasField("description") else None,
        parameters=_parse_parameters(function.parameters, f"{path}.function.parameters"),
        strict=function.strict,
    )


def check_name(name: str, field: str) -> str:
    """Returns the name of a function. Raises InvalidRequest if it is not a valid name."""
    if not name:
        raise InvalidRequest(field, "expected the function's name", "missing_value")
    if not NAME_PATTERN.fullmatch(name):
        message = f"expected 1 to 128 letters, digits and characters of '_-./:', got '{name[:128]}'"
        raise InvalidRequest(field, message)
    return name


def _parse_parameters(text: str, field: str) -> str:
    if not text:
        return NO_PARAMETERS
    schema = parse_object(text, field, "a JSON Schema")
    if schema.get("type", "object") != "object":
        raise InvalidRequest(f"{field}.type", "expected 'object', the type of a function's parameters")
    return text


def _check_unique_names(definitions: Sequence[ToolDefinition]) -> None:
    seen: set[str] = set()
    for index, definition in enumerate(definitions):
        if definition.name in seen:
            raise InvalidRequest(
                f"tools[{index}].function.name", f"expected unique names, got '{definition.name}' twice"
            )
        seen.add(definition.name)


def _parse_choice(request: _Request, definitions: Sequence[ToolDefinition]) -> tuple[ToolChoice, frozenset[str] | None]:
    """Returns the choice, and the names of the allowed tools if there is a list of them."""
    choice = request.tool_choice
    match choice.WhichOneof("choice"):
        case None:
            return ToolMode.AUTO, None
        case "mode":
            return _known(_MODES, choice.mode, "tool_choice"), None
        case "named_tool" if choice.named_tool.HasField("allowed_tools"):
            field, allowed = "tool_choice.named_tool.allowed_tools", choice.named_tool.allowed_tools
            mode = _known(_ALLOWED_MODES, allowed.mode, f"{field}.mode")
            names = (
                _offered_name(tool.function, definitions, f"{field}.tools[{index}].function.name")
                for index, tool in enumerate(allowed.tools)
            )
            return mode, frozenset(names)
        case "named_tool":
            field = "tool_choice.named_tool.function.name"
            return NamedTool(name=_offered_name(choice.named_tool.function, definitions, field)), None
        case other:
            assert_never(other)


def _known(modes: Mapping[_Mode, ToolMode], mode: _Mode, field: str) -> ToolMode:
    if mode not in modes:
        raise InvalidRequest(field, f"expected a known mode, got {mode}")
    return modes[mode]


def _offered_name(function: chat_pb2.FunctionName, definitions: Sequence[ToolDefinition], field: str) -> str:
    if all(definition.name != function.name for definition in definitions):
        raise InvalidRequest(field, f"expected the name of one of the tools, got '{function.name[:128]}'")
    return function.name
