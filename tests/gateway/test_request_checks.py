"""What Envoy refuses, removes and adds before a request reaches the server."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp
import grpc
import grpc.aio
import pytest
from google.api.httpbody_pb2 import HttpBody

from glimpse.gateway.address import Address
from glimpse.gateway.config import GatewayOptions
from glimpse.gateway.run import Envoy
from glimpse.openai.v1 import openai_pb2_grpc
from glimpse.v1 import model_pb2
from tests.gateway.backend import Backend, Context, Requests, abort, event, read
from tests.gateway.conftest import ANY_PORT

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}


async def send(envoy: Envoy, request: str | bytes) -> str:
    """Sends bytes on a new connection; returns what comes back until the gateway closes it."""
    reader, writer = await asyncio.open_connection(envoy.address.host, envoy.address.port)
    writer.write(request if isinstance(request, bytes) else request.encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.decode()


@pytest.mark.parametrize(
    "origin",
    [
        *("https://evil.example", "http://localhost.evil.example", "null", "http://localhost@evil"),
        *("http://evil.example/.localhost", "http://evillocalhost", "appx://obsidian.md", "app:"),
    ],
)
async def test_refuses_pages_from_elsewhere(http: aiohttp.ClientSession, backend: Backend, origin: str) -> None:
    # What a page may send without a preflight.
    async with http.post(CHAT, data="{}", headers={"origin": origin, "content-type": "text/plain"}) as answer:
        assert answer.status == 403
        error = (await answer.json())["error"]
    assert (error["type"], error["code"]) == ("permission_error", "permission_denied")
    assert origin in error["message"]
    assert "--allow-origin" in error["message"]
    async with http.get("/v1/models", headers={"origin": origin}) as answer:
        assert answer.status == 403
    assert backend.num_calls == 0


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:5173"])
async def test_serves_pages_of_this_machine(http: aiohttp.ClientSession, backend: Backend, origin: str) -> None:
    async with http.post(CHAT, data="{}", headers=JSON | {"origin": origin}) as answer:
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, origin)


@pytest.mark.parametrize(
    "origin",
    [
        *("app://obsidian.md", "tauri://localhost", "http://tauri.localhost", "capacitor://localhost", "file://"),
        *("vscode-webview://0a1b", "vscode-file://vscode-app", "chrome-extension://abc", "moz-extension://0a-1b"),
    ],
)
async def test_serves_applications_of_this_machine(http: aiohttp.ClientSession, backend: Backend, origin: str) -> None:
    async with http.post(CHAT, data="{}", headers=JSON | {"origin": origin}) as answer:
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, origin)
    async with http.options(CHAT, headers={"origin": origin, "access-control-request-method": "POST"}) as answer:
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, origin)


async def test_refuses_grpc_web_from_elsewhere(http: aiohttp.ClientSession, backend: Backend) -> None:
    headers = {"content-type": "application/grpc-web+proto", "origin": "https://evil.example"}
    async with http.post("/glimpse.v1.ChatService/CountTokens", data=bytes(5), headers=headers) as answer:
        assert answer.status == 403
    assert backend.num_calls == 0


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "[::2]"])
async def test_loopback_listener_refuses_names_from_elsewhere(
    http: aiohttp.ClientSession, backend: Backend, host: str
) -> None:
    async with http.get("/v1/models", headers={"host": host}) as answer:
        assert answer.status == 403
        assert "--allowed-host" in (await answer.json())["error"]["message"]
    assert backend.num_calls == 0


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]", "[::1]:8080"])
async def test_loopback_listener_serves_names_of_this_machine(
    http: aiohttp.ClientSession, backend: Backend, host: str
) -> None:
    async with http.get("/v1/models", headers={"host": host}) as answer:
        assert answer.status == 200


async def statuses(envoy: Envoy, requests: Mapping[str, str]) -> dict[tuple[str, str], int]:
    """Returns the status of GET /v1/models for each pair of Host and Origin."""
    found: dict[tuple[str, str], int] = {}
    port = envoy.address.port
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        for host, origin in requests.items():
            headers = {"host": host} | ({"origin": origin} if origin else {})
            async with session.get("/v1/models", headers=headers) as answer:
                found[host, origin] = answer.status
    return found


async def test_flags_allow_hosts_and_origins(backend: Backend, tmp_path: Path) -> None:
    async with Envoy(
        GatewayOptions(
            listen=ANY_PORT,
            upstream=(backend.address,),
            allowed_host=("API.example",),
            allow_origin=("https://app.example",),
        ),
        run_dir=tmp_path,
    ) as envoy:
        assert await statuses(
            envoy,
            {
                "api.example": "",
                "api.example:443": "https://app.example",
                "localhost": "http://localhost",  # the same origin
                "localhost:1": "http://localhost:2",
                "localhost:3": "app://obsidian.md",
                "other.example": "",
            },
        ) == {
            ("api.example", ""): 200,
            ("api.example:443", "https://app.example"): 200,
            ("localhost", "http://localhost"): 200,
            ("localhost:1", "http://localhost:2"): 403,
            ("localhost:3", "app://obsidian.md"): 403,
            ("other.example", ""): 403,
        }


async def test_public_listener_serves_any_host_but_not_any_origin(backend: Backend, tmp_path: Path) -> None:
    listen = Address(host="0.0.0.0", port=0)
    async with Envoy(GatewayOptions(listen=listen, upstream=(backend.address,)), run_dir=tmp_path) as envoy:
        requests = {
            "api.example": "https://api.example",
            "other.example:8080": "https://evil.example",
            "other.example": "app://obsidian.md",
        }
        assert list((await statuses(envoy, requests)).values()) == [200, 403, 403]


async def test_public_listener_with_allowed_hosts_refuses_others(backend: Backend, tmp_path: Path) -> None:
    listen = Address(host="0.0.0.0", port=0)
    async with Envoy(
        GatewayOptions(listen=listen, upstream=(backend.address,), allowed_host=("api.example",), allow_origin=("*",)),
        run_dir=tmp_path,
    ) as envoy:
        requests = {"api.example": "https://any.example", "localhost": "", "evil.example": ""}
        assert list((await statuses(envoy, requests)).values()) == [200, 200, 403]


@pytest.mark.parametrize("sent", ["mine", "req/1?a=b;c", "x" * 128])
async def test_keeps_the_callers_request_id(http: aiohttp.ClientSession, backend: Backend, sent: str) -> None:
    async with http.get("/v1/models", headers={"x-request-id": sent}) as answer:
        assert (answer.headers["x-request-id"], backend.metadata["x-request-id"]) == (sent, sent)
    assert "x-glimpse-callers-request-id" not in backend.metadata


@pytest.mark.parametrize("sent", [b"with space", b"tab\tinside", b"caf\xc3\xa9", b"\x9b31m", b"x" * 129, b""])
async def test_replaces_request_ids_that_are_not_visible_ascii(envoy: Envoy, backend: Backend, sent: bytes) -> None:
    async def echoed(path: bytes) -> str:
        head = b"GET " + path + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-request-id: " + sent
        answer = await send(envoy, head + b"\r\n\r\n")
        (echo,) = [line.partition(": ")[2] for line in answer.splitlines() if line.startswith("x-request-id")]
        return echo

    echoes = await asyncio.gather(*(echoed(path) for path in (b"/v1/models", b"/nope", b"/health")))
    assert all(len(each) == 36 and each.isascii() for each in echoes)
    assert backend.metadata["x-request-id"] == echoes[0]


async def test_tells_the_server_the_clients_address(
    http: aiohttp.ClientSession, envoy: Envoy, backend: Backend
) -> None:
    name = "x-glimpse-client-address"
    async with http.get("/v1/models", headers={name: "10.1.2.3", "x-forwarded-for": "10.1.2.3"}) as answer:
        assert answer.status == 200
    assert backend.metadata[name] == "127.0.0.1"
    async with grpc.aio.insecure_channel(str(envoy.address)) as channel:
        stub = openai_pb2_grpc.OpenAIServiceStub(channel)
        await stub.ListModels(model_pb2.ListModelsRequest(), metadata=((name, "10.1.2.3"), (name, "10.1.2.4")))
    assert backend.metadata[name] == "127.0.0.1"


async def test_removes_cookies_and_values_that_are_not_ascii(envoy: Envoy, backend: Backend) -> None:
    answer = await send(
        envoy,
        b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncookie: a=b\r\nx-kept: yes\r\n"
        b"x-utf-8: caf\xc3\xa9\r\nx-latin: caf\xe9\r\n\r\n",
    )
    assert answer.startswith("HTTP/1.1 200")
    assert {"cookie", "x-utf-8", "x-latin"} & set(backend.metadata) == set()
    assert backend.metadata["x-kept"] == "yes"


async def test_59_kib_of_headers_reach_the_server(http: aiohttp.ClientSession, backend: Backend) -> None:
    async with http.get("/v1/models", headers={"x-large": "x" * 59_000}) as answer:
        assert answer.status == 200
    assert len(backend.metadata["x-large"]) == 59_000


async def test_too_many_headers_are_431(http: aiohttp.ClientSession, backend: Backend) -> None:
    async with http.get("/v1/models", headers={f"x-{number}": "x" for number in range(120)}) as answer:
        assert answer.status == 431
        assert "60 KiB and 100 headers" in (await answer.json())["error"]["message"]


async def test_serves_http_1_0(envoy: Envoy, backend: Backend) -> None:
    for headers in ("", "host: localhost\r\n"):
        request = f"POST {CHAT} HTTP/1.0\r\n{headers}content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
        answer = await send(envoy, request)
        assert answer.startswith("HTTP/1.0 200")
        assert answer.endswith("\r\n\r\n{}")


async def test_explains_a_missing_host(envoy: Envoy) -> None:
    answer = await send(envoy, "GET /v1/models HTTP/1.1\r\nconnection: close\r\n\r\n")
    assert answer.startswith("HTTP/1.1 400")
    assert '"code":"missing_host"' in answer
    assert "'Host': expected" in answer


@pytest.mark.parametrize(
    ("path", "headers", "status", "named"),
    [
        (CHAT, {"content-encoding": "gzip"}, 415, "'Content-Encoding'"),
        (CHAT, {"grpc-timeout": "soon"}, 400, "'grpc-timeout'"),
        (CHAT, {"connection": "upgrade", "upgrade": "websocket"}, 400, "'Upgrade'"),
        ("/v1/models/%00", {}, 400, "null byte"),
    ],
)
async def test_explains_what_cannot_be_served(
    envoy: Envoy, backend: Backend, path: str, headers: Mapping[str, str], status: int, named: str
) -> None:
    lines = [f"{name}: {value}\r\n" for name, value in ({"connection": "close"} | dict(headers)).items()]
    answer = await send(envoy, f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{''.join(lines)}\r\n")
    assert answer.startswith(f"HTTP/1.1 {status}")
    assert named in answer
    assert backend.num_calls == 0


async def test_explains_that_grpc_needs_http_2(http: aiohttp.ClientSession, backend: Backend) -> None:
    for content_type in ("application/grpc", "application/grpc+proto"):
        headers = {"content-type": content_type}
        async with http.post("/glimpse.v1.ChatService/CountTokens", data=bytes(5), headers=headers) as answer:
            assert answer.headers["grpc-status"] == str(grpc.StatusCode.UNIMPLEMENTED.value[0])
            assert answer.headers["grpc-message"].startswith("gRPC requires HTTP/2.")
    assert backend.num_calls == 0


async def with_reports(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
    if b"fail" in await read(requests):
        await abort(
            context,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "busy",
            trailers=(("endpoint-load-metrics-bin", b"\1"), ("grpc-retry-pushback-ms", "7000"), ("retry-after", "7")),
        )
    context.set_trailing_metadata((("endpoint-load-metrics-bin", b"\1"),))
    yield event("x")


async def test_rest_has_no_load_reports(http: aiohttp.ClientSession, backend: Backend) -> None:
    # tests/e2e/test_load_reports.py reads them over gRPC.
    backend.script = with_reports
    for body in ("", "fail"):
        async with http.post(CHAT, data=body, headers=JSON) as answer:
            assert answer.status == (429 if body else 200)
            assert {"endpoint-load-metrics-bin", "grpc-retry-pushback-ms"} & set(answer.headers) == set()


@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE])
@pytest.mark.parametrize("headers_first", [False, True])
async def test_errors_that_pass_say_when_to_retry(
    http: aiohttp.ClientSession, backend: Backend, code: grpc.StatusCode, headers_first: bool
) -> None:
    async def script(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        if headers_first:
            await context.send_initial_metadata((("x-glimpse-ignored-fields", "foo"),))
        await abort(context, code, "busy", document={"error": {"code": "busy"}}, trailers=(("retry-after", "7"),))
        yield event("never")

    backend.script = script
    async with http.post(CHAT, data="{}", headers=JSON) as answer:
        assert (answer.status, answer.headers.getall("retry-after")) == (429 if "RES" in code.name else 503, ["7"])
        assert (await answer.json())["error"]["code"] == "busy"
