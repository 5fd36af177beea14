"""Tenants of one server: nobody without a key calls anything, and none sees what another has sent."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import Default
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import SERVICE_NAME as REFLECTION

from glimpse.client import Client, GlimpseError
from glimpse.client.requests import upload_requests
from glimpse.identity.api_keys import KeyOwner, key_line
from glimpse.server.rpc.typed_handlers import V1_SERVICE_NAME
from glimpse.server.services.load_reports import ORCA_METHOD
from glimpse.v1 import (
    chat_pb2,
    chat_pb2_grpc,
    content_pb2,
    media_pb2,
    media_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    tenant_pb2,
    tenant_pb2_grpc,
)
from tests.e2e.stack import Served, health_stub
from tests.server.requests import image_part, png, request, user
from tests.server.services.error_details import details
from tests.server.serving import served
from tests.waiting import eventually

Metadata = tuple[tuple[str, str], ...]
ACME: Metadata = (("authorization", "Bearer acme-key"),)
OTHER: Metadata = (("x-api-key", "other-key"),)
CAPPED: Metadata = (("x-api-key", "capped-key"),)
KEYS = {
    "acme-key": KeyOwner(tenant="acme"),
    "acme-second": KeyOwner(tenant="acme"),
    "other-key": KeyOwner(tenant="other"),
    "capped-key": KeyOwner(tenant="capped"),
    "brief-key": KeyOwner(tenant="brief"),
    "busy-key": KeyOwner(tenant="busy"),
    "admin-key": KeyOwner(tenant="operations", is_admin=True),
}
LIMITS = """
[tenant.capped]
min_priority = 0
max_completions = 2
max_completion_tokens = 4
max_media_bytes = "4KiB"

[tenant.brief]
requests_per_minute = 100
tokens_per_minute = 20

[tenant.busy]
max_concurrent_requests = 1
"""
PNG = png(colour=(9, 99, 199))
OK = grpc.StatusCode.OK


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("tenants")
    keys = folder / "keys"
    keys.write_text("\n".join(key_line(key, caller) for key, caller in KEYS.items()))
    (folder / "tenants.toml").write_text(LIMITS)
    # Load balancers may read load reports: this host is to be none.
    flags = (f"--api-keys={keys}", f"--tenants={folder / 'tenants.toml'}", "--trusted-proxies=192.0.2.0/24")
    with served(tiny_checkpoint, folder, *flags) as running:
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


def test_administrators_alone_load_adapters(channel: grpc.Channel):
    models = model_pb2_grpc.ModelServiceStub(channel)
    loading, unloading = (
        model_pb2.LoadAdapterRequest(lora_name="a", lora_path="a"),
        model_pb2.UnloadAdapterRequest(lora_name="a"),
    )
    for call in (
        lambda key: models.LoadAdapter(loading, metadata=key),
        lambda key: models.UnloadAdapter(unloading, metadata=key),
    ):
        assert outcome(lambda call=call: call(ACME)) is grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.RpcError, match=r"\(--allowed-lora-path\), got one without"):
            call((("x-api-key", "admin-key"),))


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
    upload_id = media.UploadMedia(upload_requests(PNG, {}), metadata=ACME).media.upload_id
    by_upload = asked(content_pb2.ContentPart(image={"source": {"upload_id": upload_id}}))
    named = image_part(PNG)
    named.uuid = "logo"
    chat.CreateChatCompletion(asked(named), metadata=ACME)
    by_uuid = asked(content_pb2.ContentPart(uuid="logo", image={}))
    find = media_pb2.GetMediaRequest(upload_id=upload_id)
    delete = media_pb2.DeleteMediaRequest(upload_id=upload_id)
    download = media_pb2.DownloadMediaRequest(upload_id=upload_id)
    refused = [
        outcome(lambda: chat.CreateChatCompletion(by_upload, metadata=OTHER)),
        outcome(lambda: chat.CreateChatCompletion(by_uuid, metadata=OTHER)),
        outcome(lambda: media.GetMedia(find, metadata=OTHER)),
        outcome(lambda: media.DeleteMedia(delete, metadata=OTHER)),
        outcome(lambda: list(media.DownloadMedia(download, metadata=OTHER))),
    ]
    assert refused == [grpc.StatusCode.FAILED_PRECONDITION] * 2 + [grpc.StatusCode.NOT_FOUND] * 3
    listed = [media.ListMedia(media_pb2.ListMediaRequest(), metadata=metadata).media for metadata in (ACME, OTHER)]
    assert [upload_id in [each.upload_id for each in uploads] for uploads in listed] == [True, False]
    for wire in (by_upload, by_uuid):
        assert chat.CreateChatCompletion(wire, metadata=ACME).usage.prompt_tokens
    assert media.GetMedia(find, metadata=ACME).media.size_bytes == len(PNG)


def with_priority(priority: int) -> chat_pb2.CreateChatCompletionRequest:
    wire = request()
    wire.priority = priority
    return wire


@pytest.mark.parametrize(
    ("wire", "field"),
    [
        (with_priority(-1), "priority"),
        (request(n=3, max_completion_tokens=4), "generation.n"),
        (request(max_completion_tokens=5), "generation.max_completion_tokens"),
    ],
)
def test_what_a_tenant_may_not_ask_for_is_refused_by_name(
    chat: Any, wire: chat_pb2.CreateChatCompletionRequest, field: str
):
    with pytest.raises(grpc.RpcError) as caught:
        chat.CreateChatCompletion(wire, metadata=CAPPED)
    info, bad_request = details(caught.value)
    assert (info.reason, info.metadata["param"]) == ("TENANT_LIMIT", field)
    assert "your tenant" in bad_request.field_violations[0].description
    assert chat.CreateChatCompletion(wire, metadata=OTHER).usage.completion_tokens


def test_limit_of_tokens_is_the_default_too(chat: Any):
    wire = request(ignore_eos=True)
    wire.generation.ClearField("max_completion_tokens")
    assert chat.CreateChatCompletion(wire, metadata=CAPPED).usage.completion_tokens == 4


def test_media_beyond_the_tenant_s_share_are_refused_for_now(chat: Any):
    wire = asked(image_part(png(width=640, height=480)))
    wire.generation.max_completion_tokens = 4
    with pytest.raises(grpc.RpcError) as caught:
        chat.CreateChatCompletion(wire, metadata=CAPPED)
    assert "your tenant" in str(caught.value.details())  # pyright: ignore[reportAttributeAccessIssue]
    assert outcome(lambda: chat.CreateChatCompletion(wire, metadata=OTHER)) is grpc.StatusCode.OK


def retry_info(error: Any) -> float:
    """Seconds after which the server says to retry, which all three forms agree on."""
    trailers = dict(error.trailing_metadata())
    retry, status = error_details_pb2.RetryInfo(), status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert status.details[1].Unpack(retry)
    seconds = retry.retry_delay.ToMicroseconds() / 1e6
    assert int(trailers["retry-after"]) == max(1, math.ceil(seconds))
    assert int(trailers["grpc-retry-pushback-ms"]) == pytest.approx(1000 * seconds, abs=1)
    return seconds


def test_tokens_are_charged_from_the_usage(chat: Any, channel: grpc.Channel):
    brief: Metadata = (("x-api-key", "brief-key"),)
    used = chat.CreateChatCompletion(request(), metadata=brief).usage.total_tokens
    assert used > 20
    with pytest.raises(grpc.RpcError) as caught:
        list(chat.StreamChatCompletion(request(), metadata=brief))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # pyright: ignore[reportAttributeAccessIssue]
    assert 0 < retry_info(caught.value) <= 3 * (used - 20 + 1)
    models = model_pb2_grpc.ModelServiceStub(channel)
    assert models.ListModels(model_pb2.ListModelsRequest(), metadata=brief).data  # costs nothing
    assert chat.CreateChatCompletion(request(), metadata=OTHER).usage.total_tokens == used


def test_request_over_the_limit_is_refused_until_another_ends(chat: Any):
    busy: Metadata = (("x-api-key", "busy-key"),)
    running = chat.StreamChatCompletion(request(ignore_eos=True, max_completion_tokens=3500), metadata=busy)
    next(running)
    with pytest.raises(grpc.RpcError) as caught:
        chat.CreateChatCompletion(request(), metadata=busy)
    assert retry_info(caught.value) == 1
    running.cancel()
    call = lambda: outcome(lambda: chat.CreateChatCompletion(request(), metadata=busy))  # noqa: E731
    assert eventually(lambda: call() is grpc.StatusCode.OK)


def known(chat: Any, media: Any, upload_id: str, wire: chat_pb2.CreateChatCompletionRequest, key: str) -> Any:
    """What the server still has of what a tenant has sent: the uuid, the upload, and hits."""
    metadata = (("x-api-key", key),)
    by_uuid = outcome(lambda: chat.CreateChatCompletion(asked(left_out("logo")), metadata=metadata))
    by_upload = outcome(lambda: media.GetMedia(media_pb2.GetMediaRequest(upload_id=upload_id), metadata=metadata))
    return by_uuid, by_upload, hits(chat.CreateChatCompletion(wire, metadata=metadata))


def left_out(uuid: str) -> content_pb2.ContentPart:
    return content_pb2.ContentPart(uuid=uuid, image={})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("tenant", "key"), [("acme", "acme-key"), ("other", "admin-key")], ids=["own", "by admin"])
def test_purged_tenant_has_nothing_left_and_others_all(channel: grpc.Channel, chat: Any, tenant: str, key: str):
    media = media_pb2_grpc.MediaServiceStub(channel)
    tenants = tenant_pb2_grpc.TenantServiceStub(channel)
    wire, named, uploads = asked(image_part(png(colour=(1, 2, 3)))), image_part(PNG), dict[str, str]()
    named.uuid = "logo"
    for owner in ("acme", "other"):
        metadata: Metadata = (("x-api-key", f"{owner}-key"),)
        uploads[owner] = media.UploadMedia(upload_requests(PNG, {}), metadata=metadata).media.upload_id
        for each in (asked(named), wire):
            chat.CreateChatCompletion(each, metadata=metadata)
        assert known(chat, media, uploads[owner], wire, f"{owner}-key") == (OK, OK, (True, 1, 1))
    answer = tenants.PurgeTenant(tenant_pb2.PurgeTenantRequest(tenant=tenant), metadata=(("x-api-key", key),))
    assert not answer.reaches_all_servers  # there is no media store
    gone = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND, (False, 0, 0))
    for owner, upload_id in uploads.items():
        expected = gone if owner == tenant else (OK, OK, (True, 1, 1))
        assert known(chat, media, upload_id, wire, f"{owner}-key") == expected


@pytest.mark.parametrize(
    ("tenant", "code"), [("other", grpc.StatusCode.PERMISSION_DENIED), ("", grpc.StatusCode.INVALID_ARGUMENT)]
)
def test_other_tenants_are_purged_by_admins_alone(channel: grpc.Channel, tenant: str, code: grpc.StatusCode):
    tenants = tenant_pb2_grpc.TenantServiceStub(channel)
    assert outcome(lambda: tenants.PurgeTenant(tenant_pb2.PurgeTenantRequest(tenant=tenant), metadata=ACME)) is code


def test_client_sends_its_key(server: Served):
    with Client(f"127.0.0.1:{server.port}", api_key="acme-key") as client:
        assert client.models()
    with Client(f"127.0.0.1:{server.port}") as client, pytest.raises(GlimpseError) as caught:
        client.models()
    assert caught.value.reason == "invalid_credential"
