"""Answers the batches of a store, when nothing more urgent is to be done.

A process answers a batch while it has the batch's lease, which it renews; when it ends, another one goes on, or itself
after a restart. Two that both believe to have it only do work twice: the store takes the first result of each line. A
batch is worked on a bounded number of lines at a time, and tenants take turns.
"""

import asyncio
import hashlib
import itertools
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress

import msgspec

from glimpse.backoff import Backoff
from glimpse.media.cache.fair_share import FairPlaces
from glimpse.media.shared.values import StoreUnavailableError
from glimpse.server.batches.lines import (
    OK,
    BatchLine,
    LineError,
    LineResult,
    answered,
    http_status,
    may_succeed,
    parse_line,
)
from glimpse.server.batches.record import BatchRecord, Kind, LineProblem, ResultFile, Status
from glimpse.server.batches.store import BatchStore, StoredBatch
from glimpse.server.call.context import CallContext
from glimpse.server.call.offload import run_sized
from glimpse.server.errors import InvalidRequest
from glimpse.server.rpc.failure import RpcFailure
from glimpse.server.telemetry.metrics import Metrics
from glimpse.tasks import first, run_all

Answer = Callable[[str, bytes, CallContext], Awaitable[tuple[RpcFailure | None, bytes]]]
"""(path, body, call) → why the request failed, and the document of the answer or of the failure."""

LEASE_SECONDS = 30.0
"""How long a batch waits for a process that has ended."""
_POLL_SECONDS = 1.0
"""Pause between two looks at the store for new batches, and for what others said about a batch."""
_SWEEP_SECONDS = 60.0
"""Pause between two removals of batches whose time has come."""
_PAUSE_SECONDS = (0.1, 5.0)
"""Before a request is asked again: first, and at most."""
_MAX_PROBLEMS = 20
"""Lines that are told of, of those that are no requests."""

_logger = logging.getLogger(__name__)


class _LostError(Exception):
    """The batch is gone, or another process has it."""


class BatchRunner:
    """Answers batches in one event loop."""

    def __init__(
        self,
        store: BatchStore,
        answer: Answer,
        new_call: Callable[[str], CallContext],
        metrics: Metrics,
        *,
        max_store_bytes: int,
        max_requests: int,
        max_line_bytes: int,
        at_once: int,
        wake: asyncio.Event,
        clock: Callable[[], float] = time.time,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        """
        Args:
            answer: Answers a request. Failures are told in its result.
            new_call: Tenant's name → the call that a request of it is served for; closed here.
            max_store_bytes: Budget of the store. Answers beyond it become errors.
            at_once: Requests of a tenant in progress; as many again are there for the others.
            wake: Set when there is something new in the store.
            clock: Returns the seconds since 1970-01-01 UTC.
            lease_seconds: Lifetime of a lease.
        """
        self._store = store
        self._answer = answer
        self._new_call = new_call
        self._metrics = metrics
        self._max_store_bytes = max_store_bytes
        self._max_requests = max_requests
        self._max_line_bytes = max_line_bytes
        self._at_once = at_once
        self._places = FairPlaces(at_once)
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._poll_seconds = min(_POLL_SECONDS, lease_seconds / 4)
        self._wake = wake
        self._name = secrets.token_hex(8)
        self._leases: dict[str, tuple[int, float]] = {}
        """By batch of another process: its version, and when it was first seen here, of `time.monotonic()`."""
        self._working: dict[str, tuple[str, asyncio.Task[None]]] = {}
        """By batch: its tenant, and what answers it."""

    async def run(self) -> None:
        """Answers batches until it is cancelled, and then lets others have them."""
        next_sweep = 0.0
        try:
            while True:
                try:
                    await self._claim()
                    if (now := time.monotonic()) >= next_sweep:
                        await self._store.remove_ended(self._clock())
                        next_sweep = now + _SWEEP_SECONDS
                except StoreUnavailableError:
                    pass
                except Exception:
                    _logger.exception("batches could not be looked for; this is tried again")
                    await asyncio.sleep(self._lease_seconds)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._poll_seconds):
                        await self._wake.wait()
                self._wake.clear()
        finally:
            for _, task in self._working.values():
                task.cancel()
            await asyncio.gather(*(task for _, task in self._working.values()), return_exceptions=True)

    async def _claim(self) -> None:
        """Begins with batches that nobody answers: with one of each tenant, and with more while there are places."""
        open_ids = await self._store.open_ids()
        self._leases = {each: self._leases[each] for each in open_ids if each in self._leases}
        for batch_id in open_ids:
            stored = None if batch_id in self._working else await self._store.get(batch_id)
            if stored is None or not stored.record.is_open or not self._may_begin(stored):
                continue
            if await self._store.change(self._leased(stored.record), stored.version):
                task = asyncio.create_task(self._work(batch_id))
                self._working[batch_id] = stored.record.tenant, task
                self._metrics.set_running_batches(len(self._working))

    def _may_begin(self, stored: StoredBatch) -> bool:
        record = stored.record
        if record.owner != self._name and record.leased_until > self._clock() and not self._is_left(stored):
            return False
        tenants = [tenant for tenant, _ in self._working.values()]
        return record.tenant not in tenants or len(tenants) < self._at_once

    def _is_left(self, stored: StoredBatch) -> bool:
        """Whether the process that has a batch has not renewed its lease for the lifetime of one.

        After the clock was set back, the lease of a process that was killed would seem to last for hours.
        """
        now = time.monotonic()
        version, since = self._leases.get(stored.record.batch_id, (0, now))
        if version != stored.version:
            self._leases[stored.record.batch_id] = stored.version, now
            return False
        return now - since > self._lease_seconds

    def _leased(self, record: BatchRecord) -> BatchRecord:
        return record.leased(self._name, self._clock() + self._lease_seconds)

    async def _work(self, batch_id: str) -> None:
        """Answers a batch, or leaves it as it is if the store fails, for a later claim."""
        batch = _OwnBatch(self._store, batch_id, self._name)
        try:
            await self._advance(batch)
        except _LostError:
            pass
        except StoreUnavailableError:
            _logger.warning("the batch %s waits for its store", batch_id)
            await asyncio.sleep(self._poll_seconds)
        except asyncio.CancelledError:
            with suppress(StoreUnavailableError, _LostError):
                await batch.change(lambda record: record.leased("", 0.0))
            raise
        except Exception:
            _logger.exception("the batch %s could not be answered; it is tried again", batch_id)
            await asyncio.sleep(self._lease_seconds)
        finally:
            del self._working[batch_id]
            self._metrics.set_running_batches(len(self._working))

    async def _advance(self, batch: "_OwnBatch") -> None:
        """Takes a batch through its states to its end."""
        record = (await batch.get()).record
        if record.status is Status.VALIDATING:
            num_requests, problems = await self._check(record)
            record = await batch.change(lambda old: self._checked(old, num_requests, problems))
            if record.status is Status.FAILED:
                self._metrics.batch_ended(record.status)
        if record.status is Status.IN_PROGRESS:
            await first(self._watch(batch), self._answer_all(record))
            record = await batch.change(self._stopped)
        if record.status is Status.CANCELLING and Status.IN_PROGRESS in record.reached:
            await self._end_others(record, "batch_cancelled", "The batch was cancelled before this request.")
        if record.status is Status.IN_PROGRESS:
            message = "The completion window of the batch passed before this request."
            await self._end_others(record, "batch_expired", message)
        if record.is_open:
            await self._finish(batch, record.batch_id)

    def _checked(self, record: BatchRecord, num_requests: int, problems: list[LineProblem]) -> BatchRecord:
        if record.status is not Status.VALIDATING:
            return record
        if problems:
            return msgspec.structs.replace(record, problems=tuple(problems)).moved(Status.FAILED, self._clock())
        return msgspec.structs.replace(record, num_requests=num_requests).moved(Status.IN_PROGRESS, self._clock())

    def _stopped(self, record: BatchRecord) -> BatchRecord:
        """Returns the batch after work on its lines has stopped: it is finalized, unless it expired or is cancelled."""
        if record.status is Status.IN_PROGRESS and self._clock() < record.expires_at:
            return record.moved(Status.FINALIZING, self._clock())
        return record

    async def _finish(self, batch: "_OwnBatch", batch_id: str) -> None:
        files = {kind: await self._describe(batch_id, kind) for kind in Kind}
        found = {kind: file for kind, file in files.items() if file.num_bytes}
        ends = {Status.FINALIZING: Status.COMPLETED, Status.IN_PROGRESS: Status.EXPIRED}
        now = self._clock()
        ended = await batch.change(
            lambda record: msgspec.structs.replace(record, files=found, owner="", leased_until=0.0).moved(
                ends.get(record.status, Status.CANCELLED), now
            )
        )
        self._metrics.batch_ended(ended.status)
        _logger.info("the batch %s is %s", batch_id, ended.status)

    async def _check(self, record: BatchRecord) -> tuple[int, list[LineProblem]]:
        """Returns how many requests a file has, and what is wrong with it."""
        problems, names, num_bytes = list[LineProblem](), set[str](), 0
        async with aclosing(self._lines(record.batch_id)) as lines:
            async for number, line in lines:
                num_bytes = len(line)
                try:
                    if num_bytes > self._max_line_bytes:
                        message = f"expected at most {self._max_line_bytes} bytes, got {num_bytes}"
                        raise InvalidRequest("", message, "request_too_large")
                    parsed = await run_sized("", num_bytes, parse_line, line, (record.endpoint,))
                    if parsed.custom_id in names:
                        message = f"expected a name of its own, got '{parsed.custom_id[:64]}' again"
                        raise InvalidRequest("custom_id", message, "duplicate_custom_id")
                    names.add(parsed.custom_id)
                except InvalidRequest as error:
                    problems.append(LineProblem(error.reason, error.message, error.field or None, number))
                if len(problems) == _MAX_PROBLEMS or len(names) > self._max_requests:
                    break
        if len(names) > self._max_requests:
            message = f"expected at most {self._max_requests} requests (the server's --batch-requests), got more"
            problems.append(LineProblem("too_many_requests", message))
        if not names and not problems:
            problems.append(LineProblem("empty_file", "expected a request in each line, got none"))
        return len(names), problems

    async def _watch(self, batch: "_OwnBatch") -> None:
        """Renews the lease until the batch is cancelled or its window ends. Raises _LostError."""
        renewal = time.monotonic()
        while True:
            record = (await batch.get()).record
            if record.status is not Status.IN_PROGRESS or self._clock() >= record.expires_at:
                return
            if (now := time.monotonic()) >= renewal:
                await batch.change(self._leased)
                renewal = now + self._lease_seconds / 3
            await asyncio.sleep(self._poll_seconds)

    async def _answer_all(self, record: BatchRecord) -> None:
        """Answers the lines that have no results, some at a time."""
        finished = await self._store.finished_lines(record.batch_id)
        reading, client = asyncio.Lock(), self._client(record)
        async with aclosing(self._lines(record.batch_id)) as lines:

            async def work() -> None:
                while True:
                    async with self._places.place(client):
                        async with reading:
                            found = await anext(lines, None)
                            while found is not None and found[0] in finished:
                                found = await anext(lines, None)
                        if found is None:
                            return
                        await self._answer_line(record, *found)

            num_left = record.num_requests - len(finished)
            await run_all(work() for _ in range(min(self._at_once, num_left)))

    async def _answer_line(self, record: BatchRecord, number: int, line: bytes) -> None:
        request = await run_sized(self._client(record), len(line), parse_line, line, (record.endpoint,))
        result = await self._result(record, request)
        failed = result.response is None or result.response.status_code != OK
        await self._put(record, number, Kind.ERROR if failed else Kind.OUTPUT, result)

    async def _result(self, record: BatchRecord, request: BatchLine) -> LineResult:
        """Asks until the request is answered, or has failed for good."""
        backoff = Backoff(*_PAUSE_SECONDS)
        for attempt in itertools.count(1):
            call = self._new_call(record.tenant)
            try:
                failure, document = await self._answer(request.url, bytes(request.body), call)
            finally:
                call.close()
            if failure is None:
                return answered(request.custom_id, call.request_id, OK, document)
            if not may_succeed(failure.code, failure.reason, attempt):
                status = failure.http_status or http_status(failure.code)
                return answered(request.custom_id, call.request_id, status, document)
            await asyncio.sleep(backoff.take())
        raise AssertionError("attempts have no end")

    async def _put(self, record: BatchRecord, number: int, kind: Kind, result: LineResult) -> None:
        """Stores a result; where there is no room, that it has none. Raises _LostError."""
        data = msgspec.json.encode(result) + b"\n"
        stored = await self._put_data(record, number, kind, data, max_bytes=self._max_store_bytes)
        if stored is False:
            error = LineError("batch_store_full", "The batches of this server leave no room for the answer.")
            data, kind = _unanswered(result.custom_id, error), Kind.ERROR
            # Beyond the budget: what says so is small, and each request has its result.
            stored = await self._put_data(record, number, kind, data, max_bytes=2 * self._max_store_bytes + len(data))
        if not stored:
            raise _LostError
        self._metrics.batch_request_ended("failed" if kind is Kind.ERROR else "completed")

    async def _put_data(
        self, record: BatchRecord, number: int, kind: Kind, data: bytes, *, max_bytes: int
    ) -> bool | None:
        """Calls `put_result` until the store can take a result: on a full disk, answers are not computed again."""
        backoff = Backoff(*_PAUSE_SECONDS)
        while True:
            with suppress(StoreUnavailableError):
                return await self._store.put_result(record.batch_id, number, kind, data, max_bytes=max_bytes)
            await asyncio.sleep(backoff.take())

    async def _end_others(self, record: BatchRecord, code: str, message: str) -> None:
        """Ends the requests without results."""
        finished = await self._store.finished_lines(record.batch_id)
        async with aclosing(self._lines(record.batch_id)) as lines:
            async for number, line in lines:
                if number not in finished:
                    custom_id = parse_line(line, (record.endpoint,)).custom_id
                    data = _unanswered(custom_id, LineError(code, message))
                    most = 2 * self._max_store_bytes + len(data)
                    if not await self._store.put_result(record.batch_id, number, Kind.ERROR, data, max_bytes=most):
                        raise _LostError
                    self._metrics.batch_request_ended("failed")

    async def _describe(self, batch_id: str, kind: Kind) -> ResultFile:
        digest, num_bytes = hashlib.sha256(), 0
        async with aclosing(read_results(self._store, batch_id, kind)) as parts:
            async for part in parts:
                digest.update(part)
                num_bytes += len(part)
        return ResultFile(num_bytes=num_bytes, digest=digest.digest())

    async def _lines(self, batch_id: str) -> AsyncGenerator[tuple[int, bytes]]:
        """Yields the requests of a batch, with the numbers of their lines."""
        number, unended = 0, list[bytes]()
        for index in itertools.count():
            chunk = await self._store.input_chunk(batch_id, index)
            if chunk is None:
                break
            lines = chunk.split(b"\n")
            for line in lines[:-1]:
                number += 1
                unended.append(line)
                if whole := b"".join(unended).strip():
                    yield number, whole
                unended.clear()
            unended.append(lines[-1])
        if whole := b"".join(unended).strip():
            yield number + 1, whole

    def _client(self, record: BatchRecord) -> str:
        return f"batches {record.namespace}"


class _OwnBatch:
    """A batch that this process has the lease of."""

    def __init__(self, store: BatchStore, batch_id: str, owner: str) -> None:
        self._store = store
        self._batch_id = batch_id
        self._owner = owner

    async def get(self) -> StoredBatch:
        """Returns the batch. Raises _LostError."""
        stored = await self._store.get(self._batch_id)
        if stored is None or stored.record.owner != self._owner:
            raise _LostError
        return stored

    async def change(self, change: Callable[[BatchRecord], BatchRecord]) -> BatchRecord:
        """Changes what is known of the batch, and returns that. Raises _LostError."""
        while True:
            stored = await self.get()
            record = change(stored.record)
            if record == stored.record or await self._store.change(record, stored.version):
                return record


async def read_results(store: BatchStore, batch_id: str, kind: Kind) -> AsyncGenerator[bytes]:
    """Yields the lines of a file of answers, in the order of the requests."""
    after = 0
    while results := await store.results(batch_id, kind, after):
        yield b"".join(data for _, data in results)
        after = results[-1][0]


def _unanswered(custom_id: str, error: LineError) -> bytes:
    result = LineResult(id=f"batch_req_{secrets.token_hex(16)}", custom_id=custom_id, response=None, error=error)
    return msgspec.json.encode(result) + b"\n"
