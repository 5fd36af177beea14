"""Parses generation options into sampling parameters, with the defaults of generation.proto."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from glimpse.engine.checkpoint.model_config.sampling_defaults import SamplingDefaults
from glimpse.engine.protocol.sampling_params import (
    MAX_BAD_WORD_CHARACTERS,
    MAX_LOGIT_BIAS,
    MAX_STOP_CHARACTERS,
    SamplingParams,
)
from glimpse.identity.tenant import Limits
from glimpse.server.errors import InvalidRequest
from glimpse.server.served_model import ServedModel
from glimpse.v1 import generation_pb2

TENANT_LIMIT = "tenant_limit"
"""The reason of requests that the server would serve, but not for this tenant."""


def parse_generation(
    options: generation_pb2.GenerationOptions, limits: Limits, model: ServedModel, *, default_max_tokens: int
) -> SamplingParams:
    """Returns the sampling parameters of a request; where it sets none, those of the model, except for `max_tokens`.

    `limits` are the tenant's.

    Raises:
        InvalidRequest: options contradict each other or the model. `check_bounds` has checked their ranges.
    """
    vocab_size, chosen = model.vocab_size, partial(_chosen, options, model.sampling)
    max_tokens = _max_tokens(options, limits, default_max_tokens)
    if options.min_tokens > max_tokens:
        message = f"expected at most max_completion_tokens ({max_tokens}), got {options.min_tokens}"
        raise InvalidRequest("generation.min_tokens", message)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=chosen("temperature", 1.0),
        top_p=chosen("top_p", 1.0),
        top_k=max(chosen("top_k", 0), 0),
        min_p=chosen("min_p", 0.0),
        frequency_penalty=options.frequency_penalty,
        presence_penalty=options.presence_penalty,
        repetition_penalty=chosen("repetition_penalty", 1.0),
        logit_bias=_parse_logit_bias(options, vocab_size),
        seed=options.seed if options.HasField("seed") else None,
        stop=_parse_texts("stop", options.stop, MAX_STOP_CHARACTERS),
        include_stop_str_in_output=options.include_stop_str_in_output,
        skip_special_tokens=options.skip_special_tokens if options.HasField("skip_special_tokens") else True,
        bad_words=_parse_texts("bad_words", options.bad_words, MAX_BAD_WORD_CHARACTERS),
        allowed_token_ids=_parse_token_ids(options.allowed_token_ids, vocab_size, "generation.allowed_token_ids")
        or None,
        stop_token_ids=_parse_token_ids(options.stop_token_ids, vocab_size, "generation.stop_token_ids"),
        min_tokens=min(chosen("min_tokens", 0), max_tokens),
        ignore_eos=options.ignore_eos,
        logprobs=_parse_logprobs(options),
        prompt_logprobs=options.prompt_logprobs if options.HasField("prompt_logprobs") else None,
    )


def _chosen(options: generation_pb2.GenerationOptions, defaults: SamplingDefaults, name: str, default: float) -> Any:
    """Returns an option of the request; without it the model's default, or else that of the API."""
    value = getattr(options, name) if options.HasField(name) else getattr(defaults, name)
    return default if value is None else value


def check_priority(priority: int, limits: Limits) -> None:
    """Raises InvalidRequest if requests of the tenant may not be that urgent."""
    least = limits.min_priority
    if least is not None and priority < least:
        message = f"expected {least} or more, the limit of your tenant, got {priority}"
        raise InvalidRequest("priority", message, TENANT_LIMIT)


def num_completions(options: generation_pb2.GenerationOptions, limits: Limits, num_prompts: int = 1) -> int:
    """Returns the number of completions of each prompt. Raises InvalidRequest if the tenant may not have as many."""
    count = options.n if options.HasField("n") else 1
    most = limits.max_completions
    if most is not None and count * num_prompts > most:
        message = f"expected at most {most} completions for all prompts together, the limit of your tenant"
        raise InvalidRequest("generation.n", message, TENANT_LIMIT)
    return count


def _max_tokens(options: generation_pb2.GenerationOptions, limits: Limits, default: int) -> int:
    most = limits.max_completion_tokens
    if not options.HasField("max_completion_tokens"):
        return default if most is None else min(default, most)
    if most is not None and options.max_completion_tokens > most:
        message = f"expected at most {most}, the limit of your tenant, got {options.max_completion_tokens}"
        raise InvalidRequest("generation.max_completion_tokens", message, TENANT_LIMIT)
    return options.max_completion_tokens


def _parse_logit_bias(options: generation_pb2.GenerationOptions, vocab_size: int) -> dict[int, float]:
    for token_id, bias in options.logit_bias.items():
        field = f"generation.logit_bias[{token_id}]"
        _check_token_id(token_id, vocab_size, field)
        # Written so that NaN fails.
        if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:
            raise InvalidRequest(field, f"expected a number from -100 to 100, got {bias:g}")
    return dict(options.logit_bias)


def _parse_texts(name: str, texts: Sequence[str], max_characters: int) -> tuple[str, ...]:
    for index, text in enumerate(texts):
        if not 0 < len(text) <= max_characters:
            message = f"expected a string of 1 to {max_characters} characters, got {len(text)}"
            raise InvalidRequest(f"generation.{name}[{index}]", message)
    return tuple(texts)


def _parse_token_ids(token_ids: Iterable[int], vocab_size: int, field: str) -> tuple[int, ...]:
    parsed = tuple(token_ids)
    check_token_ids(parsed, vocab_size, field)
    return parsed


def _parse_logprobs(options: generation_pb2.GenerationOptions) -> int | None:
    if options.logprobs:
        return options.top_logprobs
    if options.top_logprobs:
        raise InvalidRequest("generation.top_logprobs", "requires logprobs to be true")
    return None


def check_token_ids(token_ids: Iterable[int], vocab_size: int, field: str) -> None:
    """Raises InvalidRequest for the first id that is not in the model's vocabulary."""
    for index, token_id in enumerate(token_ids):
        _check_token_id(token_id, vocab_size, f"{field}[{index}]")


def _check_token_id(token_id: int, vocab_size: int, field: str) -> None:
    if not 0 <= token_id < vocab_size:
        raise InvalidRequest(field, f"expected a token id from 0 to {vocab_size - 1}, got {token_id}")
