"""Decodes JSON documents and reads refusals."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor

from glimpse.server.codec.document import DecodeError
from glimpse.server.dialects.openai import OPENAI
from glimpse.server.rpc.failure import RpcFailure
from glimpse.v1 import chat_pb2, content_pb2
from tests.server.codec.sample_dialect import CODEC

decode, encode = CODEC.decode, CODEC.encode


def rest_failure(error: Exception, request_type: Descriptor, aliased: Mapping[str, str], request_id: str) -> RpcFailure:
    return OPENAI.failure(error, lambda path: OPENAI.path(request_type, path, aliased), request_id)


def read(value: Any, message_class: Any = chat_pb2.CreateChatCompletionRequest) -> Any:
    return decode(json.dumps(value).encode(), message_class).message


def refusal(value: Any, message_class: Any = chat_pb2.CreateChatCompletionRequest) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        decode(value if isinstance(value, bytes) else json.dumps(value).encode(), message_class)
    return caught.value


def part(**members: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [members]}]}


def read_part(**members: Any) -> content_pb2.ContentPart:
    return read(part(**members)).messages[0].content[0]
