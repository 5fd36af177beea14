"""Parses chat requests. Raises InvalidRequest, with the path of the field at fault, for what cannot be served.

Fields that are defined but not supported are refused, never ignored.
"""

from collections.abc import Collection

from google.protobuf.message import Message

from glimpse.engine.checkpoint.families.grounding import Form
from glimpse.engine.checkpoint.text.conversation import ToolMode
from glimpse.engine.protocol.sampling_params import GrammarKind
from glimpse.server.call.context import CallContext
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.generation import check_priority, num_completions, parse_generation
from glimpse.server.parse.prompt import parse_prompt
from glimpse.server.parse.reasoning import parse_reasoning, with_effort
from glimpse.server.parse.response_format import parse_response_format
from glimpse.server.parse.tools import parse_tools
from glimpse.server.parse.validate import violations
from glimpse.server.request import (
    ChatRequest,
    Constraint,
    Conversation,
    GenerationRequest,
    Tools,
)
from glimpse.server.served_model import ServedModel
from glimpse.v1 import chat_pb2

DEFAULT_MAX_TOKENS = 4096
_JSON_FORMATS = (GrammarKind.JSON_OBJECT, GrammarKind.JSON_SCHEMA)
"""Response formats that can be combined with tools. Other text could be mistaken for tool calls."""


def parse_chat(
    request: chat_pb2.CreateChatCompletionRequest,
    call: CallContext,
    model: ServedModel,
    *,
    streaming: bool,
) -> ChatRequest:
    """Parses a request to complete a conversation.

    Raises:
        InvalidRequest: the request cannot be served.
    """
    check_bounds(request)
    check_stream_options(request, streaming=streaming)
    check_priority(request.priority, call.tenant.limits)
    tools = parse_tools(request)
    may_call = tools.choice is not ToolMode.NONE
    # With tool_choice "none" the template does not show the tools, so that the model cannot call them.
    prompt = parse_prompt(request, model, call, tools=tools.definitions if may_call else ())
    return ChatRequest(
        generation=GenerationRequest(
            prompts=(with_effort(prompt, request.reasoning_effort, model.reasoning, call),),
            sampling=parse_generation(
                request.generation,
                call.tenant.limits,
                model,
                default_max_tokens=model.sampling.max_tokens or DEFAULT_MAX_TOKENS,
            ),
            num_completions=num_completions(request.generation, call.tenant.limits),
            constraint=_parse_constraint(request, tools if may_call else None),
            tools=tools if may_call else None,
            priority=request.priority,
            cache_salt=call.tenant.namespace(request.cache_salt),
            adapter=model.adapter_of(request.model),
            reasoning=parse_reasoning(request, model.reasoning),
            return_token_ids=request.generation.return_token_ids,
            return_timings=request.generation.return_timings,
            grounding=_parse_grounding(request, model),
        ),
        include_usage=request.stream_options.include_usage,
        continuous_usage=reports_continuously(request.stream_options, call),
        metadata=dict(request.metadata),
        echoes_service_tier=bool(request.service_tier),
    )


def parse_count(request: chat_pb2.CountTokensRequest, call: CallContext, model: ServedModel) -> Conversation:
    """Parses a request to count tokens; the arguments are those of `parse_chat`. Raises InvalidRequest."""
    check_bounds(request)
    tools = parse_tools(request)
    shown = tools.definitions if tools.choice is not ToolMode.NONE else ()
    prompt = parse_prompt(request, model, call, tools=shown)
    return with_effort(prompt, request.reasoning_effort, model.reasoning, call)


def check_bounds(request: Message, *, unbounded: Collection[str] = ()) -> None:
    """Raises InvalidRequest for the first required field that is missing, or field that is out of its bounds.

    `unbounded`: lists that may be longer.
    """
    for violation in violations(request):
        if violation.field not in unbounded or violation.code == "missing_value":
            raise InvalidRequest(violation.field, violation.message, violation.code)


def check_stream_options(request: Message, *, streaming: bool) -> None:
    """Raises InvalidRequest if a request that does not stream has options for streams."""
    if request.HasField("stream_options") and not streaming:
        raise InvalidRequest("stream_options", "only allowed if the response is a stream")


def reports_continuously(options: chat_pb2.StreamOptions, call: CallContext) -> bool:
    """Returns whether every message of a stream reports the usage: as in vLLM, only if the last one does."""
    if options.continuous_usage_stats and not options.include_usage:
        call.ignored_fields.append("stream_options.continuous_usage_stats")
    return options.continuous_usage_stats and options.include_usage


def _parse_grounding(request: chat_pb2.CreateChatCompletionRequest, model: ServedModel) -> tuple[Form, ...]:
    if request.grounding and not model.grounding:
        message = "expected false, since models of this family are not known to write boxes or points"
        raise InvalidRequest("grounding", message, "unsupported")
    return model.grounding if request.grounding else ()


def _parse_constraint(request: chat_pb2.CreateChatCompletionRequest, tools: Tools | None) -> Constraint | None:
    constraint = parse_response_format(request)
    if constraint is None or tools is None:
        return constraint
    if constraint.answer_type is None and constraint.grammar.kind not in _JSON_FORMATS:
        message = "expected a JSON format, since the request has tools"
        raise InvalidRequest(constraint.field, message, "conflicting_values")
    return constraint
