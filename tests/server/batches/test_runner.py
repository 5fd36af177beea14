"""What answers batches: each request has one answer, whatever ends, and in which moment."""

import asyncio
import json
import random
import time
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from glimpse.media.shared.values import StoreUnavailableError
from glimpse.server.batches.record import BatchRecord, Kind, Status
from glimpse.server.batches.runner import Answer, BatchRunner
from glimpse.server.batches.store import BatchStore, SqliteStore, StoredBatch
from glimpse.server.call.context import CallContext
from glimpse.server.rpc.failure import RpcFailure
from glimpse.server.telemetry.metrics import Metrics
from tests import waiting
from tests.server.batches.batches import CHAT, NEVER, answers, line, new_batch, requests

LEASE_SECONDS = 0.2


def failed(code: grpc.StatusCode, reason: str = "") -> tuple[RpcFailure, bytes]:
    return RpcFailure(code=code, message="no", reason=reason), b'{"error":"no"}'


async def answer(_path: str, _body: bytes, _call: CallContext) -> tuple[None, bytes]:
    return None, b'{"ok":true}'


def runner(store: BatchStore, answer: Answer = answer, **options: Any) -> BatchRunner:
    values: dict[str, Any] = {
        "max_store_bytes": NEVER,
        "max_requests": 1000,
        "max_line_bytes": 10_000,
        "at_once": 4,
        "wake": asyncio.Event(),
        "lease_seconds": LEASE_SECONDS,
    }
    metrics = options.pop("metrics", None) or Metrics()
    return BatchRunner(store, answer, lambda tenant: CallContext(client=tenant), metrics, **(values | options))


@asynccontextmanager
async def running(*runners: BatchRunner) -> AsyncGenerator[None]:
    tasks = [asyncio.create_task(each.run()) for each in runners]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(store: BatchStore, is_reached: Callable[[StoredBatch], bool], batch_id: str = "batch_1") -> StoredBatch:
    while True:
        with suppress(StoreUnavailableError):
            found = await store.get(batch_id)
            assert found is not None
            if is_reached(found):
                return found
        await asyncio.sleep(0.01)


async def ended(store: BatchStore, batch_id: str = "batch_1") -> BatchRecord:
    return (await until(store, lambda found: not found.record.is_open, batch_id)).record


async def names(store: BatchStore, batch_id: str = "batch_1") -> dict[Kind, list[str]]:
    return {kind: [each["custom_id"] for each in await answers(store, batch_id, kind)] for kind in Kind}


async def test_requests_are_answered_in_their_order_and_files_are_described(store: BatchStore) -> None:
    seen: list[tuple[str, bytes, str]] = []

    async def later(path: str, body: bytes, call: CallContext) -> Any:
        seen.append((path, body, call.client))
        number = json.loads(body)["n"]
        await asyncio.sleep(0.02 if number == 0 else 0)
        return failed(grpc.StatusCode.PERMISSION_DENIED) if number == 3 else (None, b'{"n":%d}' % number)

    lines = b"\n\n".join(line(f"r{number}", body={"n": number}).strip() for number in range(6))
    lines = BOM_UTF8 + lines
    await store.add(new_batch(tenant="acme"), [lines[:100], lines[100:]], max_bytes=NEVER)
    metrics = Metrics()
    async with running(runner(store, later, metrics=metrics)):
        record = await ended(store)
    counted = {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if "batch" in sample.name
    }
    assert counted == {
        "glimpse_batches_running": 0,
        "glimpse_batches_totalcompleted": 1,
        "glimpse_batch_requests_totalcompleted": 5,
        "glimpse_batch_requests_totalfailed": 1,
    }
    output, errors = await answers(store, "batch_1", Kind.OUTPUT), await answers(store, "batch_1", Kind.ERROR)
    assert [each["custom_id"] for each in output] == ["r0", "r1", "r2", "r4", "r5"]
    assert [each["response"]["body"] for each in output] == [{"n": number} for number in (0, 1, 2, 4, 5)]
    assert {each["response"]["status_code"] for each in output} == {200}
    assert len({each["response"]["request_id"] for each in output}) == 5
    ((custom_id, response),) = [(each["custom_id"], each["response"]) for each in errors]
    assert (custom_id, response["status_code"], response["body"]) == ("r3", 403, {"error": "no"})
    assert (record.status, record.num_requests) == (Status.COMPLETED, 6)
    assert list(record.reached) == [Status.IN_PROGRESS, Status.FINALIZING, Status.COMPLETED]
    assert {kind: file.num_bytes for kind, file in record.files.items()} == {
        kind: sum(len(data) for _, data in await store.results("batch_1", kind, 0)) for kind in Kind
    }
    assert {(path, client) for path, _, client in seen} == {(CHAT, "acme")}
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", [("empty_file", None, None)]),
        (b"\n \n", [("empty_file", None, None)]),
        (line("a") + b"{\n" + line("a"), [("invalid_json_line", None, 2), ("duplicate_custom_id", "custom_id", 3)]),
        (b'{"url": "x", "body": {}}\n', [("missing_required_parameter", "custom_id", 1)]),
        (line("a", method="GET"), [("invalid_method", "method", 1)]),
        (line("a", "/v1/embeddings"), [("invalid_url", "url", 1)]),
        (line("a", body={"stream": True}), [("invalid_value", "body.stream", 1)]),
        (line("a", body=3), [("invalid_value", None, 1)]),
        (line("a", body={"x": "y" * 10_000}), [("request_too_large", None, 1)]),
        (b"".join(line(f"{number}") for number in range(1001)), [("too_many_requests", None, None)]),
        (b"x\n" * 30, [("invalid_json_line", None, number + 1) for number in range(20)]),
    ],
)
async def test_a_file_that_is_no_batch_is_told_by_its_lines(data: bytes, expected: Any, tmp_path: Any) -> None:
    from glimpse.server.batches.store import SqliteStore  # noqa: PLC0415

    store = SqliteStore(None)
    await store.add(new_batch(), [data] if data else [], max_bytes=NEVER)
    async with running(runner(store)):
        record = await ended(store)
    assert record.status is Status.FAILED
    assert [(each.code, each.param, each.line) for each in record.problems] == expected
    assert all(each.message for each in record.problems)
    assert record.files == {}
    await store.close()


async def test_a_request_waits_while_the_server_has_no_room_and_is_not_asked_for_ever(store: BatchStore) -> None:
    attempts = Counter[str]()

    async def refusing(_path: str, body: bytes, _call: CallContext) -> Any:
        name = json.loads(body)["n"]
        attempts[name] += 1
        match name:
            case "busy" if attempts[name] < 4:
                return failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "overloaded")
            case "too large":
                return failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "out_of_memory")
            case "deadly":
                return failed(grpc.StatusCode.ABORTED, "engine_died")
            case _:
                return None, b"{}"

    lines = b"".join(line(name, body={"n": name}) for name in ("busy", "too large", "deadly"))
    await store.add(new_batch(), [lines], max_bytes=NEVER)
    async with running(runner(store, refusing)):
        await ended(store)
    assert await names(store) == {Kind.OUTPUT: ["busy"], Kind.ERROR: ["too large", "deadly"]}
    assert dict(attempts) == {"busy": 4, "too large": 3, "deadly": 3}


@pytest.mark.parametrize("how", ["cancelled", "expired"])
async def test_what_was_answered_until_the_end_is_kept_and_the_rest_has_a_reason(store: BatchStore, how: str) -> None:
    async def holding(_path: str, body: bytes, _call: CallContext) -> tuple[None, bytes]:
        if json.loads(body)["n"] > 1:
            await asyncio.sleep(100)
        return None, b"{}"

    lines = b"".join(line(f"r{number}", body={"n": number}) for number in range(9))
    now = [2000.0]
    await store.add(new_batch(expires_at=3000.0, output_seconds=1e9), [lines], max_bytes=NEVER)
    async with running(runner(store, holding, clock=lambda: now[0])):
        found = await until(store, lambda found: found.counts.get(Kind.OUTPUT) == 2)
        now[0] += 2000 * (how == "expired")
        while how == "cancelled" and not await store.change(found.record.moved(Status.CANCELLING, 1.0), found.version):
            found = await until(store, lambda _: True)
        record = await ended(store)
    assert record.status == how
    assert await names(store) == {Kind.OUTPUT: ["r0", "r1"], Kind.ERROR: [f"r{number}" for number in range(2, 9)]}
    errors = await answers(store, "batch_1", Kind.ERROR)
    assert {(each["response"], each["error"]["code"]) for each in errors} == {(None, f"batch_{how}")}


async def test_a_batch_that_is_cancelled_before_its_lines_are_checked_has_no_files(store: BatchStore) -> None:
    await store.add(new_batch(), [requests(3)], max_bytes=NEVER)
    await store.change(new_batch().moved(Status.CANCELLING, 1.0), 1)
    async with running(runner(store)):
        record = await ended(store)
    assert (record.status, record.files) == (Status.CANCELLED, {})


async def test_an_answer_without_room_is_an_error_and_the_others_are_kept(store: BatchStore) -> None:
    async def long(_path: str, body: bytes, _call: CallContext) -> tuple[None, bytes]:
        return None, json.dumps("x" * (1 << 20 if json.loads(body)["n"] == 1 else 10)).encode()

    lines = b"".join(line(f"r{number}", body={"n": number}) for number in range(3))
    await store.add(new_batch(), [lines], max_bytes=NEVER)
    async with running(runner(store, long, max_store_bytes=1 << 19)):
        record = await ended(store)
    assert record.status is Status.COMPLETED
    assert await names(store) == {Kind.OUTPUT: ["r0", "r2"], Kind.ERROR: ["r1"]}
    (error,) = await answers(store, "batch_1", Kind.ERROR)
    assert (error["response"], error["error"]["code"]) == (None, "batch_store_full")


async def test_answers_wait_for_a_disk_that_is_full_and_are_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, asked, looks = SqliteStore(tmp_path), Counter[str](), list[int]()
    disk = SimpleNamespace(free=NEVER)

    async def counting(_path: str, body: bytes, _call: CallContext) -> tuple[None, bytes]:
        asked[json.loads(body)["n"]] += 1
        return None, b"{}"

    def usage(_folder: Path) -> SimpleNamespace:
        looks.append(disk.free)
        return disk

    lines = b"".join(line(f"r{number}", body={"n": f"r{number}"}) for number in range(6))
    await store.add(new_batch(), [lines], max_bytes=NEVER)
    monkeypatch.setattr("shutil.disk_usage", usage)
    disk.free = 16 << 20
    async with running(runner(store, counting)):
        await waiting.until(lambda: len(looks) > 12)
        assert sum(asked.values()) == 4
        disk.free = NEVER
        record = await ended(store)
    assert (record.status, set(asked.values())) == (Status.COMPLETED, {1})
    assert await names(store) == {Kind.OUTPUT: [f"r{number}" for number in range(6)], Kind.ERROR: []}
    await store.close()


async def test_batches_go_on_after_an_unexpected_error_of_the_store(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    open_ids, failures = store.open_ids, [RuntimeError("unexpected")]

    async def failing() -> list[str]:
        if failures:
            raise failures.pop()
        return await open_ids()

    monkeypatch.setattr(store, "open_ids", failing)
    await store.add(new_batch(), [requests(3)], max_bytes=NEVER)
    async with running(runner(store)):
        assert (await ended(store)).status is Status.COMPLETED
    assert "batches could not be looked for; this is tried again" in caplog.messages


async def test_a_batch_of_a_server_that_was_killed_goes_on_though_the_clock_was_set_back(store: BatchStore) -> None:
    await store.add(new_batch(), [requests(3)], max_bytes=NEVER)
    await store.change(new_batch().leased("a server that was killed", time.time() + 3600), 1)
    async with running(runner(store)):
        assert (await ended(store)).status is Status.COMPLETED


async def test_tenants_take_turns_and_hold_a_bounded_number_of_requests(store: BatchStore) -> None:
    running_now, most, order = Counter[str](), Counter[str](), list[str]()

    async def counting(_path: str, _body: bytes, call: CallContext) -> tuple[None, bytes]:
        order.append(call.client)
        running_now[call.client] += 1
        most[call.client] = max(most[call.client], running_now[call.client])
        await asyncio.sleep(0.005)
        running_now[call.client] -= 1
        return None, b"{}"

    await store.add(new_batch(1, "a"), [requests(60)], max_bytes=NEVER)
    await store.add(new_batch(2, "a"), [requests(60)], max_bytes=NEVER)
    await store.add(new_batch(3, "b"), [requests(10)], max_bytes=NEVER)
    async with running(runner(store, counting)):
        await ended(store, "batch_3")
        for batch_id in ("batch_1", "batch_2"):
            await ended(store, batch_id)
    assert max(most.values()) <= 4
    assert order.index("b") < 30
    assert max(index for index, tenant in enumerate(order) if tenant == "b") < 60
    assert len(order) == 130


class Mortal:
    """A store as one process sees it, which can be killed; and it fails now and then."""

    def __init__(self, store: BatchStore, chance: random.Random) -> None:
        self._store = store
        self._chance = chance
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.is_dead or self._chance.random() < 0.02:
                raise StoreUnavailableError
            result = await method(*args, **kwargs)
            if self.is_dead or self._chance.random() < 0.02:  # it was done, and nobody heard of it
                raise StoreUnavailableError
            return result

        return call


async def test_each_request_is_answered_once_by_servers_that_are_killed_in_random_moments(store: BatchStore) -> None:
    chance, asked = random.Random(20261127), Counter[bytes]()

    async def slow(_path: str, body: bytes, _call: CallContext) -> Any:
        asked[body] += 1
        await asyncio.sleep(chance.random() * 0.03)
        return failed(grpc.StatusCode.UNAVAILABLE) if chance.random() < 0.1 else (None, b"{}")

    expected = [f"r{number}" for number in range(150)]
    await store.add(new_batch(), [b"".join(line(each, body={"n": each}) for each in expected)], max_bytes=NEVER)
    for _ in range(10):
        view: Any = Mortal(store, chance)
        other: Any = Mortal(store, chance)
        async with running(runner(view, slow), runner(other, slow)):
            await asyncio.sleep(chance.random() * 0.25)
            view.is_dead = other.is_dead = True
    async with running(runner(store, slow)):
        record = await ended(store)
    assert record.status is Status.COMPLETED
    assert await names(store) == {Kind.OUTPUT: expected, Kind.ERROR: []}
    assert len(asked) == 150
