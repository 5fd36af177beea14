"""What a request may cost to parse is bounded before it is parsed."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.server.call.offload import MAX_INLINE_BYTES
from glimpse.server.errors import InvalidRequest
from glimpse.server.rpc import request_size
from glimpse.server.rpc.request_size import MAX_FIELDS, MAX_JSON_VALUES, check_json_size, parse_message
from glimpse.v1 import chat_pb2, content_pb2, tokenizer_pb2

Chat = chat_pb2.CreateChatCompletionRequest
EMPTY_MESSAGE = b"\x12\x00"  # messages { }


def parse(data: bytes) -> chat_pb2.CreateChatCompletionRequest:
    return asyncio.run(parse_message(Chat, data, "client"))


def large_request() -> chat_pb2.CreateChatCompletionRequest:
    part = content_pb2.ContentPart(image={"source": {"data": bytes(MAX_INLINE_BYTES)}})
    message = content_pb2.Message(role=content_pb2.ROLE_USER, content=[part, content_pb2.ContentPart(text="What?")])
    return Chat(messages=[message] * 3, generation={"logit_bias": {3: 1.5}, "stop_token_ids": [1, 2]})


@pytest.mark.parametrize("wire", [Chat(), Chat(model="m"), large_request()])
def test_parses_what_was_serialized(wire: chat_pb2.CreateChatCompletionRequest) -> None:
    assert parse(wire.SerializeToString()) == wire


def test_refuses_a_message_with_too_many_fields_before_building_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(parse(EMPTY_MESSAGE * MAX_FIELDS).messages) == MAX_FIELDS
    nested = content_pb2.Message(content=[content_pb2.ContentPart()] * MAX_FIELDS).SerializeToString()
    for data in (
        EMPTY_MESSAGE * (MAX_FIELDS + 1),
        Chat(messages=[content_pb2.Message.FromString(nested)]).SerializeToString(),
    ):
        with pytest.raises(InvalidRequest, match="too many parts") as refused:
            parse(data)
        assert refused.value.reason == "request_too_large"


def test_packed_numbers_count_by_their_size() -> None:
    wire = tokenizer_pb2.DetokenizeRequest(tokens=[1] * (16 * MAX_FIELDS + 16))
    with pytest.raises(InvalidRequest, match="too many parts"):
        asyncio.run(parse_message(tokenizer_pb2.DetokenizeRequest, wire.SerializeToString(), "client"))
    del wire.tokens[1000:]
    assert asyncio.run(parse_message(tokenizer_pb2.DetokenizeRequest, wire.SerializeToString(), "client")) == wire


@given(st.binary(max_size=200), st.booleans())
def test_bytes_that_are_no_message_are_refused_or_read_as_the_library_does(data: bytes, is_large: bool) -> None:
    # A large unknown field in front makes the counting pass look at the bytes as well.
    padding = request_size.MAX_INLINE_BYTES
    if is_large:
        data = (
            b"\xa2\x06"
            + bytes([0x80 | padding & 0x7F, 0x80 | padding >> 7 & 0x7F, padding >> 14])
            + bytes(padding)
            + data
        )
    try:
        expected = Chat.FromString(data)
    except Exception:
        expected = None
    try:
        parsed = parse(data)
    except InvalidRequest:
        parsed = None
    assert parsed == expected


@pytest.mark.parametrize("data", [b"\x12\xff" * 20_000, b"\xff" * 100_000, b"\x80" * 100_000])
def test_a_length_without_end_is_refused_at_once(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="other bytes"):
        parse(data)


def test_bounds_the_values_of_a_json_document() -> None:
    check_json_size(b'{"text": "' + b"a" * 10_000_000 + b'"}')
    check_json_size(b"[" + b"1," * (MAX_JSON_VALUES - 1) + b"1]")
    with pytest.raises(InvalidRequest, match="at most 500000 JSON values") as refused:
        check_json_size(b"[" + b"1," * MAX_JSON_VALUES + b"1]")
    assert refused.value.reason == "request_too_large"
