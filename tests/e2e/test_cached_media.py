"""Media that is sent once, under a uuid or as an upload over gRPC, and used by OpenAI's client through Envoy."""

import base64
from collections.abc import Iterator
from typing import Any, Unpack

import grpc
import pytest
from openai import BadRequestError, OpenAI
from openai.types.chat import ChatCompletion

from glimpse.client.options import UploadOptions
from glimpse.client.requests import upload_requests
from glimpse.v1 import media_pb2, media_pb2_grpc
from tests.e2e.images import ask_about as ask
from tests.e2e.images import data_url, encoded, tiles
from tests.e2e.requests import CHAT
from tests.e2e.requests import ask as post
from tests.e2e.stack import Stack
from tests.media.videos import greys, video

VIDEO = video(greys(20))
LARGE = {"min_pixels": 112 * 112, "max_pixels": 112 * 112}


@pytest.fixture
def media(stack: Stack) -> Iterator[media_pb2_grpc.MediaServiceStub]:
    with grpc.insecure_channel(f"127.0.0.1:{stack.http_port}") as through_envoy:
        yield media_pb2_grpc.MediaServiceStub(through_envoy)


def image_part(source: dict[str, Any] | None, **members: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": source, **members}


def video_part(source: dict[str, Any] | None, **members: Any) -> dict[str, Any]:
    return {"type": "video_url", "video_url": source, **members}


def outcome(completion: ChatCompletion) -> tuple[str | None, int]:
    """The answer and the number of prompt tokens."""
    assert completion.usage is not None
    return completion.choices[0].message.content, completion.usage.prompt_tokens


def media_usage(completion: ChatCompletion) -> dict[str, Any]:
    usage: Any = completion.usage
    return usage.media_usage


def upload(media: media_pb2_grpc.MediaServiceStub, data: bytes, **options: Unpack[UploadOptions]) -> str:
    return media.UploadMedia(upload_requests(data, options)).media.upload_id


def refusal(client: OpenAI, *parts: dict[str, Any], **extra: Any) -> tuple[str | None, str | None]:
    """The error's code and field."""
    with pytest.raises(BadRequestError) as caught:
        ask(client, *parts, **extra)
    return caught.value.code, caught.value.param


@pytest.mark.parametrize("empty", [None, {}, {"url": None}])
def test_an_image_with_a_uuid_is_sent_once(client: OpenAI, empty: dict[str, Any] | None) -> None:
    sent = ask(client, image_part({"url": data_url(tiles(seed=31))}, uuid="tiles 31"))
    again = ask(client, image_part(empty, uuid="tiles 31"))
    assert outcome(again) == outcome(sent)
    assert media_usage(again)["decode_cache_hits"] == 1


def test_a_video_with_a_uuid_is_sent_once(client: OpenAI, media: media_pb2_grpc.MediaServiceStub) -> None:
    sent = ask(client, video_part({"upload_id": upload(media, VIDEO), **LARGE}, uuid="video"))
    assert outcome(ask(client, video_part(None, uuid="video"))) != outcome(sent)
    assert outcome(ask(client, video_part({"url": None, **LARGE}, uuid="video"))) == outcome(sent)


def test_refuses_media_that_is_not_cached(client: OpenAI) -> None:
    ask(client, image_part({"url": data_url(tiles(seed=32))}, uuid="tiles 32"))
    not_cached = ("media_not_cached", "messages[0].content[0].uuid")
    assert refusal(client, image_part(None, uuid="never sent")) == not_cached
    assert refusal(client, video_part(None, uuid="tiles 32")) == not_cached
    assert refusal(client, image_part(None, uuid="tiles 32"), cache_salt="another's") == not_cached
    assert refusal(client, image_part(None)) == ("missing_value", "messages[0].content[0].image_url.url")


def test_parts_of_other_apis_are_answered_as_openai_s(client: OpenAI) -> None:
    url = data_url(tiles(seed=38))
    sent = ask(client, image_part({"url": url, **LARGE}))
    assert outcome(ask(client, {"type": "image", "image": url, **LARGE, "uuid": "tiles 38"})) == outcome(sent)
    assert outcome(ask(client, {"type": "image_pil", "image_pil": None, "uuid": "tiles 38", **LARGE})) == outcome(sent)
    code, param = refusal(client, {"type": "image_pil", "image_pil": "<PIL.Image>"})
    assert (code, param) == ("unsupported", "messages[0].content[0].image_pil")


def test_uploads_an_image_through_envoy(client: OpenAI, media: media_pb2_grpc.MediaServiceStub) -> None:
    drawn = tiles(seed=33)
    sent = ask(client, image_part({"url": data_url(drawn)}))
    handle = upload(media, encoded(drawn))
    assert outcome(ask(client, image_part({"upload_id": handle}))) == outcome(sent)
    media.DeleteMedia(media_pb2.DeleteMediaRequest(upload_id=handle))
    code, param = refusal(client, image_part({"upload_id": handle}))
    assert (code, param) == ("media_not_cached", "messages[0].content[0].image_url.upload_id")


def test_uploads_the_frames_of_a_video(client: OpenAI, media: media_pb2_grpc.MediaServiceStub) -> None:
    frames = [tiles(seed=seed) for seed in (34, 35)]
    sent = ask(client, video_part({"url": [data_url(frame) for frame in frames], **LARGE}))
    handles = [{"upload_id": upload(media, encoded(frame))} for frame in frames]
    assert outcome(ask(client, video_part({"url": handles, **LARGE}))) == outcome(sent)


def test_upload_belongs_to_its_cache_salt(client: OpenAI, media: media_pb2_grpc.MediaServiceStub) -> None:
    handle = upload(media, encoded(tiles(seed=36)), cache_salt="mine")
    assert ask(client, image_part({"upload_id": handle}), cache_salt="mine").choices
    assert refusal(client, image_part({"upload_id": handle}))[0] == "media_not_cached"


def test_usage_tells_how_the_model_saw_each_medium(client: OpenAI, stack: Stack) -> None:
    video_url = f"data:video/mp4;base64,{base64.b64encode(VIDEO).decode()}"
    parts = [image_part({"url": data_url(tiles(seed=37))}), video_part({"url": video_url, **LARGE})]
    first, again = ask(client, *parts), ask(client, *parts)
    image = {"modality": "image", "tokens": 64, "width": 224, "height": 224, "num_tiles": 1}
    film = {"modality": "video", "tokens": 40, "width": 140, "height": 112, "num_frames": 4}
    assert media_usage(first)["media"][0] == {**image, "cache_tier": "none"}
    # The prefix of whole blocks ends within the video.
    assert media_usage(again)["media"] == [{**image, "cache_tier": "prefix"}, {**film, "cache_tier": "encoder"}]
    message = {"role": "user", "content": [*parts, {"type": "text", "text": "What is this?"}]}
    streamed = post(stack, CHAT, messages=[message], stream=True, stream_options={"include_usage": True}, max_tokens=2)
    assert streamed.events[-1]["usage"]["media_usage"]["media"] == media_usage(again)["media"]


def test_request_without_media_has_no_media_usage(client: OpenAI) -> None:
    assert not hasattr(ask(client).usage, "media_usage")
