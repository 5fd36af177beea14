"""Conversations and tools as chat templates expect them: dicts of JSON values, in transformers' form.

All that clients wrote passes through marks, so that nothing of it is read as a special token. Knows no template.
"""

import json
from collections.abc import Sequence
from typing import Any

from glimpse.engine.text.conversation import ChatMessage, MediaSlot, ToolCall, ToolDefinition
from glimpse.engine.text.special_token_escaping import SpecialTokenEscaper
from glimpse.media.kind import MediaKind

# Qwen2-Audio's published template knows a sound by the member in which its users write the URL.
_SLOTS = {kind: {"type": kind.value} for kind in MediaKind} | {MediaKind.AUDIO: {"type": "audio", "audio_url": ""}}


def message_value(message: ChatMessage, role: str, marks: SpecialTokenEscaper) -> dict[str, Any]:
    """A message, under the role by which the template knows it."""
    value: dict[str, Any] = {"role": role, "content": _content_value(message.content, marks)}
    if message.name is not None:
        value["name"] = marks.protect(message.name)
    if message.tool_calls:
        value["tool_calls"] = [_call_value(call, marks) for call in message.tool_calls]
    if message.tool_call_id is not None:
        value["tool_call_id"] = marks.protect(message.tool_call_id)
    return value


def tool_value(tool: ToolDefinition, marks: SpecialTokenEscaper) -> dict[str, Any]:
    """A tool, as the OpenAI API describes it."""
    described = {} if tool.description is None else {"description": marks.protect(tool.description)}
    parameters = protected(json.loads(tool.parameters), marks)
    return {"type": "function", "function": {"name": marks.protect(tool.name), **described, "parameters": parameters}}


def protected(value: Any, marks: SpecialTokenEscaper) -> Any:
    """A JSON value, all texts of which are protected, names of members included."""
    match value:
        case str():
            return marks.protect(value)
        case dict():
            return {marks.protect(name): protected(member, marks) for name, member in value.items()}
        case list():
            return [protected(element, marks) for element in value]
        case _:
            return value


def with_end_mark(content: str | list[dict[str, str]], marks: SpecialTokenEscaper) -> str | list[dict[str, str]] | None:
    """A content with the mark of its end after its last text; None if it has no text."""
    if isinstance(content, str):
        return content + marks.end
    for index in reversed(range(len(content))):
        if content[index]["type"] == "text":
            marked = content[index] | {"text": content[index]["text"] + marks.end}
            return [*content[:index], marked, *content[index + 1 :]]
    return None


def _call_value(call: ToolCall, marks: SpecialTokenEscaper) -> dict[str, Any]:
    """Templates write arguments themselves, so they are an object here, with its members in the model's order."""
    arguments = protected(json.loads(call.arguments), marks)
    function = {"name": marks.protect(call.name), "arguments": arguments}
    return {"type": "function", "id": marks.protect(call.id), "function": function}


def _content_value(content: Sequence[str | MediaSlot], marks: SpecialTokenEscaper) -> str | list[dict[str, str]]:
    """A string where there is no medium, which every template knows, else a list of parts."""
    parts = [
        _SLOTS[part.kind] if isinstance(part, MediaSlot) else {"type": "text", "text": marks.protect(part)}
        for part in content
    ]
    if any(isinstance(part, MediaSlot) for part in content):
        return parts
    return "".join(part["text"] for part in parts)
