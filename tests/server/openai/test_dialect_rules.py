"""Refused members, closed messages, arrays as elements, and optional tags."""

import json
from typing import Any

import pytest

from glimpse.server.openai.decode import decode
from glimpse.server.openai.document import DecodeError
from glimpse.server.openai.encode import encode
from glimpse.v1 import chat_pb2, completion_pb2, generation_pb2


def read(value: Any, message_class: Any = chat_pb2.CreateChatCompletionRequest) -> Any:
    return decode(json.dumps(value).encode(), message_class)


def refusal(value: Any, message_class: Any = chat_pb2.CreateChatCompletionRequest) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        read(value, message_class)
    return caught.value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"store": True}, "store"),
        ({"store": 0}, "store"),
        ({"length_penalty": True}, "length_penalty"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"guided_json": {}}, "guided_json"),
        ({"messages": [{"audio": {"id": "a"}}]}, "messages[0].audio"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"structured_outputs": {"no_such": None, "other": 1}}, "structured_outputs.other"),
        ({"media_io_kwargs": {"audio": {}}}, "media_io_kwargs.audio"),
        ({"media_io_kwargs": {"image": {"mode": "L"}}}, "media_io_kwargs.image.mode"),
    ],
)
def test_refuses_a_member_by_name(value: Any, path: str) -> None:
    error = refusal(value)
    assert (error.path, error.code) == (path, "unsupported")
    assert error.message.startswith(f"'{path}': ")


@pytest.mark.parametrize(
    "value",
    [
        {"store": False, "modalities": ["text"], "audio": None, "length_penalty": 1.0, "best_of": 1},
        {"spaces_between_special_tokens": True},
        {"spaces_between_special_tokens": False},
        {"media_io_kwargs": {"image": {"rgba_background_color": [255, 255, 255]}}},
    ],
)
def test_accepts_a_value_that_asks_for_nothing(value: Any) -> None:
    assert read(value).unknown == []


@pytest.mark.parametrize(
    ("value", "prompts"),
    [
        ("a", [{"text": "a"}]),
        (["a", "b"], [{"text": "a"}, {"text": "b"}]),
        ([1, 2], [{"token_ids": {"ids": [1, 2]}}]),
        ([[1, 2], [3]], [{"token_ids": {"ids": [1, 2]}}, {"token_ids": {"ids": [3]}}]),
        (["a", [3]], [{"text": "a"}, {"token_ids": {"ids": [3]}}]),
        ([], []),
    ],
)
def test_array_is_an_element_unless_it_contains_one(value: Any, prompts: list[Any]) -> None:
    message = read({"prompt": value}, completion_pb2.CreateCompletionRequest).message
    assert message == completion_pb2.CreateCompletionRequest(prompts=prompts)


def test_error_in_an_array_has_its_index() -> None:
    assert refusal({"prompt": [1, "a"]}, completion_pb2.CreateCompletionRequest).path == "prompt[1]"
    assert refusal({"prompt": [[1], ["a"]]}, completion_pb2.CreateCompletionRequest).path == "prompt[1][0]"


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (3, {"num_logprobs": 3}),
        (True, {"generation": {"logprobs": True}}),
    ],
)
def test_number_and_boolean_fields_share_a_name(value: Any, fields: dict[str, Any]) -> None:
    message = read({"logprobs": value}, completion_pb2.CreateCompletionRequest).message
    assert message == completion_pb2.CreateCompletionRequest(**fields)


@pytest.mark.parametrize(
    ("call", "document"),
    [
        (
            chat_pb2.ToolCallDelta(id="c", function=chat_pb2.FunctionCallDelta(name="f", arguments="")),
            b'{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":""}}',
        ),
        (
            chat_pb2.ToolCallDelta(index=1, function=chat_pb2.FunctionCallDelta(arguments="{")),
            b'{"index":1,"function":{"arguments":"{"}}',
        ),
    ],
)
def test_tag_is_written_only_with_its_field(call: chat_pb2.ToolCallDelta, document: bytes) -> None:
    assert encode(call) == document
    assert decode(document, chat_pb2.ToolCallDelta).message == call


def test_structured_outputs_have_one_constraint() -> None:
    assert refusal({"regex": "a", "grammar": "b"}, generation_pb2.StructuredOutputs).code == "conflicting_values"
    outputs = read({"choice": ["a"]}, generation_pb2.StructuredOutputs).message
    assert outputs == generation_pb2.StructuredOutputs(choice={"values": ["a"]})
