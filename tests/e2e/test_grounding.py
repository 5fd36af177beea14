"""Boxes in answers, through Envoy: with OpenAI's SDK, as typed JSON and with our client, whole and streamed."""

import base64
import io
from typing import Any

import openai
import PIL.Image
from PIL.ExifTags import Base

from glimpse.client import Client, Image
from tests.e2e.stack import Stack

BOX = {"left": 40, "top": 50, "right": 120, "bottom": 90}
"""The box in the file, which lies on its side: upright, it is 10 to 50 and 40 to 120 of 100×200 pixels."""
QUESTION = '⟦[{"bbox_2d": [100, 200, 500, 600], "label": "cat"}]⟧'


def on_its_side() -> bytes:
    exif, file = PIL.Image.Exif(), io.BytesIO()
    exif[int(Base.Orientation)] = 6
    PIL.Image.new("RGB", (200, 100), (9, 99, 199)).save(file, "JPEG", exif=exif)
    return file.getvalue()


def test_openai_sdk_gets_boxes_beside_the_answer(echo_stack: Stack) -> None:
    url = f"data:image/jpeg;base64,{base64.b64encode(on_its_side()).decode()}"
    content: Any = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
    with openai.OpenAI(base_url=f"{echo_stack.url}/v1", api_key="none") as client:
        model: Any = client.models.list().data[0]
        assert model.capabilities["grounding"]
        messages: Any = [{"role": "user", "content": content}]
        options: dict[str, Any] = {"model": model.id, "messages": messages, "extra_body": {"grounding": True}}
        whole: Any = client.chat.completions.create(**options)
        chunks: list[Any] = [*client.chat.completions.create(**options, stream=True)]
    assert whole.choices[0].groundings == [{"label": "cat", "image_index": 0, "box": BOX}]
    assert (whole.images[0]["width"], whole.images[0]["orientation"]) == (200, 6)
    ended = [choice for chunk in chunks for choice in chunk.choices if "groundings" in choice.model_extra]
    assert [(choice.finish_reason, choice.groundings) for choice in ended] == [("stop", whole.choices[0].groundings)]
    assert [chunk.images for chunk in chunks if "images" in chunk.model_extra] == [whole.images]


def test_client_and_typed_json_get_the_same_boxes(echo_stack: Stack) -> None:
    with Client(echo_stack.target) as client:
        prompt: Any = [Image(on_its_side()), QUESTION]
        (found,) = client.chat(prompt, grounding=True).groundings
        streamed = [each for chunk in client.stream(prompt, grounding=True) for each in chunk.groundings]
    assert {name: getattr(found.box, name) for name in BOX} == BOX
    assert (found.label, streamed) == ("cat", [found])
    image = {"image": {"source": {"data": base64.b64encode(on_its_side()).decode()}}}
    message = {"role": "ROLE_USER", "content": [image, {"text": QUESTION}]}
    body = {"messages": [message], "grounding": True}
    (choice,) = echo_stack.post("/glimpse/v1/chatCompletions", body)["choices"]
    assert choice["groundings"] == [{"label": "cat", "box": BOX}]  # proto3 leaves out an index of 0
