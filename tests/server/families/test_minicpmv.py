"""A server with MiniCPM-V 2.6: images over the typed and the OpenAI API, as the reference answers."""

import base64
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.text.prompt import load_prompt_builder
from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2, model_pb2, model_pb2_grpc
from tests.checkpoints.minicpmv import make_minicpmv_checkpoint
from tests.e2e.stack import Stack
from tests.media.images import encode, scene
from tests.media.tensors import safetensors_file, torch_file
from tests.oracles.minicpmv import encode as encoder_rows
from tests.oracles.minicpmv import greedy_answer, prompt_ids, slices_of
from tests.server.families.second_answers import check_second_answers
from tests.server.requests import ask_in_json, image_part, image_url, request, user

CHECKPOINT = make_minicpmv_checkpoint
ARCHITECTURES = ("MiniCPMV",)
Chat = chat_pb2_grpc.ChatServiceStub
IMAGES = [scene(200, 61, 1), scene(20, 21, 2)]
FILES = [encode(image, "PNG") for image in IMAGES]


def test_typed_and_openai_apis_answer_images_like_the_reference(channel: grpc.Channel, checkpoint: Path) -> None:
    wire = request(user("the", image_part(FILES[0]), image_part(FILES[1]), "in"))
    wire.generation.ignore_eos = True
    typed, again = (Chat(channel).CreateChatCompletion(wire) for _ in range(2))
    builder = load_prompt_builder(checkpoint, load_model_config(checkpoint))
    content = [{"type": "text", "text": "the"}, {"type": "image"}, {"type": "image"}, {"type": "text", "text": "in"}]
    prompt = prompt_ids(checkpoint, [{"role": "user", "content": content}], IMAGES)
    expected = greedy_answer(checkpoint, prompt, [slices_of(image) for image in IMAGES], 8)
    assert typed.choices[0].message.content == builder.tokenizer.decode(expected.token_ids)
    assert typed.usage.prompt_tokens == len(prompt)
    assert again.choices == typed.choices
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    parts = [{"type": "text", "text": "the"}, *map(image_url, FILES), {"type": "text", "text": "in"}]
    answer = ask_in_json(channel, *parts)
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert typed.choices[0].message.content.startswith(answer["choices"][0]["message"]["content"])


def test_counts_the_tokens_of_images(channel: grpc.Channel) -> None:
    asked = user(image_part(FILES[0]), "What?")
    response = Chat(channel).CreateChatCompletion(request(asked))
    counted = Chat(channel).CountTokens(chat_pb2.CountTokensRequest(messages=[asked]))
    assert counted.prompt_tokens == response.usage.prompt_tokens
    details = response.usage.prompt_tokens_details
    assert details.image_tokens == counted.prompt_tokens_details.image_tokens
    # The overview and three slices with 4 placeholder tokens and 2 marks each, and the image's number with 2 marks.
    assert details.image_tokens == 4 * (4 + 2) + 3


def test_a_model_of_images_and_videos_says_so(channel: grpc.Channel) -> None:
    listed: Any = model_pb2_grpc.ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest())
    text, image, video = model_pb2.MODALITY_TEXT, model_pb2.MODALITY_IMAGE, model_pb2.MODALITY_VIDEO
    assert list(listed.data[0].input_modalities) == [text, image, video]


def test_embeddings_with_the_size_of_their_image_answer_like_the_image(channel: grpc.Channel, checkpoint: Path) -> None:
    """vLLM's form: `image_embeds` and `image_sizes` are tensors that torch.save wrote, in base64."""
    rows, size = encoder_rows(checkpoint, slices_of(IMAGES[0])), torch.tensor([IMAGES[0].size])
    question = {"type": "text", "text": "the"}
    expected = ask_in_json(channel, question, image_url(FILES[0]))
    embeds, sizes = (base64.b64encode(torch_file(each)).decode() for each in (rows, size))
    part = {"type": "image_embeds", "image_embeds": {"image_embeds": embeds, "image_sizes": sizes}, "uuid": "slices"}
    cached = {"type": "image_embeds", "image_embeds": None, "uuid": "slices"}
    for each in (part, cached):
        answer = ask_in_json(channel, question, each)
        assert answer["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]
        assert answer["choices"][0]["message"] == expected["choices"][0]["message"]
    typed = content_pb2.ImageEmbeddings(
        embeddings={"serialized": safetensors_file(rows)}, size={"serialized": safetensors_file(size[0])}
    )
    wire = request(user("the", content_pb2.ContentPart(image_embeddings=typed)))
    assert Chat(channel).CreateChatCompletion(wire).usage.prompt_tokens == expected["usage"]["prompt_tokens"]
    typed.ClearField("size")
    with pytest.raises(grpc.RpcError) as refused:
        Chat(channel).CreateChatCompletion(request(user(content_pb2.ContentPart(image_embeddings=typed))))
    assert "image_embeddings.size': image_sizes: expected the width and height of the image" in str(
        refused.value.details()
    )


def test_second_answer_is_identical_and_comes_from_the_prefix_cache(stack: Stack, checkpoint: Path) -> None:
    check_second_answers(stack, checkpoint, *ARCHITECTURES, "image", "video")
