"""Requests, typed and parsed, and small images for them."""

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import grpc
import PIL.Image
from google.api.httpbody_pb2 import HttpBody

from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.openai.v1 import openai_pb2_grpc
from glimpse.server.request import GenerationRequest
from glimpse.v1 import chat_pb2, content_pb2, generation_pb2

GENERATION = GenerationRequest(
    prompts=(),
    sampling=SamplingParams(),
    num_completions=1,
    constraint=None,
    tools=None,
    priority=0,
    cache_salt="",
)
"""Parsed, and without the prompt, which its answers do not need."""


def png(width: int = 64, height: int = 48, colour: tuple[int, int, int] = (200, 30, 40)) -> bytes:
    file = io.BytesIO()
    PIL.Image.new("RGB", (width, height), colour).save(file, "PNG")
    return file.getvalue()


def text_part(text: str) -> content_pb2.ContentPart:
    return content_pb2.ContentPart(text=text)


def image_part(data: bytes, **members: Any) -> content_pb2.ContentPart:
    return content_pb2.ContentPart(
        image=content_pb2.ImagePart(source=content_pb2.MediaSource(data=data), **members),
    )


def video_part(data: bytes, **members: Any) -> content_pb2.ContentPart:
    return content_pb2.ContentPart(
        video=content_pb2.VideoPart(source=content_pb2.MediaSource(data=data), **members),
    )


def user(*parts: str | content_pb2.ContentPart) -> content_pb2.Message:
    content = [text_part(part) if isinstance(part, str) else part for part in parts]
    return content_pb2.Message(role=content_pb2.ROLE_USER, content=content)


def request(*messages: content_pb2.Message, **generation: Any) -> chat_pb2.CreateChatCompletionRequest:
    """A request; greedy and short unless `generation` overrides it."""
    options: dict[str, Any] = {"temperature": 0.0, "max_completion_tokens": 8} | generation
    return chat_pb2.CreateChatCompletionRequest(
        messages=messages or [user("Hello")],
        generation=generation_pb2.GenerationOptions(**options),
    )


def image_url(data: bytes) -> dict[str, Any]:
    """OpenAI's part with an image."""
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"}}


def json_bodies(document: Any) -> Iterator[HttpBody]:
    """A document as the gateway sends it to the REST facade."""
    return iter([HttpBody(content_type="application/json", data=json.dumps(document).encode())])


def post_json(method: Any, document: Any) -> Any:
    """The document with which a method of the REST facade answers."""
    return json.loads(b"".join(piece.data for piece in method(json_bodies(document))))


def ask_in_json(channel: grpc.Channel, *parts: dict[str, Any], **members: Any) -> Any:
    """The answer to OpenAI's request; greedy and short unless `members` override it."""
    message = {"role": "user", "content": parts}
    body = {"messages": [message], "temperature": 0, "max_completion_tokens": 8} | members
    openai: Any = openai_pb2_grpc.OpenAIServiceStub(channel)
    return post_json(openai.CreateChatCompletion, body)
