"""How a child process of the engine begins: its signals, its log, its inherited socket and its inbox."""

import argparse
import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from glimpse.engine.protocol.cpu_policy import use_normal_policy
from glimpse.log_writer import LogWriter, end_at_once

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


def inherited_socket(program: str, *, log_name: str) -> socket.socket:
    """Prepares this process and returns the socket that `--fd` names.

    With `--end-with-stdin`, this process ends at the end of its standard input, which its parent holds open.

    Args:
        log_name: what the process is called in its log.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    use_normal_policy()  # before there are threads; the parent process may use another policy
    _configure_logging(log_name)
    parser = argparse.ArgumentParser(prog=f"python -m {program}")
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket to the parent process")
    parser.add_argument("--end-with-stdin", action="store_true", help="end with the parent process")
    arguments = parser.parse_args()
    if arguments.end_with_stdin:
        threading.Thread(target=_end_with_stdin, name="parent", daemon=True).start()
    connection = socket.socket(fileno=arguments.fd)
    connection.set_inheritable(False)  # else processes started by libraries would keep it open after this one has ended
    return connection


def _end_with_stdin() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(0)


def _configure_logging(log_name: str) -> None:
    """Logs to standard error in the format of the front end, which has the same one."""
    handler = LogWriter()
    handler.setFormatter(_LineFormatter(log_name) if sys.stderr.isatty() else _JsonFormatter(log_name))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _JsonFormatter(logging.Formatter):
    """A JSON object for each record."""

    def __init__(self, log_name: str) -> None:
        super().__init__()
        self._log_name = log_name

    def format(self, record: logging.LogRecord) -> str:
        line = {"event": record.getMessage(), "process": self._log_name, "logger": record.name}
        line |= {"level": record.levelname.lower(), "timestamp": _timestamp(record)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _LineFormatter(logging.Formatter):
    """A line for people."""

    def __init__(self, log_name: str) -> None:
        super().__init__(f"%(asctime)s [%(level)-9s] %(message)s [{log_name}]")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """Returns the line, with the level as the front end writes it."""
        record.level = record.levelname.lower()
        return super().formatMessage(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - the library's name
        """Returns the time as the front end writes it."""
        del datefmt
        return _timestamp(record)


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")


def start_inbox(receive: Callable[[], _T | None]) -> queue.SimpleQueue[_T]:
    """Returns a queue of received messages, filled by a thread that ends this process when the other end is gone.

    The thread notices that even while the main thread is in a step or an all-reduce.
    """
    inbox = queue.SimpleQueue[_T]()
    threading.Thread(target=_fill, args=(receive, inbox), name="receive", daemon=True).start()
    return inbox


def _fill(receive: Callable[[], _T | None], inbox: queue.SimpleQueue[_T]) -> None:
    try:
        while (message := receive()) is not None:
            inbox.put(message)
    except Exception:
        _log.exception("the process ends: reading its socket failed")
        end_at_once(1)
    _log.info("the process ends: the other end of its socket is gone")
    end_at_once(0)  # at once: the main thread may wait for others, and there is nothing to clean up
