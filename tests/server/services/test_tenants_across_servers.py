"""Tenants of two servers that share a Redis: quotas, uploads and purges."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2

from glimpse.client.requests import upload_requests
from glimpse.identity.api_keys import KeyOwner, key_line
from glimpse.openai.v1 import openai_pb2_grpc, responses_pb2
from glimpse.server.media_settings import MediaSettings
from glimpse.server.settings import AccessSettings
from glimpse.v1 import chat_pb2_grpc, media_pb2, media_pb2_grpc, tenant_pb2, tenant_pb2_grpc
from tests.e2e.stack import health_stub, read_metric
from tests.engine.replies import reply_with
from tests.media.shared.redis_server import RedisServer
from tests.server.requests import json_bodies, request, user
from tests.server.serving import echoing

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
OK = grpc.StatusCode.OK
NOT_FOUND = grpc.StatusCode.NOT_FOUND
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
TENANTS = ("acme", "brief", "short", "stored")
LIMITS = """
[tenant.brief]
tokens_per_minute = 20

[tenant.short]
tokens_per_minute = 20

[tenant.stored]
max_upload_bytes = "8KiB"
"""


class Client:
    def __init__(self, channel: grpc.aio.Channel, metrics_port: int) -> None:
        self.channel = channel
        self.metrics_port = metrics_port
        self.chat: Any = chat_pb2_grpc.ChatServiceStub(channel)
        self.media: Any = media_pb2_grpc.MediaServiceStub(channel)

    async def ask(self, tenant: str) -> grpc.StatusCode:
        return await outcome(self.chat.CreateChatCompletion(request(), metadata=key(tenant)))

    async def prefix_name(self, tenant: str) -> str:
        """Under which name the engine caches the prompts of the tenant."""
        wire = request(user("⟦cache_salt⟧"), max_completion_tokens=200)
        answer = await self.chat.CreateChatCompletion(wire, metadata=key(tenant))
        return answer.choices[0].message.content

    async def purge(self, tenant: str) -> bool:
        tenants: Any = tenant_pb2_grpc.TenantServiceStub(self.channel)
        wire = tenant_pb2.PurgeTenantRequest(tenant=tenant)
        return (await tenants.PurgeTenant(wire, metadata=key(tenant))).reaches_all_servers

    async def upload(self, tenant: str, data: bytes) -> str:
        return (await self.media.UploadMedia(upload_requests(data, {}), metadata=key(tenant))).media.upload_id

    async def find(self, tenant: str, upload_id: str) -> grpc.StatusCode:
        return await outcome(self.media.GetMedia(media_pb2.GetMediaRequest(upload_id=upload_id), metadata=key(tenant)))

    async def respond(self, tenant: str, **members: Any) -> str:
        """Returns the id of a response."""
        openai: Any = openai_pb2_grpc.OpenAIServiceStub(self.channel)
        bodies = json_bodies({"input": "Hi", **members})
        pieces = [piece.data async for piece in openai.CreateResponse(bodies, metadata=key(tenant))]
        return json.loads(b"".join(pieces))["id"]

    async def find_response(self, tenant: str, response_id: str) -> grpc.StatusCode:
        openai: Any = openai_pb2_grpc.OpenAIServiceStub(self.channel)
        wire = responses_pb2.GetResponseRequest(response_id=response_id)
        return await outcome(openai.GetResponse(wire, metadata=key(tenant)))

    async def counts_together(self) -> bool:
        check = health_pb2.HealthCheckRequest(service="glimpse.quota_store")
        status = (await health_stub(self.channel).Check(check)).status
        assert status in (SERVING, NOT_SERVING)
        metric = await asyncio.to_thread(read_metric, self.metrics_port, "glimpse_quota_store_available")
        return status == SERVING and metric == 1


def key(tenant: str) -> tuple[tuple[str, str], ...]:
    return (("x-api-key", f"{tenant}-key"),)


async def outcome(call: Awaitable[object]) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return OK


async def becomes(ask: Callable[[], Awaitable[object]], expected: object) -> bool:
    """Whether the outcome is reached: servers tell each other in the background."""
    while await ask() != expected:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return True


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clients(
    tiny_checkpoint: Path, running_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[list[Client]]:
    folder = tmp_path_factory.mktemp("tenants")
    keys, limits = folder / "keys", folder / "tenants.toml"
    keys.write_text("\n".join(key_line(f"{name}-key", KeyOwner(tenant=name)) for name in TENANTS))
    limits.write_text(LIMITS)
    media, access = MediaSettings(media_store=running_redis.url), AccessSettings(api_keys=keys, tenants=limits)
    async with AsyncExitStack() as stack:
        started = [await stack.enter_async_context(echoing(tiny_checkpoint, media=media, access=access)) for _ in "ab"]
        yield [Client(channel, server.metrics_port) for server, channel in started]


async def test_tokens_used_on_one_server_are_counted_on_the_other(clients: list[Client]):
    one, other = clients
    for client in clients:
        assert await becomes(client.counts_together, True)
    assert await one.ask("brief") is OK
    assert await other.ask("acme") is OK
    assert await becomes(lambda: other.ask("brief"), EXHAUSTED)
    assert await one.ask("brief") is EXHAUSTED


async def test_tenant_over_its_limit_of_uploads_loses_its_oldest(clients: list[Client]):
    one, other = clients
    of_others = await one.upload("acme", bytes(3000))
    uploads = [await client.upload("stored", bytes(3000)) for client in (one, other, one)]
    for client in clients:
        assert [await client.find("stored", upload_id) for upload_id in uploads] == [NOT_FOUND, OK, OK]
        assert await client.find("acme", of_others) is OK
    assert await outcome(one.upload("stored", bytes(8000))) is grpc.StatusCode.INVALID_ARGUMENT


async def test_purge_on_one_server_holds_on_the_other(clients: list[Client]):
    one, other = clients
    upload = await one.upload("acme", b"image")
    before = {tenant: await other.prefix_name(tenant) for tenant in ("acme", "stored")}
    assert await one.prefix_name("acme") == before["acme"]
    assert await one.purge("acme")
    for client in clients:
        assert await client.prefix_name("acme") != before["acme"]
        assert await client.prefix_name("stored") == before["stored"]
        assert await client.find("acme", upload) is NOT_FOUND


async def test_responses_are_their_tenant_s_on_both_servers(clients: list[Client]):
    one, other = clients
    name = await one.respond("acme", input=reply_with("Hi"))
    for client in clients:
        assert await client.find_response("acme", name) is OK
        assert await client.find_response("stored", name) is NOT_FOUND
    assert await outcome(other.respond("acme", previous_response_id=name)) is OK
    assert await outcome(other.respond("stored", previous_response_id=name)) is NOT_FOUND
    reference = {"type": "item_reference", "id": f"msg_{name.removeprefix('resp_')}_0"}
    assert await outcome(other.respond("acme", input=[reference, {"role": "user", "content": "Hi"}])) is OK
    assert await outcome(other.respond("stored", input=[reference])) is NOT_FOUND
    assert await other.purge("acme")
    for client in clients:
        assert await client.find_response("acme", name) is NOT_FOUND


async def test_servers_count_alone_without_redis_and_say_so(clients: list[Client], running_redis: RedisServer):
    running_redis.stop()
    try:
        for client in clients:
            assert await becomes(client.counts_together, False)
            assert await client.ask("short") is OK
            assert await client.ask("short") is EXHAUSTED
    finally:
        running_redis.start()
    for client in clients:
        assert await becomes(client.counts_together, True)
