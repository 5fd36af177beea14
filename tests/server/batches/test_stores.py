"""What every store of batches does."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from glimpse.server.batches.record import Kind, Status
from glimpse.server.batches.store import BatchStore, SqliteStore
from tests.server.batches.batches import NEVER, answers, new_batch


async def test_a_batch_is_found_with_its_requests_and_only_once_changed_from_a_version(store: BatchStore) -> None:
    record = new_batch(metadata={"a": "ü"})
    assert await store.add(record, [b"one", b"two"], max_bytes=NEVER)
    found = await store.get("batch_1")
    assert found is not None
    assert (found.record, dict(found.counts)) == (record, {Kind.OUTPUT: 0, Kind.ERROR: 0})
    assert [await store.input_chunk("batch_1", number) for number in range(3)] == [b"one", b"two", None]
    changes = [store.change(record.leased(f"server {index}", 1.0), found.version) for index in range(5)]
    assert sorted(await asyncio.gather(*changes)) == [False] * 4 + [True]
    assert await store.get("batch_2") is None
    assert not await store.change(new_batch(2), 1)


async def test_the_first_result_of_a_line_counts(store: BatchStore) -> None:
    await store.add(new_batch(), [b"x"], max_bytes=NEVER)
    kinds = [Kind.ERROR if number % 2 else Kind.OUTPUT for number in range(6)]
    puts = [
        store.put_result("batch_1", 3, kind, b"%d\n" % number, max_bytes=NEVER) for number, kind in enumerate(kinds)
    ]
    assert await asyncio.gather(*puts) == [True] * 6
    written = [*await answers(store, "batch_1", Kind.OUTPUT), *await answers(store, "batch_1", Kind.ERROR)]
    assert len(written) == 1
    found = await store.get("batch_1")
    assert found is not None
    assert sum(found.counts.values()) == 1
    assert await store.finished_lines("batch_1") == {3}


async def test_results_are_read_in_the_order_of_the_lines(store: BatchStore) -> None:
    await store.add(new_batch(), [b"x"], max_bytes=NEVER)
    for number in (900, 2, 70, 1, 300, 10):
        assert await store.put_result("batch_1", number, Kind.OUTPUT, b"%d\n" % number, max_bytes=NEVER)
    await store.put_result("batch_1", 5, Kind.ERROR, b"5\n", max_bytes=NEVER)
    assert await answers(store, "batch_1", Kind.OUTPUT) == [1, 2, 10, 70, 300, 900]
    assert await answers(store, "batch_1", Kind.ERROR) == [5]
    assert await store.results("batch_1", Kind.OUTPUT, 900) == []
    await store.drop_results("batch_1", Kind.OUTPUT)
    assert await answers(store, "batch_1", Kind.OUTPUT) == []
    assert await answers(store, "batch_1", Kind.ERROR) == [5]


async def test_a_batch_that_has_ended_takes_no_result_and_keeps_no_request(store: BatchStore) -> None:
    record = new_batch()
    await store.add(record, [b"x"], max_bytes=NEVER)
    assert await store.open_ids() == ["batch_1"]
    assert await store.change(record.moved(Status.CANCELLED, 5.0), 1)
    assert await store.open_ids() == []
    assert await store.put_result("batch_1", 1, Kind.OUTPUT, b"1\n", max_bytes=NEVER) is None
    assert await store.put_result("batch_2", 1, Kind.OUTPUT, b"1\n", max_bytes=NEVER) is None
    assert await store.input_chunk("batch_1", 0) is None


async def test_the_budget_holds_for_requests_and_results(store: BatchStore) -> None:
    most = 1 << 18
    assert not await store.add(new_batch(1), [b"x" * most, b"x"], max_bytes=most)
    assert await store.get("batch_1") is None
    assert await store.add(new_batch(2), [b"x" * (most // 2)], max_bytes=most)
    assert await store.put_result("batch_2", 1, Kind.OUTPUT, b"x" * most, max_bytes=most) is False
    assert await store.put_result("batch_2", 1, Kind.OUTPUT, b"x" * 1000, max_bytes=most) is True
    assert not await store.add(new_batch(3), [b"x" * (most // 2)], max_bytes=most)
    await store.purge("")
    assert await store.add(new_batch(3), [b"x" * (most // 2)], max_bytes=most)


async def test_tenants_have_their_own_batches_until_they_are_purged(store: BatchStore) -> None:
    for number, tenant in enumerate(("a", "b", "a", "")):
        await store.add(new_batch(number, tenant), [b"x"], max_bytes=NEVER)
    await store.put_result("batch_2", 1, Kind.OUTPUT, b"1\n", max_bytes=NEVER)
    assert [each.record.batch_id for each in await store.of_tenant("a.")] == ["batch_2", "batch_0"]
    assert [each.record.batch_id for each in await store.of_tenant("")] == ["batch_3"]
    await store.purge("a.")
    assert await store.of_tenant("a.") == []
    assert await store.results("batch_2", Kind.OUTPUT, 0) == []
    assert await store.put_result("batch_2", 1, Kind.OUTPUT, b"1\n", max_bytes=NEVER) is None
    assert sorted(await store.open_ids()) == ["batch_1", "batch_3"]


async def test_a_batch_is_removed_when_its_time_has_come(store: BatchStore) -> None:
    ended = new_batch(1).moved(Status.CANCELLED, 100.0)
    forgotten = new_batch(2, expires_at=100.0)
    for record in (ended, forgotten):
        await store.add(new_batch(int(record.batch_id[-1]), expires_at=record.expires_at), [b"x"], max_bytes=NEVER)
        await store.change(record, 1)
    await store.remove_ended(149.0)
    assert await store.get("batch_1") is not None
    await store.remove_ended(151.0)
    assert await store.get("batch_1") is None
    assert await store.get("batch_2") is None
    assert await store.open_ids() == []


async def test_a_file_of_batches_outlives_its_process(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path)
    await first.add(new_batch(), [b"x"], max_bytes=NEVER)
    second = SqliteStore(tmp_path)  # of another process: the first one was killed, or goes on
    await second.put_result("batch_1", 1, Kind.OUTPUT, b"1\n", max_bytes=NEVER)
    assert await first.finished_lines("batch_1") == {1}
    for each in (first, second, second):
        await each.close()


def test_states_have_an_end() -> None:
    record = new_batch().moved(Status.COMPLETED, 2.0)
    with pytest.raises(ValueError, match="completed"):
        record.moved(Status.CANCELLING, 3.0)
    assert msgspec.structs.replace(record, status=Status.EXPIRED).is_open is False
