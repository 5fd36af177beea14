"""Parses the tools and tool calls that callers of `LLM` pass, in OpenAI's format."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from glimpse.engine.checkpoint.text.conversation import TemplateOptions, ToolCall, ToolDefinition
from glimpse.offline.fields import InputError, known_fields

_RESERVED_VARIABLES = ("messages", "tools", "add_generation_prompt", "continue_final_message")
"""Template variables that are parameters of `LLM.chat`."""


def parse_chat_options(
    *,
    tools: object,
    add_generation_prompt: bool,
    continue_final_message: bool,
    template_kwargs: Mapping[str, Any],
) -> TemplateOptions:
    """Raises InputError if an option is invalid, or two contradict each other."""
    if add_generation_prompt and continue_final_message:
        raise InputError("continue_final_message", "cannot be combined with add_generation_prompt; set that to False")
    for name in _RESERVED_VARIABLES:
        if name in template_kwargs:
            message = "this variable is reserved; use the parameter of the same name"
            raise InputError(f"chat_template_kwargs.{name}", message)
    return TemplateOptions(
        tools=_parse_tools(tools),
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        template_kwargs=template_kwargs,
    )


def parse_tool_calls(calls: object, field: str) -> tuple[ToolCall, ...]:
    """Parses the tool calls of an assistant's message; None: it has none. Raises InputError."""
    return tuple(_parse_call(call, f"{field}[{index}]") for index, call in enumerate(_elements(calls, field)))


def _parse_tools(tools: object) -> tuple[ToolDefinition, ...]:
    parsed = tuple(_parse_tool(tool, f"tools[{index}]") for index, tool in enumerate(_elements(tools, "tools")))
    names = [tool.name for tool in parsed]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InputError(f"tools[{index}].function.name", f"expected unique names, got {name!r} twice")
    return parsed


def _parse_tool(tool: object, field: str) -> ToolDefinition:
    fields = known_fields(tool, field, known=("type", "function"))
    function, field = _function(fields, field, known=("name", "description", "parameters", "strict"))
    description, strict = function.get("description"), function.get("strict")
    if not isinstance(description, str | None):
        raise InputError(f"{field}.description", f"expected a string, got {type(description).__name__}")
    if not isinstance(strict, bool | None):
        raise InputError(f"{field}.strict", f"expected a boolean, got {type(strict).__name__}")
    parameters = function.get("parameters", {"type": "object", "properties": {}})
    return ToolDefinition(
        name=_name(function, field),
        description=description,
        parameters=_object_text(parameters, f"{field}.parameters"),
        strict=bool(strict),
    )


def _parse_call(call: object, field: str) -> ToolCall:
    fields = known_fields(call, field, known=("type", "id", "function"))
    function, function_field = _function(fields, field, known=("name", "arguments"))
    call_id = fields.get("id", "")
    if not isinstance(call_id, str):
        raise InputError(f"{field}.id", f"expected a string, got {type(call_id).__name__}")
    arguments = _object_text(function.get("arguments") or {}, f"{function_field}.arguments")
    return ToolCall(id=call_id, name=_name(function, function_field), arguments=arguments)


def _function(fields: Mapping[str, Any], field: str, *, known: Sequence[str]) -> tuple[Mapping[str, Any], str]:
    """Returns the function of a tool or a tool call, and its field."""
    if fields.get("type", "function") != "function":
        raise InputError(f"{field}.type", "expected 'function'; other types are not supported")
    field = f"{field}.function"
    return known_fields(fields.get("function"), field, known=known), field


def _name(function: Mapping[str, Any], field: str) -> str:
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise InputError(f"{field}.name", "expected the function's name, a string of at least one character")
    return name


def _object_text(value: object, field: str) -> str:
    """Returns a dict, or a string of a JSON object, as JSON."""
    try:
        decoded = json.loads(value) if isinstance(value, str) else value
        if isinstance(decoded, dict):
            return json.dumps(decoded, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(field, f"expected a JSON object, got text that is not JSON: {error}") from error
    raise InputError(field, f"expected a JSON object, got {type(decoded).__name__}")


def _elements(value: object, field: str) -> Sequence[object]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise InputError(field, f"expected a list, got {type(value).__name__}")
    return value
