"""What callers of the offline door may pass as tools and calls of them: dicts in OpenAI's form → typed values."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glimpse.engine.offline.visual_inputs import InputError, known_fields
from glimpse.engine.text.conversation import ToolCall, ToolDefinition

_OWN_VARIABLES = ("messages", "tools", "add_generation_prompt", "continue_final_message")
"""Variables of a template that have parameters of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How a conversation becomes a prompt."""

    tools: tuple[ToolDefinition, ...] = ()
    """What the model may call."""
    add_generation_prompt: bool = True
    """The prompt ends with the beginning of an answer."""
    continue_final_message: bool = False
    """The prompt ends within the last message."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further variables of the chat template."""


def parse_chat_options(
    *,
    tools: object,
    add_generation_prompt: bool,
    continue_final_message: bool,
    template_kwargs: Mapping[str, Any],
) -> ChatOptions:
    """Raises InputError for what contradicts itself or is something else."""
    if add_generation_prompt and continue_final_message:
        raise InputError("continue_final_message", "it excludes add_generation_prompt, which is then to be False")
    for name in _OWN_VARIABLES:
        if name in template_kwargs:
            raise InputError(f"chat_template_kwargs.{name}", "it has a parameter of its own")
    return ChatOptions(
        tools=_parse_tools(tools),
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        template_kwargs=template_kwargs,
    )


def parse_calls(calls: object, path: str) -> tuple[ToolCall, ...]:
    """The calls of an assistant's message; None is none.

    Raises:
        InputError: one is something else.
    """
    return tuple(_parse_call(call, f"{path}[{index}]") for index, call in enumerate(_elements(calls, path)))


def _parse_tools(tools: object) -> tuple[ToolDefinition, ...]:
    parsed = tuple(_parse_tool(tool, f"tools[{index}]") for index, tool in enumerate(_elements(tools, "tools")))
    names = [tool.name for tool in parsed]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InputError(f"tools[{index}].function.name", f"there are two functions {name!r}")
    return parsed


def _parse_tool(tool: object, path: str) -> ToolDefinition:
    fields = known_fields(tool, path, known=("type", "function"))
    function, path = _function(fields, path, known=("name", "description", "parameters", "strict"))
    description, strict = function.get("description"), function.get("strict")
    if not isinstance(description, str | None):
        raise InputError(f"{path}.description", "a description is a text")
    if not isinstance(strict, bool | None):
        raise InputError(f"{path}.strict", "strict is true or false")
    parameters = function.get("parameters", {"type": "object", "properties": {}})
    return ToolDefinition(
        name=_name(function, path),
        description=description,
        parameters=_object_text(parameters, f"{path}.parameters"),
        strict=bool(strict),
    )


def _parse_call(call: object, path: str) -> ToolCall:
    fields = known_fields(call, path, known=("type", "id", "function"))
    function, function_path = _function(fields, path, known=("name", "arguments"))
    call_id = fields.get("id", "")
    if not isinstance(call_id, str):
        raise InputError(f"{path}.id", "an id is a text")
    arguments = _object_text(function.get("arguments") or {}, f"{function_path}.arguments")
    return ToolCall(id=call_id, name=_name(function, function_path), arguments=arguments)


def _function(fields: Mapping[str, Any], path: str, *, known: Sequence[str]) -> tuple[Mapping[str, Any], str]:
    """The function of a tool or of a call, and its path."""
    if fields.get("type", "function") != "function":
        raise InputError(f"{path}.type", "only functions are supported")
    path = f"{path}.function"
    return known_fields(fields.get("function"), path, known=known), path


def _name(function: Mapping[str, Any], path: str) -> str:
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise InputError(f"{path}.name", "a function has a name")
    return name


def _object_text(value: object, path: str) -> str:
    """An object, or JSON text of one, as JSON text."""
    try:
        decoded = json.loads(value) if isinstance(value, str) else value
        if isinstance(decoded, dict):
            return json.dumps(decoded, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(path, f"not JSON: {error}") from error
    raise InputError(path, "expected a JSON object")


def _elements(value: object, path: str) -> Sequence[object]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise InputError(path, f"expected a list, not {type(value).__name__}")
    return value
