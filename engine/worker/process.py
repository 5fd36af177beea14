"""The engine process: `python -m glimpse.engine.worker.process --fd N` serves a front end over the inherited socket N.

This module handles the order of messages and how the process starts and ends. The core computes steps, the transport
encodes messages, and the front end decides about restarts.

The process belongs to the front end and ends with it. SIGINT and SIGTERM often reach both at once (Ctrl-C goes to the
whole foreground group, a service manager signals every process of a unit), so they are ignored here: the front end
drains, then sends `Stop`. If it dies, the socket's end of file ends this process, even in the middle of a step.
"""

import gc
import importlib
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, assert_never

from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.protocol.cpu_policy import use_batch_policy, use_normal_policy
from glimpse.engine.protocol.messages import (
    Cancel,
    Embed,
    Failed,
    Generate,
    LoadAdapter,
    Loading,
    Prepare,
    Ready,
    Start,
    Stop,
    ToEngine,
    UnloadAdapter,
)
from glimpse.engine.protocol.transport import Channel
from glimpse.engine.worker.child_process import inherited_socket, start_inbox
from glimpse.frames import TransportError
from glimpse.log_writer import end_at_once
from glimpse.native.memory import FreedMemory, freeze_garbage

if TYPE_CHECKING:
    from glimpse.engine.core.core import Core

OnProgress = Callable[[str, float], None]
"""Called with the current stage and the share of the work that is done."""
Load = Callable[[EngineConfig, OnProgress], tuple["Core", Ready]]
"""Builds the core for a configuration. Raises CheckpointError."""
OnPrepare = Callable[[], None]
"""Imports what `Load` needs."""

_Inbox = queue.SimpleQueue[ToEngine]

RETURN_SECONDS = 30.0
"""Between two returns of freed memory, which cost a step 10 ms."""

_log = logging.getLogger(__name__)


def main() -> int:
    """Serves the front end at the other end of `--fd`. Returns the exit status."""
    gc.disable()  # until torch is imported: its import makes no garbage, and looking for it is a seventh of the time
    connection = inherited_socket("glimpse.engine.worker.process", log_name="engine")
    return serve(Channel(connection), load=_load, prepare=_import_engine)


def serve(channel: Channel, *, load: Load, prepare: OnPrepare = lambda: None) -> int:
    """Loads the checkpoint and serves until the front end sends `Stop`. Returns the exit status.

    Ends the whole process if the front end is gone.
    """
    inbox = start_inbox(partial(_receive, channel))
    try:
        return _serve(channel, inbox, load, prepare)
    except ConnectionError:
        return 1  # the front end is gone; the inbox's thread is about to notice it too
    except Exception:
        _log.exception("the engine ends after an unexpected error")
        return 1


def _receive(channel: Channel) -> ToEngine | None:
    """Receives a message. A spare engine yields to the engine until `Start` comes, even while it imports."""
    message = channel.receive()
    match message:
        case Prepare():
            use_batch_policy()
        case Start():
            use_normal_policy()
        case _:
            pass
    return message


def _serve(channel: Channel, inbox: _Inbox, load: Load, prepare: OnPrepare) -> int:
    while isinstance(start := inbox.get(), Prepare):
        prepare()
    if not isinstance(start, Start):
        raise TransportError(f"first message: expected Start, got {type(start).__name__}")
    try:
        core, ready = load(start.config, lambda stage, fraction: channel.send(Loading(stage=stage, fraction=fraction)))
    except CheckpointError as error:
        channel.send(Failed(message=str(error)))
        return 1
    channel.send(ready)
    threading.Thread(target=_return_memory, args=(FreedMemory(),), name="memory", daemon=True).start()
    _run(channel, inbox, core)
    return 0


def _run(channel: Channel, inbox: _Inbox, core: "Core") -> None:
    """Executes steps until `Stop`. Handles the messages that have arrived before each step, so cancels are prompt."""
    while True:
        for message in _arrived(inbox, wait=not core.has_work and not core.prepare()):
            match message:
                case Generate():
                    for request in message.each():
                        core.submit(request)
                case Embed():
                    core.submit(message)
                case Cancel():
                    core.cancel(message.request_id)
                case LoadAdapter() | UnloadAdapter():
                    core.change_adapters(message)
                case Stop():
                    channel.send(core.shutdown())
                    return
                case Prepare() | Start():
                    raise TransportError(f"expected no {type(message).__name__} message after Start")
                case _:
                    assert_never(message)
        if core.has_work:
            channel.send(core.step())


def _return_memory(freed: FreedMemory) -> None:
    while True:
        time.sleep(RETURN_SECONDS)
        freed.give_back()


def _arrived(inbox: _Inbox, *, wait: bool) -> Iterator[ToEngine]:
    """Yields the messages in the inbox. With `wait`, blocks until there is at least one."""
    try:
        yield inbox.get(block=wait)
        while True:
            yield inbox.get_nowait()
    except queue.Empty:
        return


def _load(config: EngineConfig, on_progress: OnProgress) -> tuple["Core", Ready]:
    on_progress("importing torch", 0.0)
    # Imported here, not at the top: it takes seconds, and the front end shows this stage.
    from glimpse.engine.worker.loading.load_engine import load_core  # noqa: PLC0415

    gc.enable()
    loaded = load_core(config, on_progress=on_progress, on_rank_failure=_end_without_rank)
    freeze_garbage()
    return loaded.core, loaded.ready


def _import_engine() -> None:
    """Imports all of the engine. Creates no CUDA context, so it takes no memory of a GPU."""
    importlib.import_module("glimpse.engine.worker.loading.load_engine")
    _log.debug("a spare is ready to replace this engine")


def _end_without_rank() -> None:
    """Ends at once: the main thread may be waiting for the lost rank. The front end restarts all of them."""
    _log.error("the engine ends because one of its ranks has ended")
    end_at_once(1)


if __name__ == "__main__":
    sys.exit(main())
