"""Boxes in answers over the typed API and OpenAI's: in pixels of the files that were sent, once, at the end."""

from pathlib import Path
from typing import Any

import grpc
import PIL.Image
import pytest
from PIL.ExifTags import Base

from glimpse.v1 import chat_pb2, chat_pb2_grpc, generation_pb2
from tests.checkpoints.idefics3 import make_idefics3_checkpoint
from tests.media.images import encode
from tests.server.requests import ask_in_json, image_part, image_url, png, request, user
from tests.server.serving import echoing

Chat = chat_pb2_grpc.ChatServiceStub
CAT = "<|object_ref_start|>cat<|object_ref_end|><|box_start|>(100,200),(500,600)<|box_end|>"
"""A box, as Qwen2-VL writes it."""
BOX = generation_pb2.BoundingBox(left=20, top=20, right=100, bottom=60)
"""CAT in an image of 200×100 pixels."""


def turned(orientation: int) -> bytes:
    """Returns an image of 200×100 pixels that stands upright after it is turned."""
    exif = PIL.Image.Exif()
    exif[int(Base.Orientation)] = orientation
    return encode(PIL.Image.new("RGB", (200, 100)), "JPEG", exif=exif)


def grounded(*parts: Any, answer: str = CAT, **generation: Any) -> chat_pb2.CreateChatCompletionRequest:
    wire = request(user(*parts), max_completion_tokens=400, **generation)
    wire.structured_outputs.choice.values.append(answer)
    wire.grounding = True
    return wire


def test_boxes_are_in_pixels_of_the_file(chat: Chat) -> None:
    response = chat.CreateChatCompletion(grounded(image_part(turned(1)), "Where is the cat?"))
    (grounding,) = response.choices[0].groundings
    assert (grounding.label, grounding.image_index, grounding.box) == ("cat", 0, BOX)
    (seen,) = response.images
    assert (seen.width, seen.height, seen.orientation, seen.num_tiles) == (200, 100, 1, 1)
    assert seen.seen == generation_pb2.BoundingBox(left=0, top=0, right=200, bottom=100)
    assert (seen.seen_width, seen.seen_height) == (196, 112)
    (usage,) = response.usage.media_usage.media
    assert seen.tokens == usage.tokens
    ids = chat.CreateChatCompletion(
        grounded(image_part(turned(1)), "Where is the cat?", return_token_ids=True)
    ).prompt_token_ids
    assert len(set(ids[seen.first_token : seen.first_token + seen.tokens])) == 1


def test_a_turned_image_is_turned_back(chat: Chat) -> None:
    response = chat.CreateChatCompletion(grounded(image_part(turned(6)), "Where is the cat?"))
    # The upright image has 100×200 pixels, and the box 10 to 50 and 40 to 120 of them.
    expected = generation_pb2.BoundingBox(left=40, top=50, right=120, bottom=90)
    assert (response.choices[0].groundings[0].box, response.images[0].orientation) == (expected, 6)


def test_a_stream_delivers_them_once_at_the_end(chat: Chat) -> None:
    wire = grounded(image_part(turned(1)), "Where is the cat?", n=2, temperature=1.0)
    chunks = [*chat.StreamChatCompletion(wire)]
    ended = [choice for chunk in chunks for choice in chunk.choices if choice.groundings]
    assert sorted(choice.index for choice in ended) == [0, 1]
    assert all(choice.HasField("finish_reason") and choice.groundings[0].box == BOX for choice in ended)
    assert sum(bool(chunk.images) for chunk in chunks) == 2
    whole = chat.CreateChatCompletion(wire)
    assert [choice.groundings[0].box for choice in whole.choices] == [BOX, BOX]


def test_boxes_are_of_the_last_image(chat: Chat) -> None:
    response = chat.CreateChatCompletion(grounded(image_part(png()), image_part(turned(1)), "Where is the cat?"))
    assert [(each.image_index, each.box) for each in response.choices[0].groundings] == [(1, BOX)]
    assert [(each.width, each.height) for each in response.images] == [(64, 48), (200, 100)]


def test_answers_without_images_have_none(chat: Chat) -> None:
    response = chat.CreateChatCompletion(grounded("Where is the cat?"))
    assert not response.choices[0].groundings
    assert not response.images


def test_only_requests_that_ask_for_them_get_them(chat: Chat) -> None:
    wire = grounded(image_part(turned(1)), "Where is the cat?")
    wire.grounding = False
    response = chat.CreateChatCompletion(wire)
    assert response.choices[0].message.content == CAT
    assert not response.choices[0].groundings
    assert not response.images


def test_boxes_in_json_are_found(chat: Chat) -> None:
    schema = '{"type": "array", "items": {"const": {"bbox_2d": [1, 2, 3, 4]}}, "minItems": 20, "maxItems": 20}'
    wire = request(user(image_part(turned(1)), "All?"), max_completion_tokens=2000)
    wire.grounding = True
    wire.structured_outputs.json = schema
    assert len(chat.CreateChatCompletion(wire).choices[0].groundings) == 20


def test_openai_dialect_has_the_same_members(channel: grpc.Channel) -> None:
    options = {"grounding": True, "structured_outputs": {"choice": [CAT]}, "max_completion_tokens": 400}
    answer = ask_in_json(channel, image_url(turned(1)), {"type": "text", "text": "?"}, **options)
    (choice,) = answer["choices"]
    assert choice["groundings"] == [
        {"label": "cat", "image_index": 0, "box": {"left": 20, "top": 20, "right": 100, "bottom": 60}}
    ]
    assert answer["images"][0]["width"] == 200
    plain = ask_in_json(channel, {"type": "text", "text": "?"})
    assert "images" not in plain
    assert "groundings" not in plain["choices"][0]


async def test_families_that_write_no_boxes_refuse(tmp_path: Path) -> None:
    async with echoing(make_idefics3_checkpoint(tmp_path / "idefics3")) as (_, channel):
        wire = request(user("Where?"))
        wire.grounding = True
        chat: Any = Chat(channel)  # pyright: ignore[reportArgumentType] - the stub of a channel in an event loop
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await chat.CreateChatCompletion(wire)
        message = "'grounding': expected false, since models of this family are not known to write boxes or points"
        assert refused.value.details() == message
        wire.grounding = False
        assert (await chat.CreateChatCompletion(wire)).choices
