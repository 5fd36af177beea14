"""Ctrl-C while a program starts: it ends at once, with exit status 130 and without a word, and its children live on.

Python's own handler raises KeyboardInterrupt. Imports and callbacks print that as a traceback, or lose it. Commands
import this module first, so it imports little.
"""

import os
import signal

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 + SIGINT, as shells have it."""

WITHOUT_INTERRUPTS = ("/bin/sh", "-c", 'trap "" INT; exec "$0" "$@"')
"""Runs a command that ignores SIGINT from its first instruction on. Ctrl-C in a terminal reaches the whole process
group, and a child that still starts would print a traceback. libuv lets children inherit no mask of signals."""


def exit_on_interrupt() -> None:
    """Makes SIGINT end this process, one that was blocked too. A process that was told to ignore SIGINT still does."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _exit)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def block_interrupts() -> None:
    """Postpones SIGINT, also beyond `exec`, until the program there calls `exit_on_interrupt`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _exit(_number: int, _frame: object) -> None:
    os._exit(INTERRUPTED)  # at once: there is nothing to clean up yet
