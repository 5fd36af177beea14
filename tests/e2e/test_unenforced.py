"""Keywords of JSON Schemas that cannot be enforced: the rest is, and a header tells, over REST and gRPC."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import grpc
import openai
import pydantic
import pytest

from glimpse.server.rpc.context import UNENFORCED_HEADER
from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2
from tests.e2e.requests import COMPLETIONS, ask, chat
from tests.e2e.stack import Stack

SCHEMA = {
    "type": "object",
    "properties": {
        "t": {"type": "string", "format": "path", "maxLength": 4},
        "ü/n": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2, "uniqueItems": True},
    },
    "required": ["t", "ü/n"],
    "additionalProperties": False,
}
POINTERS = "#/properties/t/format", "#/properties/%C3%BC~1n/uniqueItems"


class Files(pydantic.BaseModel):
    """What pydantic describes with keywords that are not enforced."""

    tags: Annotated[set[Literal["a", "b"]], pydantic.Field(max_length=2)]
    kinds: Annotated[frozenset[Literal["c", "d"]], pydantic.Field(max_length=2)]
    data: Annotated[bytes, pydantic.Field(max_length=4)]
    secret: Annotated[pydantic.SecretStr, pydantic.Field(max_length=4)]


class Folder(pydantic.BaseModel):
    """An answer whose length has no limit."""

    path: Path


def listed(field: str) -> str:
    return ",".join(f"{field}{pointer}" for pointer in POINTERS)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_response_formats_and_structured_outputs_tell_what_is_not_enforced(
    stack: Stack, stream: bool, strict: bool
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": strict}}
    asked: list[tuple[dict[str, Any], str]] = [
        ({"response_format": form}, "response_format.json_schema.schema"),
        ({"guided_json": SCHEMA}, "guided_json"),
    ]
    for members, field in asked:
        answer = chat(stack, "Hello", stream=stream, max_tokens=60, temperature=0, **members)
        assert (answer.status, answer.headers[UNENFORCED_HEADER]) == (200, listed(field))
        if not stream:
            value = json.loads(answer.content)
            assert (set(value), len(value["ü/n"]), len(value["t"]) <= 4) == ({"t", "ü/n"}, 2, True)
    completion = ask(stack, COMPLETIONS, prompt="Hello", max_tokens=4, structured_outputs={"json": SCHEMA})
    assert completion.headers[UNENFORCED_HEADER] == listed("structured_outputs.json")
    assert UNENFORCED_HEADER not in chat(stack, "Hello", max_tokens=4).headers


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "look"}}])
def test_tools_tell_what_is_not_enforced_and_match_the_rest(stack: Stack, choice: Any) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    answer = chat(stack, "Look.", tools=tools, tool_choice=choice, max_tokens=80, temperature=0)
    assert (answer.status, answer.headers[UNENFORCED_HEADER]) == (200, listed("tools[0].function.parameters"))
    if choice != "auto":
        (call, *_) = answer.body["choices"][0]["message"]["tool_calls"]
        assert set(json.loads(call["function"]["arguments"])) == {"t", "ü/n"}


def test_grpc_tells_it_in_the_initial_metadata(stack: Stack) -> None:
    request = chat_pb2.CreateChatCompletionRequest(
        messages=[content_pb2.Message(role=content_pb2.ROLE_USER, content=[content_pb2.ContentPart(text="Hello")])],
        response_format=chat_pb2.ResponseFormat(
            json_schema=chat_pb2.JsonSchema(name="s", schema=json.dumps(SCHEMA), strict=True)
        ),
    )
    with grpc.insecure_channel(stack.target) as channel:
        service = chat_pb2_grpc.ChatServiceStub(channel)
        stream = service.StreamChatCompletion(request)
        told = dict(stream.initial_metadata())
        list(stream)
    assert told[UNENFORCED_HEADER] == listed("response_format.json_schema.schema")


def test_sets_bytes_secrets_and_paths_of_pydantic_are_parsed(stack: Stack) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    with openai.OpenAI(base_url=stack.openai_url, api_key="none", max_retries=0) as client:
        completions = client.chat.completions.with_raw_response
        answer = completions.parse(
            model="nano", messages=messages, response_format=Files, max_tokens=120, temperature=0
        )
        path = completions.create(
            model="nano",
            messages=messages,
            max_tokens=4,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "f", "schema": Folder.model_json_schema(), "strict": True},
            },
        )
    assert isinstance(answer.parse().choices[0].message.parsed, Files)
    pointers = ("tags/uniqueItems", "kinds/uniqueItems", "data/format", "secret/format")
    field = "response_format.json_schema.schema#/properties/"
    assert answer.headers[UNENFORCED_HEADER] == ",".join(f"{field}{pointer}" for pointer in pointers)
    assert path.headers[UNENFORCED_HEADER] == f"{field}path/format"
