"""Refused members, closed messages, arrays as elements, and optional tags."""

import json
from typing import Any

import pytest

from glimpse.dialect.options import descriptor_of
from glimpse.server.codec.document import DecodeError
from glimpse.server.errors import InvalidRequest
from glimpse.v1 import chat_pb2, completion_pb2, generation_pb2
from tests.server.codec.decoding import decode, encode, part, rest_failure
from tests.server.codec.sample_dialect import sample


def read(value: Any, message_class: Any = chat_pb2.CreateChatCompletionRequest) -> Any:
    return decode(json.dumps(value).encode(), message_class)


def refusal(value: Any, message_class: Any = chat_pb2.CreateChatCompletionRequest) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        read(value, message_class)
    return caught.value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"best_of": True}, "best_of"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"messages": [{"audio": {"id": "a"}}]}, "messages[0].audio"),
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
        {"stream_options": {"include_obfuscation": False}, "prediction": None, "verbosity": "medium"},
        {"spaces_between_special_tokens": True, "detokenize": True, "early_stopping": False},
        {"extra_args": {}, "flat_logprobs": False, "guided_decoding": None, "logprob_token_ids": None},
        {"media_io_kwargs": {"image": {"rgba_background_color": [255, 255, 255]}}},
    ],
)
def test_accepts_a_value_that_asks_for_nothing(value: Any) -> None:
    assert read(value).ignored == []


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"store": True}, "store"),
        ({"store": 0}, "store"),
        ({"verbosity": "low"}, "verbosity"),
        ({"prediction": {"type": "content", "content": "a"}}, "prediction"),
        ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
        ({"prompt_cache_options": {}}, "prompt_cache_options"),
        ({"length_penalty": True}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"detokenize": False}, "detokenize"),
        ({"skip_reading_prefix_cache": True}, "skip_reading_prefix_cache"),
        ({"spaces_between_special_tokens": False}, "spaces_between_special_tokens"),
        ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"messages": [{"annotations": [{"type": "url_citation"}]}]}, "messages[0].annotations"),
        (part(type="text", text="a", cache_control={"type": "ephemeral"}), "messages[0].content[0].cache_control"),
    ],
)
def test_a_hint_is_accepted_and_told(value: Any, path: str) -> None:
    assert read(value).ignored == [path]


@pytest.mark.parametrize(
    ("value", "instead"),
    [
        ({"guided_decoding": {"json": {"type": "object"}}}, "structured_outputs"),
        ({"guided_decoding": {}}, "structured_outputs"),
        ({"extra_args": {"a": 1}}, "no extension parameters"),
        ({"flat_logprobs": True}, "lists of tokens"),
        ({"logprob_token_ids": [1]}, "top_logprobs"),
        ({"logits_processors": ["a.b"]}, "logit_bias"),
    ],
)
@pytest.mark.parametrize(
    "message_class", [chat_pb2.CreateChatCompletionRequest, completion_pb2.CreateCompletionRequest]
)
def test_refuses_vllm_s_sampling_parameters_that_change_an_answer(value: Any, instead: str, message_class: Any) -> None:
    error = refusal(value, message_class)
    assert (error.path, error.code) == (next(iter(value)), "unsupported")
    assert instead in error.message


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


GUIDED = {
    "json": {"b": [1.0], "a": 2},
    "regex": "[ab]",
    "choice": ["yes", "no"],
    "grammar": 'start: "x"',
}


@pytest.mark.parametrize(("name", "value"), GUIDED.items())
@pytest.mark.parametrize(
    "request_class", [chat_pb2.CreateChatCompletionRequest, completion_pb2.CreateCompletionRequest]
)
def test_guided_decoding_is_structured_outputs(request_class: Any, name: str, value: Any) -> None:
    guided = read({f"guided_{name}": value}, request_class)
    assert guided.message == read({"structured_outputs": {name: value}}, request_class).message
    assert guided.message.structured_outputs.WhichOneof("constraint") == name
    assert guided.ignored == []


@pytest.mark.parametrize(
    ("value", "path", "other"),
    [
        ({"guided_json": {}, "structured_outputs": {"regex": "a"}}, "guided_json", "structured_outputs"),
        ({"structured_outputs": {"json": {}}, "guided_json": {}}, "guided_json", "structured_outputs"),
        ({"guided_choice": ["a"], "guided_regex": "a", "guided_json": None}, "guided_choice", "guided_regex"),
    ],
)
def test_guided_decoding_has_one_constraint(value: Any, path: str, other: str) -> None:
    error = refusal(value)
    assert (error.path, error.code) == (path, "conflicting_values")
    assert error.message == f"'{path}': not allowed with '{other}'; send only one of them"


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ("structured_outputs", "guided_choice"),
        ("structured_outputs.choice", "guided_choice"),
        ("structured_outputs.choice.values[1]", "guided_choice[1]"),
    ],
)
def test_errors_in_guided_decoding_name_the_member_that_was_sent(field: str, path: str) -> None:
    aliased = read({"guided_choice": ["a", ""]}).aliased
    failure = rest_failure(
        InvalidRequest(field, "no"), descriptor_of(chat_pb2.CreateChatCompletionRequest), aliased, "id"
    )
    assert failure.field == path


def test_wrong_type_of_guided_decoding_is_refused_by_name() -> None:
    assert refusal({"guided_choice": "a"}).path == "guided_choice"
    assert refusal({"guided_choice": ["a", 1]}).path == "guided_choice[1]"
    assert refusal({"guided_regex": {}}).path == "guided_regex"


def test_shortcut_sets_a_field_of_a_message_next_to_it() -> None:
    everything = sample("Everything")
    assert read({"then_text": "a"}, everything).message == everything(next={"text": "a"})
    inner = read({"then": {"then_text": "a"}}, everything)
    assert inner.message == everything(next={"next": {"text": "a"}})
    assert inner.aliased == {"then.then.text": "then.then_text", "then.then": "then.then_text"}
    for name in ("then", "after"):
        assert refusal({name: {}, "then_text": "a"}, everything).path == "then_text"


CIRCLE = {"kind": "circle", "radius": 2.0, "schema": {"b": 1, "a": 2}}


def test_members_of_an_internally_tagged_message_stand_beside_the_tag() -> None:
    everything = sample("Everything")
    document = {"shapes": [CIRCLE, {"kind": "group", "shapes": [{"kind": "dot"}]}]}
    message = read(document, everything).message
    inner = {"group": {"shapes": [{"dot": {}}]}}
    assert message == everything(shapes=[{"circle": {"radius": 2.0, "schema": '{"b": 1, "a": 2}'}}, inner])
    written = json.loads(encode(message))
    assert written["shapes"] == document["shapes"]
    assert list(written["shapes"][0]) == ["kind", "radius", "schema"]


@pytest.mark.parametrize(
    ("shape", "path", "code", "hint"),
    [
        ({"radius": 2}, "shapes[0].kind", "missing_value", "required"),
        ({"kind": 3}, "shapes[0].kind", "invalid_type", "a string"),
        ({"kind": "circel"}, "shapes[0].kind", "invalid_value", "did you mean 'circle'"),
        ({"kind": "square", "size": 2}, "shapes[0].kind", "unsupported", "Use circle."),
        ({"kind": "circle", "radius": "2"}, "shapes[0].radius", "invalid_type", "a number"),
        ({"kind": "circle", "schemas": 2}, "shapes[0].schemas", "unsupported", "did you mean 'schema'"),
        ({"kind": "group", "shapes": [{"kind": "box"}]}, "shapes[0].shapes[0].kind", "invalid_value", "got 'box'"),
    ],
)
def test_refuses_an_internally_tagged_message_by_the_path_that_was_sent(
    shape: Any, path: str, code: str, hint: str
) -> None:
    error = refusal({"shapes": [shape]}, sample("Everything"))
    assert (error.path, error.code) == (path, code)
    assert hint in error.message


def test_unknown_members_of_an_internally_tagged_message_are_told() -> None:
    assert read({"shapes": [CIRCLE | {"weight": 1}]}, sample("Everything")).ignored == ["shapes[0].weight"]
