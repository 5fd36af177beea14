"""Requests of the wire → values. Every "invalid argument" that a request by itself can cause is born here.

Each says the proto path of the field at fault. What is defined but not served yet is refused by name, never ignored.
"""

from collections.abc import Mapping

from google.protobuf.message import Message

from engine.plan import MediaKind
from glimpse.v1 import chat_pb2
from server.errors import InvalidRequest
from server.parse_content import parse_conversation
from server.parse_generation import parse_generation
from server.request import ChatRequest, Conversation
from server.validate import violations


def parse_chat(
    request: chat_pb2.CreateChatCompletionRequest,
    *,
    streaming: bool,
    vocab_size: int,
    max_media: Mapping[MediaKind, int],
) -> ChatRequest:
    """Raises InvalidRequest."""
    check_bounds(request)
    _refuse_what_is_not_served(request)
    if request.HasField("stream_options") and not streaming:
        raise InvalidRequest("stream_options", "stream_options is only allowed when the answer is streamed.")
    return ChatRequest(
        conversation=parse_conversation(request.messages, max_media=max_media),
        sampling=parse_generation(request.generation, vocab_size=vocab_size),
        include_usage=request.stream_options.include_usage,
        priority=request.priority,
        cache_salt=request.cache_salt,
    )


def parse_count(request: chat_pb2.CountTokensRequest, *, max_media: Mapping[MediaKind, int]) -> Conversation:
    """Raises InvalidRequest."""
    check_bounds(request)
    return parse_conversation(request.messages, max_media=max_media)


def check_bounds(request: Message) -> None:
    """Raises InvalidRequest for the first field that is missing or outside of the bounds that its proto states."""
    for violation in violations(request):
        raise InvalidRequest(violation.field, violation.message, violation.code)


def _refuse_what_is_not_served(request: chat_pb2.CreateChatCompletionRequest) -> None:
    if request.tools:
        raise InvalidRequest.unsupported("tools", "tools")
    if request.HasField("tool_choice") and not _chooses_no_tool(request.tool_choice):
        raise InvalidRequest("tool_choice", "A tool choice needs tools.")
    if request.HasField("parallel_tool_calls"):
        raise InvalidRequest("parallel_tool_calls", "parallel_tool_calls is only allowed with tools.")
    match request.response_format.WhichOneof("format"):
        case "json_object" | "json_schema" as form:
            raise InvalidRequest.unsupported(f"response_format.{form}", "answers in a given form")
        case _:
            return


def _chooses_no_tool(choice: chat_pb2.ToolChoice) -> bool:
    return choice.WhichOneof("choice") == "mode" and choice.mode == chat_pb2.TOOL_CHOICE_MODE_NONE
