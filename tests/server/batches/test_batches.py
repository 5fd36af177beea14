"""BatchService of a server: what its clients see."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest

from glimpse.client import AsyncClient, GlimpseError
from glimpse.identity.api_keys import KeyOwner, key_line
from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.sources.uploads import Uploads
from glimpse.server.batches.handlers import BatchHandlers
from glimpse.server.batches.store import SqliteStore
from glimpse.server.call.context import CallContext
from glimpse.server.errors import InvalidRequest
from glimpse.server.media_settings import MediaSettings
from glimpse.server.settings import AccessSettings, BatchSettings
from glimpse.v1 import batch_pb2, batch_pb2_grpc, tenant_pb2, tenant_pb2_grpc
from tests.e2e.stack import Served
from tests.server.batches.batches import CHAT
from tests.server.serving import echoing

ENDED = (batch_pb2.BATCH_STATUS_COMPLETED, batch_pb2.BATCH_STATUS_FAILED, batch_pb2.BATCH_STATUS_EXPIRED,
         batch_pb2.BATCH_STATUS_CANCELLED)  # fmt: skip
KEYS = {"acme-key": KeyOwner(tenant="acme"), "other-key": KeyOwner(tenant="other")}


def chat(custom_id: str, text: str, **more: Any) -> bytes:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 8, **more}
    return json.dumps({"custom_id": custom_id, "url": CHAT, "body": body}).encode() + b"\n"


async def begin(client: AsyncClient, data: bytes, endpoint: str = CHAT, **options: Any) -> batch_pb2.Batch:
    upload = await client.upload(data, purpose="batch")
    return await client.create_batch(upload, endpoint, **options)


async def end_of(client: AsyncClient, batch: batch_pb2.Batch) -> batch_pb2.Batch:
    return await reached(client, batch, lambda found: found.status in ENDED)


async def reached(
    client: AsyncClient, batch: batch_pb2.Batch, is_reached: Callable[[batch_pb2.Batch], bool]
) -> batch_pb2.Batch:
    for _ in range(3000):
        if is_reached(batch := await client.batch(batch.batch_id)):
            return batch
        await asyncio.sleep(0.02)
    pytest.fail(str(batch))


async def lines(client: AsyncClient, file_id: str) -> list[Any]:
    return [json.loads(line) for line in (await client.download(file_id)).splitlines()]


@asynccontextmanager
async def served(checkpoint: Path, **options: Any) -> AsyncGenerator[AsyncClient]:
    """A client of a server of its own."""
    async with echoing(checkpoint, **options) as (server, _), AsyncClient(f"127.0.0.1:{server.port}") as client:
        yield client


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(GlimpseError) as caught:
        await call
    return caught.value.status, str(caught.value)


async def test_a_batch_answers_its_file_and_belongs_to_its_tenant(tiny_checkpoint: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("\n".join(key_line(key, owner) for key, owner in KEYS.items()))
    async with echoing(tiny_checkpoint, access=AccessSettings(api_keys=keys)) as (server, channel):
        target = f"127.0.0.1:{server.port}"
        async with AsyncClient(target, api_key="acme-key") as acme, AsyncClient(target, api_key="other-key") as other:
            data = chat("a", "one") + chat("b", "two", temperature="hot") + chat("c", "three")
            batch = await begin(acme, data, metadata={"by": "test"}, completion_window="2h")
            assert (batch.endpoint, dict(batch.metadata), batch.completion_window) == (CHAT, {"by": "test"}, "2h")
            assert batch.expires_at - batch.created_at == 7200
            ended = await end_of(acme, batch)
            assert ended.status == batch_pb2.BATCH_STATUS_COMPLETED
            counts = ended.request_counts
            assert (counts.total, counts.completed, counts.failed) == (3, 2, 1)
            output, errors = await lines(acme, ended.output_file_id), await lines(acme, ended.error_file_id)
            assert [each["custom_id"] for each in output] == ["a", "c"]
            texts = [each["response"]["body"]["choices"][0]["message"]["content"] for each in output]
            assert all(texts)
            assert errors[0]["custom_id"] == "b"
            error = errors[0]["response"]["body"]["error"]
            assert (errors[0]["response"]["status_code"], error["param"]) == (400, "temperature")
            files = {each.upload_id: each for each in await acme.uploads()}
            file = files[ended.output_file_id]
            data = await acme.download(file)
            assert (file.purpose, file.size_bytes, file.sha256) == ("batch_output", len(data), sha256(data).digest())
            assert [each.batch_id for each in await acme.batches()] == [batch.batch_id]
            # Another tenant sees nothing of it.
            assert (list(await other.batches()), list(await other.uploads())) == ([], [])
            missing = grpc.StatusCode.NOT_FOUND
            for call in (
                other.batch(batch.batch_id),
                other.cancel_batch(batch.batch_id),
                other.download(ended.output_file_id),
                other.delete_upload(file),
            ):
                assert (await refused(call))[0] is missing
            # It can be deleted by files, and all of it by a purge.
            await acme.delete_upload(files[ended.error_file_id])
            assert (await refused(acme.download(ended.error_file_id)))[0] is missing
            assert not (await acme.batch(batch.batch_id)).HasField("error_file_id")
            running = await begin(acme, b"".join(chat(str(number), "x" * 200) for number in range(100)))
            tenants: Any = tenant_pb2_grpc.TenantServiceStub(channel)
            metadata = (("authorization", "Bearer acme-key"),)
            await tenants.PurgeTenant(tenant_pb2.PurgeTenantRequest(tenant="acme"), metadata=metadata)
            for each in (batch, running):
                assert (await refused(acme.batch(each.batch_id)))[0] is missing
            assert (await refused(acme.download(ended.output_file_id)))[0] is missing
            assert list(await acme.batches()) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"endpoint": "/v1/batches"}, "endpoint"),
        ({"endpoint": "/v1/files"}, "endpoint"),
        ({"completion_window": "1y"}, "completion_window"),
        ({"completion_window": "8d"}, "completion_window"),
        ({"input_file_id": ""}, "input_file_id"),
        ({"input_file_id": "file-x"}, "input_file_id"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {str(number): "v" for number in range(17)}}, "metadata"),
    ],
)
async def test_a_batch_that_cannot_be_is_refused_by_its_field(
    shared_server: Served, change: dict[str, Any], field: str
) -> None:
    members: Any = {"endpoint": CHAT, "completion_window": "24h", "input_file_id": "file-x"} | change
    async with grpc.aio.insecure_channel(shared_server.target) as channel:
        stub: Any = batch_pb2_grpc.BatchServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.CreateBatch(batch_pb2.CreateBatchRequest(**members))
    unknown = change.get("input_file_id") == "file-x"
    expected = grpc.StatusCode.NOT_FOUND if unknown else grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.code() is expected
    assert f"'{field}'" in (caught.value.details() or "")


async def test_batches_go_on_after_a_restart(tiny_checkpoint: Path, tmp_path: Path) -> None:
    settings: Any = {
        "media": MediaSettings(state_folder=tmp_path / "state"),
        "batches": BatchSettings(batch_at_once=2),
    }
    expected = [str(number) for number in range(12)]
    async with served(tiny_checkpoint, **settings, step_ms=10) as client:
        batch = await begin(client, b"".join(chat(each, "a few words of text") for each in expected))
        await reached(client, batch, lambda found: found.request_counts.completed > 0)
    async with served(tiny_checkpoint, **settings) as client:
        ended = await end_of(client, batch)
        assert ended.status == batch_pb2.BATCH_STATUS_COMPLETED
        assert [each["custom_id"] for each in await lines(client, ended.output_file_id)] == expected
        assert not ended.HasField("error_file_id")


async def test_pages_of_a_list_and_a_cancelled_batch(tiny_checkpoint: Path) -> None:
    async with served(tiny_checkpoint, step_ms=500) as client:
        batches = [await begin(client, chat("a", "some words " * 8)) for _ in range(3)]
        ids = [each.batch_id for each in batches]
        assert [each.batch_id for each in await client.batches(limit=2)] == ids[:0:-1]
        assert [each.batch_id for each in await client.batches(after=ids[1])] == ids[:1]
        assert (await refused(client.batches(after="batch_x")))[0] is grpc.StatusCode.NOT_FOUND
        cancelled = await client.cancel_batch(ids[2])
        assert cancelled.status == batch_pb2.BATCH_STATUS_CANCELLING
        ended = await end_of(client, cancelled)
        assert ended.status == batch_pb2.BATCH_STATUS_CANCELLED
        code, message = await refused(client.cancel_batch(ids[2]))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "cancelled" in message


async def test_batches_can_be_turned_off() -> None:
    uploads = Uploads(max_bytes=1 << 20, ttl_seconds=60, memory_budget=MemoryBudget())
    off = BatchHandlers(SqliteStore(None), uploads, [CHAT], on_change=lambda: None, max_store_bytes=0, ttl_seconds=60)
    request = batch_pb2.CreateBatchRequest(endpoint=CHAT, completion_window="24h", input_file_id="file-x")
    with pytest.raises(InvalidRequest, match="--batch-store-bytes 0"):
        await off.create(request, CallContext())
