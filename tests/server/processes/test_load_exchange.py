"""What each front end hears of the load of the others."""

import asyncio

import pytest

from glimpse.server.processes import load_exchange
from glimpse.server.processes.load_exchange import NO_LOAD, LoadExchange, send_changes
from glimpse.server.processes.messages import FrontEndLoad


def load(rate: float, **waiting: int) -> FrontEndLoad:
    return FrontEndLoad(waiting=waiting, rpcs_per_second=rate, failures_per_second=rate / 2)


def test_each_hears_the_sum_of_the_others() -> None:
    exchange = LoadExchange()
    exchange.set(0, load(1.0, a=5))
    exchange.set(1, load(2.0, a=7, b=1))
    exchange.set(2, load(4.0))
    assert exchange.of_others(0) == load(6.0, a=7, b=1)
    assert exchange.of_others(2) == load(3.0, a=12, b=1)
    exchange.remove(1)
    assert exchange.of_others(2) == load(1.0, a=5)
    exchange.remove(0)
    assert exchange.of_others(2) == NO_LOAD


async def test_tells_changes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_exchange, "INTERVAL_SECONDS", 0.0)
    loads = iter([NO_LOAD, load(1.0), load(1.0), load(1.0, a=1), load(1.0, a=1), NO_LOAD, NO_LOAD])
    sent: list[FrontEndLoad] = []
    ended = asyncio.Event()

    def next_load() -> FrontEndLoad:
        found = next(loads, None)
        if found is None:
            ended.set()
        return found or NO_LOAD

    sending = asyncio.create_task(send_changes(next_load, sent.append))
    await ended.wait()
    sending.cancel()
    await asyncio.wait([sending])
    assert sent == [load(1.0), load(1.0, a=1), NO_LOAD]
