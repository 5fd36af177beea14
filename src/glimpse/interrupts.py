"""Ctrl-C while a program starts: it ends at once, with exit status 130 and without a word, and its children live on.

Python's own handler raises KeyboardInterrupt. Imports and callbacks print that as a traceback, or lose it. Commands
import this module first, so it imports little.
"""

import os
import signal

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 + SIGINT, as shells have it."""

WITHOUT_INTERRUPTS = ("/bin/sh", "-c", 'trap "" INT HUP; exec "$0" "$@"')
"""Runs a command that ignores SIGINT and SIGHUP from its first instruction on. Ctrl-C in a terminal, and its end, reach
the whole process group, and a child that still starts would print a traceback. libuv lets children inherit no mask of
signals."""


def exit_on_interrupt() -> None:
    """Makes SIGINT end this process, one that was blocked too. A process that was told to ignore SIGINT still does.

    SIGTERM ends it in any case, also the first process of a container, from which the kernel keeps signals that it does
    not handle.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _exit)
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _exit)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def ending_signals() -> tuple[signal.Signals, ...]:
    """Returns the signals that end a program in order: SIGINT, SIGTERM, and SIGHUP unless `nohup` has it ignored."""
    is_kept = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *([] if is_kept else [signal.SIGHUP]))


def block_interrupts() -> None:
    """Postpones SIGINT, also beyond `exec`, until the program there calls `exit_on_interrupt`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _exit(number: int, _frame: object) -> None:
    os._exit(128 + number)  # at once: there is nothing to clean up yet
