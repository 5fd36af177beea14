"""Tests for the mapping of exceptions to statuses."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

from glimpse.engine.errors import EngineError, EngineErrorCode, TemplateError
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.server.call.context import CallContext
from glimpse.server.dialects.openai import OPENAI
from glimpse.server.errors import DeadlineExceededError, InvalidRequest, ModelNotFoundError, ServerStoppingError
from glimpse.server.rpc.context import Rpc
from glimpse.server.rpc.errors import MAX_MESSAGE_BYTES, abort, to_status
from glimpse.server.rpc.failure import RpcFailure

Code = grpc.StatusCode
ID = "request-1"

TABLE: list[tuple[Exception, grpc.StatusCode, str, str, str | None, int | None]] = [
    # exception, status, reason, OpenAI's type, field, HTTP status if it differs from the default
    (InvalidRequest("a.b", "no"), Code.INVALID_ARGUMENT, "invalid_value", "invalid_request_error", "a.b", None),
    (
        InvalidRequest("a", "big", "media_too_large"),
        Code.INVALID_ARGUMENT,
        "media_too_large",
        "invalid_request_error",
        "a",
        413,
    ),
    (
        MediaError(MediaErrorCode.INVALID_MEDIA, "x"),
        Code.INVALID_ARGUMENT,
        "invalid_media",
        "invalid_request_error",
        None,
        None,
    ),
    (
        InvalidRequest("a", "x", "media_not_cached"),
        Code.FAILED_PRECONDITION,
        "media_not_cached",
        "invalid_request_error",
        "a",
        None,
    ),
    (grpc.aio.InternalError("execute_batch"), Code.CANCELLED, "cancelled", "server_error", None, None),
    (
        MediaError(MediaErrorCode.OVERLOADED, "x"),
        Code.RESOURCE_EXHAUSTED,
        "overloaded",
        "rate_limit_error",
        None,
        None,
    ),
    (
        InvalidRequest("a", "x", "media_worker_killed"),
        Code.UNAVAILABLE,
        "media_worker_killed",
        "server_error",
        None,
        None,
    ),
    (
        InvalidRequest("upload_id", "x", "upload_not_found"),
        Code.NOT_FOUND,
        "upload_not_found",
        "invalid_request_error",
        "upload_id",
        None,
    ),
    (TemplateError("x"), Code.INVALID_ARGUMENT, "template_refused", "invalid_request_error", "messages", None),
    (ModelNotFoundError("x", ("y",)), Code.NOT_FOUND, "model_not_found", "invalid_request_error", "model", None),
    (DeadlineExceededError(), Code.DEADLINE_EXCEEDED, "deadline_exceeded", "timeout_error", None, None),
    (
        EngineError(EngineErrorCode.PROMPT_TOO_LONG, "x"),
        Code.INVALID_ARGUMENT,
        "context_length_exceeded",
        "invalid_request_error",
        "messages",
        None,
    ),
    (
        EngineError(EngineErrorCode.UNSUPPORTED, "x"),
        Code.INVALID_ARGUMENT,
        "unsupported",
        "invalid_request_error",
        "messages",
        None,
    ),
    (
        EngineError(EngineErrorCode.OVERLOADED, "x"),
        Code.RESOURCE_EXHAUSTED,
        "overloaded",
        "rate_limit_error",
        None,
        None,
    ),
    (
        EngineError(EngineErrorCode.OUT_OF_MEMORY, "x"),
        Code.RESOURCE_EXHAUSTED,
        "out_of_memory",
        "server_error",
        None,
        None,
    ),
    (EngineError(EngineErrorCode.UNAVAILABLE, "x"), Code.UNAVAILABLE, "engine_unavailable", "server_error", None, None),
    (EngineError(EngineErrorCode.DIED, "x"), Code.ABORTED, "engine_died", "server_error", None, 503),
    (
        EngineError(EngineErrorCode.SUSPECTED, "x"),
        Code.FAILED_PRECONDITION,
        "suspected_prompt",
        "server_error",
        None,
        None,
    ),
    (EngineError(EngineErrorCode.INTERNAL, "x"), Code.INTERNAL, "internal_error", "server_error", None, None),
    (ZeroDivisionError("secret"), Code.INTERNAL, "internal_error", "server_error", None, None),
]


@pytest.mark.parametrize(("error", "code", "reason", "kind", "field", "http_status"), TABLE)
def test_maps_each_exception_to_its_status(
    error: Exception, code: grpc.StatusCode, reason: str, kind: str, field: str | None, http_status: int | None
) -> None:
    failure = to_status(error, ID)
    assert (failure.code, failure.reason) == (code, reason)
    assert (failure.field, failure.http_status) == (field, http_status)
    assert OPENAI.error(failure)["error"] == {
        "message": failure.message,
        "type": kind,
        "param": field,
        "code": reason,
    }


@pytest.mark.parametrize("code", list(EngineErrorCode))
def test_maps_every_engine_error_code(code: EngineErrorCode) -> None:
    assert to_status(EngineError(code, "x"), ID).reason


@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError("secret"), EngineError(EngineErrorCode.INTERNAL, "secret")],
    ids=["ours", "the engine's"],
)
def test_internal_errors_reveal_no_details(error: Exception) -> None:
    assert "secret" not in to_status(error, ID).message


class AbortedError(Exception):
    """Raised by the fake context's abort."""


class RecordingContext:
    """Fakes the part of gRPC's context that aborts an RPC."""

    def __init__(self) -> None:
        self.trailers: dict[str, Any] = {}

    def trailing_metadata(self) -> tuple[tuple[str, Any], ...]:
        return (("set-before", b"kept"),)

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: tuple[tuple[str, Any], ...]) -> None:
        self.trailers = dict(trailing_metadata)
        raise AbortedError(code, details)


@pytest.mark.parametrize("letter", ["x", "ü", "\N{GRINNING FACE}"])
async def test_truncates_long_messages_to_fit_headers(letter: str) -> None:
    context: Any = RecordingContext()
    failure = RpcFailure(code=Code.INTERNAL, message=letter * 10_000, reason="r", field="f")
    with pytest.raises(AbortedError):
        await abort(Rpc(context=context, call=CallContext()), failure)
    status = status_pb2.Status.FromString(context.trailers["grpc-status-details-bin"])
    assert len(status.message.encode()) <= MAX_MESSAGE_BYTES
    assert status.message.startswith(letter * 200)
    assert status.message.endswith("…")
    assert context.trailers["set-before"] == b"kept"


@pytest.mark.parametrize(("seconds", "header", "pushback"), [(0.3, "1", "300"), (2.25, "3", "2250")])
async def test_tells_when_to_retry(seconds: float, header: str, pushback: str) -> None:
    context: Any = RecordingContext()
    error = EngineError(EngineErrorCode.UNAVAILABLE, "x", retry_after_seconds=seconds)
    with pytest.raises(AbortedError):
        await abort(Rpc(context=context, call=CallContext()), to_status(error, ID))
    status = status_pb2.Status.FromString(context.trailers["grpc-status-details-bin"])
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in status.details)
    assert retry.retry_delay.ToMilliseconds() == seconds * 1000
    assert (context.trailers["retry-after"], context.trailers["grpc-retry-pushback-ms"]) == (header, pushback)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (EngineError(EngineErrorCode.OVERLOADED, "x"), 1),
        (EngineError(EngineErrorCode.OVERLOADED, "x", retry_after_seconds=7), 7),
        (EngineError(EngineErrorCode.OUT_OF_MEMORY, "x"), 1),
        (MediaError(MediaErrorCode.OVERLOADED, "x"), 1),
        (MediaError(MediaErrorCode.WORKER_KILLED, "x"), 1),
        (MediaError(MediaErrorCode.STORE_UNAVAILABLE, "x"), 1),
        (EngineError(EngineErrorCode.UNAVAILABLE, "x"), None),  # never, unless the engine says when
        (InvalidRequest("a", "no"), None),
    ],
)
def test_only_failures_that_pass_have_a_retry_delay(error: Exception, seconds: float | None) -> None:
    assert to_status(error, ID).retry_after_seconds == seconds


async def test_a_failure_that_is_being_sent_is_not_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """The server's stop may cancel an RPC while it sends another failure."""

    async def fail(_request: object, context: grpc.aio.ServicerContext[object, object]) -> object:
        rpc = Rpc(context=context, call=CallContext())
        failing = asyncio.create_task(abort(rpc, to_status(InvalidRequest("a", "no"), ID)))
        await asyncio.sleep(0)
        failing.cancel()
        try:
            return await failing
        except asyncio.CancelledError:
            await abort(rpc, to_status(ServerStoppingError(), ID))

    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(fail)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", {"Fail": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await channel.unary_unary("/test.Test/Fail")(b"")
        assert failure.value.code() is Code.INVALID_ARGUMENT
        assert not caplog.records  # as of an error in the handler
    finally:
        await server.stop(0)
