"""The OpenAPI document matches the server: its schemas accept what the codec writes and reads."""

import json
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from glimpse.anthropic.v1 import anthropic_pb2, catalog_pb2
from glimpse.dialect.options import is_required
from glimpse.gateway.descriptors import TYPED_PATHS, descriptor_set, http_paths
from glimpse.gateway.openapi import typed
from glimpse.gateway.openapi.document import compiled_protos, openapi_document
from glimpse.openai.v1 import responses_pb2
from glimpse.v1 import chat_pb2, content_pb2, generation_pb2, model_pb2
from tests.paths import ROOT
from tests.server.codec.decoding import encode
from tests.server.codec.messages import all_types, messages


def requires_fields(descriptor: Descriptor, enclosing: frozenset[str]) -> bool:
    """Whether a message, or one inside, has required fields: the server checks them apart from the codec."""
    inner = (field.message_type for field in descriptor.fields if field.message_type is not None)
    enclosing |= {descriptor.full_name}
    return any(map(is_required, descriptor.fields)) or any(
        requires_fields(each, enclosing) for each in inner if each.full_name not in enclosing
    )


_DOCUMENT = openapi_document(compiled_protos(ROOT))
_SCHEMAS: dict[str, Any] = _DOCUMENT["components"]["schemas"]
_TYPES = [
    descriptor
    for descriptor in all_types(
        *(
            module.DESCRIPTOR
            for module in (chat_pb2, content_pb2, generation_pb2, model_pb2, anthropic_pb2, catalog_pb2, responses_pb2)
        )
    )
    if descriptor.name in _SCHEMAS and not requires_fields(descriptor, frozenset())
]
_BOUNDS = ("minimum", "maximum", "minItems", "maxItems")


def schema(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": {"schemas": _SCHEMAS}})


def without_bounds(part: Any) -> Any:
    """Removes the bounds, which random messages do not respect."""
    match part:
        case dict():
            return {name: without_bounds(value) for name, value in part.items() if name not in _BOUNDS}
        case list():
            return [without_bounds(element) for element in part]
        case _:
            return part


def test_document_is_valid_openapi() -> None:
    OpenAPIV31SpecValidator(_DOCUMENT).validate()


def test_the_typed_methods_have_a_valid_document_of_their_own() -> None:
    document = typed.openapi_document(compiled_protos(ROOT))
    OpenAPIV31SpecValidator(document).validate()
    for template, verbs in http_paths().items():
        if template.startswith(TYPED_PATHS):
            path = document["paths"][template.replace("=**", "")]
            assert sorted(path) == sorted(verb.lower() for verb in verbs)
    assert document["paths"].keys() & _DOCUMENT["paths"].keys() == set()
    message = document["components"]["schemas"]["Message"]
    assert (message["required"], message["properties"]["content"]["maxItems"]) == (["role"], 4096)
    assert document["components"]["schemas"]["UploadHeader"]["properties"]["sizeBytes"]["type"] == "string"


def test_paths_match_the_facade() -> None:
    assert {path: list(item) for path, item in _DOCUMENT["paths"].items()} == {
        "/v1/responses": ["post"],
        "/v1/responses/input_tokens": ["post"],
        "/v1/responses/{response_id}": ["get", "delete"],
        "/v1/responses/{response_id}/input_items": ["get"],
        "/v1/responses/{response_id}/cancel": ["post"],
        "/v1/messages": ["post"],
        "/v1/messages/count_tokens": ["post"],
        "/v1/chat/completions": ["post"],
        "/v1/completions": ["post"],
        "/v1/embeddings": ["post"],
        "/v1/rerank": ["post"],
        "/v1/score": ["post"],
        "/tokenize": ["post"],
        "/detokenize": ["post"],
        "/v1/models": ["get"],
        "/v1/models/{model}": ["get"],
        "/v1/load_lora_adapter": ["post"],
        "/v1/unload_lora_adapter": ["post"],
        "/v1/files": ["post", "get"],
        "/v1/files/{upload_id}": ["get", "delete"],
        "/v1/files/{upload_id}/content": ["get"],
        "/anthropic/v1/models": ["get"],
        "/anthropic/v1/models/{model_id}": ["get"],
        "/anthropic/v1/files": ["post", "get"],
        "/anthropic/v1/files/{file_id}": ["get", "delete"],
        "/anthropic/v1/files/{upload_id}/content": ["get"],
        "/v1/batches": ["post", "get"],
        "/v1/batches/{batch_id}": ["get"],
        "/v1/batches/{batch_id}/cancel": ["post"],
    }
    form = _DOCUMENT["paths"]["/v1/files"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["allOf"][1]["required"] == ["file"]
    assert "expires_after[seconds]" in _SCHEMAS["UploadHeader"]["properties"]
    content = _DOCUMENT["paths"]["/v1/files/{upload_id}/content"]["get"]["responses"]["200"]["content"]
    assert list(content) == ["application/octet-stream"]
    for path, error in (("/v1/messages", "AnthropicError"), ("/v1/chat/completions", "Error")):
        told = _DOCUMENT["paths"][path]["post"]["responses"]["default"]["content"]["application/json"]["schema"]
        assert told == {"$ref": f"#/components/schemas/{error}"}
    chat = _DOCUMENT["paths"]["/v1/chat/completions"]["post"]
    assert list(chat["responses"]["200"]["content"]) == ["application/json", "text/event-stream"]
    assert chat["requestBody"]["content"]["application/json"]["schema"]["allOf"][1]["properties"].keys() == {"stream"}
    (parameter,) = _DOCUMENT["paths"]["/v1/models/{model}"]["get"]["parameters"]
    assert (parameter["name"], parameter["in"], parameter["required"]) == ("model", "path", True)


def test_descriptions_are_the_proto_comments() -> None:
    temperature = _SCHEMAS["CreateChatCompletionRequest"]["properties"]["temperature"]
    assert temperature["description"].startswith(
        "Divides the logits before sampling: lower values make the answer more predictable"
    )
    assert (temperature["minimum"], temperature["maximum"]) == (0, 2)
    assert "- `low`: At most 512·512 pixels" in _SCHEMAS["ImageDetail"]["description"]
    assert "buf:lint" not in json.dumps(_DOCUMENT)


def test_only_descriptions_need_source_information() -> None:
    bare = openapi_document(descriptor_set())
    assert bare["paths"].keys() == _DOCUMENT["paths"].keys()
    assert bare["components"]["schemas"].keys() == _SCHEMAS.keys()
    assert "description" not in bare["components"]["schemas"]["Message"]


@pytest.mark.parametrize("descriptor", _TYPES, ids=lambda descriptor: descriptor.name)
@settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_schemas_accept_what_the_codec_writes(descriptor: Descriptor, data: st.DataObject) -> None:
    document: Any = json.loads(encode(data.draw(messages(descriptor))))
    components = {"schemas": without_bounds(_SCHEMAS)}
    reference = {"$ref": f"#/components/schemas/{descriptor.name}", "components": components}
    assert [error.message for error in Draft202012Validator(reference).iter_errors(document)] == []


@pytest.mark.parametrize(
    "members",
    [
        {"content": "hi"},
        {"content": ["hi", {"type": "text", "text": "there"}]},
        {"content": [{"type": "image_url", "image_url": {"url": "u", "min_pixel": 1}}]},
        {"content": [{"type": "image_url", "image_url": None, "uuid": "u"}]},
        {"content": [{"type": "image_url", "image_url": "u"}]},
        {"content": [{"type": "audio_url", "audio_url": {"url": "u"}}]},
        {"content": [{"type": "video_url", "video_url": {"url": ["a", {"data": "AAAA"}], "fps": 2}}]},
    ],
)
def test_schemas_accept_valid_requests(members: dict[str, Any]) -> None:
    schema("CreateChatCompletionRequest").validate({"messages": [{"role": "user", **members}]})


@pytest.mark.parametrize(
    ("content", "valid"),
    [
        ("hi", True),
        (["hi", {"type": "text", "text": "there"}], True),
        ([{"type": "image", "source": {"type": "url", "url": "u"}}], True),
        ([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}], True),
        ([{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "b"}]}], True),
        ([{"type": "image"}], False),
        ([{"type": "image", "source": {"url": "u"}}], False),
        ([{"text": "no type"}], False),
    ],
)
def test_schemas_know_the_blocks_of_messages(content: Any, valid: bool) -> None:
    body = {"max_tokens": 1, "messages": [{"role": "user", "content": content}]}
    assert schema("CreateMessageRequest").is_valid(body) is valid


@pytest.mark.parametrize(
    "request_body",
    [
        {},
        {"messages": []},
        {"messages": [{"role": "boss", "content": "hi"}]},
        {"messages": [{"role": "user", "content": [{"text": "no type"}]}]},
        {"messages": [{"role": "user", "content": "hi"}], "temperature": 3},
        {"messages": [{"role": "user", "content": "hi"}], "stop": ["a"] * 17},
        {"messages": [{"role": "user", "content": "hi"}], "logit_bias": {"a": 1}},
    ],
)
def test_schemas_refuse_invalid_requests(request_body: dict[str, Any]) -> None:
    assert not schema("CreateChatCompletionRequest").is_valid(request_body)
