"""Parses what the prompt of a conversation is built from: messages, media, tools, the template's variables."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from glimpse.engine.checkpoint.text.conversation import TemplateOptions, ToolDefinition
from glimpse.media.inputs import with_defaults
from glimpse.near_names import NearNames
from glimpse.server.call.context import CallContext
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.content import parse_conversation
from glimpse.server.parse.json_text import parse_object
from glimpse.server.parse.media import blaming
from glimpse.server.parse.media_defaults import parse_defaults
from glimpse.server.request import Conversation
from glimpse.server.served_model import ServedModel
from glimpse.v1 import chat_pb2, embedding_pb2, tokenizer_pb2

_RESERVED_VARIABLES = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize")
)
"""Template variables and rendering options that requests set in other fields, or cannot set."""


def parse_prompt(
    request: chat_pb2.CreateChatCompletionRequest | chat_pb2.CountTokensRequest | tokenizer_pb2.TokenizeRequest,
    model: ServedModel,
    call: CallContext,
    *,
    tools: Sequence[ToolDefinition],
) -> Conversation:
    """Raises InvalidRequest."""
    conversation = parse_conversation(request.messages, model, name=request.model)
    begins = not request.continue_final_message
    return with_options(conversation, request, model, call, tools=tools, begins_answer=begins)


def with_options(
    conversation: Conversation,
    request: chat_pb2.CreateChatCompletionRequest
    | chat_pb2.CountTokensRequest
    | tokenizer_pb2.TokenizeRequest
    | embedding_pb2.CreateEmbeddingsRequest,
    model: ServedModel,
    call: CallContext,
    *,
    tools: Sequence[ToolDefinition] = (),
    begins_answer: bool,
) -> Conversation:
    """Returns a conversation with a request's options for the template and for media.

    Args:
        begins_answer: default of `add_generation_prompt`.

    Raises:
        InvalidRequest: an option cannot be used.
    """
    continues = request.continue_final_message
    begins = request.add_generation_prompt if request.HasField("add_generation_prompt") else begins_answer
    if continues and begins:
        message = "cannot be combined with add_generation_prompt"
        raise InvalidRequest("continue_final_message", message, "conflicting_values")
    if continues and conversation.messages[-1].role != "assistant":
        raise InvalidRequest("continue_final_message", "expected the last message to be the assistant's")
    if continues and conversation.messages[-1].tool_calls:
        message = "a message with tool calls cannot be continued; send what they returned"
        raise InvalidRequest(f"messages[{len(conversation.messages) - 1}].tool_calls", message)
    defaults = parse_defaults(request.media_io_options, request.media_processor_options)
    with blaming("media_processor_options"):
        media = with_defaults(conversation.media, defaults)
    options = TemplateOptions(
        tools=tuple(tools),
        add_generation_prompt=begins,
        continue_final_message=continues,
        template_kwargs=_parse_variables(request.chat_template_kwargs, model, call),
    )
    return replace(conversation, media=list(media), options=options)


def _parse_variables(text: str, model: ServedModel, call: CallContext) -> dict[str, Any]:
    """Parses template variables. Those that no template reads are told, or refused if they resemble one that is read.

    gRPC requests may send any text.
    """
    if not text:
        return {}
    field = "chat_template_kwargs"
    variables = parse_object(text, field)
    if reserved := sorted(_RESERVED_VARIABLES.intersection(variables)):
        raise InvalidRequest(f"{field}.{reserved[0]}", "this variable is reserved", "unsupported")
    near = NearNames(model.template_variables - _RESERVED_VARIABLES)
    for name, value in variables.items():
        reasons_anyway = name == "enable_thinking" and value is True and model.reasoning.is_parsed
        if name in model.template_variables or reasons_anyway:
            continue
        if (meant := near.nearest(name)) is not None:
            raise InvalidRequest(f"{field}.{name}", f"unknown variable; did you mean '{meant}'?", "unsupported")
        call.ignored_fields.append(f"{field}.{name}")
    return variables
