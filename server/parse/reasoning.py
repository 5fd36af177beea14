"""Parses what a request asks of the model's reasoning."""

from dataclasses import replace
from typing import Any

from glimpse.dialect.options import enum_names
from glimpse.server.call.context import CallContext
from glimpse.server.errors import InvalidRequest
from glimpse.server.request import Conversation, ReasoningOptions, ReasoningSupport
from glimpse.v1 import chat_pb2

_EFFORTS = enum_names(chat_pb2.ReasoningEffort.DESCRIPTOR)
"""Names in chat templates."""
_NONE = chat_pb2.REASONING_EFFORT_NONE


def parse_reasoning(
    request: chat_pb2.CreateChatCompletionRequest, support: ReasoningSupport
) -> ReasoningOptions | None:
    """Returns None if the server does not know the model's reasoning tags. Raises InvalidRequest."""
    include = request.include_reasoning if request.HasField("include_reasoning") else True
    if not support.is_parsed:
        for field, is_asked in (
            ("include_reasoning", not include),
            ("thinking_token_budget", request.HasField("thinking_token_budget")),
        ):
            if is_asked:
                raise _unsupported(field)
        return None
    for option in ("logprobs", "return_token_ids"):
        if not include and getattr(request.generation, option):
            message = f"cannot be false with {option}, which returns the tokens of the reasoning"
            raise InvalidRequest("include_reasoning", message, "conflicting_values")
    return ReasoningOptions(
        include=include,
        max_tokens=request.thinking_token_budget if request.HasField("thinking_token_budget") else None,
        continues_message=request.continue_final_message,
    )


def with_effort(
    prompt: Conversation, effort: chat_pb2.ReasoningEffort, support: ReasoningSupport, call: CallContext
) -> Conversation:
    """Returns the prompt with the template variables of a reasoning effort, which has no effect if there are none.

    Raises:
        InvalidRequest: the model reasons, and the request turns that off, which the chat template does not support.
    """
    if effort == chat_pb2.REASONING_EFFORT_UNSPECIFIED:
        return prompt
    variables: dict[str, Any] = {"reasoning_effort": _EFFORTS[effort]} if support.has_effort else {}
    chosen = prompt.options.template_kwargs
    if support.has_switch:
        variables["enable_thinking"] = effort != _NONE and chosen.get("enable_thinking", True)
    if effort != _NONE and not support.has_effort:
        call.ignored_fields.append("reasoning_effort")  # also where it turns on reasoning: all efforts are one there
    elif not variables and support.is_parsed:
        message = "the model's chat template cannot turn off its reasoning"
        raise InvalidRequest("reasoning_effort", message, "unsupported")
    return replace(prompt, options=replace(prompt.options, template_kwargs={**chosen, **variables}))


def _unsupported(field: str) -> InvalidRequest:
    message = "the server does not know the tags of the model's reasoning (see the server's --reasoning-parser)"
    return InvalidRequest(field, message, "unsupported")
