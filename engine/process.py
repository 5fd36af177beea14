"""The engine as a program: `python -m glimpse.engine.process --fd N` serves one front end over the inherited socket N.

It knows the order of messages and how the process begins and ends. What a step computes is the core's, what a message
looks like in bytes the transport's, and when to restart is for the front end to decide.

The process belongs to the front end and ends with it. SIGINT and SIGTERM often reach both at once (Ctrl-C goes to the
whole foreground group, a service manager signals every process of a unit), so they are ignored here: the front end
drains, then says `Stop`. When it dies without a word, the socket's end of file ends this process, in mid-step too.
"""

import argparse
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, assert_never

from glimpse.engine.config import EngineConfig
from glimpse.engine.cpu_policy import use_normal_policy
from glimpse.engine.errors import CheckpointError
from glimpse.engine.ipc.transport import Channel, TransportError
from glimpse.engine.protocol import Cancel, Failed, Generate, Loading, Ready, Start, Stop, ToEngine

if TYPE_CHECKING:
    from glimpse.engine.scheduling.core import Core

OnProgress = Callable[[str, float], None]
"""Told what is being loaded, and which share of the whole is done."""
Load = Callable[[EngineConfig, OnProgress], tuple["Core", Ready]]
"""Makes the core that a configuration asks for. Raises CheckpointError."""

_Inbox = queue.SimpleQueue[ToEngine]

_log = logging.getLogger(__name__)


def main() -> int:
    """Serves the front end at the other end of `--fd`; returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    use_normal_policy()  # whatever the front end does; before there are threads
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s engine: %(message)s")
    parser = argparse.ArgumentParser(prog="python -m glimpse.engine.process", description="Serves one front end.")
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket to the front end")
    connection = socket.socket(fileno=parser.parse_args().fd)
    connection.set_inheritable(False)  # else a helper that a library starts would hold the socket open after our death
    return serve(Channel(connection), load=_load)


def serve(channel: Channel, *, load: Load) -> int:
    """Loads what the front end asks for and serves until it says `Stop`; returns the exit status.

    Ends the whole process when the front end is gone.
    """
    inbox: _Inbox = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(channel, inbox), name="receive", daemon=True).start()
    try:
        return _serve(channel, inbox, load)
    except ConnectionError:
        return 1  # the front end is gone; `_receive` was about to say the same
    except Exception:
        _log.exception("the engine ends after an error that it did not expect")
        return 1


def _serve(channel: Channel, inbox: _Inbox, load: Load) -> int:
    start = inbox.get()
    if not isinstance(start, Start):
        raise TransportError(f"the first message is {type(start).__name__}, not Start")
    try:
        core, ready = load(start.config, lambda stage, fraction: channel.send(Loading(stage=stage, fraction=fraction)))
    except CheckpointError as error:
        channel.send(Failed(message=str(error)))
        return 1
    channel.send(ready)
    _run(channel, inbox, core)
    return 0


def _run(channel: Channel, inbox: _Inbox, core: "Core") -> None:
    """Step after step, until `Stop`. All that has arrived is heeded before each: a cancel spares the next step."""
    while True:
        for message in _arrived(inbox, wait=not core.has_work and not core.prepare()):
            match message:
                case Generate():
                    for request in message.each():
                        core.submit(request)
                case Cancel():
                    core.cancel(message.request_id)
                case Stop():
                    channel.send(core.shutdown())
                    return
                case Start():
                    raise TransportError("a second Start")
                case _:
                    assert_never(message)
        if core.has_work:
            channel.send(core.step())


def _arrived(inbox: _Inbox, *, wait: bool) -> Iterator[ToEngine]:
    """What the inbox holds; with `wait` at least one message, for which it waits without using the processor."""
    try:
        yield inbox.get(block=wait)
        while True:
            yield inbox.get_nowait()
    except queue.Empty:
        return


def _receive(channel: Channel, inbox: _Inbox) -> None:
    """Fills the inbox. Runs beside the steps, so that it notices the front end's death during a long one."""
    try:
        while (message := channel.receive()) is not None:
            inbox.put(message)
    except Exception:
        _log.exception("the engine ends: it cannot read its socket")
        os._exit(1)
    _log.info("the front end is gone")
    os._exit(0)  # at once: the main thread may be deep in a step, and nobody is left to clean up for


def _load(config: EngineConfig, on_progress: OnProgress) -> tuple["Core", Ready]:
    on_progress("importing torch", 0.0)
    # Imported here, not at the top: it takes seconds, and the front end shows what it waits for.
    from glimpse.engine.loading.load_engine import load_core  # noqa: PLC0415

    loaded = load_core(config, on_progress=on_progress, on_rank_failure=_end_without_rank)
    return loaded.core, loaded.ready


def _end_without_rank() -> None:
    """At once: the main thread may wait for the rank that is gone. The front end starts all of them again."""
    _log.error("the engine ends with one of its ranks")
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
