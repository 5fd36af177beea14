"""Tests for embeddings over the typed API: they are equivalent to their media, and invalid ones are isolated."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import PIL.Image
import pytest
import torch

from glimpse.native.process_table import resident_bytes
from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2
from tests.e2e.stack import Served, children
from tests.media.images import encode
from tests.media.tensors import (
    COMMANDED,
    good,
    good_grid,
    safetensors_file,
    safetensors_files,
    torch_file,
    torch_files,
    wrong_embeddings,
    wrong_grids,
)
from tests.oracles import qwen_vl as oracle
from tests.server.requests import image_part, request, user
from tests.server.services.error_details import details
from tests.server.serving import served

Chat = chat_pb2_grpc.ChatServiceStub
PIXELS = np.random.default_rng(0).integers(0, 256, (56, 84, 3), dtype=np.uint8)
FRAMES = np.random.default_rng(1).integers(0, 256, (4, 56, 56, 3), dtype=np.uint8)
TYPES = {
    torch.float32: content_pb2.TENSOR_TYPE_FLOAT32,
    torch.float16: content_pb2.TENSOR_TYPE_FLOAT16,
    torch.bfloat16: content_pb2.TENSOR_TYPE_BFLOAT16,
    torch.int64: content_pb2.TENSOR_TYPE_INT64,
}
PART = "messages[0].content[1].image_embeddings"


@pytest.fixture(scope="module")
def embedding_server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tiny_checkpoint, tmp_path_factory.mktemp("embeddings"), "--enable-mm-embeds") as server:
        yield server


@pytest.fixture
def accepting(embedding_server: Served) -> Iterator[Chat]:
    with embedding_server.channel() as channel:
        yield chat_pb2_grpc.ChatServiceStub(channel)


def typed(tensor: torch.Tensor) -> content_pb2.TensorSource:
    data = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return content_pb2.TensorSource(tensor={"type": TYPES[tensor.dtype], "shape": tensor.shape, "data": data})


def serialized(data: bytes) -> content_pb2.TensorSource:
    return content_pb2.TensorSource(serialized=data)


def image_embeddings(
    embeddings: content_pb2.TensorSource | None, grid: content_pb2.TensorSource | None
) -> content_pb2.ContentPart:
    return content_pb2.ContentPart(
        image_embeddings=content_pb2.ImageEmbeddings(embeddings=embeddings, grid_thw=grid),
    )


def about(*parts: content_pb2.ContentPart) -> chat_pb2.CreateChatCompletionRequest:
    return request(user("What is it?", *parts), max_completion_tokens=12)


def image() -> content_pb2.ContentPart:
    return image_part(encode(PIL.Image.fromarray(PIXELS), "PNG"))


WRITERS: list[Any] = [
    pytest.param(typed, id="typed"),
    pytest.param(lambda tensor: serialized(torch_file(tensor)), id="torch.save"),
    pytest.param(lambda tensor: serialized(safetensors_file(tensor)), id="safetensors"),
]


@pytest.mark.parametrize("write", WRITERS)
def test_image_embeddings_give_the_same_completion_as_the_image(
    accepting: Chat, tiny_checkpoint: Path, write: Callable[[torch.Tensor], content_pb2.TensorSource]
) -> None:
    embeddings, grid = oracle.embeddings(tiny_checkpoint, PIXELS)
    expected = accepting.CreateChatCompletion(about(image()))
    response = accepting.CreateChatCompletion(about(image_embeddings(write(embeddings), write(grid))))
    assert response.choices == expected.choices
    assert response.usage.prompt_tokens == expected.usage.prompt_tokens
    assert response.usage.prompt_tokens_details.image_tokens == 6


def test_video_embeddings_give_the_same_completion_as_the_frames(accepting: Chat, tiny_checkpoint: Path) -> None:
    embeddings, grid = oracle.embeddings(tiny_checkpoint, FRAMES)
    frames = [content_pb2.MediaSource(data=encode(PIL.Image.fromarray(frame), "PNG")) for frame in FRAMES]
    video = content_pb2.VideoPart(frames=content_pb2.FrameList(frames=frames), min_pixels=784, max_pixels=56 * 56)
    expected = accepting.CreateChatCompletion(about(content_pb2.ContentPart(video=video)))
    part = content_pb2.VideoEmbeddings(embeddings=typed(embeddings), grid_thw=typed(grid))
    response = accepting.CreateChatCompletion(about(content_pb2.ContentPart(video_embeddings=part)))
    assert response.choices == expected.choices
    assert response.usage.prompt_tokens_details.video_tokens == 8


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_accepts_embeddings_of_16_bits(accepting: Chat, tiny_checkpoint: Path, dtype: torch.dtype) -> None:
    embeddings, grid = oracle.embeddings(tiny_checkpoint, PIXELS)
    rounded = embeddings.to(dtype)
    short, long = (
        accepting.CreateChatCompletion(about(image_embeddings(typed(values), typed(grid))))
        for values in (rounded, rounded.float())
    )
    assert short.choices == long.choices


def test_embeddings_and_images_keep_their_order(accepting: Chat) -> None:
    embedded, other = (
        image_embeddings(typed(good()), typed(good_grid())),
        image_embeddings(typed(-good()), typed(good_grid())),
    )
    answers = [
        accepting.CreateChatCompletion(about(*parts)).choices[0].message.content
        for parts in ([embedded, image(), other], [other, image(), embedded], [image(), embedded, other])
    ]
    assert len(set(answers)) == 3


def test_caches_repeated_embeddings(accepting: Chat) -> None:
    def ask(embeddings: torch.Tensor) -> chat_pb2.CreateChatCompletionResponse:
        part = image_embeddings(typed(embeddings), typed(good_grid()))
        return accepting.CreateChatCompletion(request(user(part, "word " * 60)))

    first, again, other = ask(3 * good()), ask(3 * good()), ask(good() / 3)
    assert again.usage.prompt_tokens_details.cached_tokens > 200
    assert other.usage.prompt_tokens_details.cached_tokens == 0
    assert again.choices == first.choices


def test_count_tokens_agrees_with_usage_of_embeddings(accepting: Chat) -> None:
    wire = about(image(), image_embeddings(typed(good()), typed(good_grid())))
    counted = accepting.CountTokens(chat_pb2.CountTokensRequest(messages=wire.messages))
    used = accepting.CreateChatCompletion(wire)
    assert counted.prompt_tokens == used.usage.prompt_tokens
    assert counted.prompt_tokens_details.image_tokens == used.usage.prompt_tokens_details.image_tokens == 6 + 4


TYPED: list[tuple[str, dict[str, Any], str, str]] = [
    # id, fields of the tensor, field at fault, part of the message
    ("no type", {"type": 0}, "embeddings.tensor.type", "expected the type of the tensor's elements"),
    ("unknown type", {"type": 99}, "embeddings.tensor.type", "expected the type of the tensor's elements"),
    (
        "few bytes",
        {"data": b"1234"},
        "embeddings.tensor",
        "expected 1024 bytes for a float32 tensor of its shape, got 4",
    ),
    ("no bytes", {"data": b""}, "embeddings.tensor", "expected 1024 bytes for a float32 tensor of its shape, got 0"),
    (
        "huge",
        {"shape": [2**64 - 1, 64]},
        "embeddings.tensor",
        "expected more than 2^63 bytes for a float32 tensor of its shape, got 1024",
    ),
    ("overflow", {"shape": [2**62, 2**62]}, "embeddings.tensor", "expected more than 2^63 bytes"),
    ("zero", {"shape": [0, 64], "data": b""}, "embeddings.tensor", "at least 1, got 0"),
    ("many dimensions", {"shape": [1] * 9}, "embeddings.tensor", "at most 8 dimensions, got 9"),
    ("rank", {"shape": [256]}, "embeddings", "image_embeds: expected a tensor [tokens, 64], got 1 dimensions"),
    ("NaN", {"data": b"\xff" * 1024}, "embeddings", "image_embeds: expected finite values"),
]


@pytest.mark.parametrize(("wrong", "field", "says"), [row[1:] for row in TYPED], ids=[row[0] for row in TYPED])
def test_refuses_malformed_tensors_by_field(accepting: Chat, wrong: dict[str, Any], field: str, says: str) -> None:
    tensor = {"type": content_pb2.TENSOR_TYPE_FLOAT32, "shape": [4, 64], "data": bytes(1024)} | wrong
    part = image_embeddings(content_pb2.TensorSource(tensor=tensor), typed(good_grid()))
    assert_refused(accepting, part, field, says, ("INVALID_EMBEDDINGS", "MISSING_VALUE"))


def test_malformed_files_fail_only_their_own_requests(accepting: Chat, embedding_server: Served) -> None:
    expected = accepting.CreateChatCompletion(about(image())).choices
    grid = serialized(safetensors_file(good_grid()))
    hostile = [*torch_files(), *safetensors_files(), *wrong_embeddings()]
    assert len(hostile) >= 50
    before = resident_bytes(embedding_server.process.pid)
    for each in hostile:
        part = image_embeddings(serialized(each.data), grid)
        assert_refused(accepting, part, "embeddings", each.message, (each.code.upper(),))
    for each in wrong_grids():
        part = image_embeddings(serialized(safetensors_file(good())), serialized(each.data))
        field = "embeddings" if "tokens" in each.message else "grid_thw"
        assert_refused(accepting, part, field, each.message, (each.code.upper(),))
    assert resident_bytes(embedding_server.process.pid) - before < 64 << 20
    (loader,) = children(embedding_server.process.pid, "glimpse.media.embeddings.torch_worker")
    assert resident_bytes(loader) < 1 << 30
    assert not Path(COMMANDED).exists()
    assert accepting.CreateChatCompletion(about(image())).choices == expected


@pytest.mark.parametrize(
    ("part", "field", "reason"),
    [
        (content_pb2.ContentPart(image_embeddings={}), f"{PART}.embeddings", "MISSING_VALUE"),
        (image_embeddings(None, typed(good_grid())), f"{PART}.embeddings", "MISSING_VALUE"),
        (image_embeddings(typed(good()), None), f"{PART}.grid_thw", "INVALID_EMBEDDINGS"),
        (
            content_pb2.ContentPart(audio_embeddings={"embeddings": {"serialized": b"x"}}),
            "messages[0].content[1].audio_embeddings",
            "UNSUPPORTED",
        ),
    ],
    ids=["nothing", "no embeddings", "no grid", "of audio"],
)
def test_names_the_missing_field(accepting: Chat, part: content_pb2.ContentPart, field: str, reason: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        accepting.CreateChatCompletion(about(part))
    info, request_of = details(caught.value)
    assert (request_of.field_violations[0].field, info.reason) == (field, reason)


def test_refuses_embeddings_without_the_flag(chat: Chat) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        chat.CreateChatCompletion(about(image_embeddings(typed(good()), typed(good_grid()))))
    info, request_of = details(caught.value)
    assert (request_of.field_violations[0].field, info.reason) == (PART, "UNSUPPORTED")
    assert "--enable-mm-embeds" in request_of.field_violations[0].description


def assert_refused(chat: Chat, part: content_pb2.ContentPart, field: str, says: str, reasons: tuple[str, ...]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        chat.CreateChatCompletion(about(part))
    info, request_of = details(caught.value)
    assert request_of.field_violations[0].field == f"{PART}.{field}"
    assert says in request_of.field_violations[0].description
    assert info.reason in reasons
