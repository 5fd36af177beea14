"""Decoding JSON documents: what is accepted, and how errors are reported."""

import base64
import json
import struct
from typing import Any

import pytest

from glimpse.dialect.options import descriptor_of
from glimpse.server.codec.codec import Decoded
from glimpse.server.codec.document import DecodeError
from glimpse.server.errors import InvalidRequest
from glimpse.v1 import chat_pb2, content_pb2
from tests.server.codec.decoding import decode, part, read, read_part, refusal, rest_failure
from tests.server.codec.sample_dialect import sample

REQUEST = b"""{
  "model": "qwen", "stream": true,
  "messages": [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [
      {"type": "text", "text": "What is this?"},
      {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "min_pixel": 3136, "detail": "low"}}
    ]}
  ],
  "tools": [{"type": "function", "function": {
    "name": "look", "parameters": {"type": "object", "properties": {"z": {"minimum": 1.50}, "a": {}}}
  }}],
  "tool_choice": {"type": "function", "function": {"name": "look"}},
  "temperature": 0, "top_p": 0.25, "seed": 9007199254740993, "stop": "END", "logit_bias": {"50256": -100},
  "max_tokens": 7, "n": null, "user": null
}"""


def test_decodes_a_whole_request() -> None:
    decoded = decode(REQUEST, chat_pb2.CreateChatCompletionRequest, stream_member="stream")
    expected = chat_pb2.CreateChatCompletionRequest(model="qwen")
    expected.messages.add(role=content_pb2.ROLE_SYSTEM).content.add(text="Be brief.")
    user = expected.messages.add(role=content_pb2.ROLE_USER)
    user.content.add(text="What is this?")
    image = user.content.add().image
    image.source.url = "https://example.com/a.png"
    image.min_pixels = 3136
    image.detail = content_pb2.IMAGE_DETAIL_LOW
    function = expected.tools.add().function
    function.name = "look"
    function.parameters = '{"type": "object", "properties": {"z": {"minimum": 1.50}, "a": {}}}'
    expected.tool_choice.named_tool.function.name = "look"
    options = expected.generation
    options.temperature, options.top_p, options.seed = 0, 0.25, 9007199254740993
    options.stop.append("END")
    options.logit_bias[50256] = -100
    options.max_completion_tokens = 7
    pixels = "messages[1].content[1].image_url.min_pixel"
    aliased = {f"{pixels}s": pixels, "max_completion_tokens": "max_tokens"}
    assert decoded == Decoded(message=expected, ignored=[], streaming=True, aliased=aliased)


def test_a_byte_order_mark_is_left_out() -> None:
    decoded = decode('\ufeff{"model": "qwen"}'.encode(), chat_pb2.CreateChatCompletionRequest, stream_member="stream")
    assert decoded.message == chat_pb2.CreateChatCompletionRequest(model="qwen")


def test_reports_unknown_members_by_path() -> None:
    document = {
        "x": 1,
        "gone": None,
        "messages": [{"content": [{"type": "text", "text": "", "y-z": {}}, "b"], "ä,": 0}],
    }
    decoded = decode(json.dumps(document).encode(), chat_pb2.CreateChatCompletionRequest)
    assert decoded.ignored == ["x", "messages[0].content[0].y-z", 'messages[0]["\\u00e4,"]']


@pytest.mark.parametrize(
    ("value", "path", "meant"),
    [
        ({"max_token": 5}, "max_token", "max_tokens"),
        ({"max_tokens": 5, "maxTokens": 5}, "maxTokens", "max_tokens"),
        ({"temprature": 0}, "temprature", "temperature"),
        ({"modle": "m"}, "modle", "model"),
        ({"top-p": 1}, "top-p", "top_p"),
        ({"responseFormat": {}}, "responseFormat", "response_format"),
        ({"messages": [{"toolCalls": []}]}, "messages[0].toolCalls", "tool_calls"),
        (part(type="text", text="a", cacheControl={}), "messages[0].content[0].cacheControl", "cache_control"),
        (part(type="image_url", image_url={"url": "u", "max_pixles": 5}),
            "messages[0].content[0].image_url.max_pixles", "max_pixels"),
        ({"tools": [{"type": "function", "function": {"parameter": {}}}]}, "tools[0].function.parameter", "parameters"),
        ({"stream_options": {"includeUsage": True}}, "stream_options.includeUsage", "include_usage"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp", "regex"),
        (part(type="image_url", imageUrl={"url": "u"}), "messages[0].content[0].imageUrl", "image_url"),
    ],
)  # fmt: skip
def test_a_name_that_resembles_a_known_one_is_refused_with_it(value: Any, path: str, meant: str) -> None:
    error = refusal(value)
    assert (error.path, error.code) == (path, "unsupported")
    assert error.message == f"'{path}': unknown field; did you mean '{meant}'?"


def test_the_member_that_asks_for_a_stream_is_known_at_the_top_alone() -> None:
    request_class = chat_pb2.CreateChatCompletionRequest
    with pytest.raises(DecodeError, match="did you mean 'stream'"):
        decode(b'{"strem": true}', request_class, stream_member="stream")
    assert decode(b'{"messages": [{"strem": 1}]}', request_class, stream_member="stream").ignored == [
        "messages[0].strem"
    ]


OF_OTHER_CLIENTS = [
    "api_base", "api_key", "base_url", "cache_prompt", "caching", "custom_llm_provider", "data_sources", "drop_params",
    "extra_headers", "extra_query", "fallbacks", "frequency", "id", "keep_alive", "litellm_call_id", "litellm_params",
    "mock_response", "model_info", "num_ctx", "num_retries", "plugins", "prompt_mode", "provider", "reasoning_format",
    "route", "search_parameters", "session_id", "tags", "timeout", "timings_per_token", "trace_id", "transforms",
    "usage", "user_id", "xtc_threshold",
]  # fmt: skip


def test_members_of_other_clients_resemble_none() -> None:
    document: dict[str, Any] = dict.fromkeys(OF_OTHER_CLIENTS, 1) | {
        "messages": [{"id": 1, "createdAt": 2, "parts": [], "tool_name": 3}]
    }
    decoded = decode(json.dumps(document).encode(), chat_pb2.CreateChatCompletionRequest)
    assert decoded.ignored == [*OF_OTHER_CLIENTS, *(f"messages[0].{name}" for name in document["messages"][0])]


@pytest.mark.parametrize(
    ("value", "path", "instead"),
    [
        ({"images": ["iVBO"]}, "images", '{"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}'),
        ({"messages": [{"role": "user", "content": "a", "images": ["iVBO"]}]}, "messages[0].images", "image_url"),
        ({"format": "json"}, "format", "response_format"),
        ({"messages": [{"content": "a", "prefix": True}]}, "messages[0].prefix", "continue_final_message"),
        (
            {"messages": [{"content": [{"type": "image_url", "image_url": {"url": "u", "resized_width": 56}}]}]},
            "messages[0].content[0].image_url.resized_width",
            "max_pixels",
        ),
        ({"options": {"num_predict": 5}}, "options", "the top level"),
        ({"extra_body": {"top_k": 5}}, "extra_body", "the top level"),
        ({"system": "Be brief."}, "system", '"system"'),
        ({"input": "a"}, "input", "messages"),
        ({"enable_thinking": False}, "enable_thinking", "chat_template_kwargs"),
        ({"max_new_tokens": 5}, "max_new_tokens", "max_completion_tokens"),
        ({"stopping_strings": ["a"]}, "stopping_strings", "stop"),
        ({"lora_path": "a"}, "lora_path", "model"),
        ({"mirostat": 2}, "mirostat", "top_p"),
        ({"typical_p": 0.9}, "typical_p", "top_p"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema", "json_schema"),
        ({"tools": [{"type": "function", "function": {"name": "f", "inputSchema": {}}}]},
            "tools[0].function.inputSchema", "parameters"),
    ],
)  # fmt: skip
def test_a_member_of_another_api_is_refused_with_what_to_write(value: Any, path: str, instead: str) -> None:
    error = refusal(value)
    assert (error.path, error.code) == (path, "unsupported")
    assert instead in error.message


def test_samplers_of_other_servers_are_accepted_where_they_are_off() -> None:
    document = b'{"mirostat": 0, "dry_multiplier": 0.0, "typical_p": 1.0, "tfs_z": 1, "safe_prompt": false}'
    assert decode(document, chat_pb2.CreateChatCompletionRequest).ignored == []


@pytest.mark.parametrize(
    ("document", "explanation"),
    [
        (b"", "Expecting value at line 1, column 1"),
        (b'{"a": 1,\n  }', "line 2, column 3"),
        (b"{'a': 1}", "line 1, column 2"),
        (b'{"a": NaN}', "NaN is not a JSON value"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON value"),
        (b'{"a": "\xff"}', "invalid UTF-8 at byte 7"),
        (b'{"a": "\n"}', "control character"),
        (b'{"model": "x", "model": "y"}', 'duplicate name "model" in an object'),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"n": ' + b"9" * 5000 + b"}", "a number has too many digits"),
    ],
)
def test_refuses_text_that_is_not_json(document: bytes, explanation: str) -> None:
    error = refusal(document)
    assert (error.path, error.code) == (None, "invalid_json")
    assert explanation in error.message


def test_refuses_a_body_that_is_not_an_object() -> None:
    error = refusal([])
    assert (error.path, error.code) == (None, "invalid_type")
    assert error.message == "The body: expected an object, got an array"


@pytest.mark.parametrize(
    ("value", "path", "message"),
    [
        ({"messages": [{"role": 5}]}, "messages[0].role", "expected a string, got an integer"),
        ({"messages": "hi"}, "messages", "expected an array, got a string"),
        ({"messages": [None]}, "messages[0]", "expected an object, got null"),
        ({"messages": [{"content": 1.5}]}, "messages[0].content", "a string, an array or an object, got a num"),
        ({"temperature": "1"}, "temperature", "expected a number, got a string"),
        ({"temperature": True}, "temperature", "expected a number, got a boolean"),
        ({"n": 1.5}, "n", "expected an integer, got a number"),
        ({"n": True}, "n", "expected an integer, got a boolean"),
        ({"logprobs": 1}, "logprobs", "expected a boolean, got an integer"),
        ({"stop": [1]}, "stop[0]", "expected a string, got an integer"),
        ({"stop": {}}, "stop", "expected a string or an array, got an object"),
        ({"logit_bias": []}, "logit_bias", "expected an object, got an array"),
        ({"tool_choice": 5}, "tool_choice", "expected a string or an object, got an integer"),
        (part(type=1), "messages[0].content[0].type", "expected a string, got an integer"),
        (part(type="image_url", image_url=5), "messages[0].content[0].image_url",
            "expected a string or an object, got an integer"),
    ],
)  # fmt: skip
def test_refuses_a_wrong_type_by_path(value: Any, path: str, message: str) -> None:
    error = refusal(value)
    assert (error.path, error.code) == (path, "invalid_type")
    assert error.message.startswith(f"'{path}': expected ")
    assert message in error.message


@pytest.mark.parametrize(
    ("value", "path", "explanation"),
    [
        ({"messages": [{"role": "boss"}]}, "messages[0].role",
            "expected one of 'system', 'developer', 'user', 'assistant', 'tool', got 'boss'"),
        ({"messages": [{"role": "ROLE_USER"}]}, "messages[0].role", "got 'ROLE_USER'"),
        ({"messages": [{"role": "unspecified"}]}, "messages[0].role", "got 'unspecified'"),
        ({"tool_choice": "any"}, "tool_choice", "expected one of 'none', 'auto', 'required', got 'any'"),
        ({"max_tokens": -1}, "max_tokens", "expected an integer of at least 1, got -1"),
        ({"max_tokens": 2**32}, "max_tokens", "expected a smaller integer, got 4294967296"),
        ({"min_tokens": -1}, "min_tokens", "expected an integer of at least 0, got -1"),
        ({"top_logprobs": -1}, "top_logprobs", "expected an integer from 0 to 20, got -1"),
        ({"n": 2**32}, "n", "expected an integer from 1 to 128, got 4294967296"),
        ({"seed": 2**63}, "seed", "expected a smaller integer, got 9223372036854775808"),
        ({"seed": -(2**63) - 1}, "seed", "expected a larger integer, got -9223372036854775809"),
        ({"temperature": 1e39}, "temperature", "expected a smaller number, got 1e+39"),
        ({"temperature": 10**400}, "temperature", "expected a smaller number, got 1000"),
        ({"user": "\ud800"}, "user", "expected Unicode text, got an unpaired surrogate"),
        ({"logit_bias": {"01": 1}}, 'logit_bias["01"]', "expected a decimal integer as the name, got '01'"),
        ({"logit_bias": {"1_0": 1}}, "logit_bias[\"1_0\"]", "expected a decimal integer as the name, got '1_0'"),
        ({"logit_bias": {"2147483648": 1}}, 'logit_bias["2147483648"]', "expected a smaller integer, got 2147483648"),
        (part(type="hologram"), "messages[0].content[0].type",
            "expected one of 'text', 'image_url', 'video_url', 'input_audio', 'image_embeds', 'video_embeds', "
            "'audio_embeds', 'document', 'file', got 'hologram'"),
        (part(type="imageUrl", imageUrl={"url": "u"}), "messages[0].content[0].type",
            "got 'imageUrl'; did you mean 'image_url'?"),
        (part(type="inputAudio", input_audio={}), "messages[0].content[0].type", "did you mean 'input_audio'?"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type",
            "expected one of 'function', got 'custom'"),
        (part(type="input_audio", input_audio={"data": "AAA"}), "messages[0].content[0].input_audio.data",
            "expected base64 text"),
        (part(type="input_audio", input_audio={"data": "é"}), "messages[0].content[0].input_audio.data",
            "expected base64 text"),
    ],
)  # fmt: skip
def test_refuses_an_invalid_value_by_path(value: Any, path: str, explanation: str) -> None:
    error = refusal(value)
    assert (error.path, error.code) == (path, "invalid_value")
    assert error.message.startswith(f"'{path}': ")
    assert explanation in error.message


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (part(text="a"), "messages[0].content[0].type"),
        (part(type=None, text="a"), "messages[0].content[0].type"),
        (part(type="text"), "messages[0].content[0].text"),
        (part(type="text", text=None), "messages[0].content[0].text"),
        (part(type="image_url"), "messages[0].content[0].image_url"),
    ],
)
def test_names_the_missing_member_of_a_tagged_object(value: Any, path: str) -> None:
    error = refusal(value)
    assert (error.path, error.code) == (path, "missing_value")
    assert error.message == f"'{path}': required, but missing"


@pytest.mark.parametrize(
    ("value", "path", "explanation"),
    [
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens", "the same as 'max_completion_tokens'"),
        (part(type="text", text="a", image_url={}), "messages[0].content[0].image_url",
            "not allowed if 'type' is 'text'"),
        (part(type="audio_url", audio_url={}, input_audio={}), "messages[0].content[0].input_audio", "'audio_url'"),
        (part(type="image_url", image_url={"url": "a", "data": ""}), "messages[0].content[0].image_url.data",
            "send only one of 'data', 'file_data', 'file_id', 'upload_id', 'url'"),
        (part(type="video_url", video_url={"url": ["a"], "data": ""}), "messages[0].content[0].video_url.data",
            "send only one of 'data', 'file_data', 'file_id', 'upload_id', 'url'"),
    ],
)  # fmt: skip
def test_refuses_conflicting_members(value: Any, path: str, explanation: str) -> None:
    error = refusal(value)
    assert (error.path, error.code) == (path, "conflicting_values")
    assert explanation in error.message


def test_null_is_the_same_as_no_member() -> None:
    assert read(
        {"max_tokens": None, "max_completion_tokens": 5, "stop": None, "tools": None, "messages": None}
    ) == read({"max_completion_tokens": 5})


def test_accepts_an_integer_with_a_decimal_point() -> None:
    assert read({"n": 2.0}).generation.n == 2


def test_a_bare_string_is_a_list_or_a_content_part() -> None:
    assert read({"messages": [{"content": "a"}]}) == read({"messages": [{"content": [{"type": "text", "text": "a"}]}]})
    assert read({"messages": [{"content": ["a"]}]}) == read({"messages": [{"content": "a"}]})
    assert list(read({"stop": "a"}).generation.stop) == ["a"]
    assert list(read({"bad_words": "a"}).generation.bad_words) == ["a"]


@pytest.mark.parametrize("written", ["+/+/\nAA==\r\n", "-_-_AA==", " +/+/AA== "])
def test_base64_has_white_space_and_either_alphabet_as_in_data_urls(written: str) -> None:
    decoded = read_part(type="input_audio", input_audio={"data": written})
    assert decoded.audio.source.data == base64.b64decode("+/+/AA==")


@pytest.mark.parametrize("name", ["image_url", "video_url", "input_audio", "audio_url"])
def test_a_bare_string_is_the_url_of_a_medium(name: str) -> None:
    assert read_part(type=name, **{name: "u"}) == read_part(type=name, **{name: {"url": "u"}})


@pytest.mark.parametrize("name", ["image_url", "audio_url"])
def test_an_error_in_a_bare_url_has_the_path_that_was_sent(name: str) -> None:
    request_type = chat_pb2.CreateChatCompletionRequest
    decoded = decode(json.dumps(part(type=name, **{name: "u"})).encode(), request_type)
    kind = decoded.message.messages[0].content[0].WhichOneof("part")
    for field in ("source", "source.url"):
        error = InvalidRequest(f"messages[0].content[0].{kind}.{field}", "expected a URL, got u")
        failure = rest_failure(error, descriptor_of(request_type), decoded.aliased, "id")
        assert failure.field == f"messages[0].content[0].{name}"


@pytest.mark.parametrize("member", ["data", "upload_id"])
def test_an_error_in_a_medium_names_the_member_that_has_it(member: str) -> None:
    request_type = chat_pb2.CreateChatCompletionRequest
    decoded = decode(json.dumps(part(type="input_audio", input_audio={member: "aaaa"})).encode(), request_type)
    error = InvalidRequest("messages[0].content[0].audio.source", "expected audio")
    failure = rest_failure(error, descriptor_of(request_type), decoded.aliased, "id")
    assert failure.field == f"messages[0].content[0].input_audio.{member}"


@pytest.mark.parametrize(
    ("name", "sent", "blamed"),
    [
        ("input_audio", {"format": "wav"}, "input_audio.data"),
        ("input_audio", None, "input_audio.data"),
        ("input_audio", {"url": "u"}, "input_audio.url"),
        ("input_audio", {"upload_id": "u"}, "input_audio.upload_id"),
        ("input_audio", "u", "input_audio"),
        ("audio_url", {}, "audio_url.url"),
        ("image_url", {}, "image_url.url"),
    ],
)
def test_an_error_in_a_medium_without_source_names_the_member_of_its_part_type(
    name: str, sent: Any, blamed: str
) -> None:
    request_type = chat_pb2.CreateChatCompletionRequest
    decoded = decode(json.dumps(part(type=name, **{name: sent})).encode(), request_type)
    kind = decoded.message.messages[0].content[0].WhichOneof("part")
    error = InvalidRequest(f"messages[0].content[0].{kind}.source", "expected a source")
    failure = rest_failure(error, descriptor_of(request_type), decoded.aliased, "id")
    assert failure.field == f"messages[0].content[0].{blamed}"


def test_a_null_image_is_an_image_without_source() -> None:
    empty = read_part(type="image_url", image_url=None, uuid="u")
    assert empty.WhichOneof("part") == "image"
    assert not empty.image.HasField("source")


@pytest.mark.parametrize("name", ["input_audio", "audio_url"])
def test_an_alias_of_a_tag_is_also_the_name_of_the_member(name: str) -> None:
    assert read_part(type=name, **{name: {"url": "u", "format": "wav"}}).audio.source.url == "u"
    assert refusal(part(type=name)).path == f"messages[0].content[0].{name}"


def test_json_type_selects_among_fields_of_one_name() -> None:
    assert read_part(type="video_url", video_url={"url": "video"}).video.source.url == "video"
    frames = read_part(
        type="video_url", video_url={"url": ["a", {"data": base64.b64encode(b"b").decode()}]}
    ).video.frames
    assert [frame.WhichOneof("source") for frame in frames.frames] == ["url", "data"]
    assert frames.frames[1].data == b"b"
    error = refusal(part(type="video_url", video_url={"url": 5}))
    assert "expected a string or an array, got an integer" in error.message


def test_a_message_without_fields_needs_only_its_tag() -> None:
    assert read({"response_format": {"type": "text"}}).response_format.WhichOneof("format") == "text"
    assert read({"response_format": {"type": "text", "text": {}}}).response_format.WhichOneof("format") == "text"


def test_raw_members_keep_their_text() -> None:
    document = b'{"schema": [1.0,  {"b":1,"a":2}], "then": {"schema": "x"}, "children": {"k": {"schema":  {} }}}'
    message = decode(document, sample("Everything")).message
    assert message.schema == '[1.0,  {"b":1,"a":2}]'
    assert message.next.schema == '"x"'
    assert message.children["k"].schema == "{}"


@pytest.mark.parametrize("member", [b'"\\ud800": 1', b'"x": "\\udc00"'])
def test_refuses_an_unpaired_surrogate_next_to_raw_members(member: bytes) -> None:
    assert refusal(b'{"schema": {}, ' + member + b"}", sample("Everything")).code == "invalid_json"


def test_accepts_constants() -> None:
    decoded = decode(b'{"object": 5, "text": "t"}', sample("Everything"))
    assert decoded.message == sample("Everything")(text="t")
    assert decoded.ignored == []


def test_map_keys_are_read_by_type() -> None:
    message = read({"by_number": {"-5": "a"}, "by_flag": {"true": "b"}}, sample("Everything"))
    assert dict(message.by_number) == {-5: "a"}
    assert dict(message.by_flag) == {True: "b"}
    assert refusal({"by_flag": {"yes": "b"}}, sample("Everything")).path == "by_flag.yes"


def test_decodes_deeply_nested_messages() -> None:
    document = b'{"then": ' * 50 + b"{}" + b"}" * 50
    message = decode(document, sample("Everything")).message
    for _ in range(50):
        message = message.next
    assert not message.HasField("next")


def test_refuses_messages_nested_too_deeply() -> None:
    assert refusal(b'{"then": ' * 900 + b"{}" + b"}" * 900, sample("Everything")).code == "invalid_json"


def test_an_array_of_numbers_is_packed_as_float32() -> None:
    everything = sample("Everything")
    assert read({"numbers": [0.5, 2]}, everything).numbers == struct.pack("<2f", 0.5, 2.0)
    for value, path in (([1, "a"], "numbers[1]"), ([1e39], "numbers[0]"), ("AAAA", "numbers")):
        assert refusal({"numbers": value}, everything).path == path
