"""Answers a file of requests with a server that runs, or is started for it. It is asked as the gateway asks it."""

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import grpc
import grpc.aio
import msgspec
from google.api.httpbody_pb2 import HttpBody
from google.protobuf import json_format, struct_pb2
from google.protobuf.descriptor import MethodDescriptor
from google.rpc import status_pb2
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from glimpse.backoff import Backoff
from glimpse.client.errors import from_rpc_error
from glimpse.interrupts import INTERRUPTED
from glimpse.server.batches.lines import OK, BatchLine, LineResult, answered, http_status, may_succeed, methods
from glimpse.server.cli.batch.files import check_requests, open_results, read_requests
from glimpse.server.cli.chat.connection import Connection
from glimpse.server.cli.console import say
from glimpse.server.cli.machine.served import serving
from glimpse.server.cli.models import served_models
from glimpse.server.rpc.context import REQUEST_ID_HEADER
from glimpse.server.rpc.errors import DETAILS_HEADER, HTTP_STATUS_HEADER
from glimpse.tasks import run_all
from glimpse.usage import UsageError

_PIECE_BYTES = 1 << 20
_PAUSE_SECONDS = (0.1, 5.0)
"""Before a request is sent again: first, and at most."""
_MAX_UNANSWERED_OF_OWN = 8
"""Attempts in a row, within about ten seconds: a server that was started for the batch does not come back."""
_MAX_UNANSWERED = 40
"""Within about three minutes: one that runs may be restarted."""
_NUM_MISSED = 4
"""Unanswered attempts in a row, within about two seconds, after which the command says that it waits."""
_NO_SERVER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL)
"""Statuses that gRPC, or a gateway, gives to calls whose server goes."""


class _NoServerError(Exception):
    """The server does not answer any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """A server that answers a batch."""

    connection: Connection
    description: str
    """A line about it."""
    max_unanswered: int
    """Attempts of a request in a row without an answer, after which it is given up."""


def run_batch(
    requests: Path, results: Path, model: str | None, flags: Sequence[str], *, target: str | None, at_once: int
) -> None:
    """Answers what has no result yet. Raises UsageError. Ends the process with 130 after Ctrl-C."""
    if target is not None and (own := [*([] if model is None else [model]), *flags]):
        raise UsageError(f"'--target': expected neither a model nor flags of `glimpse serve` beside it, got {own[0]!r}")
    for each in (signal.SIGINT, signal.SIGTERM):  # which end the server too
        signal.signal(each, signal.default_int_handler)
    urls = methods()
    names = check_requests(requests, urls)
    with open_results(results) as (file, done):
        left = len(names - done)
        progress = _progress(len(names), len(names) - left)
        if left:
            try:
                with _server(target, model, flags) as server, progress:
                    progress.console.print(server.description)
                    asyncio.run(_answer(server, read_requests(requests, urls, without=done), file, progress, at_once))
            except _NoServerError:
                sys.exit(f"{results}: the server does not answer any more; the same command goes on")
            except KeyboardInterrupt:
                say(f"{results}: stopped before all {len(names)} results; the same command goes on")
                sys.exit(INTERRUPTED)
    say(f"{results}: {len(names)} results")


@contextmanager
def _server(target: str | None, model: str | None, flags: Sequence[str]) -> Generator[_Server]:
    """Yields the server that runs, or starts one. Raises UsageError. Ends the process if there is none."""
    if target is None:
        with serving([*([] if model is None else [f"--model={model}"]), *flags]) as (own, description):
            connection = Connection(target=own)
            yield _Server(connection=connection, description=description, max_unanswered=_MAX_UNANSWERED_OF_OWN)
        return
    variable = os.environ.get
    connection = Connection(target=target, api_key=variable("GLIMPSE_API_KEY"), tls_ca=variable("GLIMPSE_TLS_CA"))
    names = ", ".join(model.id for model in served_models(connection))
    description = f"{connection.address} serves {names}"
    yield _Server(connection=connection, description=description, max_unanswered=_MAX_UNANSWERED)


def _progress(total: int, completed: int) -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[errors]} errors"))
    progress = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))
    progress.add_task("", total=total, completed=completed, errors=0)
    return progress


async def _answer(
    server: _Server, requests: Iterator[BatchLine], file: BinaryIO, progress: Progress, at_once: int
) -> None:
    """Answers requests, some at a time, and writes each result as soon as it is there."""
    (task,) = progress.task_ids
    num_errors = 0
    # As SIGINT, which cancels this: raised in the midst of gRPC's code, an interrupt may be lost.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
    async with server.connection.open_channel() as channel:
        asker = _Asker(server, channel, progress.console)

        async def work() -> None:
            nonlocal num_errors
            for request in requests:  # which all workers share
                result = await asker.result(request)
                file.write(msgspec.json.encode(result) + b"\n")
                file.flush()
                num_errors += result.response is None or result.response.status_code != OK
                progress.update(task, advance=1, errors=num_errors)

        await run_all(work() for _ in range(at_once))


class _Asker:
    """Asks a server as the gateway does: JSON in and out."""

    def __init__(self, server: _Server, channel: grpc.aio.Channel, console: Console) -> None:
        self._metadata, self._max_unanswered = server.connection.metadata, server.max_unanswered
        self._calls = {url: _call(channel, method) for url, method in methods().items()}
        self._console, self._address = console, server.connection.address
        self._is_missed = False  # several attempts in a row had no answer, and that is told

    async def result(self, request: BatchLine) -> LineResult:
        """Returns the result of a request, which waits while the server has no room for it. Raises _NoServerError."""
        backoff, num_unanswered = Backoff(*_PAUSE_SECONDS), 0
        for attempt in itertools.count(1):
            call = self._calls[request.url](_pieces(bytes(request.body)), metadata=self._metadata)
            try:
                body = b"".join([part.data async for part in call])
            except grpc.aio.AioRpcError as error:
                is_answer = DETAILS_HEADER in dict(error.trailing_metadata()) or error.code() not in _NO_SERVER
                num_unanswered = 0 if is_answer else num_unanswered + 1
                if num_unanswered >= self._max_unanswered:
                    raise _NoServerError from error
                if num_unanswered >= _NUM_MISSED and not self._is_missed:
                    self._is_missed = True
                    self._console.print(f"{self._address} does not answer; trying again")
                reason = from_rpc_error(error, self._address).reason
                if is_answer and not may_succeed(error.code(), reason, attempt):
                    return _result(request, error.trailing_metadata(), *_failure(error))
                await asyncio.sleep(backoff.take())
            else:
                self._is_missed = False
                return _result(request, await call.initial_metadata(), OK, body)
        raise AssertionError("attempts have no end")


def _call(channel: grpc.aio.Channel, method: MethodDescriptor) -> Callable[..., Any]:
    # One message is read as a stream of one, which is the same on the wire.
    return channel.stream_stream(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=HttpBody.SerializeToString,
        response_deserializer=HttpBody.FromString,
    )


async def _pieces(body: bytes) -> AsyncIterator[HttpBody]:
    for start in range(0, len(body), _PIECE_BYTES):
        yield HttpBody(content_type="application/json", data=body[start : start + _PIECE_BYTES])


def _failure(error: grpc.aio.AioRpcError) -> tuple[int, bytes]:
    """Returns the HTTP status and the document of an error."""
    trailers: dict[str, Any] = dict(error.trailing_metadata())
    document = struct_pb2.Struct()
    details = status_pb2.Status.FromString(trailers.get(DETAILS_HEADER, b"")).details
    if not details or not details[-1].Unpack(document):
        document.update({"error": {"message": error.details(), "type": "server_error", "param": None, "code": None}})
    status = int(trailers.get(HTTP_STATUS_HEADER) or http_status(error.code()))
    return status, json_format.MessageToJson(document, indent=None, ensure_ascii=False).encode()


def _result(request: BatchLine, metadata: Any, status: int, body: bytes) -> LineResult:
    return answered(request.custom_id, dict(metadata).get(REQUEST_ID_HEADER, ""), status, body)
