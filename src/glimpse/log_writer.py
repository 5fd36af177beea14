"""Writes the log in a thread of its own: whoever reads standard error slowly, or not at all, stops nobody who logs."""

import logging
import os
from contextlib import suppress
from queue import Full, Queue
from threading import Thread
from typing import NoReturn

_STDERR = 2
_MAX_WAITING = 10_000
"""Lines that wait to be written, a few MiB."""
_FLUSH_SECONDS = 1.0
"""How long the end of a process waits for its last lines to be written."""

_logger = logging.getLogger(__name__)


class LogWriter(logging.Handler):
    """Writes lines to standard error. Lines that do not fit into its queue are dropped and counted.

    It writes to the descriptor: a thread that waits inside Python's stream would let no process end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_dropped = 0
        self._num_told = 0
        self._lines = Queue[str](_MAX_WAITING)
        Thread(target=self._write_all, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queues a record's line."""
        try:
            self._lines.put_nowait(self.format(record))
        except Full:
            self.num_dropped += 1
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Waits until all lines are written, for a bounded time. `logging.shutdown` calls it when the process ends."""
        written = self._lines.all_tasks_done
        with written:
            written.wait_for(lambda: not self._lines.unfinished_tasks, _FLUSH_SECONDS)

    def _write_all(self) -> None:
        while True:
            _write(self._lines.get())
            if self._lines.empty() and self.num_dropped > self._num_told:
                self._tell_dropped(self.num_dropped - self._num_told)
            self._lines.task_done()

    def _tell_dropped(self, num_lines: int) -> None:
        self._num_told += num_lines
        message = "%d lines of the log were dropped: standard error was not read in time"
        _write(self.format(_logger.makeRecord(_logger.name, logging.WARNING, "", 0, message, (num_lines,), None)))


def num_dropped_lines() -> int:
    """Returns how many lines of this process's log were dropped."""
    return sum(handler.num_dropped for handler in logging.getLogger().handlers if isinstance(handler, LogWriter))


def end_at_once(status: int) -> NoReturn:
    """Ends this process after the last lines of its log, whatever its other threads do."""
    logging.shutdown()
    os._exit(status)


def _write(line: str) -> None:
    data = f"{line}\n".encode(errors="backslashreplace")
    with suppress(OSError):  # the disk is full, or the reader has left
        while data:
            data = data[os.write(_STDERR, data) :]
