"""Two dialects describe the same messages at once, and nothing of one is heard in the other."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from glimpse.dialect.options import descriptor_of
from glimpse.dialect.rules import Dialect
from glimpse.server.codec.codec import Codec
from glimpse.server.codec.document import DecodeError
from glimpse.server.dialects.openai import OPENAI
from glimpse.server.errors import InvalidRequest
from glimpse.v1 import chat_pb2, generation_pb2

_RULES = """
messages {
  name: "glimpse.v1.CreateChatCompletionRequest"
  fields { name: "messages" json_name: "input" }
  fields { name: "generation" flatten: true }
  refusals { name: "messages" reason: "Use input." }
}
messages {
  name: "glimpse.v1.GenerationOptions"
  fields { name: "max_completion_tokens" json_name: "max_output_tokens" }
}
messages { name: "glimpse.v1.ContentPart" union: true }
messages { name: "glimpse.v1.Message" closed: true }
messages {
  name: "glimpse.v1.Choice"
  constants { name: "type" value: "message" }
  fields { name: "token_ids" omit_empty: true }
  fields { name: "groundings" omit_empty: true }
}
enums { name: "glimpse.v1.Role" values { name: "ROLE_ASSISTANT" aliases: "model" } }
"""

TERSE = replace(
    OPENAI,
    codec=Codec(Dialect(_RULES)),
    error=lambda failure: {"type": "error", "at": failure.field},
)
REQUEST = chat_pb2.CreateChatCompletionRequest
IN_OPENAI = {"messages": [{"role": "assistant", "content": "Hi"}], "max_tokens": 7}
IN_TERSE = {"input": [{"role": "model", "content": ["Hi"]}], "max_output_tokens": 7}


def read(codec: Codec, document: Any) -> Any:
    return codec.decode(json.dumps(document).encode(), REQUEST)


def test_documents_of_both_are_the_same_message() -> None:
    message = read(OPENAI.codec, IN_OPENAI).message
    assert read(TERSE.codec, IN_TERSE).message == message
    assert (message.generation.max_completion_tokens, message.messages[0].content[0].text) == (7, "Hi")


@pytest.mark.parametrize(
    ("codec", "document", "path", "reason"),
    [
        (TERSE.codec, IN_OPENAI, "messages", "Use input."),
        (OPENAI.codec, IN_TERSE, "input", "Use messages."),
        (TERSE.codec, {"input": [{"images": ["a"]}]}, "input[0].images", "unknown field"),
        (OPENAI.codec, {"messages": [{"role": "model"}]}, "messages[0].role", "got 'model'"),
    ],
)
def test_each_refuses_what_only_the_other_has(codec: Codec, document: Any, path: str, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason) as caught:
        read(codec, document)
    assert caught.value.path == path


def test_each_writes_answers_in_its_own_form() -> None:
    choice = chat_pb2.Choice(finish_reason=generation_pb2.FINISH_REASON_STOP)
    assert OPENAI.codec.encode(choice) == b'{"index":0,"logprobs":null,"finish_reason":"stop"}'
    assert TERSE.codec.encode(choice) == b'{"type":"message","index":0,"finish_reason":"stop"}'


def test_each_tells_errors_in_its_own_form() -> None:
    error = InvalidRequest("messages[0].content[0].text", "too long")
    failures = [
        (dialect, dialect.failure(error, partial(dialect.path, descriptor_of(REQUEST), aliased={}), "id"), path)
        for dialect, path in ((OPENAI, "messages[0].content[0].text"), (TERSE, "input[0].content[0]"))
    ]
    for _, failure, path in failures:
        assert failure.field == path
    (openai, of_openai, _), (terse, of_terse, path) = failures
    assert openai.error(of_openai)["error"]["type"] == "invalid_request_error"
    assert terse.error(of_terse) == {"type": "error", "at": path}
