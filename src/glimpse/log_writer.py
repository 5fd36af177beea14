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
    """Writes lines to standard error. Lines that do not fit into its queue, or on the disk, are dropped and counted.

    It writes to the descriptor: a thread that waits inside Python's stream would let no process end.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_refused = 0
        """Lines that the queue had no room for."""
        self._num_failed = 0
        """Lines that could not be written."""
        self._num_told = 0
        self._cut = ""
        """Ends the part of a line that was written last."""
        self._lines = Queue[str](_MAX_WAITING)
        Thread(target=self._write_all, name="log", daemon=True).start()

    @property
    def num_dropped(self) -> int:
        return self._num_refused + self._num_failed

    def emit(self, record: logging.LogRecord) -> None:
        """Queues a record's line."""
        try:
            self._lines.put_nowait(self.format(record))
        except Full:
            self._num_refused += 1
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Waits until all lines are written, for a bounded time. `logging.shutdown` calls it when the process ends."""
        written = self._lines.all_tasks_done
        with written:
            written.wait_for(lambda: not self._lines.unfinished_tasks, _FLUSH_SECONDS)

    def _write_all(self) -> None:
        while True:
            self._num_failed += not self._write(self._lines.get())
            num_new = self.num_dropped - self._num_told
            if self._lines.empty() and num_new and self._tell_dropped(num_new):
                self._num_told += num_new
            self._lines.task_done()

    def _tell_dropped(self, num_lines: int) -> bool:
        message = "%d lines of the log were dropped: standard error was not read in time, or its disk was full"
        record = _logger.makeRecord(_logger.name, logging.WARNING, "", 0, message, (num_lines,), None)
        return self._write(self.format(record))

    def _write(self, line: str) -> bool:
        """Returns whether all of the line was written: the disk may be full, or the reader may have left."""
        data = f"{self._cut}{line}\n".encode(errors="backslashreplace")
        num_bytes = len(data)
        with suppress(OSError):
            while data:
                data = data[os.write(_STDERR, data) :]
        if len(data) < num_bytes:
            self._cut = "\n" if data else ""
        return not data


def num_dropped_lines() -> int:
    """Returns how many lines of this process's log were dropped."""
    return sum(handler.num_dropped for handler in logging.getLogger().handlers if isinstance(handler, LogWriter))


def end_at_once(status: int) -> NoReturn:
    """Ends this process after the last lines of its log, whatever its other threads do."""
    logging.shutdown()
    os._exit(status)
