"""Where media come from, through Envoy and over typed gRPC: each way of a medium is the same medium, and no other."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.rpc import error_details_pb2, status_pb2
from openai import BadRequestError, OpenAI

from glimpse.client import Client
from glimpse.v1 import chat_pb2_grpc, content_pb2
from tests.e2e.images import encoded, tiles
from tests.e2e.media_host import MediaHost
from tests.e2e.stack import Stack
from tests.media.videos import greys, video
from tests.server.requests import request, user

BOUNDS = {"min_pixels": 112 * 112, "max_pixels": 112 * 112}
PARTS = {"image": "image_url", "video": "video_url"}
Source = Mapping[str, Any]
"""A source of the wire: `url`, `upload`, or `data`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """An answer, and the media usage of its request."""

    text: str
    prompt_tokens: int
    cached_tokens: int
    media: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An error's code in lower case, and its words."""

    code: str
    message: str


def through_envoy(stack: Stack, kind: str, *sources: Source) -> Outcome | Refused:
    """Sends media with OpenAI's client."""
    content: Any = [{"type": PARTS[kind], PARTS[kind]: {**source, **_bounds(kind)}} for source in sources]
    with OpenAI(base_url=stack.openai_url, api_key="none", max_retries=0) as client:
        try:
            answer: Any = client.chat.completions.create(
                model="nano",
                messages=[{"role": "user", "content": [*content, {"type": "text", "text": "What is this?"}]}],
                temperature=0,
                max_completion_tokens=4,
            )
        except BadRequestError as error:
            return Refused(code=error.code or "", message=error.message)
    return Outcome(
        text=answer.choices[0].message.content,
        prompt_tokens=answer.usage.prompt_tokens,
        cached_tokens=answer.usage.prompt_tokens_details.cached_tokens,
        media=answer.usage.media_usage,
    )


def typed(stack: Stack, kind: str, *sources: Source) -> Outcome | Refused:
    """Sends media in typed messages, past Envoy."""
    parts = [content_pb2.ContentPart() for _ in sources]
    for part, source in zip(parts, sources, strict=True):
        json_format.ParseDict({kind: {"source": source, **_bounds(kind)}}, part)
    wire = request(user(*parts, "What is this?"), max_completion_tokens=4)
    with grpc.insecure_channel(stack.target) as channel:
        try:
            answer = chat_pb2_grpc.ChatServiceStub(channel).CreateChatCompletion(wire)
        except grpc.RpcError as error:
            return _refused(error)
    usage = answer.usage
    return Outcome(
        text=answer.choices[0].message.content,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.prompt_tokens_details.cached_tokens,
        media={name.name: getattr(usage.media_usage, name.name) for name in usage.media_usage.DESCRIPTOR.fields},
    )


def _bounds(kind: str) -> dict[str, int]:
    return BOUNDS if kind == "video" else {}


def _refused(error: Any) -> Refused:
    status = status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return Refused(code=info.reason.lower(), message=error.details())


APIS = pytest.mark.parametrize("api", [through_envoy, typed])


def upload(stack: Stack, data: bytes) -> str:
    with Client(stack.target) as client:
        return client.upload(data).upload_id


def ways(stack: Stack, host: MediaHost, folder: Path, kind: str, data: bytes) -> list[Callable[[], Any]]:
    """Every way to send a file, each as a function."""
    name = f"{sha256(data).hexdigest()}.bin"
    (folder / name).write_bytes(data)
    text = base64.b64encode(data).decode()
    url = {"url": host.put(f"/{name}", data)}
    data_url = {"url": f"data:application/octet-stream;base64,{text}"}
    return [
        lambda: through_envoy(stack, kind, url),
        lambda: through_envoy(stack, kind, data_url),
        lambda: through_envoy(stack, kind, {"url": text}),
        lambda: through_envoy(stack, kind, {"upload_id": upload(stack, data)}),
        lambda: through_envoy(stack, kind, {"url": f"file://{folder}/{name}"}),
        lambda: typed(stack, kind, url),
        lambda: typed(stack, kind, {"data": text}),  # bytes are base64 in protobuf's JSON
        lambda: typed(stack, kind, {"upload_id": upload(stack, data)}),
    ]


def tiles_png(seed: int, changed: int = 0) -> bytes:
    """Tiles; `changed` is added to the red of one pixel."""
    drawn = tiles(seed=seed)
    red, green, blue = drawn.getpixel((100, 100))  # pyright: ignore[reportGeneralTypeIssues] - RGB
    drawn.putpixel((100, 100), ((red + changed) % 256, green, blue))
    return encoded(drawn)


@pytest.mark.parametrize("first", [0, 6])
@pytest.mark.parametrize("kind", ["image", "video"])
def test_media_sources_give_the_same_answer(
    stack: Stack, media_host: MediaHost, local_media: Path, kind: str, first: int
) -> None:
    one, other = [
        tiles_png(100 + first, step) if kind == "image" else video(greys(8 + first + 4 * step)) for step in (0, 1)
    ]
    calls = ways(stack, media_host, local_media, kind, one)
    new = calls[first]()
    assert (new.media["decoded_media"], new.media["encoded_media"]) == (1, 1)
    for call in calls:
        again = call()
        assert (again.media["decode_cache_hits"], again.media["encoder_cache_hits"]) == (1, 1)
        assert (again.text, again.prompt_tokens) == (new.text, new.prompt_tokens)
        assert again.cached_tokens > new.cached_tokens
    # Media that differs in one pixel or in the sampled frames is no cache hit.
    different = ways(stack, media_host, local_media, kind, other)[first]()
    assert (different.media["decoded_media"], different.media["encoded_media"]) == (1, 1)


REFUSED: list[Any] = [
    # kind, path on the media host or URL, code, part of the message
    pytest.param("image", "/slow", "media_fetch_timeout", "within 3 s", id="a slow image"),
    pytest.param("video", "/slow", "media_fetch_timeout", "within 4 s", id="a slow video"),
    pytest.param("image", "/none", "media_fetch_failed", "404", id="no image"),
    pytest.param("image", "/away", "media_url_refused", "", id="a redirect to a private address"),
    pytest.param("image", "http://127.0.0.2:1/", "media_url_refused", "port", id="another port"),
    pytest.param("image", "http://127.0.0.1:{port}/", "media_url_refused", "", id="another private address"),
    pytest.param("image", "http://169.254.169.254:{port}/", "media_url_refused", "", id="link-local"),
    pytest.param("image", "file://{folder}/../cat.png", "media_url_refused", "folder", id="above the folder"),
    pytest.param("image", "file://{folder}/link.png", "media_url_refused", "folder", id="a link out of the folder"),
    pytest.param("video", "file:///etc/passwd", "media_url_refused", "folder", id="outside the folder"),
    pytest.param("image", "file://{folder}/none.png", "media_fetch_failed", "", id="no file"),
]


@APIS
@pytest.mark.parametrize(("kind", "url", "code", "words"), REFUSED)
def test_refuses_urls_that_are_not_allowed(
    stack: Stack, media_host: MediaHost, local_media: Path, api: Any, kind: str, url: str, code: str, words: str
) -> None:
    link = local_media / "link.png"
    if not link.is_symlink():
        link.symlink_to("/etc/passwd")
    whole = media_host.url(url) if url.startswith("/") else url
    refused = api(stack, kind, {"url": whole.format(port=media_host.server_port, folder=local_media)})
    assert refused.code == code
    assert words in refused.message


@APIS
def test_fetches_only_from_allowed_domains(echo_stack: Stack, api: Any) -> None:
    for url in ("http://other.example/cat.png", "http://media.example.other.example/", "http://sub.media.example/"):
        refused = api(echo_stack, "image", {"url": url})
        assert (refused.code, "domain" in refused.message) == ("media_url_refused", True)


@APIS
def test_images_keep_their_order_and_have_a_limit(stack: Stack, api: Any) -> None:
    seeds = (200, 201) if api is typed else (202, 203)
    sources = [{"url": base64.b64encode(tiles_png(seed)).decode()} for seed in seeds]
    one, other = (api(stack, "image", *order) for order in (sources, sources[::-1]))
    assert one.prompt_tokens == other.prompt_tokens > 2 * 64
    # The second request begins with another image, so only the beginning of the prompt is cached.
    assert other.cached_tokens < 64
    refused = api(stack, "image", *sources[:1] * 17)
    assert (refused.code, "16" in refused.message) == ("too_many_images", True)
