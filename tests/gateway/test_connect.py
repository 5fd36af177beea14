"""Connect's protocol through Envoy: what the server gets, and what clients get."""

import io
import json
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from glimpse.gateway.address import Address
from glimpse.gateway.config import GatewayOptions
from glimpse.gateway.connect import MAX_UNARY_BYTES
from glimpse.gateway.replicas.affinity import KEY_HEADER, NO_KEY
from glimpse.gateway.run import Envoy
from tests.gateway.backend import Backend
from tests.gateway.conftest import ANY_PORT

pytestmark = pytest.mark.asyncio(loop_scope="session")

UNARY = "/glimpse.v1.ChatService/CreateChatCompletion"
STREAM = "/glimpse.v1.ChatService/StreamChatCompletion"
Context = grpc.aio.ServicerContext[bytes, bytes]


@dataclass(slots=True)
class Recorder(grpc.GenericRpcHandler):
    """A server of every method that returns what it got, or the error that its metadata asks for."""

    metadata: dict[str, str] = field(default_factory=dict[str, str])
    """Metadata of the latest call."""
    num_calls: int = 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        if not handler_call_details.method.startswith("/glimpse."):
            return None
        return grpc.stream_stream_rpc_method_handler(self.answer)

    async def answer(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        self.num_calls += 1
        self.metadata = {name: str(value) for name, value in context.invocation_metadata() or ()}
        if error := self.metadata.get("x-error"):
            await context.abort(grpc.StatusCode.NOT_FOUND, error + " – gone: 100 %\n")
        async for request in requests:
            yield request


class Healthy(health_pb2_grpc.HealthServicer):
    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:  # noqa: N802
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """An Envoy in front of the recorder."""

    http: aiohttp.ClientSession
    server: Recorder

    async def post(self, path: str, kind: str, body: bytes, **headers: str) -> tuple[int, str, bytes]:
        """Returns the status, the content type and the body."""
        async with self.http.post(path, data=io.BytesIO(body), headers={"content-type": kind, **headers}) as answer:
            return answer.status, answer.headers.get("content-type", ""), await answer.read()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    recorder, server = Recorder(), grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers((recorder,))
    health_pb2_grpc.add_HealthServicer_to_server(Healthy(), server)
    upstream = Address(host="127.0.0.1", port=server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    options = GatewayOptions(listen=ANY_PORT, upstream=(upstream,), route_by_key=True, connect=True)
    async with (
        Envoy(options, run_dir=tmp_path_factory.mktemp("envoy")) as envoy,
        aiohttp.ClientSession(envoy.url) as http,
    ):
        yield Gateway(http=http, server=recorder)
    await server.stop(0)


def frame(message: bytes, flags: int = 0) -> bytes:
    return struct.pack(">BI", flags, len(message)) + message


@pytest.mark.parametrize("codec", ["proto", "json"])
async def test_a_unary_request_needs_no_more_than_its_content_type(gateway: Gateway, codec: str) -> None:
    kind = f"application/{codec}"
    assert await gateway.post(UNARY, f"{kind}; charset=utf-8", b"{1}") == (200, kind, b"{1}")
    assert gateway.server.metadata["x-glimpse-codec"] == codec


@pytest.mark.parametrize("codec", ["proto", "json"])
async def test_a_stream_ends_with_a_frame_of_its_own(gateway: Gateway, codec: str) -> None:
    kind = f"application/connect+{codec}"
    status, sent, body = await gateway.post(STREAM, kind, frame(b"{1}") + frame(b"{22}"))
    assert (status, sent) == (200, kind)
    messages, end = body[: len(frame(b"{1}") + frame(b"{22}"))], body[len(frame(b"{1}") + frame(b"{22}")) :]
    assert messages == frame(b"{1}") + frame(b"{22}")
    assert end[0] == 2
    assert "error" not in json.loads(end[5:])


async def test_errors_have_connect_s_form_and_text(gateway: Gateway) -> None:
    error = {"x-error": "Size"}
    message = "Size – gone: 100 % "
    status, kind, body = await gateway.post(UNARY, "application/json", b"{}", **error)
    assert (status, kind, json.loads(body)) == (404, "application/json", {"code": "not_found", "message": message})
    status, kind, body = await gateway.post(STREAM, "application/connect+json", frame(b"{}"), **error)
    assert (status, kind, body[0]) == (200, "application/connect+json", 2)
    assert json.loads(body[5:])["error"] == {"code": "not_found", "message": message}


async def test_errors_of_the_gateway_have_connect_s_form(gateway: Gateway) -> None:
    status, kind, body = await gateway.post(UNARY, "application/json", b"{}", host="elsewhere.example")
    assert (status, kind, json.loads(body)["code"]) == (403, "application/json", "permission_denied")
    assert "--allowed-host" in json.loads(body)["message"]


async def test_unary_requests_have_a_limit_and_streams_have_none(gateway: Gateway) -> None:
    fits, large = b"x" * (MAX_UNARY_BYTES - 1024), b"x" * (MAX_UNARY_BYTES + 1024)
    status, _, body = await gateway.post(UNARY, "application/proto", large)
    assert (status, json.loads(body)["code"]) == (413, "resource_exhausted")
    status, _, body = await gateway.post(STREAM, "application/connect+proto", frame(fits))
    assert (status, body[: len(fits) + 5]) == (200, frame(fits))


@pytest.mark.parametrize(
    ("method", "kind"),
    [("GET", "application/json"), ("POST", "text/plain"), ("POST", "application/x-www-form-urlencoded")],
)
async def test_what_web_pages_may_send_anywhere_is_no_request(gateway: Gateway, method: str, kind: str) -> None:
    before = gateway.server.num_calls
    query = "?connect=v1&encoding=json&message=%7B%7D"
    async with gateway.http.request(
        method, UNARY + query, headers={"content-type": kind, "connect-protocol-version": "1"}
    ) as answer:
        assert answer.status == 404
    assert gateway.server.num_calls == before


async def test_clients_of_other_protocols_cannot_name_a_codec(gateway: Gateway) -> None:
    headers = {"x-glimpse-codec": "json"}
    status, _, _ = await gateway.post(UNARY, "application/grpc-web+proto", frame(b"1"), **headers)
    assert status == 200
    assert "x-glimpse-codec" not in gateway.server.metadata


async def test_requests_have_keys(gateway: Gateway) -> None:
    async def key_of(path: str, kind: str, body: bytes, **headers: str) -> str:
        assert (await gateway.post(path, kind, body, **headers))[0] == 200
        return gateway.server.metadata[KEY_HEADER]

    json_kind, stream_kind = "application/json", "application/connect+json"
    assert await key_of(UNARY, json_kind, b'{"promptCacheKey": "a"}') == "a"
    assert await key_of(STREAM, stream_kind, frame(b'{"promptCacheKey": "b"}')) == "b"
    assert await key_of("/glimpse/v1/chatCompletions", json_kind, b'{"prompt_cache_key": "c"}') == "c"
    assert await key_of(UNARY, json_kind, b'{"promptCacheKey": "a"}', **{KEY_HEADER: "mine"}) == "mine"
    assert await key_of(UNARY, json_kind, b"{}") == NO_KEY
    turns = [
        {"role": "ROLE_SYSTEM", "content": [{"text": "Be brief."}]},
        {"role": "ROLE_USER", "content": [{"text": "Hi"}]},
    ]
    first = await key_of(UNARY, json_kind, json.dumps({"messages": turns}).encode())
    turns += [{"role": "ROLE_ASSISTANT", "content": [{"text": "Hello"}]}]
    assert first != NO_KEY
    assert await key_of(STREAM, stream_kind, frame(json.dumps({"messages": turns}).encode())) == first


async def test_the_protocol_is_off_unless_it_is_asked_for(http: aiohttp.ClientSession, backend: Backend) -> None:
    async with http.post(UNARY, data=b"{}", headers={"content-type": "application/json"}) as answer:
        error = await answer.json()
    assert (answer.status, error["code"]) == (404, "not_found")
    assert "/glimpse/v1/" in error["message"]
    assert "--connect" in error["message"]
    assert backend.num_calls == 0
