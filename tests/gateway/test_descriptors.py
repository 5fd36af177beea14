"""What the gateway reads from the API's descriptors."""

import re

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from glimpse.dialect.options import http_option
from glimpse.gateway import descriptors
from tests.paths import ROOT

API = ROOT / "api"


def test_set_contains_every_proto_of_the_api() -> None:
    in_set = {file.name for file in descriptors.descriptor_set().file}
    not_served = {"glimpse/json/v1/dialect.proto"}  # the type of a file that the server reads
    assert {str(path.relative_to(API)) for path in API.rglob("*.proto")} - not_served <= in_set


@pytest.mark.parametrize("files", [descriptors.descriptor_set(), descriptors.transcoder_set()], ids=["API", "Envoy"])
def test_set_is_complete_and_in_order(files: FileDescriptorSet) -> None:
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    assert pool.FindMessageTypeByName("google.rpc.ErrorInfo")
    assert pool.FindServiceByName("glimpse.v1.ChatService")


TYPED = [
    method
    for service in descriptors.services()
    if service.full_name.startswith("glimpse.v1.")
    for method in service.methods
]


@pytest.mark.parametrize("method", TYPED, ids=lambda method: method.name)
def test_each_typed_method_has_a_path_that_any_gateway_can_serve(method: MethodDescriptor) -> None:
    """By the rules of `google.api.http`, which grpc-gateway's plugins enforce."""
    ((verb, template),) = descriptors.bindings(method)
    assert template.startswith(descriptors.TYPED_PATHS)
    assert http_option(method).body == ("*" if verb == "POST" else "")
    fields = method.input_type.fields_by_name
    variables = re.findall(r"{(\w+)", template)
    assert all(fields[name].cpp_type == FieldDescriptor.CPPTYPE_STRING for name in variables)
    # What is neither in the path nor in a body is in the query, where repeated messages cannot be.
    in_query = [] if verb == "POST" else [field for name, field in fields.items() if name not in variables]
    assert not [field for field in in_query if field.is_repeated]


def test_no_request_fits_the_paths_of_two_methods() -> None:
    bound = [(verb, template) for template, verbs in descriptors.http_paths().items() for verb in verbs]
    assert len(set(bound)) == len(bound)
    examples = {each: re.sub(r"{\w+(=\*\*)?}", "a", each[1]) for each in bound}
    for (verb, template), example in examples.items():
        fitting = [
            other for other in bound if other[0] == verb and re.fullmatch(descriptors.path_regex(other[1]), example)
        ]
        assert fitting == [(verb, template)]


def test_all_services_with_http_paths_are_transcoded() -> None:
    names = {service.full_name for service in descriptors.transcoded_services()}
    facades = {"glimpse.openai.v1.OpenAIService", "glimpse.anthropic.v1.AnthropicService"}
    assert names == facades | {each.containing_service.full_name for each in TYPED}


def test_paths_and_verbs_come_from_the_protos() -> None:
    paths = descriptors.http_paths()
    assert paths["/v1/chat/completions"] == ["POST"]
    assert paths["/v1/models/{model=**}"] == ["GET"]


def test_each_path_works_without_its_version() -> None:
    paths = descriptors.http_paths()
    versioned = {path.removeprefix("/v1"): verbs for path, verbs in paths.items() if path.startswith("/v1/")}
    assert versioned.keys() >= {"/chat/completions", "/completions", "/embeddings", "/rerank", "/score", "/models"}
    assert {path: paths.get(path) for path in versioned} == versioned


@pytest.mark.parametrize(
    ("template", "fits", "does_not_fit"),
    [
        ("/v1/models", "/v1/models", "/v1/modelss"),
        ("/v1.0/models", "/v1.0/models", "/v1x0/models"),
        ("/v1/files/{id}", "/v1/files/a", "/v1/files/a/b"),
        ("/v1/files/{id}/content", "/v1/files/a/content", "/v1/files/a"),
        ("/v1/models/{model=**}", "/v1/models/a/b", "/v1/models"),
        ("/v1/{name=shelves/*}:read", "/v1/shelves/a:read", "/v1/shelves/a/b:read"),
        ("/v1/*/all", "/v1/x/all", "/v1/x/y/all"),
    ],
)
def test_path_template_becomes_a_regular_expression(template: str, fits: str, does_not_fit: str) -> None:
    pattern = descriptors.path_regex(template)
    assert re.fullmatch(pattern, fits)
    assert not re.fullmatch(pattern, does_not_fit)
