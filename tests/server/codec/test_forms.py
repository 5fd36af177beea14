"""Content parts as other APIs write them are read as OpenAI's, or refused with what to write instead."""

import base64
import json
from typing import Any

import pytest

from glimpse.dialect.options import descriptor_of
from glimpse.server.errors import InvalidRequest
from glimpse.v1 import chat_pb2
from tests.server.codec.decoding import decode, part, read_part, refusal, rest_failure

DATA = base64.b64encode(b"file").decode()
PART = "messages[0].content[0]"


@pytest.mark.parametrize(
    ("form", "same"),
    [
        ({"type": "input_text", "text": "a"}, {"type": "text", "text": "a"}),
        ({"type": "output_text", "text": "a", "annotations": []}, {"type": "text", "text": "a"}),
        ({"type": "image", "image": "u"}, {"type": "image_url", "image_url": "u"}),
        ({"type": "image", "image": {"url": "u", "min_pixel": 9}},
            {"type": "image_url", "image_url": {"url": "u", "min_pixels": 9}}),
        ({"type": "image", "image": "u", "min_pixels": 9, "max_pixels": 99},
            {"type": "image_url", "image_url": {"url": "u", "min_pixels": 9, "max_pixels": 99}}),
        ({"type": "image", "url": "u"}, {"type": "image_url", "image_url": "u"}),
        ({"type": "image", "base64": DATA}, {"type": "image_url", "image_url": DATA}),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
            {"type": "image_url", "image_url": {"data": DATA}}),
        ({"type": "image", "source": {"type": "url", "url": "u"}}, {"type": "image_url", "image_url": "u"}),
        ({"type": "input_image", "image_url": "u", "detail": "low", "file_id": None},
            {"type": "image_url", "image_url": {"url": "u", "detail": "low"}}),
        ({"type": "image_url", "image_url": "u", "max_pixel": 9},
            {"type": "image_url", "image_url": {"url": "u", "max_pixels": 9}}),
        ({"type": "image", "image": None, "uuid": "u"}, {"type": "image_url", "image_url": None, "uuid": "u"}),
        ({"type": "image_pil", "image_pil": None, "uuid": "u"}, {"type": "image_url", "image_url": None, "uuid": "u"}),
        ({"type": "video", "video": "u", "fps": 2}, {"type": "video_url", "video_url": {"url": "u", "fps": 2}}),
        ({"type": "video", "video": ["a", "b"], "fps": 2},
            {"type": "video_url", "video_url": {"url": ["a", "b"], "fps": 2}}),
        ({"type": "video", "url": "u", "nframes": 4},
            {"type": "video_url", "video_url": {"url": "u", "num_frames": 4}}),
        ({"type": "audio", "audio": "u"}, {"type": "audio_url", "audio_url": "u"}),
        ({"type": "audio", "audio_url": "u"}, {"type": "audio_url", "audio_url": "u"}),
        ({"type": "file", "file": {"file_data": "u", "filename": "a.png"}},
            {"type": "file", "file": {"url": "u", "filename": "a.png"}}),
        ({"type": "image_url", "image_url": {"file_id": "f"}}, {"type": "image_url", "image_url": {"upload_id": "f"}}),
    ],
)  # fmt: skip
def test_a_part_of_another_api_is_read(form: dict[str, Any], same: dict[str, Any]) -> None:
    assert read_part(**form) == read_part(**same)


@pytest.mark.parametrize(
    ("form", "path", "code", "explanation"),
    [
        ({"type": "image_pil", "image_pil": "x"}, "image_pil", "unsupported", "Objects of PIL exist in Python only"),
        ({"type": "input_file", "file_id": "x"}, "type", "unsupported", "Use {\"type\": \"file\""),
        ({"type": "image"}, "image", "missing_value", "required, but missing"),
        ({"type": "image", "image": "a", "url": "b"}, "url", "conflicting_values", "not allowed if 'type' is 'image'"),
        ({"type": "image", "image": "a", "text": "b"}, "text", "conflicting_values", "not allowed"),
        ({"type": "image", "image": {"url": "a", "min_pixel": 1}, "min_pixels": 2}, "min_pixels",
            "conflicting_values", "also in 'image'"),
        ({"type": "video", "video": "a", "fps": "2"}, "fps", "invalid_type", "expected a number, got a string"),
        ({"type": "video", "video": [5]}, "video[0]", "invalid_type", "expected a string or an object"),
        ({"type": "image", "image": "a", "max_pixles": 2}, "max_pixles", "unsupported", "did you mean 'max_pixels'?"),
    ],
)  # fmt: skip
def test_a_part_that_cannot_be_read_is_refused(form: dict[str, Any], path: str, code: str, explanation: str) -> None:
    error = refusal(part(**form))
    assert (error.path, error.code) == (f"{PART}.{path}", code)
    assert explanation in error.message


@pytest.mark.parametrize(
    ("form", "field", "sent"),
    [
        ({"type": "image", "image": "u", "min_pixel": 9}, "image.source.url", "image"),
        ({"type": "image", "image": "u", "min_pixel": 9}, "image.min_pixels", "min_pixel"),
        ({"type": "image", "source": {"data": DATA}}, "image.source", "source.data"),
        ({"type": "image_url", "image_url": "u", "max_pixels": 9}, "image.max_pixels", "max_pixels"),
        ({"type": "video", "video": ["a", "b"]}, "video.frames.frames[1]", "video[1]"),
    ],
)
def test_later_errors_name_what_was_sent(form: dict[str, Any], field: str, sent: str) -> None:
    request_type = chat_pb2.CreateChatCompletionRequest
    decoded = decode(json.dumps(part(**form)).encode(), request_type)
    error = InvalidRequest(f"{PART}.{field}", "expected another one")
    assert rest_failure(error, descriptor_of(request_type), decoded.aliased, "id").field == f"{PART}.{sent}"


def test_members_of_a_form_are_unknown_in_other_parts() -> None:
    document = part(type="text", text="a", url="b", min_pixels=5, source="c")
    decoded = decode(json.dumps(document).encode(), chat_pb2.CreateChatCompletionRequest)
    assert decoded.ignored == [f"{PART}.url", f"{PART}.min_pixels", f"{PART}.source"]
