"""Questions with known answers: the bystanders' requests, over every entry point."""

import base64
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from grpc import aio

from glimpse.v1 import chat_pb2, content_pb2, generation_pb2
from tests.chaos.calls import (
    ATTACKER,
    UNLIMITED,
    Metadata,
    Send,
    grpc_count,
    grpc_stream,
    grpc_unary,
    http_session,
    rest_stream,
    rest_unary,
    rest_value,
)
from tests.chaos.endpoints import FORMS, MESSAGES, RESPONSES
from tests.chaos.target import Target
from tests.e2e.scenes import scene
from tests.media import pdfs
from tests.media.images import encode

_RECONNECT = [*UNLIMITED, ("grpc.max_reconnect_backoff_ms", 500), ("grpc.use_local_subchannel_pool", 1)]
_IMAGES = {
    "circle": encode(scene(("red", "circle", (0.5, 0.5), 0.5)), "PNG"),
    "shapes": encode(scene(("blue", "square", (0.3, 0.3), 0.4), ("green", "star", (0.7, 0.7), 0.4)), "JPEG"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """The connections of one bystander."""

    http: aiohttp.ClientSession
    grpc: aio.Channel
    """To the server itself."""
    envoy: aio.Channel
    """Typed gRPC through Envoy."""
    metadata: Metadata
    """Tells the server which client a gRPC call is from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request whose answer is always the same."""

    name: str
    make: Callable[[Clients, str], Send]
    """Makes the request; the text is a `cache_salt`, which keeps media from being cached between requests."""
    is_sse: bool = False
    """Whether its answer ends with `[DONE]`."""


@asynccontextmanager
async def connect(target: Target, key: str = ATTACKER) -> AsyncGenerator[Clients]:
    """Clients with connections of their own."""
    async with AsyncExitStack() as stack:
        yield Clients(
            metadata=(("authorization", f"Bearer {key}"),),
            http=await stack.enter_async_context(http_session(target.url, key=key)),
            grpc=await stack.enter_async_context(aio.insecure_channel(target.grpc_target, options=_RECONNECT)),
            envoy=await stack.enter_async_context(aio.insecure_channel(target.envoy_target, options=_RECONNECT)),
        )


def questions() -> list[Question]:
    """One of each kind: text and image, single answer and stream, REST and gRPC."""
    long = {"ignore_eos": True, "max_completion_tokens": 48}
    sampled = {"temperature": 0.8, "seed": 7}
    return [
        *(
            Question(name=f"{name} stream", make=_greeted(path), is_sse=True)
            for name, path in (("Messages", MESSAGES), ("Responses", RESPONSES))
        ),
        Question(name="REST text", make=lambda c, _: rest_unary(c.http, chat("Say hello."))),
        Question(name="REST sampled", make=lambda c, _: rest_unary(c.http, chat("What can you do?", **sampled))),
        Question(name="REST stream", make=lambda c, _: rest_stream(c.http, chat("Go on.", **long)), is_sse=True),
        Question(name="REST image", make=lambda c, salt: rest_unary(c.http, ask_about("circle", salt))),
        Question(
            name="REST image stream", make=lambda c, salt: rest_stream(c.http, ask_about("shapes", salt)), is_sse=True
        ),
        Question(name="REST document", make=lambda c, salt: rest_unary(c.http, _chat_with_page(salt))),
        Question(
            name="REST tokenize",
            make=lambda c, _: rest_value(c.http, "/tokenize", {"prompt": "How many tokens are these?"}, "tokens"),
        ),
        Question(name="gRPC text", make=lambda c, _: grpc_unary(c.grpc, typed("Say hello."), c.metadata)),
        Question(name="gRPC stream", make=lambda c, _: grpc_stream(c.grpc, typed("Go on.", **long), c.metadata)),
        Question(name="gRPC image", make=lambda c, salt: grpc_unary(c.grpc, typed_about("shapes", salt), c.metadata)),
        Question(name="gRPC count", make=lambda c, _: grpc_count(c.grpc, _count(), c.metadata)),
        Question(
            name="gRPC image stream through Envoy",
            make=lambda c, salt: grpc_stream(c.envoy, typed_about("circle", salt), c.metadata),
        ),
    ]


def chat(text: str, **members: Any) -> dict[str, Any]:
    """A greedy chat completion as JSON."""
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_completion_tokens": 24}
    return body | members


def _greeted(path: str) -> Callable[[Clients, str], Send]:
    body = FORMS[path](chat("Say hello."))
    assert body is not None
    return lambda clients, _: rest_stream(clients.http, body, path)


def ask_about(image: str, salt: str, **members: Any) -> dict[str, Any]:
    """A question about an image as JSON."""
    return chat_with_image(_IMAGES[image], cache_salt=salt, **members)


def chat_with_image(data: bytes, **members: Any) -> dict[str, Any]:
    """A question about the image of a file, be it a good one or not."""
    return chat_with_images([data], **members)


def chat_with_document(data: bytes, **members: Any) -> dict[str, Any]:
    """A question about a document, be it a good one or not."""
    url = f"data:application/pdf;base64,{base64.b64encode(data).decode()}"
    part = {"type": "file", "file": {"file_data": url, "filename": "a.pdf"}}
    question = {"type": "text", "text": "Describe the page."}
    return chat("", messages=[{"role": "user", "content": [question, part]}], **members)


def _chat_with_page(salt: str) -> dict[str, Any]:
    return chat_with_document(pdfs.document([pdfs.text("Hello")]), cache_salt=salt)


def chat_with_images(images: Sequence[bytes | str], **members: Any) -> dict[str, Any]:
    """A question about the images of files and of URLs, be they good ones or not."""
    urls = [
        each if isinstance(each, str) else f"data:image/png;base64,{base64.b64encode(each).decode()}" for each in images
    ]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    question = {"type": "text", "text": "Describe the image."}
    return chat("", messages=[{"role": "user", "content": [question, *parts]}], **members)


def typed(text: str, **generation: Any) -> chat_pb2.CreateChatCompletionRequest:
    """A greedy chat completion as a message."""
    return _typed(_user(content_pb2.ContentPart(text=text)), **generation)


def typed_about(image: str, salt: str) -> chat_pb2.CreateChatCompletionRequest:
    """A question about an image as a message."""
    source = content_pb2.MediaSource(data=_IMAGES[image])
    parts = (
        content_pb2.ContentPart(text="Describe the image."),
        content_pb2.ContentPart(image=content_pb2.ImagePart(source=source)),
    )
    request = _typed(_user(*parts))
    request.cache_salt = salt
    return request


def _typed(message: content_pb2.Message, **generation: Any) -> chat_pb2.CreateChatCompletionRequest:
    options: dict[str, Any] = {"temperature": 0.0, "max_completion_tokens": 24} | generation
    return chat_pb2.CreateChatCompletionRequest(
        messages=[message], generation=generation_pb2.GenerationOptions(**options)
    )


def _user(*parts: content_pb2.ContentPart) -> content_pb2.Message:
    return content_pb2.Message(role=content_pb2.ROLE_USER, content=parts)


def _count() -> chat_pb2.CountTokensRequest:
    source = content_pb2.MediaSource(data=_IMAGES["circle"])
    image = content_pb2.ContentPart(image=content_pb2.ImagePart(source=source))
    return chat_pb2.CountTokensRequest(messages=[_user(content_pb2.ContentPart(text="How many?"), image)])
