"""Turns requests of the Responses API into those of ChatService."""

from collections.abc import Iterable
from typing import Any

from glimpse.openai.v1 import responses_pb2
from glimpse.server.dialects.responses.conversation import ConversationWriter
from glimpse.server.errors import InvalidRequest
from glimpse.v1 import chat_pb2, content_pb2

LOGPROBS = "message.output_text.logprobs"
_ADD_NOTHING = frozenset(
    (
        "reasoning.encrypted_content",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
    )
)
"""What only OpenAI's hosted tools and its server add to an answer."""
_SAMPLING = {"max_output_tokens": "max_completion_tokens", "temperature": "temperature", "top_p": "top_p"}
"""Field of the request → the field of the generation options."""
_PATHS = {
    "messages": "input",
    "generation.logprobs": "include",
    "generation.top_logprobs": "top_logprobs",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    **{f"generation.{own}": name for name, own in _SAMPLING.items()},
}
"""Path of a field of the chat request → the path of what it was made of, whatever the request has."""


def to_chat(
    request: responses_pb2.CreateResponseRequest,
    history: Iterable[responses_pb2.StoredResponse],
    adapted: dict[str, str],
    ignored: list[str],
) -> chat_pb2.CreateChatCompletionRequest:
    """Returns the request to complete the conversation.

    Args:
        history: the responses before it, the first one first.
        adapted: gets the path of each field of the result, and of what it was made of.
        ignored: gets the paths of the request's fields without effect.

    Raises:
        InvalidRequest: an item or a part stands where it cannot.
    """
    chat = chat_pb2.CreateChatCompletionRequest()
    _add_prompt(request, history, chat, adapted)
    for name, own in _SAMPLING.items():
        if request.HasField(name):
            setattr(chat.generation, own, getattr(request, name))
    _add_logprobs(request, chat, ignored)
    if request.tools and request.HasField("parallel_tool_calls"):  # without tools it asks for nothing
        chat.parallel_tool_calls = request.parallel_tool_calls
    if request.text.HasField("format"):
        _copy_choice(request.text.format, "format", chat.response_format)
    return chat


def to_count(
    request: responses_pb2.CreateResponseRequest,
    history: Iterable[responses_pb2.StoredResponse],
    adapted: dict[str, str],
) -> chat_pb2.CountTokensRequest:
    """Returns the request to count the conversation's tokens. The arguments are those of `to_chat`."""
    count = chat_pb2.CountTokensRequest()
    _add_prompt(request, history, count, adapted)
    return count


def _add_prompt(
    request: responses_pb2.CreateResponseRequest,
    history: Iterable[responses_pb2.StoredResponse],
    chat: chat_pb2.CreateChatCompletionRequest | chat_pb2.CountTokensRequest,
    adapted: dict[str, str],
) -> None:
    adapted |= _PATHS
    if request.HasField("model"):
        chat.model = request.model
    chat.reasoning_effort = request.reasoning.effort
    writer = ConversationWriter(chat.messages, adapted)
    if request.instructions:
        writer.add_text(content_pb2.ROLE_SYSTEM, request.instructions, "instructions")
    for turn in history:
        for item in (*turn.input, *turn.response.output):
            writer.add(item, "previous_response_id")
    if request.input.HasField("text"):
        writer.add_text(content_pb2.ROLE_USER, request.input.text, "input.text")
    for index, item in enumerate(request.input.items.items):
        writer.add(item, f"input.items.items[{index}]")
    _add_tools(request, chat)


def _add_logprobs(
    request: responses_pb2.CreateResponseRequest, chat: chat_pb2.CreateChatCompletionRequest, ignored: list[str]
) -> None:
    for index, name in enumerate(request.include):
        if name == LOGPROBS:
            chat.generation.logprobs = True
        elif name in _ADD_NOTHING:
            ignored.append(f"include[{index}]")
        else:
            raise InvalidRequest(f"include[{index}]", f"expected '{LOGPROBS}', got '{name[:64]}'")
    if chat.generation.logprobs:
        chat.generation.top_logprobs = request.top_logprobs
    elif request.top_logprobs:
        ignored.append("top_logprobs")


def _add_tools(
    request: responses_pb2.CreateResponseRequest,
    chat: chat_pb2.CreateChatCompletionRequest | chat_pb2.CountTokensRequest,
) -> None:
    """Adds the tools and the choice. Without tools, "auto" asks for nothing."""
    for tool in request.tools:
        _copy_choice(tool, "tool", chat.tools.add())
    choice = request.tool_choice
    match choice.WhichOneof("choice"):
        case "mode" if request.tools or choice.mode != chat_pb2.TOOL_CHOICE_MODE_AUTO:
            chat.tool_choice.mode = choice.mode
        case "named_tool":
            _name_tools(choice.named_tool, chat.tool_choice.named_tool)
        case _:
            pass


def _copy_choice(source: Any, oneof: str, target: Any) -> None:
    """Copies what a oneof has into the field of the same name."""
    name = source.WhichOneof(oneof)
    getattr(target, name).CopyFrom(getattr(source, name))


def _name_tools(named: responses_pb2.ResponseNamedTool, chat: chat_pb2.NamedToolChoice) -> None:
    if named.HasField("function"):
        chat.function.CopyFrom(named.function)
        return
    chat.allowed_tools.mode = named.allowed_tools.mode
    for tool in named.allowed_tools.tools:
        chat.allowed_tools.tools.add(function=tool.function)
