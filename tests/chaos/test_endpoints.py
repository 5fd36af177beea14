"""A conversation asks the same of both endpoints, or of one."""

import random
from typing import Any

import pytest

from tests.chaos.attack import Arena
from tests.chaos.endpoints import CHAT, MESSAGES, as_messages
from tests.chaos.questions import chat, chat_with_images
from tests.chaos.target import Target

URL = "http://127.0.0.1/a.png"
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


@pytest.mark.parametrize("member", ["logprobs", "n", "seed", "priority", "cache_salt", "logit_bias"])
def test_what_messages_lacks_is_asked_of_chat_completions(member: str) -> None:
    assert as_messages(chat("Hi", **{member: 1})) is None
    assert as_messages(chat("Hi", response_format={"type": "protobuf"})) is None


def test_the_seed_chooses_the_endpoint() -> None:
    def paths() -> list[str]:
        target = Target(http_port=1, grpc_port=2, metrics_port=3)
        arena = Arena(attack="a", target=target, rng=random.Random(1))
        return [arena.anywhere(chat("Hi"))[1] for _ in range(20)]

    assert paths() == paths()
    assert {*paths()} == {CHAT, MESSAGES}
