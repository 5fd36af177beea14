"""Invalid input through Envoy: the status, OpenAI's error object and the field. Other requests are not disturbed."""

import base64
from typing import Any

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from glimpse.openai.v1 import openai_pb2_grpc
from glimpse.v1 import chat_pb2_grpc
from tests.e2e.images import data_url, encoded, tiles
from tests.e2e.requests import CHAT, Answer, ask, post
from tests.e2e.stack import Stack
from tests.media.images import png_header
from tests.server.requests import request


def chat(stack: Stack, **members: Any) -> Answer:
    request = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0} | members
    return ask(stack, CHAT, **request)


def image_messages(url: str | None, **members: Any) -> list[Any]:
    part = {"type": "image_url", "image_url": {"url": url} if url is not None else None} | members
    return [{"role": "user", "content": [{"type": "text", "text": "What?"}, part]}]


def as_data_url(file: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(file).decode()


def video_messages(url: object, **members: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": url, **members}}]}]


IMAGE = "messages[0].content[1].image_url"
VIDEO = "messages[0].content[0].video_url.url"
NO_AUDIO = (None, {}, {"format": "wav"})
SOURCES = "expected a URL, the bytes of a file, an upload, or the uuid of a medium sent before"
REFUSED: list[Any] = [
    # fields of the request, HTTP status, error.param, part of error.message
    pytest.param({"messages": []}, 400, "messages", "", id="no messages"),
    pytest.param({"messages": "Hello"}, 400, "messages", "string", id="messages is a string"),
    pytest.param({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content", "", id="content a number"),
    pytest.param({"messages": [{"role": "king", "content": "x"}]}, 400, "messages[0].role", "king", id="unknown role"),
    pytest.param({"temperature": "hot"}, 400, "temperature", "string", id="temperature is a string"),
    pytest.param({"temperature": 3}, 400, "temperature", "2", id="temperature out of range"),
    pytest.param({"top_p": -0.1}, 400, "top_p", "0", id="top_p out of range"),
    pytest.param({"max_tokens": 0}, 400, "max_tokens", "an integer of at least 1, got 0", id="no tokens"),
    pytest.param({"max_tokens": -1}, 400, "max_tokens", "an integer of at least 1, got -1", id="fewer than no tokens"),
    pytest.param({"stream": "yes"}, 400, "stream", "", id="stream is a string"),
    pytest.param({"top_logprobs": 3}, 400, "top_logprobs", "logprobs", id="top_logprobs alone"),
    pytest.param({"logit_bias": {"1": 1000}}, 400, "logit_bias", "100", id="logit_bias out of range"),
    pytest.param({"n": 129}, 400, "n", "128", id="too many answers"),
    pytest.param({"response_format": {"type": "json_schema"}}, 400, "response_format", "", id="no schema"),
    pytest.param({"structured_outputs": {"regex": "("}}, 400, "structured_outputs.regex", "group", id="no regex"),
    pytest.param(
        {"tools": [{"type": "function", "function": {"name": "f"}, "parameters": {"type": "object"}}]},
        400,
        "tools[0].parameters",
        "Put it into function",
        id="parameters beside the function",
    ),
    pytest.param(
        {"tools": [{"type": "function", "function": {"name": "f"}, "strict": True}]},
        400,
        "tools[0].strict",
        "Put it into function",
        id="strict beside the function",
    ),
    pytest.param({"tool_choice": "required"}, 400, "tool_choice", "tools", id="a choice without tools"),
    pytest.param({"model": "gpt-9"}, 404, "model", "gpt-9", id="unknown model"),
    pytest.param({"messages": [{"role": "user", "content": "x " * 9000}]}, 400, "messages", "window", id="too long"),
    pytest.param({"messages": image_messages("%%%")}, 400, IMAGE, "", id="bad base64"),
    pytest.param({"messages": image_messages(None)}, 400, IMAGE, "", id="no image"),
    pytest.param(
        {"messages": image_messages(None, uuid="seen-before")}, 400, "messages[0].content[1]", "", id="uuid alone"
    ),
    pytest.param(
        {"messages": image_messages(as_data_url(encoded(tiles(), "JPEG")[:500]))}, 400, IMAGE, "", id="truncated JPEG"
    ),
    pytest.param({"messages": image_messages(as_data_url(b"hello, world"))}, 400, IMAGE, "", id="not an image"),
    pytest.param(
        {"messages": image_messages(as_data_url(png_header(20000, 20000)))}, 413, IMAGE, "20000", id="20000x20000"
    ),
    pytest.param({"messages": image_messages("http://127.0.0.1:1/a.png")}, 400, IMAGE, "", id="loopback URL"),
    pytest.param({"messages": image_messages("http://169.254.169.254/x")}, 400, IMAGE, "", id="link-local URL"),
    pytest.param({"messages": image_messages("file:///etc/passwd")}, 400, IMAGE, "", id="local file"),
    pytest.param({"messages": image_messages("/home/me/cat.png")}, 400, IMAGE, "path '/home/me/cat.png'", id="path"),
    pytest.param({"messages": video_messages("x")}, 400, VIDEO, "base64", id="bad base64 of a video"),
    pytest.param({"messages": video_messages(None)}, 400, "messages[0].content[0].video_url", "", id="no video"),
    pytest.param({"messages": video_messages([])}, 400, VIDEO, "", id="a video without frames"),
    pytest.param(
        {"messages": video_messages(as_data_url(b"#EXTM3U\nhttp://127.0.0.1/x"))}, 400, VIDEO, "playlist", id="playlist"
    ),
    pytest.param(
        {"messages": video_messages(as_data_url(encoded(tiles())))},
        400,
        VIDEO,
        "expected a video",
        id="an image as a video",
    ),
    pytest.param(
        {"messages": video_messages("http://127.0.0.1:1/a.mp4")}, 400, VIDEO, "", id="loopback URL of a video"
    ),
    pytest.param(
        {"messages": video_messages("x" * 8, fps=0)}, 400, "messages[0].content[0].video_url.fps", "0", id="no rate"
    ),
    *(
        pytest.param(
            {"messages": video_messages("x" * 8, fps=1, **{name: 2})},
            400,
            f"messages[0].content[0].video_url.{name}",
            "got both",
            id=f"a rate and a number, {name}",
        )
        for name in ("num_frames", "nframes")
    ),
    *(
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": sent}]}]},
            400,
            f"messages[0].content[0].input_audio{member}",
            words,
            id=f"audio: {sent}",
        )
        for sent, member, words in (
            ({"data": "AAAA"}, "", "does not support audio input"),
            *((each, ".data", SOURCES) for each in NO_AUDIO),
        )
    ),
]


@pytest.mark.parametrize(("members", "status", "param", "words"), REFUSED)
def test_refuses_invalid_input_by_field(
    stack: Stack, members: dict[str, Any], status: int, param: str, words: str
) -> None:
    answer = chat(stack, **members)
    error = answer.body["error"]
    assert (answer.status, error["type"]) == (status, "invalid_request_error")
    assert error["param"].startswith(param)
    assert words in error["message"]
    assert error["code"]


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 400), (b"{", 400), (b"[1]", 400), (b'{"messages": NaN}', 400), (b"{'messages': []}", 400), (b"\xff", 400)],
)
def test_refuses_a_body_that_is_not_a_json_object(stack: Stack, body: bytes, status: int) -> None:
    answer = post(stack, CHAT, body)
    assert (answer.status, answer.body["error"]["type"]) == (status, "invalid_request_error")


def test_lists_unknown_fields_in_a_header(stack: Stack) -> None:
    messages = [{"role": "user", "content": "Hello", "mood": "good"}]
    answer = chat(stack, messages=messages, wibble=1)
    assert answer.status == 200
    listed = {name.strip() for name in answer.headers["x-glimpse-ignored-fields"].split(",")}
    assert listed == {"wibble", "messages[0].mood"}


def test_errors_reveal_nothing_about_the_host(stack: Stack) -> None:
    for url in ("file:///etc/passwd", "http://127.0.0.1:1/a.png", "http://localhost/a.png"):
        message: str = chat(stack, messages=image_messages(url)).body["error"]["message"]
        assert not any(word in message for word in ("Traceback", "Errno", "/work", "site-packages"))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/nothing", 404),
        ("GET", "/nothing", 404),
        ("DELETE", "/v1/models", 405),
        ("PUT", "/v1/chat/completions", 405),
    ],
)
def test_envoy_errors_have_openai_format(stack: Stack, method: str, path: str, status: int) -> None:
    answer = post(stack, path, b"{}", method=method)
    assert answer.status == status
    assert set(answer.body["error"]) == {"message", "type", "param", "code"}


def test_refuses_a_body_over_the_limit(stack: Stack) -> None:
    answer = post(stack, CHAT, b'{"messages": "' + b"x" * (66 << 20) + b'"}')
    assert (answer.status, answer.body["error"]["type"]) == (413, "invalid_request_error")


def test_refused_requests_do_not_disturb_others(stack: Stack) -> None:
    before = chat(stack).content
    for case in REFUSED:
        chat(stack, **case.values[0])
    assert chat(stack).content == before


def test_serves_a_large_body(stack: Stack) -> None:
    image_url = data_url(tiles(width=2600, height=2600), "BMP")
    assert len(image_url) > 25 << 20
    assert chat(stack, messages=image_messages(image_url)).status == 200


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_messages_are_refused_by_name(stack: Stack, algorithm: grpc.Compression) -> None:
    """Directly and through Envoy. 58 MiB of zeros are 59 KB, and gRPC would decompress them before anything counts."""
    compressed: dict[str, Any] = {"compression": algorithm, "timeout": 60}
    bomb = HttpBody(content_type="application/json", data=bytes(58 << 20))
    for target in (stack.target, f"127.0.0.1:{stack.http_port}"):
        with grpc.insecure_channel(target, options=[("grpc.max_send_message_length", -1)]) as channel:
            chat, openai = chat_pb2_grpc.ChatServiceStub(channel), openai_pb2_grpc.OpenAIServiceStub(channel)
            with pytest.raises(grpc.RpcError) as unary:
                chat.CreateChatCompletion(request(), **compressed)
            with pytest.raises(grpc.RpcError) as stream:
                list(openai.CreateChatCompletion(iter([bomb]), **compressed))
            for error in (unary.value, stream.value):
                assert error.code() is grpc.StatusCode.UNIMPLEMENTED
                assert f"'{algorithm.name.lower()}' is disabled" in (error.details() or "")
            assert chat.CreateChatCompletion(request(max_completion_tokens=1), timeout=60).choices
