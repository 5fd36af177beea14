"""A conversation asks the same of all endpoints that have what it needs."""

import random
from typing import Any

import pytest

from tests.chaos.attack import Arena
from tests.chaos.endpoints import CHAT, MESSAGES, RESPONSES, as_messages, as_responses
from tests.chaos.questions import chat, chat_with_document, chat_with_images
from tests.chaos.target import Target

URL = "http://127.0.0.1/a.png"
PDF = "application/pdf"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("body", "members"),
    [
        (chat("Hi", stream=True, stop=["x"]), {"stream": True, "stop_sequences": ["x"], "max_tokens": 24}),
        (
            chat_with_images([b"png", URL]),
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "Describe the image."},
                            {
                                "type": "image",
                                "source": {"type": "base64", "media_type": "image/png", "data": "cG5n"},
                            },
                            {"type": "image", "source": {"type": "url", "url": URL}},
                        ],
                    }
                ]
            },
        ),
        (
            chat("Hi", tools=[{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]),
            {"tools": [{"name": "f", "input_schema": SCHEMA}]},
        ),
        (
            chat("Hi", response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}),
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        ),
    ],
)
def test_a_conversation_is_written_for_messages(body: dict[str, Any], members: dict[str, Any]) -> None:
    written = as_messages(body)
    assert written is not None
    assert {name: written[name] for name in members} == members


@pytest.mark.parametrize(
    ("body", "members"),
    [
        (
            chat("Hi", stream=True),
            {"stream": True, "max_output_tokens": 24, "input": [{"role": "user", "content": "Hi"}]},
        ),
        (
            chat_with_images([URL]),
            {
                "input": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "input_text", "text": "Describe the image."},
                            {"type": "input_image", "image_url": URL},
                        ],
                    }
                ]
            },
        ),
        (
            chat("Hi", tools=[{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]),
            {"tools": [{"type": "function", "name": "f", "parameters": SCHEMA}]},
        ),
        (
            chat("Hi", response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}),
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
        ),
    ],
)
def test_a_conversation_is_written_for_responses(body: dict[str, Any], members: dict[str, Any]) -> None:
    written = as_responses(body)
    assert written is not None
    assert {name: written[name] for name in members} == members


def test_a_document_is_written_for_each() -> None:
    body = chat_with_document(b"pdf")
    for form, part in (
        (as_messages(body), {"type": "document", "source": {"type": "base64", "media_type": PDF, "data": "cGRm"}}),
        (
            as_responses(body),
            {"type": "input_file", "filename": "a.pdf", "file_data": f"data:{PDF};base64,cGRm"},
        ),
    ):
        assert form is not None
        assert (form.get("messages") or form["input"])[0]["content"][1] == part


@pytest.mark.parametrize("member", ["logprobs", "n", "seed", "priority", "cache_salt", "logit_bias"])
def test_what_others_lack_is_asked_of_chat_completions(member: str) -> None:
    for written in (as_messages, as_responses):
        assert written(chat("Hi", **{member: 1})) is None
        assert written(chat("Hi", response_format={"type": "protobuf"})) is None


def test_the_seed_chooses_the_endpoint() -> None:
    def paths() -> list[str]:
        target = Target(http_port=1, grpc_port=2, metrics_port=3)
        arena = Arena(attack="a", target=target, rng=random.Random(1))
        return [arena.anywhere(chat("Hi"))[1] for _ in range(30)]

    assert paths() == paths()
    assert {*paths()} == {CHAT, MESSAGES, RESPONSES}
