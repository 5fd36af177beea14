"""Adapters are loaded and unloaded between steps: each request ends once, and what somebody has stays until its end."""

from concurrent.futures import Future

import pytest

from glimpse.engine.core.adapter_table import AdapterTable
from glimpse.engine.errors import CheckpointError, EngineErrorCode, OutOfDeviceMemoryError
from glimpse.engine.protocol.messages import FinishReason, LoadAdapter, TokenEvent, UnloadAdapter


class Store:
    """Adapters whose digests are their paths. A path that names an error fails with it."""

    def __init__(self) -> None:
        self.reading: Future[bytes] | None = None
        self.present: list[bytes] = []

    def stage(self, name: str, path: str) -> Future[bytes]:
        del name
        self.reading = Future()
        if path == "bad":
            self.reading.set_exception(CheckpointError("adapter 'x': expected finite numbers"))
        elif path != "slow":
            self.reading.set_result(path.encode())
        return self.reading

    def put(self, digest: bytes) -> None:
        if digest == b"huge":
            raise OutOfDeviceMemoryError
        if digest and digest not in self.present:
            self.present.append(digest)

    def remove(self, digest: bytes) -> None:
        self.present.remove(digest)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def table(store: Store) -> AdapterTable:
    return AdapterTable(store, digests={}, paths={}, max_adapters=2)


def load(table: AdapterTable, name: str, path: str, *, in_place: bool = False) -> TokenEvent:
    table.load(LoadAdapter(request_id=f"load {name}", name=name, path=path, in_place=in_place))
    (event,) = table.advance(may_wait=False)
    return event


def unload(table: AdapterTable, name: str) -> TokenEvent:
    return table.unload(UnloadAdapter(request_id=f"unload {name}", name=name))


def test_an_adapter_that_requests_have_stays_until_their_end(table: AdapterTable, store: Store) -> None:
    assert load(table, "a", "one").finish is FinishReason.STOP
    assert table.digests == {"a": b"one"}
    assert load(table, "a", "two", in_place=True).finish is FinishReason.STOP
    table.release({b"one"})
    assert table.digests == {"a": b"two"}  # requests from now on have the other one
    assert store.present == [b"one", b"two"]
    assert unload(table, "a").finish is FinishReason.STOP
    assert (table.digests, table.loaded) == ({}, {})
    table.release({b"one"})
    assert store.present == [b"one"]
    table.release(set())
    assert store.present == []
    assert unload(table, "a").error is EngineErrorCode.NO_ADAPTER


def test_names_of_equal_adapters_share_one(table: AdapterTable, store: Store) -> None:
    load(table, "a", "one")
    load(table, "b", "one")
    unload(table, "a")
    table.release(set())
    assert store.present == [b"one"]
    unload(table, "b")
    load(table, "c", "one")  # before it is freed
    table.release(set())
    assert store.present == [b"one"]


def test_those_in_use_leave_room_for_one_more_than_may_be_loaded(table: AdapterTable, store: Store) -> None:
    load(table, "a", "one")
    load(table, "b", "two")
    full = load(table, "c", "three")
    assert full.error is EngineErrorCode.OVERLOADED
    assert full.message == "expected at most 2 adapters (--max-loras), got one more; unload one"
    taken = load(table, "a", "three")
    assert (taken.error, taken.message.endswith("load_inplace replaces it")) == (EngineErrorCode.UNSUPPORTED, True)
    load(table, "a", "three", in_place=True)
    table.release({b"one", b"two"})
    assert load(table, "a", "four", in_place=True).error is EngineErrorCode.OVERLOADED
    table.release({b"two"})
    assert load(table, "a", "four", in_place=True).finish is FinishReason.STOP
    table.release(set())
    assert sorted(store.present) == [b"four", b"two"]


def test_what_cannot_be_loaded_costs_its_request_alone(table: AdapterTable, store: Store) -> None:
    load(table, "a", "one")
    bad, huge = load(table, "a", "bad", in_place=True), load(table, "b", "huge")
    assert (bad.error, bad.message) == (EngineErrorCode.UNSUPPORTED, "adapter 'x': expected finite numbers")
    assert huge.error is EngineErrorCode.OUT_OF_MEMORY
    assert (table.digests, store.present) == ({"a": b"one"}, [b"one"])


def test_requests_that_wait_end_once(table: AdapterTable, store: Store) -> None:
    for name, path in (("a", "slow"), ("b", "two")):
        table.load(LoadAdapter(request_id=name, name=name, path=path))
    assert table.advance(may_wait=False) == []
    assert unload(table, "a").error is EngineErrorCode.NO_ADAPTER  # not yet
    assert store.reading is not None
    store.reading.set_result(b"one")
    assert [event.request_id for event in table.advance(may_wait=True)] == ["a", "b"]
    table.load(LoadAdapter(request_id="c", name="a", path="slow", in_place=True))
    table.advance(may_wait=False)
    assert [(event.request_id, event.finish) for event in table.end_all()] == [("c", FinishReason.CANCELLED)]
    assert not table.is_loading


def test_what_is_read_for_a_cancelled_request_is_not_loaded_for_the_next(table: AdapterTable, store: Store) -> None:
    table.load(LoadAdapter(request_id="a", name="a", path="slow"))
    assert table.advance(may_wait=False) == []
    table.end_all()
    assert store.reading is not None
    store.reading.set_result(b"one")
    assert load(table, "b", "two").finish is FinishReason.STOP
    assert (table.digests, store.present) == ({"b": b"two"}, [b"two"])
