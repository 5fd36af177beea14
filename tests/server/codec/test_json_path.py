"""Converting proto paths to JSON paths."""

import pytest

from glimpse.dialect.openai import OPENAI
from glimpse.dialect.options import descriptor_of
from glimpse.server.codec.paths import json_path, with_sent_names
from glimpse.server.field_path import FieldPath, path_text
from glimpse.v1 import chat_pb2


@pytest.mark.parametrize(
    ("proto_path", "expected"),
    [
        ("model", "model"),
        ("generation.top_p", "top_p"),
        ("generation.stop[2]", "stop[2]"),
        ("generation.logit_bias[50256]", "logit_bias[50256]"),
        ("generation", ""),
        ("messages[0].role", "messages[0].role"),
        ("messages[0].content[1].image", "messages[0].content[1].image_url"),
        ("messages[0].content[1].image.source", "messages[0].content[1].image_url.url"),
        ("messages[0].content[1].image.source.data", "messages[0].content[1].image_url.data"),
        ("messages[0].content[1].image.min_pixels", "messages[0].content[1].image_url.min_pixels"),
        ("messages[0].content[1].audio.format", "messages[0].content[1].input_audio.format"),
        ("messages[0].content[1].video.frames.frames[2].url", "messages[0].content[1].video_url.url[2].url"),
        ("tool_choice.named_tool.function.name", "tool_choice.function.name"),
        (
            "tool_choice.named_tool.allowed_tools.tools[0].function.name",
            "tool_choice.allowed_tools.tools[0].function.name",
        ),
        ("tool_choice.mode", "tool_choice"),
        ("no.such[1].field", "no.such[1].field"),
        ("", ""),
    ],
)
def test_converts_proto_paths_to_json_paths(proto_path: str, expected: str) -> None:
    assert json_path(OPENAI, descriptor_of(chat_pb2.CreateChatCompletionRequest), proto_path) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.own", "a.given"),
        ("a.own.inner.x", "a.given.alias.x"),
        ("a.own[2].inner", "a.given[2].inner"),
        ("a.owner", "a.owner"),
        ("b.own", "b.own"),
        ("", ""),
    ],
)
def test_path_keeps_the_names_that_were_sent(path: str, expected: str) -> None:
    aliased = {"a.own": "a.given", "a.given.inner": "a.given.alias"}
    assert with_sent_names(path, aliased) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (None, ""),
        (((None, "messages"), 3), "messages[3]"),
        ((((None, "messages"), 3), "role"), "messages[3].role"),
        ((None, "a-b"), "a-b"),
        (((None, "m"), "a b"), 'm["a b"]'),
        ((None, "a" * 65), f'["{"a" * 61}..."]'),
        ((None, "ä\n\x7f"), '["\\u00e4\\n\\u007f"]'),
    ],
)
def test_path_text_is_printable_ascii(path: FieldPath, expected: str) -> None:
    assert path_text(path) == expected
