"""Videos through Envoy and over typed gRPC."""

import base64
from typing import Any

import grpc
import numpy as np
import pytest
from openai import OpenAI

from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2, generation_pb2
from tests.e2e.images import ask_about, data_url, encoded, tiles
from tests.e2e.stack import Stack
from tests.media.videos import greys, video

SMALL: dict[str, Any] = {"min_pixels": 3136, "max_pixels": 112 * 112}
FRAMES = [tiles(seed=seed, width=112, height=112) for seed in range(4)]


def ask(client: OpenAI, url: object, **options: Any) -> Any:
    part = {"type": "video_url", "video_url": {"url": url, **SMALL, **options}}
    return ask_about(client, part, question="What happens?")


def ask_typed(stack: Stack, part: content_pb2.VideoPart) -> chat_pb2.CreateChatCompletionResponse:
    part.MergeFrom(content_pb2.VideoPart(**SMALL))
    content = [content_pb2.ContentPart(video=part), content_pb2.ContentPart(text="What happens?")]
    request = chat_pb2.CreateChatCompletionRequest(
        messages=[content_pb2.Message(role=content_pb2.ROLE_USER, content=content)],
        generation=generation_pb2.GenerationOptions(temperature=0, max_completion_tokens=16),
    )
    with grpc.insecure_channel(stack.target) as channel:
        return chat_pb2_grpc.ChatServiceStub(channel).CreateChatCompletion(request)


def text_of(completion: Any) -> str:
    return completion.choices[0].message.content


def as_data_url(data: bytes, media_type: str) -> str:
    return f"data:{media_type};base64," + base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("container", "codec", "media_type"),
    [("mp4", "libx264", "video/mp4"), ("webm", "libvpx-vp9", "video/webm"), ("mov", "libx264", "video/quicktime"),
     ("mp4", "libsvtav1", "video/mp4")],
)  # fmt: skip
def test_each_video_source_gives_the_same_answer(
    stack: Stack, client: OpenAI, container: str, codec: str, media_type: str
) -> None:
    data = video(np.stack([np.asarray(frame) for frame in FRAMES]), container=container, codec=codec)
    through_rest = [ask(client, url) for url in (as_data_url(data, media_type), base64.b64encode(data).decode())]
    typed = ask_typed(stack, content_pb2.VideoPart(source=content_pb2.MediaSource(data=data)))
    assert {text_of(answer) for answer in through_rest} == {typed.choices[0].message.content}
    assert typed.videos[0].num_frames == 4


def test_each_frame_source_gives_the_same_answer(stack: Stack, client: OpenAI) -> None:
    in_one = "data:video/jpeg;base64," + ",".join(base64.b64encode(encoded(frame)).decode() for frame in FRAMES)
    urls = [data_url(frame) for frame in FRAMES]
    mixed = [urls[0], {"url": urls[1]}, {"data": base64.b64encode(encoded(FRAMES[2])).decode()}, urls[3]]
    through_rest = {text_of(ask(client, url)) for url in (in_one, urls, mixed)}
    frames = content_pb2.FrameList(frames=[content_pb2.MediaSource(data=encoded(frame)) for frame in FRAMES])
    typed = ask_typed(stack, content_pb2.VideoPart(frames=frames))
    assert through_rest == {typed.choices[0].message.content}


def test_response_lists_the_sampled_frames(client: OpenAI) -> None:
    url = as_data_url(video(greys(30)), "video/mp4")
    seen: Any = ask(client, url).videos[0]
    assert (seen["fps"], seen["num_frames"], seen["frame_seconds"]) == (1, 4, [0, 0.7, 1.5, 2.2])
    part: Any = ask(client, url, fps=2, video_start=1, video_end=2.4).videos[0]
    assert (part["fps"], part["frame_seconds"]) == (2, pytest.approx([1, 1.3, 1.7, 2.1], abs=0.051))
    numbered: Any = ask(client, url, num_frames=6).videos[0]
    assert (numbered.get("fps"), numbered["num_frames"]) == (None, 6)


def test_stream_lists_the_sampled_frames(client: OpenAI) -> None:
    part: Any = {"type": "video_url", "video_url": {"url": as_data_url(video(greys(30)), "video/mp4"), **SMALL}}
    stream: Any = client.chat.completions.create(
        model="nano", messages=[{"role": "user", "content": [part]}], max_completion_tokens=4, stream=True
    )
    first, *others = stream
    assert first.videos[0]["num_frames"] == 4
    assert not any(hasattr(other, "videos") for other in others)


def test_counts_video_tokens(client: OpenAI) -> None:
    usage = ask(client, [data_url(frame) for frame in FRAMES]).usage
    assert (usage.prompt_tokens_details.video_tokens, usage.prompt_tokens_details.image_tokens) == (2 * 4 * 4, 0)
