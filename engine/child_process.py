"""How a child process of the engine begins: its signals, its log, its inherited socket and its inbox."""

import argparse
import logging
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

from glimpse.engine.cpu_policy import use_normal_policy

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


def inherited_socket(program: str, *, log_name: str) -> socket.socket:
    """Prepares this process and returns the socket that `--fd` names.

    Args:
        program: name of the module that runs.
        log_name: what the process is called in its log.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    use_normal_policy()  # before there are threads; the parent process may use another policy
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s {log_name}: %(message)s")
    parser = argparse.ArgumentParser(prog=f"python -m {program}")
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket to the parent process")
    connection = socket.socket(fileno=parser.parse_args().fd)
    connection.set_inheritable(False)  # else processes started by libraries would keep it open after this one has ended
    return connection


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
        os._exit(1)
    _log.info("the process ends: the other end of its socket is gone")
    os._exit(0)  # at once: the main thread may wait for others, and there is nothing to clean up
