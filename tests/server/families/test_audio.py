"""Tests for audio over the typed and the OpenAI API, with models that do and do not support it."""

import base64
from pathlib import Path
from typing import Any

import grpc
import pytest

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.families.token_layout import one_run
from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot
from glimpse.engine.checkpoint.text.prompt import load_prompt_builder
from glimpse.media.kind import MediaKind
from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2, model_pb2, model_pb2_grpc
from tests.checkpoints.qwen2_audio import make_audio_checkpoint
from tests.e2e.stack import Stack
from tests.media.audio import audio_file, noise, tone
from tests.oracles.qwen2_audio import greedy_answer
from tests.server.families.second_answers import check_second_answers
from tests.server.requests import ask_in_json, image_part, png, request, user
from tests.server.services.error_details import details

CHECKPOINT = make_audio_checkpoint
ARCHITECTURES = ("Qwen2AudioForConditionalGeneration",)
Chat = chat_pb2_grpc.ChatServiceStub
SAMPLES = tone(440, 16_000, 0.5)
WAV = audio_file(SAMPLES, 16_000)
BASE64 = base64.b64encode(WAV).decode()
QUESTION = {"type": "text", "text": "What?"}


def audio_part(data: bytes = WAV, **members: Any) -> content_pb2.ContentPart:
    audio = content_pb2.AudioPart(source=content_pb2.MediaSource(data=data))
    return content_pb2.ContentPart(audio=audio, **members)


def test_answers_audio_and_counts_its_tokens(channel: grpc.Channel) -> None:
    response = Chat(channel).CreateChatCompletion(request(user(audio_part(), "and", audio_part(WAV[:-8_000]))))
    assert response.choices[0].message.content
    # 50 and 25 frames are 25 and 13 positions; two positions are one token.
    assert response.usage.prompt_tokens_details.audio_tokens == 12 + 6
    counted = Chat(channel).CountTokens(
        chat_pb2.CountTokensRequest(messages=[user(audio_part(), "and", audio_part(WAV[:-8_000]))])
    )
    assert counted.prompt_tokens == response.usage.prompt_tokens
    assert counted.prompt_tokens_details.audio_tokens == 18


def test_typed_and_openai_apis_return_the_same_completion(channel: grpc.Channel) -> None:
    typed = Chat(channel).CreateChatCompletion(request(user(audio_part(), "What?")))
    parts: list[dict[str, Any]] = [
        {"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{BASE64}"}},
    ]
    for part in parts:
        answer = ask_in_json(channel, part, QUESTION)
        assert answer["choices"][0]["message"]["content"] == typed.choices[0].message.content
        assert answer["usage"]["prompt_tokens_details"]["audio_tokens"] == 12


def test_completion_equals_the_references(channel: grpc.Channel, checkpoint: Path) -> None:
    wire = request(user(audio_part(), "What?"))
    wire.generation.ignore_eos = True
    content = Chat(channel).CreateChatCompletion(wire).choices[0].message.content
    builder = load_prompt_builder(checkpoint, load_model_config(checkpoint))
    message = ChatMessage(role="user", content=(MediaSlot(kind=MediaKind.AUDIO), "What?"))
    prompt = builder.chat([message], [one_run(MediaKind.AUDIO, 12)])
    expected = greedy_answer(checkpoint, prompt.token_ids, [SAMPLES], 8)
    assert content == builder.tokenizer.decode(expected.token_ids)


def test_caches_repeated_audio(channel: grpc.Channel) -> None:
    def cached(data: bytes) -> int:
        response = Chat(channel).CreateChatCompletion(request(user(audio_part(data), "word " * 30)))
        return response.usage.prompt_tokens_details.cached_tokens

    long, other = (audio_file(noise(seed, 60_000), 16_000) for seed in (1, 2))
    assert cached(long) < 64
    assert cached(long) > 100
    assert cached(other) < 64


def test_audio_can_be_referenced_by_uuid_later(channel: grpc.Channel) -> None:
    sent = Chat(channel).CreateChatCompletion(request(user(audio_part(uuid="bell"), "What?")))
    named = content_pb2.ContentPart(audio=content_pb2.AudioPart(), uuid="bell")
    assert Chat(channel).CreateChatCompletion(request(user(named, "What?"))).choices == sent.choices
    answer = ask_in_json(channel, {"type": "input_audio", "input_audio": None, "uuid": "bell"}, QUESTION)
    assert answer["choices"][0]["message"]["content"] == sent.choices[0].message.content


def test_model_description_lists_audio_support(channel: grpc.Channel) -> None:
    listed: Any = model_pb2_grpc.ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest())
    (model,) = listed.data
    assert list(model.input_modalities) == [model_pb2.MODALITY_TEXT, model_pb2.MODALITY_AUDIO]
    assert (model.capabilities.max_audios, model.capabilities.max_images) == (4, 0)


SOURCE = "messages[0].content[0].audio.source"
REFUSED: list[Any] = [
    # part, reason, field, part of the message
    pytest.param(audio_part(b"hello"), "UNSUPPORTED_MEDIA_FORMAT", SOURCE, "got an unknown format", id="no audio"),
    pytest.param(audio_part(png()), "UNSUPPORTED_MEDIA_FORMAT", SOURCE, "got a PNG image", id="image"),
    pytest.param(audio_part(WAV[:30]), "INVALID_MEDIA", SOURCE, "corrupt or truncated", id="truncated"),
    pytest.param(
        audio_part(audio_file(SAMPLES[:99], 16_000)), "INVALID_MEDIA", SOURCE, "expected audio of more", id="too short"
    ),
    pytest.param(content_pb2.ContentPart(audio={}), "MISSING_VALUE", SOURCE, "expected a URL, the bytes", id="none"),
    pytest.param(audio_part(b""), "MISSING_VALUE", f"{SOURCE}.data", "expected the bytes", id="no bytes"),
    pytest.param(
        image_part(png()),
        "UNSUPPORTED",
        "messages[0].content[0].image.source",
        "does not support image input",
        id="does not see",
    ),
]


@pytest.mark.parametrize(("part", "reason", "field", "words"), REFUSED)
def test_names_the_field_of_an_invalid_audio_input(
    channel: grpc.Channel, part: content_pb2.ContentPart, reason: str, field: str, words: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        Chat(channel).CreateChatCompletion(request(user(part)))
    info, request_of = details(caught.value)
    assert (info.reason, request_of.field_violations[0].field) == (reason, field)
    assert words in request_of.field_violations[0].description


def test_limits_the_number_of_audio_inputs(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        Chat(channel).CreateChatCompletion(request(user(*[audio_part()] * 5)))
    info, _ = details(caught.value)
    assert info.reason == "TOO_MANY_AUDIOS"


def test_second_answer_is_identical_and_comes_from_the_prefix_cache(stack: Stack, checkpoint: Path) -> None:
    check_second_answers(stack, checkpoint, *ARCHITECTURES, "audio")
