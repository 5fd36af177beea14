"""Tests for media that are sent once: uploads, uuids, and the usage reported for both."""

import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from glimpse.v1 import (
    chat_pb2,
    chat_pb2_grpc,
    content_pb2,
    generation_pb2,
    media_pb2,
    media_pb2_grpc,
    model_pb2,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
)
from tests.e2e.stack import Served
from tests.media.videos import greys, video
from tests.server.requests import image_part, png, request, user, video_part
from tests.server.services.error_details import details
from tests.waiting import eventually

Chat = chat_pb2_grpc.ChatServiceStub
Media = media_pb2_grpc.MediaServiceStub
PNG = png(colour=(9, 99, 199))
VIDEO = video(greys(20))
SMALL = {"min_pixels": 784, "max_pixels": 56 * 56}
PART = "messages[0].content[1]"
MISSING = grpc.StatusCode.NOT_FOUND
INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture
def media(channel: grpc.Channel) -> Media:
    return Media(channel)


def parts(data: bytes, size: int = 1000, **header: Any) -> Iterator[media_pb2.UploadMediaRequest]:
    yield media_pb2.UploadMediaRequest(header={"sha256": sha256(data).digest(), **header})
    for start in range(0, len(data), size):
        yield media_pb2.UploadMediaRequest(chunk=data[start : start + size])


def uploaded(media: Media, data: bytes, **header: Any) -> str:
    return media.UploadMedia(parts(data, **header)).media.upload_id


def about(part: content_pb2.ContentPart, cache_salt: str = "") -> chat_pb2.CreateChatCompletionRequest:
    wire = request(user("What?", part))
    wire.cache_salt = cache_salt
    return wire


def named(part: content_pb2.ContentPart, uuid: str) -> content_pb2.ContentPart:
    part.uuid = uuid
    return part


def left_out(kind: str, uuid: str, **options: Any) -> content_pb2.ContentPart:
    return content_pb2.ContentPart(uuid=uuid, **{kind: options})  # pyright: ignore[reportArgumentType] - either kind


def image_of(handle: str) -> content_pb2.ContentPart:
    return content_pb2.ContentPart(image={"source": {"upload_id": handle}})


def refusal(call: Any) -> tuple[grpc.StatusCode, str, str]:
    """Status, reason, field."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    status = status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return error.code(), info.reason, info.metadata.get("param", "")


def test_upload_metadata_matches_the_file(media: Media) -> None:
    upload = media.UploadMedia(parts(PNG, size_bytes=len(PNG))).media
    assert (upload.size_bytes, upload.sha256) == (len(PNG), sha256(PNG).digest())
    assert 3500 < upload.expires_at - time.time() < 3700
    assert media.GetMedia(media_pb2.GetMediaRequest(upload_id=upload.upload_id)).media == upload
    brief = media.UploadMedia(parts(PNG, size_bytes=len(PNG), ttl_seconds=60)).media
    assert brief.expires_at - time.time() < 100
    assert brief.upload_id != upload.upload_id


def test_header_may_come_last_and_without_a_hash(media: Media) -> None:
    header, *chunks = parts(PNG, filename="a.png", purpose="vision")
    upload = media.UploadMedia(iter([*chunks, header])).media
    assert (upload.sha256, upload.filename, upload.purpose) == (sha256(PNG).digest(), "a.png", "vision")
    nameless = media.UploadMedia(iter([media_pb2.UploadMediaRequest(header={}), *chunks])).media
    assert (nameless.sha256, nameless.filename, nameless.purpose) == (upload.sha256, "", "user_data")


def test_uploaded_image_equals_an_inline_image(chat: Chat, media: Media) -> None:
    sent = chat.CreateChatCompletion(about(image_part(PNG)))
    through_upload = chat.CreateChatCompletion(about(image_of(uploaded(media, PNG))))
    assert through_upload.choices == sent.choices
    assert through_upload.usage.prompt_tokens_details.cached_tokens >= sent.usage.prompt_tokens // 32 * 32 - 32
    assert through_upload.usage.media_usage.decode_cache_hits == 1


def test_accepts_uploaded_videos_and_uploaded_frames(chat: Chat, media: Media) -> None:
    sent = chat.CreateChatCompletion(about(video_part(VIDEO, **SMALL)))
    source = {"upload_id": uploaded(media, VIDEO)}
    again = chat.CreateChatCompletion(about(content_pb2.ContentPart(video={"source": source, **SMALL})))
    assert (again.choices, again.videos) == (sent.choices, sent.videos)
    frames = [{"upload_id": uploaded(media, png(colour=colour))} for colour in ((1, 2, 3), (4, 5, 6))]
    video = content_pb2.ContentPart(video={"frames": {"frames": frames}, **SMALL})
    assert chat.CreateChatCompletion(about(video)).videos[0].num_frames == 2


def test_upload_is_visible_only_within_its_cache_salt(chat: Chat, media: Media) -> None:
    handle = uploaded(media, PNG, cache_salt="mine")
    assert chat.CreateChatCompletion(about(image_of(handle), "mine")).choices
    not_kept = (grpc.StatusCode.FAILED_PRECONDITION, "MEDIA_NOT_CACHED", f"{PART}.image.source")
    assert refusal(lambda: chat.CreateChatCompletion(about(image_of(handle)))) == not_kept
    for salt in ("", "yours"):
        for call in (
            lambda salt=salt: media.GetMedia(media_pb2.GetMediaRequest(upload_id=handle, cache_salt=salt)),
            lambda salt=salt: media.DeleteMedia(media_pb2.DeleteMediaRequest(upload_id=handle, cache_salt=salt)),
        ):
            assert refusal(call) == (MISSING, "UPLOAD_NOT_FOUND", "upload_id")
    own = media_pb2.DeleteMediaRequest(upload_id=handle, cache_salt="mine")
    media.DeleteMedia(own)
    assert refusal(lambda: media.DeleteMedia(own)) == (MISSING, "UPLOAD_NOT_FOUND", "upload_id")
    assert refusal(lambda: chat.CreateChatCompletion(about(image_of(handle), "mine"))) == not_kept


HEADER = media_pb2.UploadMediaRequest(header={"sha256": sha256(PNG).digest()})
CHUNK = media_pb2.UploadMediaRequest(chunk=PNG)
WRONG: list[Any] = [
    # messages, reason, field
    pytest.param([], "MISSING_VALUE", "header", id="nothing"),
    pytest.param([CHUNK], "MISSING_VALUE", "header", id="no header"),
    pytest.param([CHUNK, HEADER, CHUNK], "INVALID_VALUE", "part", id="a header between chunks"),
    pytest.param(list(parts(PNG, filename="é" * 128)), "INVALID_VALUE", "header.filename", id="a long name"),
    pytest.param(list(parts(PNG, filename="a\n")), "INVALID_VALUE", "header.filename", id="a name of two lines"),
    pytest.param(list(parts(PNG, purpose="visoin")), "INVALID_VALUE", "header.purpose", id="another purpose"),
    pytest.param(
        [media_pb2.UploadMediaRequest(header={"sha256": b"x"})], "INVALID_VALUE", "header.sha256", id="a short hash"
    ),
    pytest.param(list(parts(PNG, ttl_seconds=0)), "INVALID_VALUE", "header.ttl_seconds", id="no time"),
    pytest.param(list(parts(PNG, size_bytes=1 << 20, sha256=bytes(32))), "UPLOAD_MISMATCH", "chunk", id="another hash"),
    pytest.param([HEADER, HEADER, CHUNK], "INVALID_VALUE", "part", id="two headers"),
    pytest.param([HEADER, media_pb2.UploadMediaRequest()], "INVALID_VALUE", "part", id="an empty part"),
    pytest.param([HEADER], "UPLOAD_MISMATCH", "chunk", id="no file"),
    pytest.param([HEADER, CHUNK, CHUNK], "UPLOAD_MISMATCH", "chunk", id="more than the file"),
    pytest.param(
        [media_pb2.UploadMediaRequest(header={"sha256": bytes(32), "size_bytes": 1 << 40})],
        "MEDIA_TOO_LARGE",
        "chunk",
        id="too large",
    ),
]


@pytest.mark.parametrize(("wrong", "reason", "field"), WRONG)
def test_refuses_uploads_that_differ_from_their_header(
    media: Media, wrong: list[media_pb2.UploadMediaRequest], reason: str, field: str
) -> None:
    assert refusal(lambda: media.UploadMedia(iter(wrong))) == (INVALID, reason, field)


def test_aborted_upload_leaves_nothing_behind(media: Media, shared_server: Served) -> None:
    before = shared_server.metric("glimpse_media_bytes")

    taken, may_end = threading.Event(), threading.Event()

    def break_off() -> Iterator[media_pb2.UploadMediaRequest]:
        yield HEADER
        yield media_pb2.UploadMediaRequest(chunk=PNG[:50])
        taken.set()
        may_end.wait(60)

    call = media.UploadMedia.future(break_off())
    assert taken.wait(60)
    call.cancel()
    may_end.set()
    assert call.cancelled()
    assert eventually(lambda: shared_server.metric("glimpse_media_bytes") == before)


@pytest.mark.parametrize(("part", "kind"), [(image_part(png(colour=(7, 7, 7))), "image"), (video_part(VIDEO), "video")])
def test_cached_medium_can_be_sent_by_uuid_alone(chat: Chat, part: content_pb2.ContentPart, kind: str) -> None:
    sent = chat.CreateChatCompletion(about(named(part, f"my {kind}")))
    again = chat.CreateChatCompletion(about(left_out(kind, f"my {kind}")))
    assert again.choices == sent.choices
    assert again.usage.prompt_tokens == sent.usage.prompt_tokens
    assert again.usage.media_usage.decode_cache_hits == 1
    smaller = chat.CreateChatCompletion(about(left_out(kind, f"my {kind}", min_pixels=784, max_pixels=784)))
    assert smaller.usage.prompt_tokens < sent.usage.prompt_tokens


def test_one_request_can_send_a_medium_and_reference_it(chat: Chat) -> None:
    data = png(colour=(8, 8, 8))
    once = chat.CreateChatCompletion(request(user(left_out("image", "twice"), named(image_part(data), "twice"))))
    twice = chat.CreateChatCompletion(request(user(image_part(data), image_part(data))))
    assert once.choices == twice.choices


def test_unknown_uuid_error_says_what_to_do(chat: Chat) -> None:
    chat.CreateChatCompletion(about(named(image_part(PNG), "cat"), "mine"))
    for kind, salt in (("image", ""), ("image", "yours"), ("video", "mine")):
        with pytest.raises(grpc.RpcError) as caught:
            chat.CreateChatCompletion(about(left_out(kind, "cat"), salt))
        error: Any = caught.value
        info, _ = details(error)
        assert (error.code(), info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "MEDIA_NOT_CACHED")
        assert info.metadata["param"] == f"{PART}.uuid"
        assert "with this uuid" in error.details()


def test_count_tokens_accepts_media_by_uuid(chat: Chat, channel: grpc.Channel) -> None:
    used = chat.CreateChatCompletion(about(named(image_part(PNG), "counted"), "mine"))
    messages = about(left_out("image", "counted")).messages
    counted = chat.CountTokens(chat_pb2.CountTokensRequest(messages=messages, cache_salt="mine"))
    tokenizer = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
    tokens = tokenizer.Tokenize(tokenizer_pb2.TokenizeRequest(messages=messages, cache_salt="mine"))
    assert used.usage.prompt_tokens == counted.prompt_tokens == tokens.count


def test_usage_reports_media_work_and_cache_hits(chat: Chat, shared_server: Served) -> None:
    before = shared_server.metric("glimpse_media_total")
    data = png(colour=(123, 45, 67))
    first, again = (chat.CreateChatCompletion(about(image_part(data))).usage.media_usage for _ in range(2))
    assert (first.fetched_files, first.decoded_media, first.decode_cache_hits) == (0, 1, 0)
    assert (again.fetched_files, again.decoded_media, again.decode_cache_hits) == (0, 0, 1)
    assert (first.encoded_media, first.encoder_cache_hits) == (1, 0)
    assert (again.encoded_media, again.encoder_cache_hits) == (0, 1)
    (seen,) = first.media
    assert (seen.modality, seen.tokens) == (model_pb2.MODALITY_IMAGE, 4)
    assert (seen.width, seen.height, seen.num_tiles) == (56, 56, 1)
    assert not seen.HasField("num_frames")
    assert seen.cache_tier == generation_pb2.MEDIA_CACHE_TIER_NONE
    assert again.media[0].cache_tier == generation_pb2.MEDIA_CACHE_TIER_ENCODER
    assert first.decode_milliseconds > 0 == first.fetch_milliseconds
    assert shared_server.metric("glimpse_media_total") == before + 2
    assert shared_server.metric("glimpse_media_decode_seconds_count") > 0
    assert shared_server.metric("glimpse_encoder_cache_hits_total") > 0
    assert not chat.CreateChatCompletion(request()).usage.HasField("media_usage")
