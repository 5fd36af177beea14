"""Signals that end a server, as events: the first one asks to drain and stop, the second to stop at once.

A terminal that closes sends SIGHUP, and its shell sends it again, so that SIGHUP never asks to stop at once.
"""

import asyncio
import logging
import signal
from collections.abc import Generator
from contextlib import contextmanager

from glimpse.interrupts import ending_signals

_logger = logging.getLogger(__name__)


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
        """Handles the signals, and gives them back to their handlers at the end."""
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in ending_signals()}
        for number in before:
            loop.add_signal_handler(number, self._receive, number)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def _receive(self, number: signal.Signals) -> None:
        if not self.stop_requested.is_set():
            self.by_keyboard = number == signal.SIGINT
            _logger.info("stopping after %s", number.name)
            self.stop_requested.set()
        elif number != signal.SIGHUP:
            self.stop_now.set()
