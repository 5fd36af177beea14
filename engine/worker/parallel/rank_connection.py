"""Rank 0's connection to another rank, on this machine or another one."""

import contextlib
import logging
import queue
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

from glimpse.engine.errors import CheckpointError, EngineError, EngineErrorCode
from glimpse.engine.worker.parallel.group import Group
from glimpse.engine.worker.parallel.messages import (
    AdapterStaged,
    FromRank,
    Joined,
    Loaded,
    LoadFailed,
    ToRank,
    channel_to_rank,
)
from glimpse.frames import BlockingChannel

ReplyT = TypeVar("ReplyT", Loaded, Joined, AdapterStaged)

_log = logging.getLogger(__name__)


class FailureHandler:
    """Handles the first failure of a rank, once."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.group: Group | None = None
        """Set once the group is formed, so that a failure aborts a sum that this rank waits in."""
        self._callback: Callable[[], None] | None = callback
        self._lock = threading.RLock()

    @property
    def has_occurred(self) -> bool:
        return self._callback is None

    def on_rank_failure(self) -> None:
        """Handles the failure. Returns when that is complete, even if another thread does it."""
        with self._lock:
            callback, self._callback = self._callback, None
            if callback is not None:
                callback()
                self.leave_group()

    def disarm(self) -> None:
        """Makes later exits of ranks expected, because they are about to be ended."""
        with self._lock:
            self._callback = None

    def leave_group(self) -> None:
        """Aborts a sum in progress, and keeps the end of the program from waiting for the other ranks."""
        group, self.group = self.group, None
        if group is not None:
            group.abort()


class RankConnection:
    """Messages to and from a rank. One on another node is not connected at first."""

    def __init__(self, rank: int, failure: FailureHandler) -> None:
        self.rank = rank
        self.name = f"rank {rank}"
        """What the rank is called in messages."""
        self.remote_address: str | None = None
        """Address of its node, if that is another one and the rank has connected."""
        self._failure = failure
        self._channel: BlockingChannel[ToRank, FromRank] | None = None
        self._messages: queue.SimpleQueue[FromRank | None] = queue.SimpleQueue()

    def connect(self, connection: socket.socket, first: ToRank) -> None:
        """Begins to exchange messages, with `first` to the rank."""
        self._channel = channel_to_rank(connection)
        threading.Thread(
            target=_listen, args=(self.name, self._channel, self._messages, self._failure), name=self.name, daemon=True
        ).start()
        with contextlib.suppress(OSError):  # it has exited already, which `expect` reports
            self._channel.send(first)

    def send(self, message: ToRank) -> None:
        """Sends a message to the rank, which is connected.

        Raises:
            OSError: the rank has exited.
        """
        assert self._channel is not None
        self._channel.send(message)

    def expect(self, kind: type[ReplyT]) -> ReplyT:
        """Waits for the rank's next message, which is of this kind.

        Raises:
            CheckpointError: the rank cannot serve the checkpoint.
            EngineError: the rank has exited.
        """
        message = self._messages.get()
        match message:
            case LoadFailed(message=reason):
                raise CheckpointError(reason if self.remote_address is None else f"{self.name}: {reason}")
            case None:
                raise EngineError(EngineErrorCode.UNAVAILABLE, f"{self.name} of the engine exited while loading")
            case _:
                assert isinstance(message, kind)
                return message

    def shutdown(self) -> None:
        """Ends the connection, and thereby the rank."""
        if self._channel is not None:
            self._channel.shutdown()


def _listen(
    name: str,
    channel: BlockingChannel[ToRank, FromRank],
    messages: queue.SimpleQueue[FromRank | None],
    failure: FailureHandler,
) -> None:
    message = None
    while (received := channel.receive()) is not None:
        message = received
        messages.put(message)
    channel.close()
    if isinstance(message, LoadFailed):
        return  # an expected exit: `expect` reports the reason
    if not failure.has_occurred:
        _log.error("%s has exited, or cannot be reached any more", name)
    messages.put(None)
    failure.on_rank_failure()
