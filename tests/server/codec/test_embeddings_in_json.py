"""vLLM's JSON for embeddings: strings are files in base64, and objects are tensors."""

import base64
from typing import Any

import pytest

from glimpse.v1 import content_pb2
from tests.server.codec.decoding import part, read_part, refusal

FILE = base64.b64encode(b"a file").decode()
SERIALIZED = content_pb2.TensorSource(serialized=b"a file")
TENSOR = content_pb2.TensorSource(tensor={"type": content_pb2.TENSOR_TYPE_BFLOAT16, "shape": [1, 3], "data": b"a file"})
OBJECT = {"type": "bfloat16", "shape": [1, 3], "data": FILE}
WHERE = "messages[0].content[0].image_embeds"


@pytest.mark.parametrize(("value", "source"), [(FILE, SERIALIZED), (OBJECT, TENSOR)])
def test_a_tensor_is_a_file_or_an_object(value: Any, source: content_pb2.TensorSource) -> None:
    image = read_part(type="image_embeds", image_embeds={"image_embeds": value, "image_grid_thw": value})
    assert image.image_embeddings == content_pb2.ImageEmbeddings(embeddings=source, grid_thw=source)
    sized = read_part(type="image_embeds", image_embeds={"image_embeds": value, "image_sizes": value})
    assert sized.image_embeddings == content_pb2.ImageEmbeddings(embeddings=source, size=source)
    video = read_part(type="video_embeds", video_embeds={"video_embeds": value, "video_grid_thw": value})
    assert video.video_embeddings == content_pb2.VideoEmbeddings(embeddings=source, grid_thw=source)


def test_a_bare_string_is_the_embeddings() -> None:
    read = read_part(type="image_embeds", image_embeds=FILE)
    assert read.image_embeddings == content_pb2.ImageEmbeddings(embeddings=SERIALIZED)


def test_null_with_a_uuid_is_embeddings_by_reference() -> None:
    read = read_part(type="image_embeds", image_embeds=None, uuid="u")
    assert read == content_pb2.ContentPart(image_embeddings={}, uuid="u")


@pytest.mark.parametrize(
    ("members", "path", "code"),
    [
        ({"image_embeds": FILE, "video_grid_thw": FILE}, f"{WHERE}.video_grid_thw", "unsupported"),
        ({"image_embeds": OBJECT | {"stride": [1]}}, f"{WHERE}.image_embeds.stride", "unsupported"),
        ({"image_embeds": OBJECT | {"shape": [-1, 3]}}, f"{WHERE}.image_embeds.shape[0]", "invalid_value"),
        ({"image_embeds": OBJECT | {"shape": [2**64, 3]}}, f"{WHERE}.image_embeds.shape[0]", "invalid_value"),
        ({"image_embeds": OBJECT | {"type": "float64"}}, f"{WHERE}.image_embeds.type", "invalid_value"),
        ({"image_embeds": [0.5, 0.5]}, f"{WHERE}.image_embeds", "invalid_type"),
        ({"image_embeds": "%"}, f"{WHERE}.image_embeds", "invalid_value"),
    ],
)
def test_refuses_an_invalid_tensor_by_path(members: dict[str, Any], path: str, code: str) -> None:
    error = refusal(part(type="image_embeds", image_embeds=members))
    assert (error.path, error.code) == (path, code)
