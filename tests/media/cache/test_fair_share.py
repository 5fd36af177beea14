"""Clients share a capacity: none holds more than it leaves free, and those that wait get places in turn."""

import asyncio
from collections.abc import Awaitable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.media.cache.fair_share import FairCapacity, FairPlaces, FreeMemory


def take_all(capacity: FairCapacity, client: str) -> int:
    """Takes all that the client gets, one at a time, and returns how much that is."""
    taken = 0
    while capacity.take(client, 1):
        taken += 1
    return taken


@pytest.mark.parametrize(("num_clients", "each"), [(1, 60), (2, 40), (3, 30), (5, 20)])
def test_clients_that_take_all_they_can_leave_as_much_as_each_has(num_clients: int, each: int):
    capacity = FairCapacity(120)
    greedy = [f"greedy {index}" for index in range(num_clients)]
    held = dict.fromkeys(greedy, 0)
    while granted := [client for client in greedy if capacity.take(client, 1)]:
        held.update({client: held[client] + 1 for client in granted})
    assert held == dict.fromkeys(greedy, each)
    assert capacity.take("another", each)


def test_the_first_request_of_a_client_may_take_all_that_is_free():
    capacity = FairCapacity(100)
    assert capacity.take("a", 70)
    assert capacity.take("a", 30, own=70)
    assert not capacity.take("a", 1, own=100)
    capacity.give_back("a", 100)
    assert capacity.take("a", 10)
    assert not capacity.take("a", 70), "beside another request of its own, it leaves as much as it takes"


def test_what_is_given_back_is_there_again():
    capacity = FairCapacity(10)
    for _ in range(3):
        taken = take_all(capacity, "a")
        assert (taken, capacity.count.total) == (5, 5)
        capacity.give_back("a", taken)
    assert capacity.count.total == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-8, 8)), max_size=60))
def test_no_client_ever_holds_more_than_is_left_beside_another_request(moves: list[tuple[str, int]]):
    capacity, held = FairCapacity(20), dict.fromkeys("abc", 0)
    for client, amount in moves:
        if amount < 0:
            amount = max(amount, -held[client])
            capacity.give_back(client, -amount)
        elif not capacity.take(client, amount):
            continue
        elif held[client]:
            assert held[client] + amount <= 20 - sum(held.values()) - amount
        held[client] += amount
        assert capacity.count.total == sum(held.values()) <= 20


async def soon(awaitable: Awaitable[None]) -> None:
    await awaitable


async def test_a_client_that_waits_for_places_delays_no_other():
    places = FairPlaces(2)
    for _ in range(2):
        await soon(places.acquire("greedy"))
    waiting = [asyncio.create_task(places.acquire("greedy")) for _ in range(100)]
    await asyncio.sleep(0)
    await soon(places.acquire("another"))
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    places.release("greedy")
    places.release("another")
    await soon(asyncio.shield(waiting[0]))
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def hold_all(places: FairPlaces) -> list[str]:
    """Takes every place, each for a client of its own."""
    holders = [f"holder {index}" for index in range(2)]
    for holder in holders:
        await soon(places.acquire(holder))
    return holders


async def test_clients_get_places_in_turn():
    places, order = FairPlaces(1), list[str]()
    holders = await hold_all(places)

    async def take(client: str) -> None:
        async with places.place(client):
            order.append(client)

    tasks = [asyncio.create_task(take(client)) for client in "aaaab"]
    await asyncio.sleep(0)
    places.release(holders[0])
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "a", "a", "a"]


async def test_the_place_of_a_client_that_left_goes_to_the_next():
    places = FairPlaces(1)
    holders = await hold_all(places)
    waiting = [asyncio.create_task(places.acquire("a")) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    places.release(holders[0])
    waiting[1].cancel()
    await asyncio.gather(*waiting[:2], return_exceptions=True)
    await soon(waiting[2])


async def test_amounts_are_waited_for_in_turn_and_small_ones_pass():
    places = FairPlaces(capacity=FairCapacity(100))
    await soon(places.acquire("greedy", 90))
    greedy, large = (asyncio.create_task(places.acquire(client, 40)) for client in ("greedy", "another"))
    await asyncio.sleep(0)
    async with places.place("small", 10):
        assert not greedy.done()
        assert not large.done()
    places.release("greedy", 90)
    await soon(asyncio.shield(greedy))
    await soon(asyncio.shield(large))


async def test_memory_is_what_the_system_has_left(monkeypatch: pytest.MonkeyPatch):
    left = 100
    monkeypatch.setattr("glimpse.media.cache.fair_share.available_memory", lambda: left)
    places = FairPlaces(capacity=FreeMemory())
    await soon(places.acquire("a", 150))  # nobody has anything that could be waited for
    left = 40
    waiting = asyncio.create_task(places.acquire("b", 10))
    await asyncio.sleep(0)
    assert not waiting.done()
    places.release("a", 150)
    await soon(waiting)
    left = 1000
    async with places.place("a", 100):
        assert FreeMemory().free == float("inf")
