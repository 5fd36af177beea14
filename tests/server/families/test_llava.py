"""A server with LLaVA-OneVision: tiled images and videos over the typed API and over OpenAI's. And one with LLaVA-1.5,
launched as on vLLM's first page: its chat template reads the content of a message as one text.
"""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from glimpse.v1 import chat_pb2_grpc, model_pb2, model_pb2_grpc
from tests.checkpoints.llava import make_llava_checkpoint, make_onevision_checkpoint
from tests.e2e.stack import Stack
from tests.engine.checkpoint.text.test_prompt_text_templates import VICUNA
from tests.media.tensors import torch_file
from tests.media.videos import greys, video
from tests.server.families.both_apis import check_both_apis, noise_png
from tests.server.families.second_answers import check_second_answers
from tests.server.requests import ask_in_json, image_part, image_url, request, user, video_part
from tests.server.services.error_details import details

ARCHITECTURES = ("LlavaForConditionalGeneration", "LlavaOnevisionForConditionalGeneration")
Chat = chat_pb2_grpc.ChatServiceStub


@pytest.fixture(scope="module", params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def checkpoint(architecture: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make = make_onevision_checkpoint if "Onevision" in architecture else make_llava_checkpoint
    return make(tmp_path_factory.mktemp("checkpoints") / "llava")


@pytest.fixture(scope="module")
def flags(architecture: str, tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    template = tmp_path_factory.mktemp("template") / "template_llava.jinja"
    template.write_text(VICUNA)
    return () if "Onevision" in architecture else (f"--chat-template={template}",)


def modalities(channel: grpc.Channel) -> list[str]:
    listed: Any = model_pb2_grpc.ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest())
    return [model_pb2.Modality.Name(each) for each in listed.data[0].input_modalities]


def test_typed_and_openai_apis_return_the_same_completion(channel: grpc.Channel) -> None:
    assert check_both_apis(channel, "the an")["image_tokens"] in (2 * 16, 2 * 10)


def test_embeddings_need_neither_a_grid_nor_a_size(channel: grpc.Channel) -> None:
    """vLLM's form for LLaVA: a tensor of one image, [1, tokens, hidden_size], that torch.save wrote, in base64."""
    rows = torch.randn(1, 16, 64, generator=torch.Generator().manual_seed(0))
    question = {"type": "text", "text": "the"}
    for num_rows in (16, 10):  # of LLaVA-1.5, and of LLaVA-OneVision without tiles
        embeds = base64.b64encode(torch_file(rows[:, :num_rows].clone())).decode()
        part = {"type": "image_embeds", "image_embeds": embeds}
        if num_rows == 10 and "MODALITY_VIDEO" not in modalities(channel):
            with pytest.raises(grpc.RpcError) as refused:
                ask_in_json(channel, question, part)
            assert str(refused.value.details()).startswith(
                "'messages[0].content[1].image_embeds.image_embeds': image_embeds: expected the 16 tokens of an image"
            )
        else:
            usage = ask_in_json(channel, question, part)["usage"]
            assert usage["prompt_tokens_details"]["image_tokens"] == num_rows


def test_videos_are_answered_or_refused_by_name(channel: grpc.Channel) -> None:
    wire = request(user(video_part(video(greys(40, width=64, height=48))), "the"))
    if "MODALITY_VIDEO" in modalities(channel):
        answer = Chat(channel).CreateChatCompletion(wire)
        # At least 4 frames of 4 tokens, and one token after them.
        assert answer.usage.prompt_tokens_details.video_tokens % 4 == 1
        return
    with pytest.raises(grpc.RpcError) as caught:
        Chat(channel).CreateChatCompletion(wire)
    assert "does not support video input" in str(caught.value.details())


def test_refuses_bounds_on_pixels_by_name(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        Chat(channel).CreateChatCompletion(request(user(image_part(noise_png(50, 50), max_pixels=1000), "the")))
    _, request_of = details(caught.value)
    (violation,) = request_of.field_violations
    assert violation.field == "messages[0].content[0].image.max_pixels"
    assert "expected none, since the model decides the size in pixels, got 1000" in violation.description


@pytest.mark.parametrize("name", ["min_pixel", "max_pixels"])
def test_bounds_are_refused_under_the_name_that_was_sent(channel: grpc.Channel, name: str) -> None:
    part = image_url(noise_png(50, 50))
    part["image_url"][name] = 1000
    with pytest.raises(grpc.RpcError, match=rf"'messages\[0\].content\[0\].image_url.{name}': expected none"):
        ask_in_json(channel, part)
    del part["image_url"][name]
    with pytest.raises(grpc.RpcError, match=f"'mm_processor_kwargs.{name.rstrip('s')}s': expected none"):
        ask_in_json(channel, part, mm_processor_kwargs={f"{name.rstrip('s')}s": 1000})


def test_second_answer_is_identical_and_comes_from_the_prefix_cache(
    stack: Stack, checkpoint: Path, architecture: str
) -> None:
    kinds = ("image", "video") if "Onevision" in architecture else ("image",)
    check_second_answers(stack, checkpoint, architecture, *kinds)
