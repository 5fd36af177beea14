"""What requests to continue texts mean, and which are refused under which field."""

from dataclasses import replace
from typing import Any

import pytest

from glimpse.engine.checkpoint.model_config.sampling_defaults import SamplingDefaults
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.server.call.context import CallContext
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.completion import parse_completion
from glimpse.server.request import CompletionRequest, TextPrompt, TokenPrompt
from glimpse.v1 import completion_pb2, generation_pb2
from tests.server.parse.served import MODEL

VOCAB_SIZE = MODEL.vocab_size


def parse(**fields: Any) -> CompletionRequest:
    members: dict[str, Any] = {"prompts": [{"text": "a"}]} | fields
    wire = completion_pb2.CreateCompletionRequest(**members)
    return parse_completion(wire, CallContext(), MODEL, streaming=False)


def test_applies_the_documented_defaults() -> None:
    completion = parse()
    assert completion.generation.sampling == SamplingParams(max_tokens=16)
    assert (completion.echo, completion.include_usage, completion.generation.num_completions) == (False, False, 1)


def test_a_server_may_have_its_own_defaults() -> None:
    defaults = SamplingDefaults(
        temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.2, max_tokens=9, min_tokens=20
    )
    wire = completion_pb2.CreateCompletionRequest(prompts=[{"text": "a"}])
    own = parse_completion(wire, CallContext(), replace(MODEL, sampling=defaults), streaming=False).generation.sampling
    assert own == SamplingParams(
        temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.2, max_tokens=16, min_tokens=16
    ), "the token limit is that of conversations"
    wire.generation.MergeFrom(
        generation_pb2.GenerationOptions(temperature=0, top_p=1, top_k=-1, min_p=0, repetition_penalty=1, min_tokens=0)
    )
    neutral = parse_completion(
        wire, CallContext(), replace(MODEL, sampling=defaults), streaming=False
    ).generation.sampling
    assert neutral == SamplingParams(temperature=0, max_tokens=16)


def test_accepts_prompts_as_text_and_token_ids() -> None:
    assert parse(prompts=[{"text": "a"}, {"token_ids": {"ids": [5, 6]}}]).generation.prompts == (
        TextPrompt(text="a", field="prompts[0].text"),
        TokenPrompt(token_ids=(5, 6)),
    )


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({}, None),
        ({"num_logprobs": 0}, 0),
        ({"num_logprobs": 5}, 5),
        ({"generation": {"logprobs": True, "top_logprobs": 2}}, 2),
    ],
)
def test_two_fields_request_log_probabilities(fields: dict[str, Any], logprobs: int | None) -> None:
    assert parse(**fields).generation.sampling.logprobs == logprobs


def test_an_echo_with_log_probabilities_scores_the_prompt() -> None:
    assert parse(num_logprobs=2, echo=True).generation.sampling.prompt_logprobs == 2
    assert parse(num_logprobs=2, echo=True).num_prompt_logprobs is None
    assert parse(num_logprobs=2).generation.sampling.prompt_logprobs is None
    both = parse(num_logprobs=2, echo=True, generation={"prompt_logprobs": 5})
    assert (both.generation.sampling.prompt_logprobs, both.num_prompt_logprobs) == (5, 5)


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"prompts": []}, "prompts", "missing_value"),
        ({"prompts": [{}]}, "prompts[0]", "missing_value"),
        ({"prompts": [{"token_ids": {}}]}, "prompts[0].token_ids.ids", "invalid_value"),
        ({"prompts": [{"token_ids": {"ids": [1, VOCAB_SIZE]}}]}, "prompts[0].token_ids.ids[1]", "invalid_value"),
        ({"prompts": [{"text": "a"}] * 65, "generation": {"n": 2}}, "generation.n", "invalid_value"),
        ({"num_logprobs": 1, "generation": {"logprobs": True}}, "num_logprobs", "conflicting_values"),
        ({"stream_options": {}}, "stream_options", "invalid_value"),
    ],
)
def test_names_the_field_that_cannot_be_served(fields: dict[str, Any], field: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert (caught.value.field, caught.value.reason) == (field, reason)
