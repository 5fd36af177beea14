"""Every error of REST has its dialect's form, OpenAI's or Anthropic's, and the matching status."""

import asyncio
import http.client
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import openai
import pytest
from google.api.httpbody_pb2 import HttpBody
from google.protobuf import any_pb2
from google.rpc import status_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glimpse.gateway.address import Address
from glimpse.gateway.config import GatewayOptions
from glimpse.gateway.run import Envoy
from glimpse.v1 import model_pb2, model_pb2_grpc
from tests.gateway.backend import Backend, Context, Requests, Script, abort, event, read
from tests.gateway.conftest import ANY_PORT

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
UNAVAILABLE = {
    "error": {
        "message": "The model server is not available.",
        "type": "server_error",
        "param": None,
        "code": "unavailable",
    }
}


def failing(code: grpc.StatusCode, message: str, **details: Any) -> Script:
    async def script(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        await read(requests)
        await abort(context, code, message, **details)
        yield event("never")

    return script


def error(message: str, kind: str, code: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def anthropic_error(message: str, kind: str, code: str) -> dict[str, Any]:
    return {"type": "error", **error(message, kind, code)}


TOO_BIG = error("too big", "invalid_request_error", "too_large")


@pytest.mark.parametrize(
    ("method", "path", "status", "expected"),
    [
        (
            "GET",
            "/nope?secret=1",
            404,
            error("Unknown URL: GET /nope. GET /openapi.json lists the paths.", "invalid_request_error", "unknown_url"),
        ),
        ("POST", "/", 405, error("POST is not allowed on /", "invalid_request_error", "method_not_allowed")),
        ("POST", "/glimpse.v1.ChatService/CountTokens", 404, None),
        ("GET", CHAT, 405, error(f"GET is not allowed on {CHAT}", "invalid_request_error", "method_not_allowed")),
        ("DELETE", "/v1/models/a/b", 405, None),
        ("OPTIONS", "/v1/models", 405, None),
    ],
)
async def test_envoy_refuses_unknown_paths_and_verbs(
    http: aiohttp.ClientSession,
    backend: Backend,
    method: str,
    path: str,
    status: int,
    expected: dict[str, Any] | None,
) -> None:
    async with http.request(method, path) as answer:
        document = await answer.json()
        assert answer.status == status
        assert set(document["error"]) == {"message", "type", "param", "code"}
        assert expected is None or document == expected
        assert status != 405 or answer.headers["allow"] in ("GET", "POST", "GET, HEAD")
    assert backend.num_calls == 0


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, 400, "invalid_request_error"),
        (grpc.StatusCode.UNAUTHENTICATED, 401, "authentication_error"),
        (grpc.StatusCode.PERMISSION_DENIED, 403, "permission_error"),
        (grpc.StatusCode.NOT_FOUND, 404, "invalid_request_error"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "rate_limit_error"),
        (grpc.StatusCode.INTERNAL, 500, "server_error"),
        (grpc.StatusCode.UNIMPLEMENTED, 501, "server_error"),
        (grpc.StatusCode.UNAVAILABLE, 503, "server_error"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, 504, "timeout_error"),
    ],
)
async def test_a_status_without_a_document_becomes_an_openai_error(
    http: aiohttp.ClientSession, backend: Backend, code: grpc.StatusCode, status: int, kind: str
) -> None:
    backend.script = failing(code, "what went wrong")
    async with http.post(CHAT, data=b"{}") as answer:
        assert answer.status == status
        assert answer.headers["content-type"] == "application/json"
        assert await answer.json() == error("what went wrong", kind, code.name.lower())


@pytest.mark.parametrize(
    ("code", "status", "kind", "reason"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, 400, "invalid_request_error", None),
        (grpc.StatusCode.UNAUTHENTICATED, 401, "authentication_error", None),
        (grpc.StatusCode.NOT_FOUND, 404, "not_found_error", None),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "rate_limit_error", None),
        (grpc.StatusCode.INTERNAL, 500, "api_error", None),
        (grpc.StatusCode.UNAVAILABLE, 503, "overloaded_error", None),
        (grpc.StatusCode.CANCELLED, 503, "overloaded_error", "unavailable"),
    ],
)
async def test_a_status_without_a_document_becomes_an_anthropic_error(
    http: aiohttp.ClientSession, backend: Backend, code: grpc.StatusCode, status: int, kind: str, reason: str | None
) -> None:
    backend.script = failing(code, "The model server is not available.")
    async with http.post(MESSAGES, data=b"{}") as answer:
        assert (answer.status, await answer.json()) == (
            status,
            anthropic_error("The model server is not available.", kind, reason or code.name.lower()),
        )


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_what_envoy_refuses_has_anthropic_s_form_below_its_paths(
    http: aiohttp.ClientSession, backend: Backend, prefix: str
) -> None:
    path = f"{prefix}/messages"
    async with http.get(path) as answer:
        assert answer.status == 405
        assert await answer.json() == anthropic_error(
            f"GET is not allowed on {path}", "invalid_request_error", "method_not_allowed"
        )
    async with http.post(f"{path}/nope") as answer:
        document = await answer.json()
        assert (answer.status, document["type"], document["error"]["type"]) == (404, "error", "not_found_error")
    assert backend.num_calls == 0


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/nope", 404, "not_found_error"),
        ("GET", "/v1/organizations/x", 404, "not_found_error"),
        ("DELETE", "/v1/models", 405, "invalid_request_error"),
        ("GET", CHAT, 405, "invalid_request_error"),
    ],
)
async def test_what_envoy_refuses_has_the_form_of_the_client_that_says_which_it_is(
    http: aiohttp.ClientSession, backend: Backend, method: str, path: str, status: int, kind: str
) -> None:
    async with http.request(method, path, headers={"anthropic-version": "2023-06-01"}) as answer:
        document = await answer.json()
        assert (answer.status, document["type"], document["error"]["type"]) == (status, "error", kind)
        assert answer.headers["request-id"] == answer.headers["x-request-id"]
    async with http.get("/glimpse/v1/nope", headers={"anthropic-version": "2023-06-01"}) as answer:
        assert (await answer.json())["code"] == grpc.StatusCode.NOT_FOUND.value[0]
    assert backend.num_calls == 0


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("Invalid value.", "messages[0].content[1].image_url.url"),
        ('He said "no": {"reason":"x"}, \\ and \n', 'a"b'),
        ("Ungültig: 图像 🙂 <b>", "é"),
        ('{"@type":"type.googleapis.com/google.protobuf.Struct","value":{}}]}', "}]}"),
        ("\\", "\\"),
    ],
)
async def test_sends_the_document_of_the_server(
    http: aiohttp.ClientSession, backend: Backend, message: str, param: str
) -> None:
    document = error(message, "image_error", "invalid_value", param)
    backend.script = failing(grpc.StatusCode.INVALID_ARGUMENT, message, reason="OTHER", param=param, document=document)
    async with http.post(CHAT, data=b"{}") as answer:
        assert answer.status == 400
        assert await answer.json() == document


# Mostly characters that are special in JSON, and some others.
TEXTS = st.text(st.sampled_from('"\\{}[]:, /u0\n') | st.characters(codec="utf-8"), min_size=1, max_size=50)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(message=TEXTS, param=TEXTS)
async def test_preserves_any_error_text(
    http: aiohttp.ClientSession, backend: Backend, message: str, param: str
) -> None:
    document = {"type": "error", "error": {"message": message, "of": [param]}}  # in any dialect
    backend.script = failing(grpc.StatusCode.INVALID_ARGUMENT, message, reason="X", param=param, document=document)
    async with http.post(CHAT, data=b"{}") as answer:
        assert await answer.json() == document


async def test_status_without_a_message_has_a_code(http: aiohttp.ClientSession, backend: Backend) -> None:
    backend.script = failing(grpc.StatusCode.NOT_FOUND, "")
    async with http.post(CHAT, data=b"{}") as answer:
        assert await answer.json() == error("not_found", "invalid_request_error", "not_found")


async def test_unknown_status_details_keep_the_error_body(http: aiohttp.ClientSession, backend: Backend) -> None:
    unknown = any_pb2.Any(type_url="type.googleapis.com/no.Such", value=b"x")
    status = status_pb2.Status(code=5, message="gone", details=[unknown]).SerializeToString()
    backend.script = failing(grpc.StatusCode.NOT_FOUND, "gone", trailers=(("grpc-status-details-bin", status),))
    async with http.post(CHAT, data=b"{}") as answer:
        assert answer.status == 404
        assert await answer.json() == error("not_found", "invalid_request_error", "not_found")


@pytest.mark.parametrize("headers_first", [False, True])
async def test_server_can_override_the_http_status(
    http: aiohttp.ClientSession, backend: Backend, headers_first: bool
) -> None:
    async def script(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        if headers_first:
            await context.send_initial_metadata((("x-glimpse-ignored-fields", "foo"),))
        trailers = (("x-http-status", "413"),)
        await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "too big", document=TOO_BIG, trailers=trailers)
        yield event("never")

    backend.script = script
    async with http.post(CHAT, data=b"{}") as answer:
        assert answer.status == 413
        assert "x-http-status" not in answer.headers
        assert answer.headers.get("x-glimpse-ignored-fields") == ("foo" if headers_first else None)
        assert await answer.json() == TOO_BIG


async def test_deadline_before_the_first_byte_is_504(http: aiohttp.ClientSession, backend: Backend) -> None:
    async def script(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
        await asyncio.Event().wait()
        yield event("too late")

    backend.script = script
    async with http.post(CHAT, data=b"{}", headers={"grpc-timeout": "200m"}) as answer:
        assert answer.status == 504
        assert (await answer.json())["error"]["type"] == "timeout_error"
    await backend.cancelled.wait()


async def test_repeats_once_what_the_server_did_not_begin(http: aiohttp.ClientSession, backend: Backend) -> None:
    """UNAVAILABLE says so. ABORTED says that the engine died with the request, which may be why."""
    for code, num_calls in (
        (grpc.StatusCode.UNAVAILABLE, 2),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 1),
        (grpc.StatusCode.ABORTED, 1),
    ):
        backend.script, backend.num_calls = failing(code, "no"), 0
        async with http.post(CHAT, data=b"{}") as answer:
            assert answer.status in (503, 429, 409)
        assert backend.num_calls == num_calls


async def test_a_call_that_the_server_cancels_is_repeated_and_then_unavailable(
    http: aiohttp.ClientSession, backend: Backend
) -> None:
    """gRPC cancels calls that arrive while the server closes its port."""
    backend.script = failing(grpc.StatusCode.CANCELLED, "CANCELLED")
    async with http.post(CHAT, data=b"{}") as answer:
        assert (answer.status, await answer.json()) == (503, UNAVAILABLE)
    assert backend.num_calls == 2


async def test_upstream_that_is_no_server_is_unavailable(tmp_path: Path) -> None:
    """Another program may get the port of a server that died."""

    async def speak_http1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(speak_http1, "127.0.0.1", 0) as other:
        upstream = Address(host="127.0.0.1", port=other.sockets[0].getsockname()[1])
        async with Envoy(GatewayOptions(listen=ANY_PORT, upstream=(upstream,)), run_dir=tmp_path) as envoy:
            async with aiohttp.ClientSession(envoy.url) as session, session.post(CHAT, data=b"{}") as answer:
                assert (answer.status, await answer.json()) == (503, UNAVAILABLE)
            async with aiohttp.ClientSession(envoy.url) as session, session.post(MESSAGES, data=b"{}") as answer:
                expected = anthropic_error("The model server is not available.", "overloaded_error", "unavailable")
                assert (answer.status, await answer.json()) == (503, expected)
            async with grpc.aio.insecure_channel(str(envoy.address)) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await model_pb2_grpc.ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def refuse_past_64_mib(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
    """Reads the whole body before it refuses, so that the client is reading when the response comes."""
    if sum([len(request.data) async for request in requests]) > 64 << 20:
        trailers = (("x-http-status", "413"),)
        await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "too big", document=TOO_BIG, trailers=trailers)
    yield event("ok")


async def test_refused_70_mib_body_is_413(envoy: Envoy, backend: Backend) -> None:
    def post() -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(envoy.address.host, envoy.address.port, timeout=20)
        connection.request("POST", CHAT, body=bytes(70 << 20))
        answer = connection.getresponse()
        try:
            return answer.status, answer.read()
        finally:
            connection.close()

    backend.script = refuse_past_64_mib
    status, body = await asyncio.to_thread(post)
    assert (status, b"too big" in body) == (413, True)


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/v1/audio/speech", 404), ("PUT", CHAT, 405)])
async def test_a_client_that_sends_8_mib_before_it_reads_hears_what_is_wrong_with_its_url(
    envoy: Envoy, backend: Backend, method: str, path: str, status: int
) -> None:
    """The client's system drops an answer whose connection closes before the end of the body."""

    def send() -> tuple[int, str | None, bytes]:
        with closing(http.client.HTTPConnection(envoy.address.host, envoy.address.port, timeout=20)) as connection:
            connection.request(method, path, body=bytes(8 << 20))
            answer = connection.getresponse()
            return answer.status, answer.headers["allow"], answer.read()

    for _ in range(3):
        found, allow, body = await asyncio.to_thread(send)
        assert (found, allow) == (status, "POST" if status == 405 else None)
        assert b"not served" in body or b"is not allowed on" in body
    assert backend.num_calls == 0


async def test_too_large_headers_are_431(http: aiohttp.ClientSession, backend: Backend) -> None:
    async with http.get("/v1/models", headers={"x-large": "x" * 70_000}) as answer:
        assert answer.status == 431
        assert (await answer.json())["error"]["code"] == "headers_too_large"


async def test_invalid_http_is_400(envoy: Envoy) -> None:
    reader, writer = await asyncio.open_connection(envoy.address.host, envoy.address.port)
    writer.write(b"GET / HTTP/1.1\r\nno colon here\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 400")
    assert b'"type":"invalid_request_error"' in answer


async def test_openai_client_raises_typed_errors(envoy: Envoy, backend: Backend) -> None:
    backend.script = failing(
        grpc.StatusCode.NOT_FOUND,
        "no such model",
        document=error("no such model", "invalid_request_error", "model_not_found", "model"),
    )
    async with openai.AsyncOpenAI(base_url=f"http://{envoy.address}/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError) as raised:
            await client.chat.completions.create(model="m", messages=[])
    assert (raised.value.code, raised.value.param) == ("model_not_found", "model")
