"""SIGINT and SIGTERM as something to wait for: the first asks to stop, the second not to wait any longer."""

import asyncio
import signal
from collections.abc import Generator
from contextlib import contextmanager


class StopSignals:
    """What this process was told since `catching` began."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        """The first signal has come."""
        self.insisted = asyncio.Event()
        """The second one has."""
        self.by_keyboard = False
        """The first was Ctrl-C: someone sits there and waits."""

    @contextmanager
    def catching(self) -> Generator[None]:
        """Takes the signals over from Python's defaults."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self._receive, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _receive(self, number: int) -> None:
        if self.asked.is_set():
            self.insisted.set()
        else:
            self.by_keyboard = number == signal.SIGINT
            self.asked.set()
