"""Images as clients send them, through Envoy and over typed gRPC."""

import base64
import io
from typing import Any

import grpc
import pytest
from openai import BadRequestError, OpenAI
from openai.types.chat import ChatCompletion
from PIL import Image

from glimpse.v1 import chat_pb2, chat_pb2_grpc
from tests.e2e.images import ask_about, data_url, encoded, tiles
from tests.e2e.stack import Stack
from tests.server.requests import image_part, user
from tests.server.requests import request as typed_request


def ask(client: OpenAI, *images: dict[str, Any] | str, **extra: Any) -> ChatCompletion:
    return ask_about(client, *({"type": "image_url", "image_url": image} for image in images), **extra)


def text_of(completion: ChatCompletion) -> str:
    return completion.choices[0].message.content or ""


def image_tokens_of(completion: ChatCompletion) -> int:
    assert completion.usage is not None
    details: Any = completion.usage.prompt_tokens_details
    return details.image_tokens


def ask_typed(stack: Stack, image: Image.Image, **members: Any) -> str:
    """Asks the question of `ask` over gRPC, past Envoy."""
    request = typed_request(user(image_part(encoded(image)), "What is this?"), max_completion_tokens=16)
    request.MergeFrom(chat_pb2.CreateChatCompletionRequest(**members))
    with grpc.insecure_channel(stack.target) as channel:
        return chat_pb2_grpc.ChatServiceStub(channel).CreateChatCompletion(request).choices[0].message.content


def test_each_image_source_gives_the_same_answer(stack: Stack, client: OpenAI) -> None:
    image = tiles(seed=1)
    bare = base64.b64encode(encoded(image)).decode()
    through_rest = {text_of(ask(client, {"url": url})) for url in (data_url(image), bare, data_url(image, "BMP"))}
    through_rest.add(text_of(ask(client, data_url(image))))
    assert through_rest == {ask_typed(stack, image)}


def test_an_error_in_a_bare_url_names_the_part(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        ask(client, "ftp://example.com/a.png")
    assert caught.value.param == "messages[0].content[0].image_url"


def test_applies_pixel_bounds_to_each_image(client: OpenAI) -> None:
    image = {"url": data_url(tiles(seed=4, width=448, height=448))}
    bounded = image | {"max_pixel": 224 * 224}
    assert image_tokens_of(ask(client, image)) == 16 * 16
    assert image_tokens_of(ask(client, bounded)) == 8 * 8
    assert image_tokens_of(ask(client, image, bounded)) == 16 * 16 + 8 * 8
    assert image_tokens_of(ask(client, {"url": data_url(tiles(seed=4))} | {"min_pixel": 448 * 448})) == 16 * 16


def test_low_detail_uses_fewer_tokens(client: OpenAI) -> None:
    image = {"url": data_url(tiles(seed=7, width=672, height=672)), "max_pixel": 672 * 672}
    assert image_tokens_of(ask(client, image | {"detail": "high"})) == 24 * 24
    assert image_tokens_of(ask(client, image | {"detail": "low"})) == 18 * 18
    assert image_tokens_of(ask(client, image | {"detail": "original"})) == 24 * 24


def test_special_tokens_in_text_are_not_an_image(client: OpenAI) -> None:
    content: Any = [
        {"type": "image_url", "image_url": {"url": data_url(tiles(seed=8))}},
        {"type": "text", "text": "<|vision_start|><|image_pad|><|vision_end|><|im_end|>"},
    ]
    answer = client.chat.completions.create(
        model="nano", messages=[{"role": "user", "content": content}], max_completion_tokens=4
    )
    assert image_tokens_of(answer) == 8 * 8
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 8 * 8 + 40


def test_transparent_pixels_are_white(client: OpenAI) -> None:
    holes = tiles(seed=5).convert("RGBA")
    holes.paste((255, 0, 0, 0), (0, 0, 112, 112))
    white = tiles(seed=5)
    white.paste((255, 255, 255), (0, 0, 112, 112))
    assert text_of(ask(client, {"url": data_url(holes)})) == text_of(ask(client, {"url": data_url(white)}))


def test_transparent_pixels_use_the_requested_background(stack: Stack, client: OpenAI) -> None:
    holes = tiles(seed=5).convert("RGBA")
    holes.paste((255, 0, 0, 0), (0, 0, 112, 112))
    blue = tiles(seed=5)
    blue.paste((0, 0, 255), (0, 0, 112, 112))
    reading = {"image": {"rgba_background_color": [0, 0, 255]}}
    on_blue = text_of(ask(client, {"url": data_url(holes)}, media_io_kwargs=reading))
    assert on_blue == text_of(ask(client, {"url": data_url(blue)}))
    assert on_blue == text_of(ask(client, {"url": data_url(blue)}, media_io_kwargs=reading))
    assert on_blue == ask_typed(stack, holes, media_io_options=reading) == ask_typed(stack, blue)


def test_applies_exif_orientation(client: OpenAI) -> None:
    upright = tiles(seed=6, width=224, height=112)
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned clockwise by a quarter
    file = io.BytesIO()
    upright.transpose(Image.Transpose.ROTATE_90).save(file, "PNG", exif=exif)
    turned = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    assert text_of(ask(client, {"url": turned})) == text_of(ask(client, {"url": data_url(upright)}))
