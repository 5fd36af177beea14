"""The embedded model answers correctly about images and videos with known content, through Envoy."""

import base64
import io
import json
import re
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import pytest
from openai import OpenAI
from PIL import Image

from glimpse.client import Client
from glimpse.client import Image as MediaBytes
from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2
from tests.e2e.images import data_url, encoded
from tests.e2e.scenes import Thing, moving, scene
from tests.e2e.stack import Stack
from tests.media.pdfs import document, of_images, rectangle
from tests.media.videos import video
from tests.protos.compiled import message_class

MIDDLE = (0.5, 0.5)
RED_CIRCLE: Thing = ("red", "circle", MIDDLE, 0.5)
BLUE_SQUARE: Thing = ("blue", "square", MIDDLE, 0.5)
CORNERS = {
    "top left": (0.25, 0.25),
    "top right": (0.75, 0.25),
    "bottom left": (0.25, 0.75),
    "bottom right": (0.75, 0.75),
}
RIGHTWARDS = [(0.18, 0.5), (0.39, 0.5), (0.61, 0.5), (0.82, 0.5)]


def image_part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def document_part(pages: bytes, **options: Any) -> dict[str, Any]:
    url = f"data:application/pdf;base64,{base64.b64encode(pages).decode()}"
    return {"type": "document", "document": {"url": url, **options}}


def ask(
    client: OpenAI, question: str, *parts: dict[str, Any], earlier: Sequence[dict[str, Any]] = (), **more: Any
) -> str:
    content = [*parts, {"type": "text", "text": question}]
    messages: Any = [*earlier, {"role": "user", "content": content}]
    completion = client.chat.completions.create(
        model="nano", messages=messages, temperature=0, max_completion_tokens=96, **more
    )
    assert completion.choices[0].finish_reason == "stop"
    return completion.choices[0].message.content or ""


def words(answer: str) -> set[str]:
    return set(re.findall(r"[a-z]+|\d+", answer.lower()))


@pytest.mark.parametrize("file_format", ["PNG", "JPEG"])
@pytest.mark.parametrize(("width", "height"), [(84, 84), (168, 112), (280, 224)])
def test_names_shape_and_colour(client: OpenAI, width: int, height: int, file_format: str) -> None:
    for colour, shape in (("red", "circle"), ("blue", "square"), ("green", "triangle"), ("black", "star")):
        image = scene((colour, shape, MIDDLE, 0.5), width=width, height=height)
        part = image_part(data_url(image, file_format))
        assert shape in words(ask(client, "What shape is it?", part))
        assert colour in words(ask(client, f"What colour is the {shape}?", part))


def test_sees_transparency_as_white(client: OpenAI) -> None:
    image = scene(RED_CIRCLE, mode="RGBA")
    part = image_part(data_url(image))
    assert "white" in words(ask(client, "What colour is the background?", part))
    assert "red" in words(ask(client, "What colour is the circle?", part))


def test_sees_rotated_photos_upright(client: OpenAI) -> None:
    upright = scene(("red", "circle", (0.2, 0.2), 0.25))
    stored = upright.transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise
    file = io.BytesIO()
    stored.save(file, "JPEG", exif=exif, quality=95)
    url = "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
    turned = words(ask(client, "Where is the circle?", image_part(url)))
    assert {"top", "left"} <= turned
    as_stored = words(ask(client, "Where is the circle?", image_part(data_url(stored))))
    assert {"bottom", "left"} <= as_stored


def test_counts_objects(client: OpenAI) -> None:
    places = [(0.2, 0.2), (0.8, 0.2), (0.5, 0.5), (0.2, 0.8), (0.8, 0.8)]
    for number in range(1, 6):
        image = scene(*[("green", "square", place, 0.22) for place in places[:number]])
        assert str(number) in words(ask(client, "How many squares are there?", image_part(data_url(image))))


def test_answers_yes_and_no(client: OpenAI) -> None:
    part = image_part(data_url(scene(RED_CIRCLE)))
    assert "yes" in words(ask(client, "Is there a red circle in the image?", part))
    assert "no" in words(ask(client, "Is there a blue square in the image?", part))
    assert "yes" in words(ask(client, "Is the circle red?", part))
    assert "no" in words(ask(client, "Is the circle green?", part))


@pytest.mark.parametrize("as_file", [True, False])
@pytest.mark.parametrize("way", ["right", "left"])
def test_sees_motion(client: OpenAI, way: str, as_file: bool) -> None:
    frames = moving("red", "circle", RIGHTWARDS if way == "right" else RIGHTWARDS[::-1])
    if as_file:
        data = video(np.stack([np.asarray(frame) for frame in frames]), fps=2)
        url: Any = "data:video/mp4;base64," + base64.b64encode(data).decode()
    else:
        url = [data_url(frame) for frame in frames]
    part = {"type": "video_url", "video_url": {"url": url, "fps": 2}}
    assert way in words(ask(client, "Which way does the circle move?", part))


def test_distinguishes_two_images(client: OpenAI) -> None:
    parts = [image_part(data_url(scene(thing))) for thing in (RED_CIRCLE, BLUE_SQUARE)]
    assert "first" in words(ask(client, "Which image has a red circle?", *parts))
    assert "second" in words(ask(client, "Which image has a red circle?", *parts[::-1]))


def test_compares_two_images(client: OpenAI) -> None:
    red, blue = (image_part(data_url(scene((colour, "circle", MIDDLE, 0.5)))) for colour in ("red", "blue"))
    difference = ask(client, "What is the difference between the images?", red, blue)
    assert {"red", "blue"} <= words(difference)
    assert "same" not in words(difference)
    assert "same" in words(ask(client, "What is the difference between the images?", red, red))
    assert "no" in words(ask(client, "Are the images the same?", red, blue))


def test_follow_up_uses_the_conversation(client: OpenAI) -> None:
    part = image_part(data_url(scene(("blue", "star", (0.2, 0.8), 0.25))))
    question = "What shape is it?"
    shape = ask(client, question, part)
    assert "star" in words(shape)
    earlier = [
        {"role": "user", "content": [part, {"type": "text", "text": question}]},
        {"role": "assistant", "content": shape},
    ]
    assert "blue" in words(ask(client, "And its colour?", earlier=earlier))


def test_answers_in_json_on_request(client: OpenAI) -> None:
    part = image_part(data_url(scene(("red", "square", MIDDLE, 0.45))))
    (thing,) = json.loads(ask(client, "What is in this image? Reply in JSON.", part))
    assert (thing["shape"], thing["colour"]) == ("square", "red")


def test_fills_a_json_schema_correctly(client: OpenAI) -> None:
    fields = {"shape": {"type": "string"}, "colour": {"type": "string"}}
    schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, "strict": True}}
    part = image_part(data_url(scene(BLUE_SQUARE)))
    question = "Describe it as a JSON object with shape and colour."
    assert json.loads(ask(client, question, part, response_format=form)) == {"shape": "square", "colour": "blue"}


@pytest.mark.parametrize(
    "drawn",
    [
        {("circle", "red", "top left"), ("square", "blue", "bottom right")},
        {("triangle", "green", "top right"), ("star", "black", "bottom left")},
        {("circle", "blue", "top left"), ("circle", "red", "bottom right")},
        {("star", "blue", "bottom right")},
    ],
)
def test_fills_a_message_with_a_list_of_objects(stack: Stack, drawn: set[tuple[str, str, str]]) -> None:
    """At most two objects: the small model mistakes the place of a third."""
    things = [(colour, shape, CORNERS[place], 0.3) for shape, colour, place in drawn]
    image = encoded(scene(*things, width=224, height=224))
    with Client(stack.target) as client:
        drawing: Any = client.chat(
            [MediaBytes(image), "What is in this image? Reply in JSON."],
            answer=message_class("Drawing"),
            temperature=0,
            max_completion_tokens=300,
        )
    assert len(drawing.objects) == len(drawn)
    assert {(each.shape, each.colour, each.place) for each in drawing.objects} == drawn


def test_says_what_it_does_not_know(client: OpenAI) -> None:
    assert "only" in words(ask(client, "Who was the first president of the United States?"))


def test_answers_about_bytes_over_grpc(stack: Stack) -> None:
    source = content_pb2.MediaSource(data=encoded(scene(RED_CIRCLE)))
    content = [
        content_pb2.ContentPart(image=content_pb2.ImagePart(source=source)),
        content_pb2.ContentPart(text="What colour is the circle?"),
    ]
    message = content_pb2.Message(role=content_pb2.ROLE_USER, content=content)
    with grpc.insecure_channel(stack.target) as channel:
        answer = chat_pb2_grpc.ChatServiceStub(channel).CreateChatCompletion(
            chat_pb2.CreateChatCompletionRequest(messages=[message])
        )
    assert "red" in words(answer.choices[0].message.content)


def test_sees_what_is_drawn_on_a_page(client: OpenAI) -> None:
    drawn = document([rectangle((0.1, 0.15, 0.9), 50, 50, 100, 100)], size=(200, 200))
    part = document_part(drawn)
    assert "square" in words(ask(client, "What shape is it?", part))
    assert "blue" in words(ask(client, "What colour is the square?", part))


def test_sees_the_pages_of_a_document_in_order(client: OpenAI) -> None:
    pages, turned = (
        of_images(list(map(scene, things))) for things in ([RED_CIRCLE, BLUE_SQUARE], [BLUE_SQUARE, RED_CIRCLE])
    )
    assert "first" in words(ask(client, "Which image has a red circle?", document_part(pages)))
    assert "second" in words(ask(client, "Which image has a red circle?", document_part(turned)))
    assert "circle" in words(ask(client, "What shape is it?", document_part(pages, last_page=1)))
    assert "square" in words(ask(client, "What shape is it?", document_part(pages, first_page=2)))
