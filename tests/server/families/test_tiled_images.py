"""Servers with families that divide images into tiles: images and videos over both APIs, as the reference answers."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from PIL.Image import Image

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.text.prompt import load_prompt_builder
from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2
from tests.checkpoints.idefics3 import make_idefics3_checkpoint
from tests.checkpoints.internvl import make_internvl_checkpoint
from tests.checkpoints.minicpmv import make_minicpmv_checkpoint
from tests.checkpoints.phi3v import MAX_TILES, SIDE, make_phi3v_checkpoint
from tests.e2e.stack import Stack
from tests.media.images import encode, scene
from tests.media.tensors import safetensors_file, torch_file
from tests.oracles import idefics3, internvl, minicpmv, phi3v
from tests.server.families.second_answers import check_second_answers
from tests.server.requests import ask_in_json, image_part, image_url, request, user

Chat = chat_pb2_grpc.ChatServiceStub
NUM_TOKENS = 8
IMAGES = (scene(200, 61, 1), scene(20, 21, 2))
FRAMES = content_pb2.FrameList(frames=[content_pb2.MediaSource(data=encode(scene(60, 40, 5), "PNG"))] * 3)

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family, and what is known of its answers."""

    architecture: str
    make: Callable[[Path], Path]
    reference: Callable[[Path, Messages, Sequence[Image]], tuple[Sequence[int], Any]]
    """Returns the token ids of a prompt, and the greedy answer."""
    images: Sequence[Image] = IMAGES
    kinds: tuple[str, ...] = ("image", "video")
    counted: int = 0
    """The image whose tokens are counted."""
    num_image_tokens: int
    num_video_tokens: int = 0
    """At least so many; 0 where no video is sent."""
    space: str = ""
    """What an answer, which continues a text, keeps before its first word."""


def internvl_answer(path: Path, messages: Messages, images: Sequence[Image]) -> tuple[Sequence[int], Any]:
    prompt = internvl.prompt_ids(path, messages, images)
    return prompt, internvl.greedy_answer(
        path, prompt, [internvl.tiles_of(path, image) for image in images], NUM_TOKENS
    )


def smolvlm_answer(path: Path, messages: Messages, images: Sequence[Image]) -> tuple[Sequence[int], Any]:
    prompt = idefics3.prompt_ids(path, messages, images)
    return prompt, idefics3.greedy_answer(
        path, prompt, [idefics3.tiles_of(path, image) for image in images], NUM_TOKENS
    )


def minicpmv_answer(path: Path, messages: Messages, images: Sequence[Image]) -> tuple[Sequence[int], Any]:
    prompt = minicpmv.prompt_ids(path, messages, images)
    return prompt, minicpmv.greedy_answer(path, prompt, [minicpmv.slices_of(image) for image in images], NUM_TOKENS)


def phi3v_answer(path: Path, messages: Messages, images: Sequence[Image]) -> tuple[Sequence[int], Any]:
    tiles = [phi3v.tiles_of(image, side=SIDE, most=MAX_TILES) for image in images]
    prompt = phi3v.prompt_ids(path, messages, tiles, side=SIDE)
    return prompt, phi3v.greedy_answer(path, prompt, tiles, NUM_TOKENS)


FAMILIES = {
    "internvl": Family(
        architecture="InternVLForConditionalGeneration",
        make=partial(make_internvl_checkpoint, variant="6B"),
        reference=internvl_answer,
        # Three tiles and the overview with 4 placeholder tokens each, and the marks around them.
        num_image_tokens=4 * 4 + 2,
        # Each frame has 4 and 2 marks. Those after the first have a text, too.
        num_video_tokens=3 * (4 + 2) + 1,
    ),
    "smolvlm": Family(
        architecture="SmolVLMForConditionalGeneration",
        make=make_idefics3_checkpoint,
        reference=smolvlm_answer,
        counted=1,
        # Of each of 16 tiles and the overview 4 placeholder tokens and 2 that name it, 5 newlines and a final token.
        num_image_tokens=17 * (4 + 2) + 5 + 1,
        num_video_tokens=3 * (4 + 3),
    ),
    "minicpmv": Family(
        architecture="MiniCPMV",
        make=make_minicpmv_checkpoint,
        reference=minicpmv_answer,
        # The overview and three slices with 4 placeholder tokens and 2 marks each, and the image's number with 2 marks.
        num_image_tokens=4 * (4 + 2) + 3,
    ),
    "phi3v": Family(
        architecture="Phi3VForCausalLM",
        make=make_phi3v_checkpoint,
        reference=phi3v_answer,
        kinds=("image",),
        images=(IMAGES[0], scene(21, 20, 2)),
        # Two lines of three tiles, a separator, and two lines of the overview; each line ends with a separator.
        num_image_tokens=2 * (6 + 1) + 1 + 2 * (2 + 1),
        space=" ",
    ),
}
ARCHITECTURES = tuple(family.architecture for family in FAMILIES.values())


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def checkpoint(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return family.make(tmp_path_factory.mktemp("checkpoints") / "tiled")


def test_typed_and_openai_apis_answer_images_like_the_reference(
    channel: grpc.Channel, checkpoint: Path, family: Family
) -> None:
    files = [encode(image, "PNG") for image in family.images]
    wire = request(user("the", *map(image_part, files), "in"))
    wire.generation.ignore_eos = True
    typed, again = (Chat(channel).CreateChatCompletion(wire) for _ in range(2))
    builder = load_prompt_builder(checkpoint, load_model_config(checkpoint))
    content = [{"type": "text", "text": "the"}, {"type": "image"}, {"type": "image"}, {"type": "text", "text": "in"}]
    prompt, expected = family.reference(checkpoint, [{"role": "user", "content": content}], family.images)
    said = typed.choices[0].message.content
    assert said.removeprefix(family.space) == builder.tokenizer.decode(expected.token_ids)
    assert typed.usage.prompt_tokens == len(prompt)
    assert again.choices == typed.choices
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    parts = [{"type": "text", "text": "the"}, *map(image_url, files), {"type": "text", "text": "in"}]
    answer = ask_in_json(channel, *parts)
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert said.startswith(answer["choices"][0]["message"]["content"])


def test_counts_the_tokens_of_images_and_videos(channel: grpc.Channel, family: Family) -> None:
    video = content_pb2.ContentPart(video=content_pb2.VideoPart(frames=FRAMES, fps=1))
    asked = user(
        image_part(encode(family.images[family.counted], "PNG")), *([video] if family.num_video_tokens else []), "What?"
    )
    response = Chat(channel).CreateChatCompletion(request(asked))
    counted = Chat(channel).CountTokens(chat_pb2.CountTokensRequest(messages=[asked]))
    assert counted.prompt_tokens == response.usage.prompt_tokens
    details = response.usage.prompt_tokens_details
    details.ClearField("cached_tokens")
    assert details == counted.prompt_tokens_details
    assert details.image_tokens == family.num_image_tokens
    assert details.video_tokens >= family.num_video_tokens


@pytest.mark.parametrize("family", ["internvl", "smolvlm"], indirect=True)
def test_refuses_bounds_on_the_size_of_images_by_name(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        Chat(channel).CreateChatCompletion(request(user(image_part(encode(IMAGES[0], "PNG"), max_pixels=5_000))))
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "max_pixels" in error.details()
    assert "the model decides" in error.details()


@pytest.mark.parametrize("family", ["minicpmv"], indirect=True)
def test_embeddings_with_the_size_of_their_image_answer_like_the_image(channel: grpc.Channel, checkpoint: Path) -> None:
    """vLLM's form: `image_embeds` and `image_sizes` are tensors that torch.save wrote, in base64."""
    rows, size = minicpmv.encode(checkpoint, minicpmv.slices_of(IMAGES[0])), torch.tensor([IMAGES[0].size])
    question = {"type": "text", "text": "the"}
    expected = ask_in_json(channel, question, image_url(encode(IMAGES[0], "PNG")))
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


def test_second_answer_is_identical_and_comes_from_the_prefix_cache(
    stack: Stack, checkpoint: Path, family: Family
) -> None:
    check_second_answers(stack, checkpoint, family.architecture, *family.kinds)
