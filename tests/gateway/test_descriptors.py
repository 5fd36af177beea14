"""What the gateway reads from the API's descriptors."""

import re

import pytest
from google.protobuf import descriptor_pool

from glimpse.gateway import descriptors
from tests.paths import ROOT

API = ROOT / "api"


def test_set_contains_every_proto_of_the_api() -> None:
    in_set = {file.name for file in descriptors.descriptor_set().file}
    not_served = {"glimpse/json/v1/dialect.proto"}  # the type of a file that the server reads
    assert {str(path.relative_to(API)) for path in API.rglob("*.proto")} - not_served <= in_set


def test_set_is_complete_and_in_order() -> None:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptors.descriptor_set().file:
        pool.Add(file)
    assert pool.FindMessageTypeByName("google.rpc.ErrorInfo")
    assert pool.FindServiceByName("glimpse.v1.ChatService")


def test_only_services_with_http_paths_are_transcoded() -> None:
    assert [service.full_name for service in descriptors.transcoded_services()] == ["glimpse.openai.v1.OpenAIService"]


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
