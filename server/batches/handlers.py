"""BatchService, and the files of answers that MediaService lists and reads."""

import re
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Collection

import msgspec

from glimpse.media.shared.values import store_errors
from glimpse.media.sources.uploads import FileDetails, Upload, Uploads
from glimpse.server.batches.record import BatchRecord, Kind, LineProblem, Status, batch_of_file
from glimpse.server.batches.runner import read_results
from glimpse.server.batches.store import CHUNK_BYTES, BatchStore, StoredBatch, end_of
from glimpse.server.call.context import CallContext
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.chat import check_bounds
from glimpse.v1 import batch_pb2

_WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MAX_WINDOW_SECONDS = 7 * 86400
_MAX_PAIRS, _MAX_KEY, _MAX_VALUE = 16, 64, 512
_DEFAULT_LIMIT = 20
_READ_SECONDS = 30.0
"""Limit on reading a file of requests from the shared store."""
_ID_BYTES = 16


class BatchHandlers:
    """Methods of BatchService. `glimpse.server.rpc.errors` maps the exceptions they raise to statuses."""

    def __init__(
        self,
        store: BatchStore,
        uploads: Uploads,
        endpoints: Collection[str],
        *,
        on_change: Callable[[], None],
        max_store_bytes: int,
        ttl_seconds: float,
    ) -> None:
        """
        Args:
            uploads: Have the files of requests.
            endpoints: Paths that requests may have.
            on_change: Called when a batch begins or is cancelled.
            ttl_seconds: Longest time for which a batch is kept after its end.
        """
        self._store = store
        self._uploads = uploads
        self._endpoints = endpoints
        self._on_change = on_change
        self._max_store_bytes = max_store_bytes
        self._ttl_seconds = ttl_seconds

    async def create(self, request: batch_pb2.CreateBatchRequest, call: CallContext) -> batch_pb2.CreateBatchResponse:
        check_bounds(request)
        record = self._record(request, call)
        with store_errors("try again"):
            async with self._uploads.opened(
                call.tenant.namespace(""),
                request.input_file_id,
                seconds=_READ_SECONDS,
                client=call.client,
                share=call.tenant.media,
            ) as opened:
                if opened is None:
                    raise InvalidRequest("input_file_id", "not found; it may have expired", "upload_not_found")
                upload, file = opened
                if upload.details.purpose != "batch":
                    message = f"expected a file whose purpose is 'batch', got '{upload.details.purpose}'"
                    raise InvalidRequest("input_file_id", message)
                data = memoryview(file.data)
                chunks = [bytes(data[start : start + CHUNK_BYTES]) for start in range(0, len(data), CHUNK_BYTES)]
                if not await self._store.add(record, chunks, max_bytes=self._max_store_bytes):
                    message = (
                        "the batches of this server leave no room for this one (--batch-store-bytes); try again when "
                        "others have expired, or delete their files"
                    )
                    raise InvalidRequest("input_file_id", message, "batch_store_full")
        self._on_change()
        return batch_pb2.CreateBatchResponse(batch=_render(StoredBatch(record=record, version=1)))

    def _record(self, request: batch_pb2.CreateBatchRequest, call: CallContext) -> BatchRecord:
        """Returns the batch that a request asks for. Raises InvalidRequest."""
        if not self._max_store_bytes:
            raise InvalidRequest(
                "endpoint", "batches are disabled on this server (--batch-store-bytes 0)", "unsupported"
            )
        if request.endpoint not in self._endpoints:
            known = ", ".join(f"'{each}'" for each in sorted(self._endpoints))
            raise InvalidRequest("endpoint", f"expected one of {known}, got '{request.endpoint[:64]}'")
        _check_metadata(dict(request.metadata))
        seconds, now = self._ttl_seconds, time.time()
        if request.HasField("output_expires_after"):
            seconds = min(seconds, request.output_expires_after.seconds)
        return BatchRecord(
            batch_id=f"batch_{secrets.token_hex(_ID_BYTES)}",
            tenant=call.tenant.name,
            namespace=call.tenant.namespace_prefix,
            endpoint=request.endpoint,
            input_file_id=request.input_file_id,
            completion_window=request.completion_window,
            metadata=dict(request.metadata),
            created_at=now,
            expires_at=now + _window_seconds(request.completion_window),
            output_seconds=seconds,
        )

    async def get(self, request: batch_pb2.GetBatchRequest, call: CallContext) -> batch_pb2.GetBatchResponse:
        check_bounds(request)
        return batch_pb2.GetBatchResponse(batch=_render(await self._known(request.batch_id, call)))

    async def list_batches(
        self, request: batch_pb2.ListBatchesRequest, call: CallContext
    ) -> batch_pb2.ListBatchesResponse:
        check_bounds(request)
        with store_errors("try again"):
            found = await self._store.of_tenant(call.tenant.namespace_prefix)
        if request.after:
            places = [place for place, each in enumerate(found) if each.record.batch_id == request.after]
            if not places:
                raise InvalidRequest("after", "expected the id of a batch of the list", "batch_not_found")
            found = found[places[0] + 1 :]
        limit = request.limit if request.HasField("limit") else _DEFAULT_LIMIT
        page = [_render(each) for each in found[:limit]]
        ends = {"first_id": page[0].batch_id, "last_id": page[-1].batch_id} if page else {}
        return batch_pb2.ListBatchesResponse(batches=page, has_more=len(found) > limit, **ends)

    async def cancel(self, request: batch_pb2.CancelBatchRequest, call: CallContext) -> batch_pb2.CancelBatchResponse:
        check_bounds(request)
        while True:
            stored = await self._known(request.batch_id, call)
            record = stored.record
            if record.status is Status.CANCELLING:
                break
            if record.status not in (Status.VALIDATING, Status.IN_PROGRESS):
                message = f"expected a batch that is in progress, got one that is {record.status}"
                raise InvalidRequest("batch_id", message, "batch_ended")
            with store_errors("try again"):
                if await self._store.change(record.moved(Status.CANCELLING, time.time()), stored.version):
                    break
        self._on_change()
        return batch_pb2.CancelBatchResponse(batch=_render(await self._known(request.batch_id, call)))

    async def _known(self, batch_id: str, call: CallContext) -> StoredBatch:
        """Returns a batch of the caller's tenant. Raises InvalidRequest or MediaError."""
        with store_errors("try again"):
            stored = await self._store.get(batch_id)
        if stored is None or stored.record.namespace != call.tenant.namespace_prefix:
            raise InvalidRequest("batch_id", "not found; it may have expired", "batch_not_found")
        return stored


class BatchFiles:
    """The files of answers, as MediaService has them."""

    def __init__(self, store: BatchStore) -> None:
        self._store = store

    async def find(self, namespace: str, file_id: str) -> Upload | None:
        """Returns a file of a tenant. `namespace`: what the tenant's begin with. Raises MediaError."""
        found = batch_of_file(file_id)
        if found is None:
            return None
        with store_errors("try again"):
            stored = await self._store.get(found[0])
        if stored is None or stored.record.namespace != namespace:
            return None
        return _file(stored.record, found[1])

    async def find_all(self, namespace: str) -> list[Upload]:
        """Returns all files of a tenant. Raises MediaError."""
        with store_errors("try again"):
            batches = await self._store.of_tenant(namespace)
        files = (_file(stored.record, kind) for stored in batches for kind in Kind)
        return [file for file in files if file is not None]

    async def read(self, file_id: str) -> AsyncGenerator[bytes]:
        """Yields the bytes of a file that was found. Raises MediaError."""
        found = batch_of_file(file_id)
        if found is not None:
            with store_errors("try again"):
                async for part in read_results(self._store, *found):
                    yield part

    async def remove(self, file_id: str) -> None:
        """Removes a file that was found. Raises MediaError."""
        found = batch_of_file(file_id)
        if found is None:
            return
        batch_id, kind = found
        with store_errors("try again"):
            await self._store.drop_results(batch_id, kind)
            while (stored := await self._store.get(batch_id)) is not None:
                record = stored.record
                deleted = msgspec.structs.replace(record.files[kind], is_deleted=True)
                changed = msgspec.structs.replace(record, files={**record.files, kind: deleted})
                if await self._store.change(changed, stored.version):
                    return


def _file(record: BatchRecord, kind: Kind) -> Upload | None:
    file = record.files.get(kind)
    if file is None or file.is_deleted:
        return None
    return Upload(
        handle=record.file_id(kind),
        digest=file.digest,
        num_bytes=file.num_bytes,
        expires=end_of(record),
        created=record.ended_at,
        details=FileDetails(f"{record.batch_id}_{kind}.jsonl", "batch_output"),
    )


def _check_metadata(metadata: dict[str, str]) -> None:
    """Raises InvalidRequest."""
    if len(metadata) > _MAX_PAIRS:
        raise InvalidRequest("metadata", f"expected at most {_MAX_PAIRS} pairs, got {len(metadata)}")
    for key, value in metadata.items():
        if len(key) > _MAX_KEY or len(value) > _MAX_VALUE:
            message = f"expected keys of at most {_MAX_KEY} characters and values of at most {_MAX_VALUE}"
            raise InvalidRequest("metadata", message)


def _window_seconds(window: str) -> int:
    """Returns a completion window in seconds. Raises InvalidRequest."""
    found = _WINDOW.fullmatch(window)
    seconds = int(found[1]) * _UNIT_SECONDS[found[2]] if found else 0
    if not 0 < seconds <= _MAX_WINDOW_SECONDS:
        message = f"expected a number and 's', 'm', 'h' or 'd', at most '7d', such as '24h'; got '{window[:64]}'"
        raise InvalidRequest("completion_window", message)
    return seconds


def _render(stored: StoredBatch) -> batch_pb2.Batch:
    record = stored.record
    batch = batch_pb2.Batch(
        batch_id=record.batch_id,
        endpoint=record.endpoint,
        input_file_id=record.input_file_id,
        completion_window=record.completion_window,
        status=f"BATCH_STATUS_{record.status.name}",
        created_at=int(record.created_at),
        expires_at=int(record.expires_at),
        request_counts=batch_pb2.BatchRequestCounts(
            total=record.num_requests,
            completed=stored.counts.get(Kind.OUTPUT, 0),
            failed=stored.counts.get(Kind.ERROR, 0),
        ),
        metadata=record.metadata,
    )
    for status, at in record.reached.items():
        setattr(batch, f"{status}_at", int(at))
    for kind, file in record.files.items():
        if not file.is_deleted:
            setattr(batch, f"{kind}_file_id", record.file_id(kind))
    if record.problems:
        batch.errors.data.extend(map(_render_problem, record.problems))
    return batch


def _render_problem(problem: LineProblem) -> batch_pb2.BatchError:
    return batch_pb2.BatchError(code=problem.code, message=problem.message, param=problem.param, line=problem.line)
