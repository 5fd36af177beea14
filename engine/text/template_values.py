"""Converts conversations and tools to the dicts that chat templates expect, in the format of transformers.

All client text is escaped, so that none of it is read as a special token.
"""

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from glimpse.engine.text.conversation import ChatMessage, MediaSlot, ToolCall, ToolDefinition
from glimpse.engine.text.special_token_escaping import SpecialTokenEscaper
from glimpse.media.kind import MediaKind

Content: TypeAlias = str | list[dict[str, str]]

# Qwen2-Audio's published template recognizes audio by the `audio_url` member.
_SLOTS = {kind: {"type": kind.value} for kind in MediaKind} | {MediaKind.AUDIO: {"type": "audio", "audio_url": ""}}


def message_value(message: ChatMessage, role: str, escaper: SpecialTokenEscaper) -> dict[str, Any]:
    """Converts a message; `role` is the name that the template uses for its role."""
    value: dict[str, Any] = {"role": role, "content": _content_value(message.content, escaper)}
    if message.name is not None:
        value["name"] = escaper.escape(message.name)
    if message.tool_calls:
        value["tool_calls"] = [_call_value(call, escaper) for call in message.tool_calls]
    if message.tool_call_id is not None:
        value["tool_call_id"] = escaper.escape(message.tool_call_id)
    return value


def tool_value(tool: ToolDefinition, escaper: SpecialTokenEscaper) -> dict[str, Any]:
    """Converts a tool to the format of the OpenAI API."""
    described = {} if tool.description is None else {"description": escaper.escape(tool.description)}
    parameters = escape_json(json.loads(tool.parameters), escaper)
    return {"type": "function", "function": {"name": escaper.escape(tool.name), **described, "parameters": parameters}}


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


def _content_value(content: Sequence[str | MediaSlot], escaper: SpecialTokenEscaper) -> Content:
    """Returns a string, which all templates accept, if there are no media; else a list of parts."""
    parts = [
        _SLOTS[part.kind] if isinstance(part, MediaSlot) else {"type": "text", "text": escaper.escape(part)}
        for part in content
    ]
    if any(isinstance(part, MediaSlot) for part in content):
        return parts
    return "".join(part["text"] for part in parts)
