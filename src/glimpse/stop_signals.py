"""SIGINT and SIGTERM as events: the first signal asks to drain and stop, the second to stop at once."""

import asyncio
import signal
from collections.abc import Generator
from contextlib import contextmanager


class StopSignals:
    """Signals that this process received since `catching` began."""

    def __init__(self) -> None:
        self.stop_requested = asyncio.Event()
        """Set by the first signal."""
        self.stop_now = asyncio.Event()
        """Set by the second signal."""
        self.by_keyboard = False
        """The first signal was Ctrl-C: a person waits at the terminal."""

    @contextmanager
    def catching(self) -> Generator[None]:
        """Handles both signals, and gives them back to their handlers at the end."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.getsignal(number) for number in numbers]
        for number in numbers:
            loop.add_signal_handler(number, self._receive, number)
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def _receive(self, number: int) -> None:
        if self.stop_requested.is_set():
            self.stop_now.set()
        else:
            self.by_keyboard = number == signal.SIGINT
            self.stop_requested.set()
