"""Tests for the typed services over a real channel, unary and streamed."""

import math
import re
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from glimpse.v1 import (
    chat_pb2,
    chat_pb2_grpc,
    completion_pb2,
    completion_pb2_grpc,
    content_pb2,
    generation_pb2,
    model_pb2,
    model_pb2_grpc,
)
from tests.e2e.stack import Served, health_stub
from tests.server.requests import image_part, png, request, text_part, user

Chat = chat_pb2_grpc.ChatServiceStub
TOOL = chat_pb2.Tool(function=chat_pb2.FunctionDefinition(name="look"))
ABOUT_A_IMAGE = request(user("What is this?", image_part(png())))


def answer(chat: Chat, wire: chat_pb2.CreateChatCompletionRequest) -> str:
    return chat.CreateChatCompletion(wire).choices[0].message.content


def test_response_has_all_documented_fields(chat: Chat) -> None:
    response = chat.CreateChatCompletion(request())
    choice = response.choices[0]
    assert response.id.startswith("chatcmpl-")
    assert response.created > 1_700_000_000
    assert response.model == "tiny"
    assert (choice.index, choice.message.role, choice.finish_reason) == (
        0,
        content_pb2.ROLE_ASSISTANT,
        generation_pb2.FINISH_REASON_LENGTH,
    )
    assert choice.message.content
    assert not choice.HasField("logprobs")
    assert response.usage.completion_tokens == 8
    assert response.usage.total_tokens == response.usage.prompt_tokens + 8


@pytest.mark.parametrize(
    "wire", [request(), ABOUT_A_IMAGE, request(logprobs=True, top_logprobs=2), request(return_token_ids=True)]
)
def test_stream_adds_up_to_the_unary_response(chat: Chat, wire: chat_pb2.CreateChatCompletionRequest) -> None:
    whole = chat.CreateChatCompletion(wire).choices[0]
    pieces = [response.choices[0] for response in chat.StreamChatCompletion(wire)]
    assert "".join(piece.delta.content for piece in pieces) == whole.message.content
    assert [token.token for piece in pieces for token in piece.logprobs.content] == [
        token.token for token in whole.logprobs.content
    ]
    assert [token_id for piece in pieces for token_id in piece.token_ids] == list(whole.token_ids)
    assert [piece.finish_reason for piece in pieces if piece.HasField("finish_reason")] == [whole.finish_reason]


def test_token_ids_are_those_of_prompt_and_answer_if_requested(chat: Chat) -> None:
    wire = request(return_token_ids=True)
    whole = chat.CreateChatCompletion(wire)
    assert len(whole.prompt_token_ids) == whole.usage.prompt_tokens
    assert len(whole.choices[0].token_ids) == whole.usage.completion_tokens
    first, *later = chat.StreamChatCompletion(wire)
    assert first.prompt_token_ids == whole.prompt_token_ids
    assert not any(response.prompt_token_ids for response in later)
    wire.generation.return_token_ids = False
    plain = chat.CreateChatCompletion(wire)
    assert (len(plain.prompt_token_ids), len(plain.choices[0].token_ids)) == (0, 0)


def test_first_chunk_has_the_role_and_last_the_finish_reason(chat: Chat) -> None:
    pieces = [response.choices[0] for response in chat.StreamChatCompletion(request())]
    assert [piece.delta.HasField("role") for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert [piece.HasField("finish_reason") for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_stream_reports_usage_only_if_requested(chat: Chat) -> None:
    wire = request()
    assert not any(response.HasField("usage") for response in chat.StreamChatCompletion(wire))
    wire.stream_options.include_usage = True
    *pieces, last = chat.StreamChatCompletion(wire)
    assert all(len(piece.choices) == 1 and not piece.HasField("usage") for piece in pieces)
    assert (len(last.choices), last.usage.completion_tokens) == (0, 8)


def test_image_changes_the_completion_and_its_tokens_are_counted(chat: Chat) -> None:
    other = request(user("What is this?", image_part(png(colour=(0, 250, 0)))))
    assert answer(chat, ABOUT_A_IMAGE) != answer(chat, other)
    usage = chat.CreateChatCompletion(ABOUT_A_IMAGE).usage
    assert usage.prompt_tokens_details.image_tokens == 4


def test_caches_a_repeated_prompt(chat: Chat) -> None:
    wire = request(user("word " * 100))
    cold, warm = (chat.CreateChatCompletion(wire) for _ in range(2))
    assert warm.usage.prompt_tokens_details.cached_tokens > cold.usage.prompt_tokens_details.cached_tokens
    assert warm.choices == cold.choices


def test_cache_salt_separates_caches(chat: Chat) -> None:
    wire = request(user("salt " * 100))
    chat.CreateChatCompletion(wire)
    wire.cache_salt = "mine"
    assert chat.CreateChatCompletion(wire).usage.prompt_tokens_details.cached_tokens == 0


def test_logprobs_describe_the_tokens(chat: Chat) -> None:
    choice = chat.CreateChatCompletion(request(logprobs=True, top_logprobs=3)).choices[0]
    tokens = choice.logprobs.content
    assert "".join(token.token for token in tokens) == choice.message.content
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == choice.message.content
    for token in tokens:
        assert len(token.top_logprobs) == 3
        # Greedy sampling: the sampled token is the most likely one.
        assert token.top_logprobs[0].token == token.token
        assert math.isclose(token.top_logprobs[0].logprob, token.logprob, abs_tol=1e-5)


def test_completion_ends_before_the_stop_string(chat: Chat, shared_server: Served) -> None:
    text = answer(chat, request(max_completion_tokens=30))
    stop = text[5:7]
    choice = chat.CreateChatCompletion(request(max_completion_tokens=30, stop=[stop])).choices[0]
    assert choice.message.content == text[: text.index(stop)]
    assert choice.finish_reason == generation_pb2.FINISH_REASON_STOP


def test_seed_makes_sampling_reproducible(chat: Chat) -> None:
    drawn = {answer(chat, request(temperature=1.5, seed=7, max_completion_tokens=20)) for _ in range(2)}
    assert len(drawn) == 1


def test_count_tokens_agrees_with_usage(chat: Chat) -> None:
    counted = chat.CountTokens(chat_pb2.CountTokensRequest(messages=ABOUT_A_IMAGE.messages))
    used = chat.CreateChatCompletion(ABOUT_A_IMAGE).usage
    assert counted.prompt_tokens == used.prompt_tokens
    assert counted.prompt_tokens_details.image_tokens == used.prompt_tokens_details.image_tokens
    assert counted.max_model_len == 4096


@pytest.mark.parametrize(
    "members",
    [
        {"tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": chat_pb2.ToolChoice(mode=chat_pb2.TOOL_CHOICE_MODE_NONE)},
        {"add_generation_prompt": False},
        {"chat_template_kwargs": '{"anything": 1}'},
        {"media_processor_options": content_pb2.MediaProcessorOptions(max_pixels=28 * 28)},
    ],
)
def test_count_tokens_agrees_with_usage_of_each_option(chat: Chat, members: dict[str, Any]) -> None:
    counted = chat.CountTokens(chat_pb2.CountTokensRequest(messages=ABOUT_A_IMAGE.messages, **members))
    wire = chat_pb2.CreateChatCompletionRequest(**members)
    wire.MergeFrom(ABOUT_A_IMAGE)
    assert counted.prompt_tokens == chat.CreateChatCompletion(wire).usage.prompt_tokens
    plain = chat.CountTokens(chat_pb2.CountTokensRequest(messages=ABOUT_A_IMAGE.messages))
    changes_nothing = "tool_choice" in members or "chat_template_kwargs" in members
    assert (counted.prompt_tokens == plain.prompt_tokens) == changes_nothing


def test_all_answers_of_a_server_have_one_fingerprint(chat: Chat, channel: grpc.Channel) -> None:
    completions = completion_pb2_grpc.CompletionServiceStub(channel)
    text = completion_pb2.CreateCompletionRequest(prompts=[completion_pb2.Prompt(text="the")])
    answers = [
        chat.CreateChatCompletion(request()),
        *chat.StreamChatCompletion(request()),
        completions.CreateCompletion(text),
        *completions.StreamCompletion(text),
    ]
    (fingerprint,) = {each.system_fingerprint for each in answers}
    assert re.fullmatch("fp_[0-9a-f]{10}", fingerprint)


def test_answers_have_allowed_tokens_and_no_bad_words(chat: Chat) -> None:
    allowed = sorted(chat.CreateChatCompletion(request(return_token_ids=True)).choices[0].token_ids)[:2]
    wire = request(allowed_token_ids=allowed, return_token_ids=True)
    (choice,) = chat.CreateChatCompletion(wire).choices
    assert set(choice.token_ids) <= set(allowed)
    words = list({letter for letter in choice.message.content if letter.strip()})
    answers = [chat.CreateChatCompletion(request(bad_words=bad)).choices[0].message.content for bad in ([], words)]
    assert set(words) <= set(answers[0])
    assert answers[1] != answers[0]


def test_special_tokens_in_client_text_are_plain_text(chat: Chat) -> None:
    def count(text: str) -> int:
        message = content_pb2.Message(role=content_pb2.ROLE_USER, content=[text_part(text)])
        return chat.CountTokens(chat_pb2.CountTokensRequest(messages=[message])).prompt_tokens

    assert count("<|image_pad|>") > count("") + 1


def test_low_detail_uses_fewer_tokens(chat: Chat) -> None:
    def image_tokens(detail: content_pb2.ImageDetail) -> int:
        part = image_part(png(800, 800), detail=detail)
        counted = chat.CountTokens(chat_pb2.CountTokensRequest(messages=[user(part)]))
        return counted.prompt_tokens_details.image_tokens

    assert image_tokens(content_pb2.IMAGE_DETAIL_LOW) < image_tokens(content_pb2.IMAGE_DETAIL_HIGH)


def test_echoes_the_request_id(chat: Chat) -> None:
    response, call = chat.CreateChatCompletion.with_call(request(), metadata=[("x-request-id", "mine-1")])
    assert response.id == "chatcmpl-mine-1"
    assert dict(call.initial_metadata())["x-request-id"] == "mine-1"


def test_replaces_request_ids_that_could_forge_log_lines(chat: Chat) -> None:
    response = chat.CreateChatCompletion(request(), metadata=[("x-request-id", "a b {}")])
    assert "a b" not in response.id


def test_serves_the_model_under_all_of_its_names(channel: grpc.Channel, chat: Chat) -> None:
    models = model_pb2_grpc.ModelServiceStub(channel)
    listed = models.ListModels(model_pb2.ListModelsRequest()).data
    assert [model.id for model in listed] == ["tiny", "small/tiny"]
    assert listed[0].max_model_len == 4096
    assert list(listed[0].input_modalities) == [
        model_pb2.MODALITY_TEXT,
        model_pb2.MODALITY_IMAGE,
        model_pb2.MODALITY_VIDEO,
    ]
    assert models.GetModel(model_pb2.GetModelRequest(model="small/tiny")).model.id == "small/tiny"
    wire = request()
    wire.model = "small/tiny"
    assert chat.CreateChatCompletion(wire).model == "small/tiny"


@pytest.mark.parametrize(
    "service", ["", *(f"glimpse.v1.{name}Service" for name in ("Chat", "Completion", "Model", "Tokenizer"))]
)
def test_every_service_is_healthy(channel: grpc.Channel, service: str) -> None:
    health = health_stub(channel).Check(health_pb2.HealthCheckRequest(service=service))
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    everything: Any = health_pb2.HealthListRequest()  # pyright: ignore[reportAttributeAccessIssue] - the stubs lack it
    assert health_stub(channel).List(everything).statuses[service] == health


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_lists_and_describes_the_services(channel: grpc.Channel, version: str) -> None:
    reflect = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="glimpse.v1.ChatService"),
    ]
    listed, described = reflect(iter(asked))
    names = {service.name for service in listed.list_services_response.service}
    assert {"glimpse.v1.ChatService", "glimpse.v1.ModelService", "grpc.health.v1.Health"} <= names
    assert described.file_descriptor_response.file_descriptor_proto


def test_metrics_count_rpcs_and_tokens(chat: Chat, shared_server: Served) -> None:
    names = ("glimpse_requests_total", "glimpse_generated_tokens_total", "glimpse_time_to_first_token_seconds_count")
    before = [shared_server.metric(name) for name in names]
    chat.CreateChatCompletion(request())
    after = [shared_server.metric(name) for name in names]
    assert [later - earlier for earlier, later in zip(before, after, strict=True)] == [1, 8, 1]


def test_metrics_count_no_health_checks(chat: Chat, shared_server: Served) -> None:
    before = shared_server.metric("glimpse_requests_total")
    assert shared_server.is_serving()
    chat.CreateChatCompletion(request())
    assert shared_server.metric("glimpse_requests_total") - before == 1
    assert shared_server.metric("glimpse_kv_blocks") > 0
