"""Encoding and decoding return the same message, for every type of the API."""

import json
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glimpse.anthropic.v1 import anthropic_pb2, catalog_pb2
from glimpse.openai.v1 import responses_pb2
from glimpse.v1 import chat_pb2, content_pb2, embedding_pb2, generation_pb2, model_pb2, rerank_pb2
from tests.server.codec.decoding import decode, encode
from tests.server.codec.messages import all_types, messages
from tests.server.codec.sample_dialect import sample

_TYPES = [
    *all_types(
        *(
            module.DESCRIPTOR
            for module in (chat_pb2, content_pb2, embedding_pb2, generation_pb2, model_pb2, rerank_pb2)
        ),
        anthropic_pb2.DESCRIPTOR,
        catalog_pb2.DESCRIPTOR,
        responses_pb2.DESCRIPTOR,
    ),
    *(sample(name).DESCRIPTOR for name in ("Everything", "Value", "Inner")),
]


@pytest.mark.parametrize("descriptor", _TYPES, ids=lambda descriptor: descriptor.full_name)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_message_survives_a_round_trip(descriptor: Descriptor, data: st.DataObject) -> None:
    message: Any = data.draw(messages(descriptor))
    document = encode(message)
    decoded = decode(document, GetMessageClass(descriptor))
    assert decoded.message == message
    assert decoded.ignored == []
    assert encode(decoded.message) == document
    json.loads(document)


@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float32_is_written_with_the_fewest_digits(value: float) -> None:
    message = sample("Everything")(f32=value)
    text = json.loads(encode(message), parse_float=str)["f32"]
    assert sample("Everything")(f32=float(text)).f32 == value
    digits = text.lower().partition("e")[0].replace(".", "").replace("-", "").strip("0")
    assert len(digits) <= 9


@pytest.mark.parametrize(("value", "text"), [(0.1, b"0.1"), (0.7, b"0.7"), (-1.5, b"-1.5"), (0.0, b"0.0")])
def test_float32_is_written_as_a_short_decimal(value: float, text: bytes) -> None:
    assert b'"f32":' + text + b"," in encode(sample("Everything")(f32=value))
