"""What makes the prompt of a conversation, of the wire → values: messages, media, tools, the template's variables."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from glimpse.engine.text.conversation import ToolDefinition
from glimpse.media.kind import MediaKind
from glimpse.server.parse.content import parse_conversation
from glimpse.server.parse.media_overrides import parse_wishes, with_wishes
from glimpse.server.request import Conversation
from glimpse.server.rpc.errors import InvalidRequest
from glimpse.v1 import chat_pb2, content_pb2, tokenizer_pb2

_OWN_VARIABLES = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize")
)
"""Variables of a template, and options of its rendering, that requests set by fields of their own or not at all."""


def parse_prompt(
    request: chat_pb2.CreateChatCompletionRequest | tokenizer_pb2.TokenizeRequest,
    *,
    tools: Sequence[ToolDefinition],
    max_media: Mapping[MediaKind, int],
) -> Conversation:
    """Raises InvalidRequest."""
    conversation = parse_conversation(request.messages, max_media=max_media, model=request.model)
    continues = request.continue_final_message
    begins = request.add_generation_prompt if request.HasField("add_generation_prompt") else not continues
    if continues and begins:
        raise InvalidRequest("continue_final_message", "It excludes add_generation_prompt.", "conflicting_values")
    if continues and request.messages[-1].role != content_pb2.ROLE_ASSISTANT:
        raise InvalidRequest("continue_final_message", "The last message is not the assistant's.")
    return replace(
        conversation,
        media=with_wishes(conversation.media, parse_wishes(request.media_io_options, request.media_processor_options)),
        tools=tuple(tools),
        add_generation_prompt=begins,
        continue_final_message=continues,
        template_kwargs=_parse_variables(request.chat_template_kwargs),
    )


def _parse_variables(text: str) -> dict[str, Any]:
    """A typed client may send any text; that of a JSON request is JSON."""
    if not text:
        return {}
    try:
        variables = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("chat_template_kwargs", "It is not JSON.") from error
    if not isinstance(variables, dict):
        raise InvalidRequest("chat_template_kwargs", "It is not an object.", "invalid_type")
    if taken := sorted(_OWN_VARIABLES.intersection(variables)):
        raise InvalidRequest(f"chat_template_kwargs.{taken[0]}", "It cannot be set here.", "unsupported")
    return variables
