"""A server with Gemma 3: images over the typed API and over OpenAI's, and from the prefix cache."""

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import PIL.Image
import pytest
from google.api.httpbody_pb2 import HttpBody

from glimpse.openai.v1 import openai_pb2_grpc
from glimpse.v1 import chat_pb2_grpc
from tests.gemma3_checkpoints import NUM_IMAGE_TOKENS, make_gemma3_checkpoint
from tests.server.requests import image_part, request, user
from tests.server.serving import served

Chat = chat_pb2_grpc.ChatServiceStub


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    """A channel to a server."""
    checkpoint = make_gemma3_checkpoint(tmp_path_factory.mktemp("checkpoints") / "gemma3")
    with served(checkpoint, tmp_path_factory.mktemp("serving")) as server, server.channel() as opened:
        yield opened


def png(height: int, width: int) -> bytes:
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def ask_in_json(channel: grpc.Channel, *parts: dict[str, Any]) -> Any:
    body = {"messages": [{"role": "user", "content": parts}], "temperature": 0, "max_completion_tokens": 8}
    openai: Any = openai_pb2_grpc.OpenAIServiceStub(channel)
    bodies = iter([HttpBody(content_type="application/json", data=json.dumps(body).encode())])
    return json.loads(b"".join(piece.data for piece in openai.CreateChatCompletion(bodies)))


def test_typed_and_openai_apis_return_the_same_completion_also_from_the_prefix_cache(channel: grpc.Channel) -> None:
    words = "the thing in an " * 8
    images = [png(60, 170), png(91, 33)]
    typed = Chat(channel).CreateChatCompletion(request(user(*map(image_part, images), words)))
    urls = [f"data:image/png;base64,{base64.b64encode(data).decode()}" for data in images]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    answer = ask_in_json(channel, *parts, {"type": "text", "text": words})
    assert typed.usage.prompt_tokens_details.image_tokens == 2 * (NUM_IMAGE_TOKENS + 2)
    assert answer["choices"][0]["message"]["content"] == typed.choices[0].message.content
    assert answer["usage"]["prompt_tokens"] == typed.usage.prompt_tokens
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
