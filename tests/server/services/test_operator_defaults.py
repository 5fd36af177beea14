"""What an operator sets for requests that do not: the checkpoint's sampling parameters, limits and sizes of media."""

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import PIL.Image
import pytest

from glimpse.v1 import chat_pb2, chat_pb2_grpc, completion_pb2, completion_pb2_grpc, content_pb2
from tests.media.videos import greys, video
from tests.server.requests import image_part, png, request, user, video_part
from tests.server.serving import served

Chat = chat_pb2_grpc.ChatServiceStub
SIDE = 28
"""Side of a square that becomes one token, in pixels."""
LARGE = png(40 * SIDE, 40 * SIDE)
"""Image of 1600 tokens, more than the 1280 of the API's default."""


@pytest.fixture(scope="module")
def channel(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    folder = tmp_path_factory.mktemp("defaults")
    checkpoint = shutil.copytree(tiny_checkpoint, folder / "checkpoint")
    generation = json.loads((checkpoint / "generation_config.json").read_text())
    sampling = {"do_sample": True, "temperature": 2, "top_k": 1, "max_new_tokens": 3}
    (checkpoint / "generation_config.json").write_text(json.dumps(generation | sampling))
    flags = (
        "--generation-config=auto",
        '--limit-mm-per-prompt={"image": 2}',
        '--mm-processor-kwargs={"max_pixels": "checkpoint"}',
        '--media-io-kwargs={"video": {"num_frames": 8}}',
        "--max-image-file-bytes=20KiB",
        "--max-image-pixels=2000000",
        "--max-audio-file-bytes=1KiB",
        "--max-video-file-bytes=1MiB",
        "--max-video-seconds=15",
    )
    with served(checkpoint, folder, *flags) as server, server.channel() as opened:
        yield opened


def count(channel: grpc.Channel, *parts: content_pb2.ContentPart) -> chat_pb2.CountTokensResponse:
    return Chat(channel).CountTokens(chat_pb2.CountTokensRequest(messages=[user(*parts)]))


def test_conversations_are_sampled_as_the_checkpoint_says(channel: grpc.Channel) -> None:
    wire = request(user("the"), ignore_eos=True)
    wire.generation.ClearField("temperature")
    wire.generation.ClearField("max_completion_tokens")
    answers = [Chat(channel).CreateChatCompletion(wire) for _ in range(2)]
    assert [answer.usage.completion_tokens for answer in answers] == [3, 3]
    wire.generation.temperature = 0
    greedy = Chat(channel).CreateChatCompletion(wire).choices[0].message
    assert [answer.choices[0].message for answer in answers] == [greedy, greedy], "top_k is 1"
    wire.generation.max_completion_tokens = 5
    assert Chat(channel).CreateChatCompletion(wire).usage.completion_tokens == 5


def test_texts_are_sampled_as_the_checkpoint_says(channel: grpc.Channel) -> None:
    stub = completion_pb2_grpc.CompletionServiceStub(channel)
    wire = completion_pb2.CreateCompletionRequest(prompts=[completion_pb2.Prompt(text="the")])
    wire.generation.ignore_eos = True
    texts = {stub.CreateCompletion(wire).choices[0].text for _ in range(2)}
    wire.generation.temperature = 0
    assert texts == {stub.CreateCompletion(wire).choices[0].text}


def test_images_may_be_as_large_as_the_checkpoint_allows(channel: grpc.Channel) -> None:
    assert count(channel, image_part(LARGE)).prompt_tokens_details.image_tokens == 1600
    smaller = count(channel, image_part(LARGE, max_pixels=4 * SIDE * SIDE))
    assert smaller.prompt_tokens_details.image_tokens == 4


def test_frames_are_sampled_as_the_operator_says(channel: grpc.Channel) -> None:
    data = video(greys(20, width=112, height=112))
    assert [each.num_frames for each in count(channel, video_part(data)).videos] == [8]
    assert [each.num_frames for each in count(channel, video_part(data, fps=5)).videos] == [10]


def test_limits_files_and_pixels(channel: grpc.Channel) -> None:
    noise = io.BytesIO()
    PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)).save(noise, "PNG")
    long = video(greys(40, width=112, height=112), fps=2)
    for part, expected in (
        (image_part(noise.getvalue()), "expected a file of at most 20480 bytes"),
        (image_part(png(1500, 1500)), "expected an image of at most 2000000 pixels, got 1500×1500"),
        (video_part(long), "expected a video of at most 15 s, got 20 s"),
        (video_part(b"\0" * (1 << 20) + b"\0"), "expected a file of at most 1048576 bytes"),
    ):
        with pytest.raises(grpc.RpcError, match=expected):
            count(channel, part)
    assert count(channel, video_part(long, end_seconds=10)).videos


def test_limits_media_as_json_says(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError, match="expected at most 2 image inputs"):
        count(channel, *[image_part(png())] * 3)
