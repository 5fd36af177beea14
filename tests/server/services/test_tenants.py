"""Tenants of one server: nobody without a key calls anything, and none sees what another has sent."""

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import Default
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import SERVICE_NAME as REFLECTION

from glimpse.server.identity.api_keys import Caller, key_line
from glimpse.server.services.load_reports import ORCA_METHOD
from glimpse.server.services.reflection import V1_SERVICE_NAME
from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2, media_pb2, media_pb2_grpc, model_pb2, model_pb2_grpc
from tests.server.requests import image_part, png, request, user
from tests.server.serving import Served, health_stub, served

Metadata = tuple[tuple[str, str], ...]
ACME: Metadata = (("authorization", "Bearer acme-key"),)
OTHER: Metadata = (("x-api-key", "other-key"),)
KEYS = {"acme-key": Caller(tenant="acme"), "acme-second": Caller(tenant="acme"), "other-key": Caller(tenant="other")}
PNG = png(colour=(9, 99, 199))


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("tenants")
    keys = folder / "keys"
    keys.write_text("\n".join(key_line(key, caller) for key, caller in KEYS.items()))
    with served(tiny_checkpoint, folder, f"--api-keys={keys}") as running:
        yield running


@pytest.fixture
def channel(server: Served) -> Iterator[grpc.Channel]:
    with server.channel() as opened:
        yield opened


@pytest.fixture
def chat(channel: grpc.Channel) -> Any:
    return chat_pb2_grpc.ChatServiceStub(channel)


def outcome(call: Callable[[], object]) -> grpc.StatusCode:
    try:
        call()
    except grpc.RpcError as error:
        return error.code()  # pyright: ignore[reportAttributeAccessIssue] - errors of calls have one
    return grpc.StatusCode.OK


def all_methods(channel: grpc.Channel) -> set[str]:
    """Full names of the methods that the server says it has, and of those that reflection does not list."""
    listing = channel.stream_stream(
        f"/{REFLECTION}/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    (answer,) = listing(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), metadata=ACME)
    services = [Default().FindServiceByName(each.name) for each in answer.list_services_response.service]
    service, _, method = ORCA_METHOD.rpartition(".")
    listed = {f"/{each.full_name}/{method.name}" for each in services for method in each.methods}
    return listed | {f"/{service}/{method}", f"/{V1_SERVICE_NAME}/ServerReflectionInfo"}


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer wrong"),)], ids=["no key", "wrong key"])
def test_nothing_but_health_is_open(channel: grpc.Channel, metadata: Metadata):
    methods = all_methods(channel)
    assert len(methods) > 25
    codes = {
        method: outcome(lambda method=method: next(channel.stream_stream(method)(iter([b""]), metadata=metadata)))
        for method in methods
    }
    assert {method for method, code in codes.items() if code is not grpc.StatusCode.UNAUTHENTICATED} == {
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/List",
        "/grpc.health.v1.Health/Watch",
    }
    assert health_stub(channel).Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING


def test_each_key_of_a_tenant_is_accepted(channel: grpc.Channel):
    models = model_pb2_grpc.ModelServiceStub(channel)
    for key in KEYS:
        assert models.ListModels(model_pb2.ListModelsRequest(), metadata=(("x-api-key", key),)).data


def asked(image: content_pb2.ContentPart, salt: str = "") -> chat_pb2.CreateChatCompletionRequest:
    wire = request(user("Describe this image, which both tenants have, in a few words. " * 4, image))
    wire.cache_salt = salt
    return wire


def hits(answer: chat_pb2.CreateChatCompletionResponse) -> tuple[bool, int, int]:
    usage = answer.usage
    cached, media = usage.prompt_tokens_details.cached_tokens, usage.media_usage
    return cached > 0, media.decode_cache_hits, media.encoder_cache_hits


@pytest.mark.parametrize("salt", ["", "same"])
def test_no_cache_hit_crosses_tenants(chat: Any, salt: str):
    wire = asked(image_part(PNG), salt)
    assert hits(chat.CreateChatCompletion(wire, metadata=ACME)) == (False, 0, 0)
    assert hits(chat.CreateChatCompletion(wire, metadata=OTHER)) == (False, 0, 0)
    for metadata in (ACME, OTHER, (("x-api-key", "acme-second"),)):  # what the test measures does occur
        assert hits(chat.CreateChatCompletion(wire, metadata=metadata)) == (True, 1, 1)


def test_uploads_and_uuids_of_others_do_not_exist(channel: grpc.Channel, chat: Any):
    media = media_pb2_grpc.MediaServiceStub(channel)
    parts = [{"header": {"sha256": sha256(PNG).digest()}}, {"chunk": PNG}]
    messages = [media_pb2.UploadMediaRequest(**part) for part in parts]  # pyright: ignore[reportArgumentType]
    upload_id = media.UploadMedia(iter(messages), metadata=ACME).media.upload_id
    by_upload = asked(content_pb2.ContentPart(image={"source": {"upload_id": upload_id}}))
    named = image_part(PNG)
    named.uuid = "logo"
    chat.CreateChatCompletion(asked(named), metadata=ACME)
    by_uuid = asked(content_pb2.ContentPart(uuid="logo", image={}))
    find = media_pb2.GetMediaRequest(upload_id=upload_id)
    delete = media_pb2.DeleteMediaRequest(upload_id=upload_id)
    refused = [
        outcome(lambda: chat.CreateChatCompletion(by_upload, metadata=OTHER)),
        outcome(lambda: chat.CreateChatCompletion(by_uuid, metadata=OTHER)),
        outcome(lambda: media.GetMedia(find, metadata=OTHER)),
        outcome(lambda: media.DeleteMedia(delete, metadata=OTHER)),
    ]
    assert refused == [grpc.StatusCode.FAILED_PRECONDITION] * 2 + [grpc.StatusCode.NOT_FOUND] * 2
    for wire in (by_upload, by_uuid):
        assert chat.CreateChatCompletion(wire, metadata=ACME).usage.prompt_tokens
    assert media.GetMedia(find, metadata=ACME).media.size_bytes == len(PNG)
