"""The REST facade on a real gRPC server, as the gateway sees it, with scripted typed handlers."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest
from google.api.httpbody_pb2 import HttpBody
from google.protobuf import json_format, struct_pb2
from google.rpc import status_pb2

from glimpse.anthropic.v1 import anthropic_pb2_grpc
from glimpse.dialect.bindings import bindings
from glimpse.openai.v1 import openai_pb2_grpc
from glimpse.server.call.context import CallContext
from glimpse.server.dialects.anthropic.dialect import ANTHROPIC
from glimpse.server.dialects.facade import add_facade
from glimpse.server.dialects.openai import OPENAI
from glimpse.server.errors import DeadlineExceededError, InvalidRequest, ModelNotFoundError
from glimpse.server.rpc.context import PATH_HEADER
from glimpse.server.rpc.errors import DETAILS_HEADER
from glimpse.server.rpc.interceptors import RpcInterceptor
from glimpse.server.rpc.load_meter import LoadMeter
from glimpse.server.telemetry.ignored_fields import IGNORED_FIELDS_HEADER
from glimpse.server.telemetry.metrics import Metrics
from glimpse.v1 import chat_pb2, media_pb2, model_pb2
from tests.hostile import forms
from tests.hostile.forms import FORM, file, form
from tests.server.dialects.responses_client import EVENT

MAX_BODY_BYTES = 1000
COMMENT = b": ping\n\n"


@dataclass
class Script:
    """What the typed handlers return, and the requests that they receive."""

    texts: list[str | Exception] = field(default_factory=lambda: ["Hello", " there"])
    """The texts of the response. An exception is raised instead of a text."""
    requests: list[Any] = field(default_factory=list[Any])
    silent: asyncio.Event | None = None
    """The stream's texts come once it is set. None: at once."""
    hold: bool = False
    """Whether the stream stays open after its texts."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the consumer closes the stream."""
    ignored: list[str] = field(default_factory=list[str])
    """Fields that the handlers find to be without effect."""

    async def create(self, request: Any, call: CallContext) -> chat_pb2.CreateChatCompletionResponse:
        self.requests.append(request)
        call.ignored_fields.extend(self.ignored)
        text = "".join(self._texts())
        choice = chat_pb2.Choice(message=chat_pb2.AssistantMessage(content=text))
        return chat_pb2.CreateChatCompletionResponse(id="c", choices=[choice])

    async def stream(
        self, request: Any, call: CallContext
    ) -> AsyncGenerator[chat_pb2.StreamChatCompletionResponse, None]:
        self.requests.append(request)
        call.ignored_fields.extend(self.ignored)
        try:
            if self.silent is not None:
                await self.silent.wait()
            for text in self._texts():
                choice = chat_pb2.ChunkChoice(delta=chat_pb2.Delta(content=text))
                yield chat_pb2.StreamChatCompletionResponse(id="c", choices=[choice])
            if self.hold:
                await asyncio.Event().wait()
        finally:
            self.closed.set()

    async def list_models(self, request: Any, call: CallContext) -> model_pb2.ListModelsResponse:
        return model_pb2.ListModelsResponse(data=[model_pb2.Model(id="m")])

    async def get_model(self, request: model_pb2.GetModelRequest, call: CallContext) -> model_pb2.GetModelResponse:
        if request.model != "m":
            raise ModelNotFoundError(request.model, ("m",))
        return model_pb2.GetModelResponse(model=model_pb2.Model(id="m"))

    async def upload(self, messages: Any, call: CallContext) -> media_pb2.UploadMediaResponse:
        async for message in messages:
            self.requests.append(message)
            if message.chunk == b"bad":
                raise InvalidRequest("header.purpose", "expected another one")
        return media_pb2.UploadMediaResponse(media=media_pb2.Media(upload_id="u"))

    async def download(self, request: Any, call: CallContext) -> AsyncGenerator[media_pb2.DownloadMediaResponse, None]:
        self.requests.append(request)
        yield media_pb2.DownloadMediaResponse(media=media_pb2.Media(upload_id="u"))
        for text in self._texts():
            yield media_pb2.DownloadMediaResponse(chunk=text.encode())

    def _texts(self) -> Iterable[str]:
        for text in self.texts:
            if isinstance(text, Exception):
                raise text
            yield text


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
async def channel(script: Script, request: pytest.FixtureRequest) -> AsyncIterator[grpc.aio.Channel]:
    """With seconds as its parameter: those after which silent streams are pinged."""
    errors = {OPENAI.service.full_name: OPENAI.error}
    interceptor = RpcInterceptor(Metrics(), LoadMeter(max_sequences=1), error_documents=errors)
    server = grpc.aio.server(interceptors=[interceptor])
    handlers: dict[str, Callable[..., Any]] = {
        "glimpse.v1.ChatService.CreateChatCompletion": script.create,
        "glimpse.v1.ChatService.StreamChatCompletion": script.stream,
        "glimpse.v1.ModelService.ListModels": script.list_models,
        "glimpse.v1.ModelService.GetModel": script.get_model,
        "glimpse.v1.MediaService.UploadMedia": script.upload,
        "glimpse.v1.MediaService.DownloadMedia": script.download,
    }
    for method in (
        "glimpse.openai.v1.ResponsesService.StreamResponse",
        "glimpse.v1.CompletionService.StreamCompletion",
    ):
        handlers[method] = script.stream
    for method in ("CreateMessage", "StreamMessage"):
        handlers[f"glimpse.anthropic.v1.MessagesService.{method}"] = script.stream
    # The facades bind others too; the tests do not call them.
    for binding in (each for dialect in (OPENAI, ANTHROPIC) for each in bindings(dialect.service)):
        handlers.setdefault(binding.unary.full_name, script.create)
    for dialect in (OPENAI, ANTHROPIC):
        add_facade(server, dialect, handlers, max_body_bytes=MAX_BODY_BYTES, ping_seconds=getattr(request, "param", 60))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> Any:
    return openai_pb2_grpc.OpenAIServiceStub(channel)


def send(
    stub: Any,
    document: Any,
    *,
    method: str = "CreateChatCompletion",
    content_type: str = "application/json",
    part_bytes: int = 1000,
    metadata: Sequence[tuple[str, str]] = (),
) -> Any:
    """Sends a body as the gateway does: in parts, the first of which has the content type."""
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    parts = [HttpBody(data=data[start : start + part_bytes]) for start in range(0, len(data), part_bytes)] or [
        HttpBody()
    ]
    parts[0].content_type = content_type
    return getattr(stub, method)(iter(parts), metadata=metadata)


async def receive(call: Any) -> list[HttpBody]:
    return [body async for body in call]


async def next_event(call: Any) -> HttpBody:
    """The next body that is no comment."""
    while (body := await call.read()).data == COMMENT:
        pass
    return body


async def failure(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await receive(call)
    return caught.value


def document(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    """Returns what the gateway sends as the body of the response."""
    trailers: dict[str, Any] = dict(error.trailing_metadata())
    body = struct_pb2.Struct()
    assert status_pb2.Status.FromString(trailers[DETAILS_HEADER]).details[-1].Unpack(body)
    return json_format.MessageToDict(body)["error"]


def events(bodies: list[HttpBody]) -> list[str]:
    assert all(body.content_type == "text/event-stream" for body in bodies)
    texts = [body.data.decode() for body in bodies]
    assert all(text.startswith("data: ") and text.endswith("\n\n") and text.count("\n") == 2 for text in texts)
    return [text[len("data: ") : -2] for text in texts]


REQUEST = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("stream", [{}, {"stream": False}, {"stream": None}])
@pytest.mark.parametrize("part_bytes", [7, 1000])
async def test_unary_response_is_one_document(stub: Any, script: Script, stream: Any, part_bytes: int) -> None:
    (body,) = await receive(send(stub, REQUEST | stream, part_bytes=part_bytes))
    assert body.content_type == "application/json"
    assert json.loads(body.data)["choices"][0]["message"]["content"] == "Hello there"
    assert script.requests[0].messages[0].content[0].text == "hi"


async def test_streamed_response_is_events_and_an_end_marker(stub: Any) -> None:
    *chunks, end = events(await receive(send(stub, REQUEST | {"stream": True})))
    assert [json.loads(chunk)["choices"][0]["delta"]["content"] for chunk in chunks] == ["Hello", " there"]
    assert end == "[DONE]"


async def test_empty_stream_still_has_an_end_marker(stub: Any, script: Script) -> None:
    script.texts = []
    assert events(await receive(send(stub, REQUEST | {"stream": True}))) == ["[DONE]"]


async def test_get_methods_return_json(stub: Any) -> None:
    models = await stub.ListModels(model_pb2.ListModelsRequest())
    assert (models.content_type, json.loads(models.data)["data"][0]["id"]) == ("application/json", "m")
    model = await stub.GetModel(model_pb2.GetModelRequest(model="m"))
    assert json.loads(model.data)["object"] == "model"


async def test_failure_of_a_get_method_is_a_status(stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetModel(model_pb2.GetModelRequest(model="x"))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert document(caught.value) == {
        "message": "The model 'x' does not exist. Available: 'm'.",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


@pytest.mark.parametrize("method", ["GetModel", "CreateChatCompletion"])
async def test_refuses_bytes_that_are_no_message(channel: grpc.aio.Channel, method: str) -> None:
    # The gateway makes such a message of the path /v1/models/%ff.
    call = channel.stream_unary(f"/glimpse.openai.v1.OpenAIService/{method}")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(iter([b"\x0a\x01\xff"]))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "got other bytes" in (caught.value.details() or "")


@pytest.mark.parametrize("stream", [False, True])
async def test_lists_unknown_members_in_a_header(stub: Any, stream: bool) -> None:
    call = send(stub, REQUEST | {"stream": stream, "foo": 1, "a,b": 2, "none": None})
    await receive(call)
    headers = dict(await call.initial_metadata())
    assert headers[IGNORED_FIELDS_HEADER] == 'foo,["a,b"]'


@pytest.mark.parametrize("stream", [False, True])
async def test_header_lists_hints_and_what_a_handler_ignores_by_the_names_that_were_sent(
    stub: Any, script: Script, stream: bool
) -> None:
    script.ignored.append("generation.max_completion_tokens")
    call = send(stub, REQUEST | {"stream": stream, "store": True, "max_tokens": 5})
    await receive(call)
    assert dict(await call.initial_metadata())[IGNORED_FIELDS_HEADER] == "store,max_tokens"


async def test_header_lists_betas_of_anthropic_s_which_change_nothing(channel: grpc.aio.Channel) -> None:
    stub, request = anthropic_pb2_grpc.AnthropicServiceStub(channel), REQUEST | {"stream": True, "max_tokens": 5}
    call = send(stub, request | {"foo": 1}, method="CreateMessage", metadata=[("anthropic-beta", "a-1, b-2")])
    assert dict(await call.initial_metadata())[IGNORED_FIELDS_HEADER] == "foo,anthropic-beta:a-1,anthropic-beta:b-2"


@pytest.mark.parametrize(
    ("query", "ignored"),
    [
        ("limit=2&purpose=batch&cache%5Fsalt=", None),
        ("cacheSalt=a", None),
        ("foo=1&limit=2&foo=2&api-version", "?foo,?api-version"),
        ("a,b=1&%C3%BC=2", '?["a,b"],?["\\u00fc"]'),
    ],
)
async def test_header_lists_parameters_of_the_url_that_are_no_fields(
    stub: Any, query: str, ignored: str | None
) -> None:
    call = stub.ListFiles(media_pb2.ListMediaRequest(), metadata=((PATH_HEADER, f"/v1/files?{query}"),))
    await call
    assert dict(await call.initial_metadata()).get(IGNORED_FIELDS_HEADER) == ignored


@pytest.mark.parametrize("stream", [False, True])
async def test_header_lists_parameters_of_a_url_beside_members_of_the_body(stub: Any, stream: bool) -> None:
    call = send(stub, REQUEST | {"stream": stream, "foo": 1}, metadata=((PATH_HEADER, "/v1/chat/completions?beta=1"),))
    await receive(call)
    assert dict(await call.initial_metadata())[IGNORED_FIELDS_HEADER] == "foo,?beta"


@pytest.mark.parametrize(("sent", "meant"), [("limt", "limit"), ("pupose", "purpose"), ("CacheSalt", "cache_salt")])
async def test_refuses_a_parameter_of_the_url_that_resembles_a_field(stub: Any, sent: str, meant: str) -> None:
    call = stub.ListFiles(media_pb2.ListMediaRequest(), metadata=((PATH_HEADER, f"/v1/files?{sent}=1"),))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = document(caught.value)
    assert (error["message"], error["param"], error["code"]) == (
        f"'{sent}': unknown parameter; did you mean '{meant}'?",
        sent,
        "unsupported",
    )


async def test_no_header_without_unknown_members(stub: Any) -> None:
    call = send(stub, REQUEST)
    await receive(call)
    assert IGNORED_FIELDS_HEADER not in dict(await call.initial_metadata())


async def test_truncates_a_long_list_of_unknown_members(
    stub: Any, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glimpse.server.telemetry.ignored_fields.MAX_HEADER_CHARACTERS", 10)
    call = send(stub, REQUEST | {"alpha": 1, "beta": 2, "gamma": 3})
    await receive(call)
    assert dict(await call.initial_metadata())[IGNORED_FIELDS_HEADER] == "alpha,..."


@pytest.mark.parametrize(
    ("body", "param", "reason"),
    [
        (b"{", None, "INVALID_JSON"),
        (b"", None, "INVALID_JSON"),
        ({"messages": 5}, "messages", "INVALID_TYPE"),
        (REQUEST | {"stream": "yes"}, "stream", "INVALID_TYPE"),
        ({"messages": [{"role": "boss"}]}, "messages[0].role", "INVALID_VALUE"),
        ({"messages": [{"role": "\ud800"}]}, "messages[0].role", "INVALID_VALUE"),
    ],
)
async def test_refuses_an_invalid_body(stub: Any, script: Script, body: Any, param: str | None, reason: str) -> None:
    error = await failure(send(stub, body))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert document(error) == {
        "message": error.details(),
        "type": "invalid_request_error",
        "param": param,
        "code": reason.lower(),
    }
    assert script.requests == []


async def test_refuses_a_body_that_is_too_large(stub: Any) -> None:
    error = await failure(send(stub, b" " * (MAX_BODY_BYTES + 1), part_bytes=300))
    assert error.details() == "The body is larger than 1000 bytes."
    assert dict(error.trailing_metadata())["x-http-status"] == "413"


@pytest.mark.parametrize(
    ("content_type", "accepted"),
    [("application/json; charset=utf-8", True), ("application/vnd.x+json", True), ("text/plain", False), ("", False)],
)
async def test_a_body_must_be_json(stub: Any, content_type: str, accepted: bool) -> None:
    call = send(stub, REQUEST, content_type=content_type)
    if accepted:
        assert len(await receive(call)) == 1
    else:
        got = "not text/plain" if content_type else "but the request has no content type"
        assert (await failure(call)).details() == f"The body must be application/json, {got}."


@pytest.mark.parametrize("stream", [False, True])
async def test_failure_before_the_first_chunk_is_a_status_with_a_json_path(
    stub: Any, script: Script, stream: bool
) -> None:
    script.texts = [InvalidRequest("messages[0].content[1].image.source", "'messages[0].content[1].image.source': no.")]
    error = await failure(send(stub, REQUEST | {"stream": stream}))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert document(error)["param"] == "messages[0].content[1].image_url.url"
    assert error.details() == "'messages[0].content[1].image_url.url': no."


async def test_failure_after_the_first_chunk_is_an_event_and_a_status(stub: Any, script: Script) -> None:
    script.texts = ["Hello", DeadlineExceededError()]
    call = send(stub, REQUEST | {"stream": True})
    first, last = events([await call.read(), await call.read()])
    assert "Hello" in first
    assert json.loads(last) == {
        "error": {
            "message": "The deadline passed before the response was complete.",
            "type": "timeout_error",
            "param": None,
            "code": "deadline_exceeded",
        }
    }
    assert await call.code() == grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("channel", [0.01], indirect=True)
async def test_a_silent_stream_has_comments_until_its_answer_or_error(stub: Any, script: Script) -> None:
    script.silent, script.texts = asyncio.Event(), ["Hello", DeadlineExceededError()]
    call = send(stub, REQUEST | {"stream": True})
    assert [(await call.read()).data for _ in range(3)] == [COMMENT] * 3
    script.silent.set()
    first, last = events([await next_event(call), await next_event(call)])
    assert "Hello" in first
    assert json.loads(last)["error"]["code"] == "deadline_exceeded"
    assert await call.code() == grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("channel", [0.01], indirect=True)
async def test_a_silent_stream_of_responses_ends_with_openai_s_event(stub: Any, script: Script) -> None:
    script.silent, script.texts = asyncio.Event(), [DeadlineExceededError()]
    call = send(stub, {"input": "Hi", "stream": True}, method="CreateResponse")
    assert (await call.read()).data == COMMENT
    script.silent.set()
    name, _, data = (await next_event(call)).data.decode().partition("\n")
    error = EVENT.validate_json(data.removeprefix("data: "), strict=True)
    assert (name, error.type, error.sequence_number) == ("event: error", "error", 0)
    assert (error.code, error.error["type"]) == ("deadline_exceeded", "timeout_error")


@pytest.mark.parametrize("channel", [0.01], indirect=True)
async def test_a_silent_stream_of_messages_has_events_that_say_so(channel: grpc.aio.Channel, script: Script) -> None:
    script.silent = asyncio.Event()
    request = REQUEST | {"stream": True, "max_tokens": 5, "model": "m"}
    call = send(anthropic_pb2_grpc.AnthropicServiceStub(channel), request, method="CreateMessage")
    assert [(await call.read()).data for _ in range(2)] == [b'event: ping\ndata: {"type":"ping"}\n\n'] * 2
    call.cancel()
    await script.closed.wait()


async def test_disconnect_closes_the_typed_stream(stub: Any, script: Script) -> None:
    script.hold = True
    call = send(stub, REQUEST | {"stream": True})
    await call.read()
    call.cancel()
    await script.closed.wait()
    assert script.closed.is_set()


def send_form(stub: Any, body: bytes, part_bytes: int = 1000) -> Any:
    parts = [HttpBody(data=body[start : start + part_bytes]) for start in range(0, len(body), part_bytes)]
    parts[0].content_type = FORM
    return stub.CreateFile(iter(parts))


@pytest.mark.parametrize("part_bytes", [1, 7, 1000])
@pytest.mark.parametrize("file_is_first", [True, False])
async def test_a_form_is_the_pieces_of_its_file_and_then_a_header(
    stub: Any, script: Script, part_bytes: int, file_is_first: bool
) -> None:
    texts = (
        forms.text("purpose", "vision")
        + forms.text("expires_after[seconds]", "60")
        + forms.text("expires_after[anchor]", "created_at")
    )
    content = b"x" * min(250 * part_bytes, 2500)  # a message for each byte of more would take a loaded machine too long
    sent = [file(content), texts] if file_is_first else [texts, file(content)]
    call = send_form(stub, form(*sent, forms.text("other", "a")), part_bytes)
    assert json.loads((await call).data)["id"] == "u"
    assert dict(await call.initial_metadata())[IGNORED_FIELDS_HEADER] == "other"
    *pieces, last = script.requests
    assert b"".join(piece.chunk for piece in pieces) == content
    assert last.header == media_pb2.UploadHeader(filename="a.png", purpose="vision", ttl_seconds=60)


async def test_a_name_in_a_form_replaces_that_of_its_file(stub: Any, script: Script) -> None:
    await send_form(stub, form(file(), forms.text("filename", "b.png")))
    assert script.requests[-1].header.filename == "b.png"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (form(file(b"bad"), forms.text("later", "a" * 900)), "purpose", "invalid_value"),
        (form(forms.text("purpose", "vision")), "file", "missing_value"),
        (form(file(), forms.text("expires_after[seconds]", "soon")), "expires_after[seconds]", "invalid_type"),
        (form(file(), forms.text("expires_after[seconds]", "-1")), "expires_after[seconds]", "invalid_value"),
        (form(file(), forms.text("purpos", "vision")), "purpos", "unsupported"),
        (b"{}", None, "invalid_form"),
    ],
)
async def test_refuses_a_form_by_the_names_of_its_members(stub: Any, body: bytes, param: str | None, code: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await send_form(stub, body, 100)
    assert (document(caught.value)["param"], document(caught.value)["code"]) == (param, code)


async def test_a_file_is_sent_as_it_is(stub: Any, script: Script) -> None:
    call = stub.GetFileContent(media_pb2.DownloadMediaRequest(upload_id="u"))
    bodies = [body async for body in call]
    assert [(body.content_type, body.data) for body in bodies] == [
        ("application/octet-stream", b"Hello"),
        ("application/octet-stream", b" there"),
    ]
    headers = dict(await call.initial_metadata())
    assert (headers["content-disposition"], headers["x-content-type-options"]) == ("attachment", "nosniff")


@pytest.mark.parametrize("texts", [[], ["Hello"]])
async def test_a_file_that_fails_ends_with_a_status(stub: Any, script: Script, texts: list[str | Exception]) -> None:
    script.texts = [*texts, InvalidRequest("upload_id", "gone", "upload_not_found")]
    received = stub.GetFileContent(media_pb2.DownloadMediaRequest(upload_id="u"))
    bodies = aiter(received)
    assert [(await anext(bodies)).data for _ in texts] == [str(text).encode() for text in texts]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(bodies)
    error = caught.value
    assert (error.code(), document(error)["param"]) == (grpc.StatusCode.NOT_FOUND, "file_id")


async def test_a_form_that_stops_coming_is_refused(stub: Any, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glimpse.server.rpc.http_bodies.MAX_BEHIND_SECONDS", 0.05)

    async def sent() -> AsyncIterator[HttpBody]:
        yield HttpBody(content_type=FORM, data=form(file(b"x" * 100))[:-50])
        await asyncio.Event().wait()

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.CreateFile(sent())
    assert document(caught.value)["code"] == "request_timeout"


async def test_a_form_that_is_refused_is_read_to_its_end(stub: Any, script: Script) -> None:
    """A client that sends all before it reads sees the error."""
    pieces = [b"--b\r\n" + b"no header\r\n", *[bytes(1000)] * 5]
    taken = 0

    async def sent() -> AsyncIterator[HttpBody]:
        nonlocal taken
        for piece in pieces:
            yield HttpBody(content_type=FORM, data=piece)
            taken += 1

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.CreateFile(sent())
    assert document(caught.value)["code"] == "invalid_form"
    assert taken >= 2 * MAX_BODY_BYTES // 1000
