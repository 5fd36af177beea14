"""Tests for refused requests: status, reason and field, and no effect on other requests."""

from typing import Any

import grpc
import pytest

from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2, model_pb2, model_pb2_grpc
from tests.media.audio import audio_file, noise
from tests.media.images import png_header
from tests.server.requests import image_part, png, request, user
from tests.server.services.error_details import details

Chat = chat_pb2_grpc.ChatServiceStub
INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
SOURCE = "messages[0].content[1].image.source"


def with_image(data: bytes) -> chat_pb2.CreateChatCompletionRequest:
    return request(user("What?", image_part(data)))


def with_model(name: str) -> chat_pb2.CreateChatCompletionRequest:
    wire = request()
    wire.model = name
    return wire


def with_url(url: str) -> chat_pb2.CreateChatCompletionRequest:
    image = content_pb2.ImagePart(source=content_pb2.MediaSource(url=url))
    return request(user("What?", content_pb2.ContentPart(image=image)))


REFUSED: list[Any] = [
    # request, status, reason, field, HTTP status if it differs from the default
    pytest.param(request(temperature=9), INVALID, "INVALID_VALUE", "generation.temperature", None, id="out of bounds"),
    pytest.param(request(user()), INVALID, "MISSING_VALUE", "messages[0].content", None, id="no content"),
    pytest.param(request(n=129), INVALID, "INVALID_VALUE", "generation.n", None, id="too many answers"),
    pytest.param(with_model("gpt"), NOT_FOUND, "MODEL_NOT_FOUND", "model", None, id="unknown model"),
    pytest.param(request(user("x" * 9000)), INVALID, "CONTEXT_LENGTH_EXCEEDED", "messages", None, id="too long"),
    pytest.param(with_image(b"hello"), INVALID, "UNSUPPORTED_MEDIA_FORMAT", SOURCE, None, id="no image"),
    pytest.param(with_image(png()[:60]), INVALID, "INVALID_MEDIA", SOURCE, None, id="truncated image"),
    pytest.param(with_image(png_header(20000, 20000)), INVALID, "MEDIA_TOO_LARGE", SOURCE, "413", id="too large"),
    pytest.param(with_url("%%%"), INVALID, "INVALID_MEDIA_SOURCE", f"{SOURCE}.url", None, id="bad base64"),
    pytest.param(with_url("http://127.0.0.1/a"), INVALID, "MEDIA_URL_REFUSED", SOURCE, None, id="loopback"),
]


@pytest.mark.parametrize("method", ["CreateChatCompletion", "StreamChatCompletion"])
@pytest.mark.parametrize(("wire", "code", "reason", "field", "http_status"), REFUSED)
def test_refusal_names_its_reason_and_field(
    chat: Chat,
    method: str,
    wire: chat_pb2.CreateChatCompletionRequest,
    code: grpc.StatusCode,
    reason: str,
    field: str,
    http_status: str | None,
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        # A stream raises at its first message, a unary method when it is called.
        next(getattr(chat, method)(wire))
    error: Any = caught.value
    info, bad_request = details(error)
    assert error.code() == code
    assert (info.reason, info.domain) == (reason, "glimpse")
    assert dict(info.metadata) == {"param": field}
    assert [violation.field for violation in bad_request.field_violations] == [field]
    assert dict(error.trailing_metadata()).get("x-http-status") == http_status


def test_refused_stream_sends_no_messages(chat: Chat) -> None:
    call = chat.StreamChatCompletion(request(user("x" * 9000)))
    with pytest.raises(grpc.RpcError):
        next(call)
    assert "x-request-id" not in dict(call.initial_metadata())
    assert dict(call.trailing_metadata())["x-request-id"]


def test_unknown_model_error_lists_the_served_names(channel: grpc.Channel) -> None:
    models = model_pb2_grpc.ModelServiceStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
        models.GetModel(model_pb2.GetModelRequest(model="x"))
    error: Any = caught.value
    assert error.code() == NOT_FOUND
    assert error.details() == "The model 'x' does not exist. Available: 'tiny', 'small/tiny'."


def test_long_error_messages_fit_into_headers(chat: Chat) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        chat.CreateChatCompletion(with_model("ü" * 100_000))
    error: Any = caught.value
    assert error.code() == NOT_FOUND


def test_refusals_do_not_affect_other_requests(chat: Chat) -> None:
    before = chat.CreateChatCompletion(request()).choices
    for case in REFUSED:
        with pytest.raises(grpc.RpcError):
            chat.CreateChatCompletion(case.values[0])
    assert chat.CreateChatCompletion(request()).choices == before


def test_serves_a_large_message(chat: Chat) -> None:
    large = png(2000, 2000) + bytes(20 << 20)
    assert chat.CreateChatCompletion(with_image(large)).choices


def test_refuses_audio_for_a_model_without_audio_support(chat: Chat) -> None:
    audio = content_pb2.AudioPart(source=content_pb2.MediaSource(data=audio_file(noise(1, 8_000), 16_000)))
    wire = request(user(content_pb2.ContentPart(audio=audio)))
    wire.model = "tiny"
    with pytest.raises(grpc.RpcError) as caught:
        chat.CreateChatCompletion(wire)
    info, request_of = details(caught.value)
    source = "messages[0].content[0].audio.source"
    assert (info.reason, request_of.field_violations[0].field) == ("UNSUPPORTED", source)
    assert request_of.field_violations[0].description == f"'{source}': the model 'tiny' does not support audio input"
