"""Converts conversations and tools to the dicts that chat templates expect, in the format of transformers.

All client text is escaped, so that none of it is read as a special token.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot, ToolCall, ToolDefinition
from glimpse.engine.checkpoint.text.slots import SLOT_PARTS, SlotWriter
from glimpse.engine.checkpoint.text.special_token_escaping import SpecialTokenEscaper

Content: TypeAlias = str | list[dict[str, str]]


def message_value(
    message: ChatMessage,
    role: str,
    escaper: SpecialTokenEscaper,
    *,
    as_parts: bool = False,
    slots: SlotWriter | None = None,
) -> dict[str, Any]:
    """Converts a message.

    Args:
        as_parts: the template reads contents as lists of parts only.
        slots: writes the message's media into one text. Default: they are parts.
    """
    content = slots.text(message, escaper) if slots else _content(message, escaper, as_parts)
    value: dict[str, Any] = {"role": role, "content": content}
    if message.name is not None:
        value["name"] = escaper.escape(message.name)
    if message.reasoning is not None:
        value["reasoning_content"] = escaper.escape(message.reasoning)  # the name that published templates use
    if message.tool_calls:
        value["tool_calls"] = [_call_value(call, escaper) for call in message.tool_calls]
    if message.tool_call_id is not None:
        value["tool_call_id"] = escaper.escape(message.tool_call_id)
    return value


def _content(message: ChatMessage, escaper: SpecialTokenEscaper, as_parts: bool) -> Content:
    content = _content_parts(message.content, escaper)
    return content if as_parts or any(isinstance(part, MediaSlot) for part in message.content) else _joined(content)


def tool_value(tool: ToolDefinition, escaper: SpecialTokenEscaper) -> dict[str, Any]:
    """Converts a tool to the format of the OpenAI API."""
    described = {} if tool.description is None else {"description": escaper.escape(tool.description)}
    parameters = escape_json(json.loads(tool.parameters), escaper)
    return {"type": "function", "function": {"name": escaper.escape(tool.name), **described, "parameters": parameters}}


def with_system_tools(values: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds converted tools to the system message, or to an empty one before all others, as JSON text."""
    text = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    has_system = bool(values) and values[0]["role"] == "system"
    system = values[0] if has_system else {"role": "system", "content": ""}
    return [system | {"tools": text}, *values[has_system:]]


def escape_json(value: Any, escaper: SpecialTokenEscaper) -> Any:
    """Escapes all strings of a JSON value, object keys included."""
    match value:
        case str():
            return escaper.escape(value)
        case dict():
            return {escaper.escape(name): escape_json(member, escaper) for name, member in value.items()}
        case list():
            return [escape_json(element, escaper) for element in value]
        case _:
            return value


def append_end_mark(content: Content, escaper: SpecialTokenEscaper) -> Content | None:
    """Appends the end mark to the last text of a content; returns None if there is no text."""
    if isinstance(content, str):
        return content + escaper.end_mark
    for index in reversed(range(len(content))):
        if content[index]["type"] == "text":
            marked = content[index] | {"text": content[index]["text"] + escaper.end_mark}
            return [*content[:index], marked, *content[index + 1 :]]
    return None


def _call_value(call: ToolCall, escaper: SpecialTokenEscaper) -> dict[str, Any]:
    """Arguments are an object, its members in the model's order: templates serialize it themselves."""
    arguments = escape_json(json.loads(call.arguments), escaper)
    function = {"name": escaper.escape(call.name), "arguments": arguments}
    return {"type": "function", "id": escaper.escape(call.id), "function": function}


def _content_parts(content: Sequence[str | MediaSlot], escaper: SpecialTokenEscaper) -> list[dict[str, str]]:
    """Returns at least one part, because templates look at the first."""
    return [
        SLOT_PARTS[part.kind] if isinstance(part, MediaSlot) else {"type": "text", "text": escaper.escape(part)}
        for part in content or ("",)
    ]


def _joined(parts: Sequence[Mapping[str, str]]) -> str:
    return "".join(part["text"] for part in parts)
