"""Pictures as clients send them, through Envoy and over typed gRPC."""

import base64
import io
from typing import Any

import grpc
from openai import OpenAI
from openai.types.chat import ChatCompletion
from PIL import Image

from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2, generation_pb2
from tests.e2e.pictures import data_url, encoded, tiles
from tests.e2e.stack import Stack


def ask(client: OpenAI, *images: dict[str, Any], **extra: Any) -> ChatCompletion:
    parts: Any = [{"type": "image_url", "image_url": image} for image in images]
    return client.chat.completions.create(
        model="nano",
        messages=[{"role": "user", "content": [*parts, {"type": "text", "text": "What is this?"}]}],
        temperature=0,
        max_completion_tokens=16,
        extra_body=extra,
    )


def text_of(completion: ChatCompletion) -> str:
    return completion.choices[0].message.content or ""


def image_tokens_of(completion: ChatCompletion) -> int:
    assert completion.usage is not None
    details: Any = completion.usage.prompt_tokens_details
    return details.image_tokens


def test_every_way_to_send_a_picture_gives_the_same_answer(stack: Stack, client: OpenAI) -> None:
    picture = tiles(seed=1)
    bare = base64.b64encode(encoded(picture)).decode()
    through_rest = {text_of(ask(client, {"url": url})) for url in (data_url(picture), bare, data_url(picture, "BMP"))}
    source = content_pb2.MediaSource(data=encoded(picture))
    parts = [
        content_pb2.ContentPart(image=content_pb2.ImagePart(source=source)),
        content_pb2.ContentPart(text="What is this?"),
    ]
    request = chat_pb2.CreateChatCompletionRequest(
        messages=[content_pb2.Message(role=content_pb2.ROLE_USER, content=parts)],
        generation=generation_pb2.GenerationOptions(temperature=0, max_completion_tokens=16),
    )
    with grpc.insecure_channel(stack.target) as channel:
        answer = chat_pb2_grpc.ChatServiceStub(channel).CreateChatCompletion(request)
    assert through_rest == {answer.choices[0].message.content}


def test_pixel_bounds_are_honoured_for_each_picture(client: OpenAI) -> None:
    picture = {"url": data_url(tiles(seed=4, width=448, height=448))}
    bounded = picture | {"max_pixel": 224 * 224}
    assert image_tokens_of(ask(client, picture)) == 16 * 16
    assert image_tokens_of(ask(client, bounded)) == 8 * 8
    assert image_tokens_of(ask(client, picture, bounded)) == 16 * 16 + 8 * 8


def test_transparent_pixels_are_white(client: OpenAI) -> None:
    holes = tiles(seed=5).convert("RGBA")
    holes.paste((255, 0, 0, 0), (0, 0, 112, 112))
    white = tiles(seed=5)
    white.paste((255, 255, 255), (0, 0, 112, 112))
    assert text_of(ask(client, {"url": data_url(holes)})) == text_of(ask(client, {"url": data_url(white)}))


def test_transparent_pixels_have_the_colour_that_was_asked_for(client: OpenAI) -> None:
    holes = tiles(seed=5).convert("RGBA")
    holes.paste((255, 0, 0, 0), (0, 0, 112, 112))
    blue = tiles(seed=5)
    blue.paste((0, 0, 255), (0, 0, 112, 112))
    reading = {"image": {"rgba_background_color": [0, 0, 255]}}
    on_blue = text_of(ask(client, {"url": data_url(holes)}, media_io_kwargs=reading))
    assert on_blue == text_of(ask(client, {"url": data_url(blue)}))
    assert on_blue == text_of(ask(client, {"url": data_url(blue)}, media_io_kwargs=reading))


def test_a_photo_is_turned_upright(client: OpenAI) -> None:
    upright = tiles(seed=6, width=224, height=112)
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned clockwise by a quarter
    file = io.BytesIO()
    upright.transpose(Image.Transpose.ROTATE_90).save(file, "PNG", exif=exif)
    turned = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    assert text_of(ask(client, {"url": turned})) == text_of(ask(client, {"url": data_url(upright)}))
