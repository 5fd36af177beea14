"""Parses requests to complete text."""

from dataclasses import replace

from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.server.call.context import CallContext
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.chat import check_bounds, check_stream_options, reports_continuously
from glimpse.server.parse.generation import (
    check_priority,
    check_token_ids,
    num_completions,
    parse_generation,
)
from glimpse.server.parse.response_format import parse_response_format
from glimpse.server.request import CompletionRequest, Constraint, GenerationRequest, TextPrompt, TokenPrompt
from glimpse.server.served_model import ServedModel
from glimpse.v1 import completion_pb2, tokenizer_pb2

DEFAULT_MAX_TOKENS = 16
MAX_COMPLETIONS = 128


def parse_completion(
    request: completion_pb2.CreateCompletionRequest,
    call: CallContext,
    model: ServedModel,
    *,
    streaming: bool,
) -> CompletionRequest:
    """Parses a request. Raises InvalidRequest."""
    check_bounds(request)
    check_stream_options(request, streaming=streaming)
    check_priority(request.priority, call.tenant.limits)
    count = num_completions(request.generation, call.tenant.limits, len(request.prompts))
    if count * len(request.prompts) > MAX_COMPLETIONS:
        raise InvalidRequest("generation.n", f"expected at most {MAX_COMPLETIONS} completions for all prompts together")
    sampling = _parse_sampling(request, call, model)
    if request.echo and sampling.logprobs is not None:
        num_top = max(sampling.logprobs, sampling.prompt_logprobs or 0)
        sampling = replace(sampling, prompt_logprobs=num_top)
    return CompletionRequest(
        generation=GenerationRequest(
            prompts=tuple(
                _parse_prompt(request, prompt, f"prompts[{index}]", model)
                for index, prompt in enumerate(request.prompts)
            ),
            sampling=sampling,
            num_completions=count,
            constraint=_parse_constraint(request),
            tools=None,
            priority=request.priority,
            cache_salt=call.tenant.namespace(request.cache_salt),
            adapter=model.adapter_of(request.model),
            return_token_ids=request.generation.return_token_ids,
            return_timings=request.generation.return_timings,
        ),
        include_usage=request.stream_options.include_usage,
        continuous_usage=reports_continuously(request.stream_options, call),
        echo=request.echo,
        num_prompt_logprobs=request.generation.prompt_logprobs
        if request.generation.HasField("prompt_logprobs")
        else None,
    )


def continued(
    text: str, field: str, request: completion_pb2.CreateCompletionRequest | tokenizer_pb2.TokenizeRequest
) -> TextPrompt:
    """Returns a text that the model continues."""
    is_bare = request.HasField("add_special_tokens") and not request.add_special_tokens
    return TextPrompt(text=text, field=field, add_special_tokens=False if is_bare else None)


def _parse_constraint(request: completion_pb2.CreateCompletionRequest) -> Constraint | None:
    constraint = parse_response_format(request)
    if constraint is not None and constraint.answer_type is not None:
        raise InvalidRequest(constraint.field, "only chat completions are answered with messages", "unsupported")
    return constraint


def _parse_sampling(
    request: completion_pb2.CreateCompletionRequest, call: CallContext, model: ServedModel
) -> SamplingParams:
    sampling = parse_generation(request.generation, call.tenant.limits, model, default_max_tokens=DEFAULT_MAX_TOKENS)
    if not request.HasField("num_logprobs"):
        return sampling
    if sampling.logprobs is not None:
        raise InvalidRequest("num_logprobs", "cannot be combined with generation.logprobs", "conflicting_values")
    return replace(sampling, logprobs=request.num_logprobs)


def _parse_prompt(
    request: completion_pb2.CreateCompletionRequest, prompt: completion_pb2.Prompt, path: str, model: ServedModel
) -> TextPrompt | TokenPrompt:
    match prompt.WhichOneof("prompt"):
        case "text":
            return continued(prompt.text, f"{path}.text", request)
        case "token_ids":
            check_token_ids(prompt.token_ids.ids, model.vocab_size, f"{path}.token_ids.ids")
            return TokenPrompt(token_ids=tuple(prompt.token_ids.ids))
        case _:
            raise InvalidRequest(path, "The prompt is neither a text nor token ids.", "missing_value")
