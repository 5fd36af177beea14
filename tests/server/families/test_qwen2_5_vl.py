"""Tests for a server with Qwen2.5-VL: images, videos, and the time between video frames."""

from functools import partial
from pathlib import Path

import grpc
import pytest

from glimpse.v1 import chat_pb2_grpc
from tests.checkpoints.qwen2_vl import make_checkpoint
from tests.e2e.stack import Stack
from tests.server.families.second_answers import check_second_answers
from tests.server.requests import image_part, png, request, user
from tests.server.services.video_requests import PNGS, about_a_video, about_frames

CHECKPOINT = partial(make_checkpoint, family="qwen2_5_vl")
ARCHITECTURES = ("Qwen2_5_VLForConditionalGeneration",)
Chat = chat_pb2_grpc.ChatServiceStub


@pytest.fixture
def chat(channel: grpc.Channel) -> Chat:
    return Chat(channel)


def test_answers_images_and_videos(chat: Chat) -> None:
    red, blue = (png(colour=colour) for colour in ((200, 30, 40), (20, 30, 220)))
    first, second = (chat.CreateChatCompletion(request(user(image_part(data), "What is it?"))) for data in (red, blue))
    assert first.choices[0].message.content != second.choices[0].message.content
    assert chat.CreateChatCompletion(about_a_video()).usage.prompt_tokens_details.video_tokens == 8


def test_frame_rate_of_a_video_changes_the_completion(chat: Chat) -> None:
    def num_cached(**options: float) -> int:
        return chat.CreateChatCompletion(about_frames(PNGS, **options)).usage.prompt_tokens_details.cached_tokens

    untimed, slow = num_cached(fps=2), num_cached(fps=0.5)
    assert num_cached() > max(untimed, slow)  # without a rate, two frames are a second
    assert num_cached(fps=0.5) > slow


def test_second_answer_is_identical_and_comes_from_the_prefix_cache(stack: Stack, checkpoint: Path) -> None:
    check_second_answers(stack, checkpoint, *ARCHITECTURES, "image", "video")
