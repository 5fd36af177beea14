"""REST through Envoy: what reaches the server, and what comes back."""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import openai
import pytest
import yarl
from google.api.httpbody_pb2 import HttpBody

from glimpse.gateway import descriptors
from glimpse.gateway.config import GatewayOptions
from glimpse.gateway.run import Envoy
from glimpse.server.rpc.context import GRACE_HEADER, PATH_HEADER
from tests.gateway.backend import Backend, Context, Requests, echo, event, read
from tests.gateway.conftest import ANY_PORT

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = "/v1/chat/completions"


async def test_bodies_pass_unchanged(http: aiohttp.ClientSession, backend: Backend) -> None:
    body = '{ "messages": [], "é": 1e2, }'.encode()
    async with http.post(CHAT, data=body, headers={"content-type": "application/json"}) as answer:
        assert (answer.status, await answer.read()) == (200, body)
        assert answer.headers["content-type"] == "application/json"


async def test_paths_work_without_their_version(http: aiohttp.ClientSession, backend: Backend) -> None:
    async with http.post(CHAT.removeprefix("/v1"), data=b"{}") as chat, http.get("/models/org/name") as model:
        assert (chat.status, await chat.read()) == (200, b"{}")
        assert (model.status, await model.json()) == (200, {"id": "org/name"})
    async with http.get(CHAT.removeprefix("/v1")) as refused:
        assert refused.status == 405


async def test_empty_body_reaches_the_server(http: aiohttp.ClientSession, backend: Backend) -> None:
    async with http.post(CHAT, data=b"") as answer:
        assert (answer.status, await answer.read()) == (200, b"")
    assert backend.num_calls == 1


@pytest.mark.parametrize(("method", "path"), [("get", "/v1/models?api-version=2024"), ("post", f"{CHAT}?beta=true")])
async def test_the_server_has_the_query_of_which_envoy_ignores_unknown_parameters(
    http: aiohttp.ClientSession, backend: Backend, method: str, path: str
) -> None:
    async with http.request(method, path, headers={PATH_HEADER: "/a/client?chose=this"}) as answer:
        assert answer.status == 200
    assert backend.metadata[PATH_HEADER] == path


@pytest.mark.parametrize("path", ["org%2Fname", "org/name"])
async def test_model_name_may_contain_a_slash(http: aiohttp.ClientSession, backend: Backend, path: str) -> None:
    async with http.get(yarl.URL(f"/v1/models/{path}", encoded=True)) as answer:
        assert await answer.json() == {"id": "org/name"}


async def test_sends_each_event_at_once(http: aiohttp.ClientSession, backend: Backend) -> None:
    proceed = asyncio.Event()

    async def script(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        yield event("first")
        await proceed.wait()
        yield event("second")

    backend.script = script
    async with http.post(CHAT, data=b"{}") as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        assert await answer.content.readany() == b"data: first\n\n"
        proceed.set()
        assert await answer.content.read() == b"data: second\n\n"


async def test_request_id_goes_to_the_server_and_back(http: aiohttp.ClientSession, backend: Backend) -> None:
    async with http.post(CHAT, data=b"{}", headers={"x-request-id": "mine"}) as answer:
        assert answer.headers.getall("x-request-id") == ["mine"]
        assert "request-id" not in answer.headers
    assert backend.metadata["x-request-id"] == "mine"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/messages", {}, 200),
        ("/messages", {}, 200),
        ("/v1/messages/nope", {}, 404),
        ("/v1/messages", {"origin": "https://evil.example"}, 403),
        ("/v1/messages", {"content-encoding": "gzip"}, 415),
    ],
)
async def test_anthropic_s_clients_find_the_request_id(
    http: aiohttp.ClientSession, backend: Backend, path: str, headers: dict[str, str], status: int
) -> None:
    async with http.post(path, data=b"{}", headers=headers) as answer:
        assert (answer.status, answer.headers.getall("request-id")) == (status, answer.headers.getall("x-request-id"))


async def test_generates_a_request_id(http: aiohttp.ClientSession, backend: Backend) -> None:
    async with http.post(CHAT, data=b"{}") as answer:
        assert answer.headers["x-request-id"] == backend.metadata["x-request-id"] != ""


async def test_passes_server_headers_but_not_grpc_headers(http: aiohttp.ClientSession, backend: Backend) -> None:
    async def script(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        await context.send_initial_metadata((("x-glimpse-ignored-fields", "foo,bar"),))
        yield event("x")

    backend.script = script
    async with http.post(CHAT, data=b"{}") as stream, http.get("/v1/models") as unary:
        assert stream.headers["x-glimpse-ignored-fields"] == "foo,bar"
        assert stream.headers["server"] == "glimpse"
        for answer in (stream, unary):
            assert [name for name in answer.headers if name.lower().startswith(("grpc-", "x-envoy-"))] == []


async def test_60_mib_body_reaches_the_server(http: aiohttp.ClientSession, backend: Backend) -> None:
    async def script(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        num_bytes = sum([len(request.data) async for request in requests])
        yield HttpBody(content_type="application/json", data=str(num_bytes).encode())

    backend.script = script
    async with http.post(CHAT, data=io.BytesIO(bytes(60 << 20))) as answer:
        assert await answer.text() == str(60 << 20)


async def test_passes_a_5_mib_response(http: aiohttp.ClientSession, backend: Backend) -> None:
    backend.script = echo
    async with http.post(CHAT, data=io.BytesIO(bytes(5 << 20))) as answer:
        assert (answer.status, len(await answer.read())) == (200, 5 << 20)


async def test_disconnect_during_a_stream_cancels_the_rpc(http: aiohttp.ClientSession, backend: Backend) -> None:
    async def script(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        yield event("first")
        await asyncio.Event().wait()

    backend.script = script
    async with http.post(CHAT, data=b"{}") as answer:
        await answer.content.readany()
    # aiohttp closes the connection of a response that was not read to its end.
    await backend.cancelled.wait()


async def test_disconnect_before_the_first_byte_cancels_the_rpc(envoy: Envoy, backend: Backend) -> None:
    begun = asyncio.Event()

    async def script(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        await read(requests)
        begun.set()
        await asyncio.Event().wait()
        yield event("too late")

    backend.script = script
    _, writer = await asyncio.open_connection(envoy.address.host, envoy.address.port)
    headers = "host: localhost\r\ncontent-type: application/json\r\ncontent-length: 2"
    writer.write(f"POST {CHAT} HTTP/1.1\r\n{headers}\r\n\r\n{{}}".encode())
    await begun.wait()
    writer.close()
    await writer.wait_closed()
    await backend.cancelled.wait()


@pytest.mark.parametrize("limit", ["1S", "900m", "900000u"])
async def test_the_server_has_time_to_say_that_the_deadline_has_passed(
    http: aiohttp.ClientSession, backend: Backend, limit: str
) -> None:
    is_late, received = True, b""

    async def script(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        nonlocal is_late
        yield event("first")
        remaining = context.time_remaining() or 0.0
        await asyncio.sleep(max(0.0, remaining - float(backend.metadata[GRACE_HEADER])))
        is_late = (context.time_remaining() or 0.0) < 1.0
        yield event("last")

    backend.script = script
    while is_late:  # again if the machine pauses for all of the server's time
        async with http.post(CHAT, data=b"{}", headers={"grpc-timeout": limit}) as answer:
            with contextlib.suppress(aiohttp.ClientPayloadError):
                received = await answer.read()
    assert received == event("first").data + event("last").data


async def test_after_that_time_the_gateway_ends_the_stream(http: aiohttp.ClientSession, backend: Backend) -> None:
    async def script(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        yield event("first")
        await asyncio.Event().wait()

    backend.script = script
    async with http.post(CHAT, data=b"{}", headers={"grpc-timeout": "200m"}) as answer:
        # Envoy breaks the body; if the server's gRPC library is first, the body ends.
        with contextlib.suppress(aiohttp.ClientPayloadError):
            assert await answer.read() == event("first").data
    await backend.cancelled.wait()


@pytest.mark.parametrize("limit", ["100H", "99999999M"])
async def test_distant_deadlines_stay_as_they_are(http: aiohttp.ClientSession, backend: Backend, limit: str) -> None:
    async with http.post(CHAT, data=b"{}", headers={"grpc-timeout": limit}) as answer:
        assert answer.status == 200
    assert GRACE_HEADER not in backend.metadata


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [("http://localhost:3000", True), ("https://127.0.0.1", True), ("https://localhost.example", False)],
)
async def test_allows_pages_of_this_machine_by_default(
    http: aiohttp.ClientSession, backend: Backend, origin: str, allowed: bool
) -> None:
    preflight = {"origin": origin, "access-control-request-method": "POST"}
    async with http.options(CHAT, headers=preflight) as answer:
        assert answer.status == (200 if allowed else 403)
        assert ("access-control-allow-origin" in answer.headers) == allowed
    async with http.post(CHAT, data=b"{}", headers={"origin": origin, "content-type": "application/json"}) as answer:
        assert answer.status == (200 if allowed else 403)
        assert ("access-control-allow-origin" in answer.headers) == allowed
    assert backend.num_calls == allowed


async def test_openai_client_reads_answers_and_streams(envoy: Envoy, backend: Backend) -> None:
    completion = b'{"id":"1","object":"chat.completion","created":1,"model":"m","choices":[]}'
    chunk = '{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[]}'

    async def script(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        if b'"stream":true' not in (await read(requests)).replace(b" ", b""):
            yield HttpBody(content_type="application/json", data=completion)
            return
        for text in (chunk, chunk, "[DONE]"):
            yield event(text)

    backend.script = script
    async with openai.AsyncOpenAI(base_url=f"http://{envoy.address}/v1", api_key="x", max_retries=0) as client:
        answer = await client.chat.completions.create(model="m", messages=[])
        stream = await client.chat.completions.create(model="m", messages=[], stream=True)
        assert (answer.id, [part.id async for part in stream]) == ("1", ["1", "1"])


async def test_other_gateways_can_serve_the_typed_methods(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Envoy's transcoder with the API's own descriptors reads and writes the JSON itself, as grpc-gateway does."""
    monkeypatch.setattr(descriptors, "transcoder_set", descriptors.descriptor_set)
    options = GatewayOptions(listen=ANY_PORT, upstream=(backend.address,))
    async with Envoy(options, run_dir=tmp_path) as envoy, aiohttp.ClientSession(envoy.url) as session:
        path = f"{descriptors.TYPED_PATHS}chatCompletions"
        async with session.post(f"{path}:countTokens", json={"messages": [{"role": "ROLE_USER"}]}) as answer:
            assert (answer.status, await answer.json()) == (200, {"promptTokens": 7})
        async with session.post(f"{path}:countTokens", json={"messages": []}) as answer:
            assert (answer.status, (await answer.json())["details"][0]["reason"]) == (400, "REQUIRED")
        async with session.post(f"{path}:stream", json={}) as answer:
            assert [message["id"] for message in await answer.json()] == ["0", "1", "2"]
