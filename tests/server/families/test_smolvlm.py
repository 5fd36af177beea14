"""Tests for a server with SmolVLM: images and videos over the typed and the OpenAI API, as the reference answers."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.text.prompt import load_prompt_builder
from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2, model_pb2, model_pb2_grpc
from tests.checkpoints.idefics3 import make_idefics3_checkpoint
from tests.e2e.stack import Stack
from tests.media.images import encode, scene
from tests.oracles.idefics3 import greedy_answer, prompt_ids, tiles_of
from tests.server.families.second_answers import check_second_answers
from tests.server.requests import ask_in_json, image_part, image_url, request, user

CHECKPOINT = make_idefics3_checkpoint
ARCHITECTURES = ("SmolVLMForConditionalGeneration",)
Chat = chat_pb2_grpc.ChatServiceStub
IMAGES = [scene(200, 61, 1), scene(20, 21, 2)]
FILES = [encode(image, "PNG") for image in IMAGES]
FRAMES = content_pb2.FrameList(frames=[content_pb2.MediaSource(data=encode(scene(60, 40, 5), "PNG"))] * 3)


def test_typed_and_openai_apis_answer_images_like_the_reference(channel: grpc.Channel, checkpoint: Path) -> None:
    wire = request(user("the", image_part(FILES[0]), image_part(FILES[1]), "in"))
    wire.generation.ignore_eos = True
    typed = Chat(channel).CreateChatCompletion(wire)
    builder = load_prompt_builder(checkpoint, load_model_config(checkpoint))
    content = [{"type": "text", "text": "the"}, {"type": "image"}, {"type": "image"}, {"type": "text", "text": "in"}]
    prompt = prompt_ids(checkpoint, [{"role": "user", "content": content}], IMAGES)
    tiles = [tiles_of(checkpoint, image) for image in IMAGES]
    expected = greedy_answer(checkpoint, prompt, tiles, 8)
    assert typed.choices[0].message.content == builder.tokenizer.decode(expected.token_ids)
    assert typed.usage.prompt_tokens == len(prompt)
    parts = [{"type": "text", "text": "the"}, *map(image_url, FILES), {"type": "text", "text": "in"}]
    answer = ask_in_json(channel, *parts)
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert typed.choices[0].message.content.startswith(answer["choices"][0]["message"]["content"])


def test_counts_the_tokens_of_images_and_videos(channel: grpc.Channel) -> None:
    video = content_pb2.ContentPart(video=content_pb2.VideoPart(frames=FRAMES, fps=1))
    asked = user(image_part(FILES[1]), video, "What?")
    response = Chat(channel).CreateChatCompletion(request(asked))
    counted = Chat(channel).CountTokens(chat_pb2.CountTokensRequest(messages=[asked]))
    assert counted.prompt_tokens == response.usage.prompt_tokens
    details = response.usage.prompt_tokens_details
    # Of each of 16 tiles and the overview 4 placeholder tokens and 2 that name it, 5 newlines and a final token.
    assert details.image_tokens == 17 * (4 + 2) + 5 + 1
    assert details == counted.prompt_tokens_details
    assert details.video_tokens >= 3 * (4 + 3)


def test_a_model_of_images_and_videos_says_so(channel: grpc.Channel) -> None:
    listed: Any = model_pb2_grpc.ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest())
    modalities = list(listed.data[0].input_modalities)
    assert modalities == [model_pb2.MODALITY_TEXT, model_pb2.MODALITY_IMAGE, model_pb2.MODALITY_VIDEO]


def test_refuses_bounds_on_the_size_of_images_by_name(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        Chat(channel).CreateChatCompletion(request(user(image_part(FILES[0], max_pixels=5_000))))
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "max_pixels" in error.details()
    assert "the model decides" in error.details()


def test_second_answer_is_identical_and_comes_from_the_prefix_cache(stack: Stack, checkpoint: Path) -> None:
    check_second_answers(stack, checkpoint, *ARCHITECTURES, "image", "video")
