"""Tests for videos over the typed API: sampled frames, token counts, caching and refusals."""

import os
import signal
from typing import Any

import grpc
import numpy as np
import PIL.Image
import pytest

from glimpse.v1 import chat_pb2, chat_pb2_grpc
from tests.e2e.stack import Served, children
from tests.media.images import encode
from tests.media.videos import greys, video
from tests.server.requests import image_part, png, request, user, video_part
from tests.server.services.error_details import details
from tests.server.services.video_requests import PNGS, SMALL, VIDEO, about_a_video, about_frames

Chat = chat_pb2_grpc.ChatServiceStub


def test_response_describes_the_sampled_frames(chat: Chat) -> None:
    response = chat.CreateChatCompletion(about_a_video())
    (seen,) = response.videos
    assert (seen.num_frames, seen.width, seen.height, seen.fps) == (4, 56, 56, 1)
    assert list(seen.frame_seconds) == [0, 0.5, 1, 1.5]
    assert response.usage.prompt_tokens_details.video_tokens == 2 * 2 * 2
    assert response.usage.prompt_tokens_details.image_tokens == 0


def test_stream_describes_the_sampled_frames_in_its_first_message(chat: Chat) -> None:
    first, *others = chat.StreamChatCompletion(about_a_video(num_frames=6))
    assert (first.videos[0].num_frames, first.videos[0].HasField("fps")) == (6, False)
    assert not any(other.videos for other in others)


def test_count_tokens_agrees_with_usage_of_videos(chat: Chat) -> None:
    wire = request(user(image_part(png()), video_part(VIDEO, **SMALL), "and", video_part(VIDEO, **SMALL, fps=5)))
    counted = chat.CountTokens(chat_pb2.CountTokensRequest(messages=wire.messages))
    used = chat.CreateChatCompletion(wire)
    assert counted.prompt_tokens == used.usage.prompt_tokens
    assert counted.prompt_tokens_details.video_tokens == used.usage.prompt_tokens_details.video_tokens == 8 + 20
    assert counted.prompt_tokens_details.image_tokens == used.usage.prompt_tokens_details.image_tokens == 4
    assert [video.num_frames for video in counted.videos] == [video.num_frames for video in used.videos] == [4, 10]


def test_list_of_frames_is_a_video(chat: Chat) -> None:
    whole, rated = (chat.CreateChatCompletion(about_frames(PNGS, **rate)) for rate in ({}, {"fps": 2}))
    assert whole.choices == rated.choices
    assert (whole.videos[0].num_frames, list(whole.videos[0].frame_seconds)) == (4, [])
    assert (rated.videos[0].HasField("fps"), list(rated.videos[0].frame_seconds)) == (False, [0, 0.5, 1, 1.5])


def test_order_of_frames_changes_the_completion(chat: Chat) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (4, 56, 56, 3), dtype=np.uint8)
    files = [encode(PIL.Image.fromarray(frame), "PNG") for frame in noise]
    first_logprobs: list[float] = []
    for order in (files, files[::-1]):
        wire = about_frames(order)
        wire.generation.logprobs = True
        first_logprobs.append(chat.CreateChatCompletion(wire).choices[0].logprobs.content[0].logprob)
    assert abs(first_logprobs[0] - first_logprobs[1]) > 1e-3


def test_caches_a_repeated_video(chat: Chat) -> None:
    def ask(data: bytes) -> chat_pb2.CreateChatCompletionResponse:
        return chat.CreateChatCompletion(request(user(video_part(data), "word " * 30)))

    first, again, other = ask(VIDEO), ask(VIDEO), ask(video(greys(20)[::-1]))
    assert again.usage.prompt_tokens_details.cached_tokens > 200
    assert other.usage.prompt_tokens_details.cached_tokens < 64
    assert again.choices == first.choices


def test_replaces_a_lost_decoder_process(chat: Chat, shared_server: Served) -> None:
    expected = chat.CreateChatCompletion(about_a_video()).choices
    workers = children(shared_server.process.pid, "glimpse.media.decoding.worker")
    assert workers
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    assert chat.CreateChatCompletion(about_a_video()).choices == expected


SOURCE = "messages[0].content[1].video.source"
FRAMES = "messages[0].content[1].video.frames"
PLAYLIST = b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1/video.ts\n"
REFUSED: list[Any] = [
    # request, reason, field, HTTP status if it differs from the default
    pytest.param(about_a_video(b"hello"), "UNSUPPORTED_MEDIA_FORMAT", SOURCE, None, id="no video"),
    pytest.param(about_a_video(PLAYLIST), "UNSUPPORTED_MEDIA_FORMAT", SOURCE, None, id="playlist"),
    pytest.param(about_a_video(png()), "UNSUPPORTED_MEDIA_FORMAT", SOURCE, None, id="image"),
    pytest.param(about_a_video(VIDEO[:300]), "INVALID_MEDIA", SOURCE, None, id="cut short"),
    pytest.param(about_a_video(start_seconds=5), "INVALID_MEDIA_PARAMETER", SOURCE, None, id="nothing in that part"),
    pytest.param(about_a_video(fps=-1), "INVALID_VALUE", "messages[0].content[1].video.fps", None, id="no rate"),
    pytest.param(about_frames([PNGS[0], b"x"]), "UNSUPPORTED_MEDIA_FORMAT", FRAMES, None, id="no image"),
    pytest.param(about_frames([PNGS[0], png(64, 50)]), "INVALID_MEDIA", FRAMES, None, id="other size"),
    pytest.param(
        about_a_video(video(greys(6), times=[0, 1, 2, 3, 4, 86400], fps=1)),
        "MEDIA_TOO_LARGE",
        SOURCE,
        "413",
        id="a day long",
    ),
]


@pytest.mark.parametrize(("wire", "reason", "field", "http_status"), REFUSED)
def test_refuses_invalid_videos_by_field(
    chat: Chat, wire: chat_pb2.CreateChatCompletionRequest, reason: str, field: str, http_status: str | None
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        chat.CreateChatCompletion(wire)
    info, request_of = details(caught.value)
    assert (info.reason, request_of.field_violations[0].field) == (reason, field)
    trailers: Any = caught.value.trailing_metadata()
    assert dict(trailers).get("x-http-status") == http_status
