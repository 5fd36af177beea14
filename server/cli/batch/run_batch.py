"""Answers a file of requests with a server that is started for it, and asked as the gateway asks it."""

import asyncio
import itertools
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
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
from glimpse.interrupts import INTERRUPTED
from glimpse.server.batches.lines import OK, BatchLine, LineResult, answered, http_status, may_succeed, methods
from glimpse.server.cli.batch.files import check_requests, open_results, read_requests
from glimpse.server.cli.console import say
from glimpse.server.cli.machine.served import serving
from glimpse.server.rpc.context import REQUEST_ID_HEADER
from glimpse.server.rpc.errors import DETAILS_HEADER, HTTP_STATUS_HEADER
from glimpse.tasks import run_all

_PIECE_BYTES = 1 << 20
_UNLIMITED = (("grpc.max_receive_message_length", -1),)
_PAUSE_SECONDS = (0.1, 5.0)
"""Before a request is sent again: first, and at most."""
_MAX_ATTEMPTS_WITHOUT_SERVER = 8
"""Within about ten seconds. The server is a process of this machine: it does not come back."""


class _ServerEndedError(Exception):
    """The server that was started for the batch does not answer any more."""


def run_batch(requests: Path, results: Path, model: str | None, flags: Sequence[str], *, at_once: int) -> None:
    """Answers what has no result yet. Raises UsageError. Ends the process with 130 after Ctrl-C."""
    for each in (signal.SIGINT, signal.SIGTERM):  # which end the server too
        signal.signal(each, signal.default_int_handler)
    urls = methods()
    names = check_requests(requests, urls)
    with open_results(results) as (file, done):
        left = len(names - done)
        progress = _progress(len(names), len(names) - left)
        if left:
            own = () if model is None else (f"--model={model}",)
            try:
                with serving([*own, *flags]) as (target, description), progress:
                    progress.console.print(description)
                    asyncio.run(_answer(target, read_requests(requests, urls, without=done), file, progress, at_once))
            except _ServerEndedError:
                sys.exit(f"{results}: the server ended, for the reason above; the same command goes on")
            except KeyboardInterrupt:
                say(f"{results}: stopped before all {len(names)} results; the same command goes on")
                sys.exit(INTERRUPTED)
    say(f"{results}: {len(names)} results")


def _progress(total: int, completed: int) -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[errors]} errors"))
    progress = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))
    progress.add_task("", total=total, completed=completed, errors=0)
    return progress


async def _answer(target: str, requests: Iterator[BatchLine], file: BinaryIO, progress: Progress, at_once: int) -> None:
    """Answers requests, some at a time, and writes each result as soon as it is there."""
    (task,) = progress.task_ids
    num_errors = 0
    async with grpc.aio.insecure_channel(target, options=_UNLIMITED) as channel:
        asker = _Asker(channel)

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

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._calls = {url: _call(channel, method) for url, method in methods().items()}

    async def result(self, request: BatchLine) -> LineResult:
        """Returns the result of a request, which waits as long as the server has no room for it."""
        backoff = Backoff(*_PAUSE_SECONDS)
        for attempt in itertools.count(1):
            call = self._calls[request.url](_pieces(bytes(request.body)))
            try:
                body = b"".join([part.data async for part in call])
            except grpc.aio.AioRpcError as error:
                if not _may_succeed(error, attempt):
                    return _result(request, error.trailing_metadata(), *_failure(error))
                await asyncio.sleep(backoff.take())
            else:
                return _result(request, await call.initial_metadata(), OK, body)
        raise AssertionError("attempts have no end")


def _may_succeed(error: grpc.aio.AioRpcError, attempt: int) -> bool:
    """Returns whether the request is sent again. Raises _ServerEndedError."""
    code = error.code()
    again = may_succeed(code, "", attempt)
    if again and attempt >= _MAX_ATTEMPTS_WITHOUT_SERVER and DETAILS_HEADER not in dict(error.trailing_metadata()):
        raise _ServerEndedError
    return again


def _call(channel: grpc.aio.Channel, method: MethodDescriptor) -> Callable[[AsyncIterator[HttpBody]], Any]:
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
