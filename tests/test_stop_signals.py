"""Signals that end a server."""

import asyncio
import os
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from glimpse.stop_signals import StopSignals


def ignored_by_all(_number: int, _frame: FrameType | None) -> None:
    """A handler that does nothing, of a program that did not start under `nohup`."""


@pytest.fixture
def handler_of_sighup(request: pytest.FixtureRequest) -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, request.param)
    yield
    signal.signal(signal.SIGHUP, before)


async def received(*numbers: signal.Signals) -> tuple[StopSignals, list[bool]]:
    """What is caught of these signals, which the process gets one after another; `stop_requested` after each."""
    signals, requested, loop = StopSignals(), list[bool](), asyncio.get_running_loop()
    with signals.catching():
        for number in numbers:
            handled = asyncio.Event()
            loop.add_signal_handler(signal.SIGUSR1, handled.set)  # the loop handles signals in their order
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), signal.SIGUSR1)
            await handled.wait()
            requested.append(signals.stop_requested.is_set())
    loop.remove_signal_handler(signal.SIGUSR1)
    return signals, requested


@pytest.mark.usefixtures("handler_of_sighup")
@pytest.mark.parametrize("handler_of_sighup", [ignored_by_all], indirect=True)
@pytest.mark.parametrize(
    ("second", "stops_now"), [(signal.SIGHUP, False), (signal.SIGTERM, True), (signal.SIGINT, True)]
)
async def test_a_closed_terminal_asks_once_however_often_it_says_so(second: signal.Signals, stops_now: bool) -> None:
    signals, requested = await received(signal.SIGHUP, second)
    assert requested == [True, True]
    assert signals.stop_now.is_set() == stops_now


@pytest.mark.usefixtures("handler_of_sighup")
@pytest.mark.parametrize("handler_of_sighup", [signal.SIG_IGN], indirect=True)
async def test_a_server_under_nohup_goes_on_when_its_terminal_closes() -> None:
    signals, requested = await received(signal.SIGHUP, signal.SIGTERM)
    assert requested == [False, True]
    assert not signals.stop_now.is_set()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
