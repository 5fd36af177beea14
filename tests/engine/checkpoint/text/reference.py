"""Conversations in transformers: the reference for templates and prompts."""

import json
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer
from transformers import TokenizersBackend

from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot, ToolCall, ToolDefinition


def reference_tokenizer(tokenizer: Tokenizer, **special_tokens: str) -> TokenizersBackend:
    return TokenizersBackend(tokenizer_object=tokenizer, **special_tokens)


def reference_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Conversations in the format of transformers: every content is a list of parts."""
    return [
        {
            "role": message.role,
            "content": [
                {"type": part.kind.value} if isinstance(part, MediaSlot) else {"type": "text", "text": part}
                for part in message.content
            ],
        }
        | ({"name": message.name} if message.name else {})
        | ({"tool_calls": [reference_call(call) for call in message.tool_calls]} if message.tool_calls else {})
        | ({"tool_call_id": message.tool_call_id} if message.tool_call_id else {})
        for message in messages
    ]


def reference_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.loads(call.arguments)}
    return {"type": "function", "id": call.id, "function": function}


def reference_tool(tool: ToolDefinition) -> dict[str, Any]:
    described = {} if tool.description is None else {"description": tool.description}
    function = {"name": tool.name, **described, "parameters": json.loads(tool.parameters)}
    return {"type": "function", "function": function}
