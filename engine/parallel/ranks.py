"""Rank 0's handle on the other tensor-parallel ranks: starts their processes, sends them steps and ends them.

Rank 0 and the other ranks share their lifetime: each side detects the death of the other by the end of their socket.
`on_rank_failure` decides what the program does when a rank dies.
"""

import contextlib
import logging
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import assert_never

import torch

from glimpse.engine.config import EngineConfig
from glimpse.engine.errors import CheckpointError, EngineError, EngineErrorCode
from glimpse.engine.parallel.group import Group, join_group
from glimpse.engine.parallel.messages import (
    Execute,
    FromRank,
    Joined,
    Load,
    Loaded,
    LoadFailed,
    Pipe,
    ToRank,
    pipe_to_rank,
)
from glimpse.engine.plan import StepPlan

RANK_COMMAND = (sys.executable, "-m", "glimpse.engine.rank")
SHUTDOWN_SECONDS = 5.0
"""Time for a rank to exit by itself before it is killed."""

_STDERR = 2

_log = logging.getLogger(__name__)


class Ranks:
    """All ranks except rank 0. They end with this object, at the latest when the program exits."""

    def __init__(self, config: EngineConfig, *, on_rank_failure: Callable[[], None]) -> None:
        """Starts the ranks, which begin to load at once.

        Args:
            config: engine configuration.
            on_rank_failure: called once, from any thread, when a rank exits unexpectedly or the ranks are terminated.
        """
        self.num_ranks = config.tensor_parallel_size
        folder = Path(tempfile.mkdtemp(prefix="glimpse-ranks-"))
        self._rendezvous_file = folder / "rendezvous"
        self._failure = _FailureHandler(on_rank_failure, folder)
        self._processes: list[_RankProcess] = []
        self._finalizer = weakref.finalize(self, _end, self._processes, self._failure)
        for rank in range(1, self.num_ranks):
            process = _RankProcess(rank, self._failure)
            self._processes.append(process)
            with contextlib.suppress(OSError):  # it has exited already, which `join` reports
                process.pipe.send(Load(config=config, rank=rank, rendezvous_file=str(self._rendezvous_file)))

    def join(self, device: torch.device) -> Group:
        """Waits until all other ranks have loaded, and forms the group with this rank, which has loaded too.

        Raises:
            CheckpointError: a rank cannot serve the checkpoint.
            EngineError: a rank has exited.
        """
        for process in self._processes:
            process.expect(Loaded)
        group = join_group(self._rendezvous_file, rank=0, num_ranks=self.num_ranks, device=device)
        self._failure.group = group
        return group

    def wait_until_joined(self) -> None:
        """Waits until all other ranks can execute steps. Raises like `join`."""
        for process in self._processes:
            process.expect(Joined)

    def execute(self, plans: Sequence[StepPlan]) -> None:
        """Sends each rank its plan, in the order of ranks.

        Raises:
            EngineError: a rank has exited.
        """
        if self._failure.has_occurred:
            raise EngineError(EngineErrorCode.UNAVAILABLE, "a tensor-parallel rank of the engine has exited")
        for process, plan in zip(self._processes, plans, strict=True):
            process.pipe.send(Execute(plan=plan))

    def terminate(self) -> None:
        """Ends the ranks after a failed step: they are out of sync and cannot be used any more."""
        self._failure.on_rank_failure()
        self.end()

    def end(self) -> None:
        """Ends the ranks and waits for their processes. May be called again."""
        self._finalizer()


class _FailureHandler:
    """Handles the first failure of a rank, once."""

    def __init__(self, callback: Callable[[], None], rendezvous_folder: Path) -> None:
        self.group: Group | None = None
        """Set once the group is formed, so that a failure aborts a sum that this rank waits in."""
        self._callback: Callable[[], None] | None = callback
        self._rendezvous_folder = rendezvous_folder
        self._lock = threading.RLock()

    @property
    def has_occurred(self) -> bool:
        return self._callback is None

    def on_rank_failure(self) -> None:
        """Handles the failure. Returns when that is complete, even if another thread does it."""
        with self._lock:
            callback, self._callback = self._callback, None
            if callback is not None:
                self._remove_folder()
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
        self._remove_folder()

    def _remove_folder(self) -> None:
        shutil.rmtree(self._rendezvous_folder, ignore_errors=True)


class _RankProcess:
    """The process of one rank."""

    def __init__(self, rank: int, failure: _FailureHandler) -> None:
        self.rank = rank
        ours, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            # Output of libraries goes to the log. A terminal's input is not for this process.
            self.process = subprocess.Popen(
                [*RANK_COMMAND, "--fd", str(fd)], pass_fds=[fd], stdin=subprocess.DEVNULL, stdout=_STDERR
            )
        self.pipe = pipe_to_rank(ours)
        self._messages: queue.SimpleQueue[FromRank | None] = queue.SimpleQueue()
        threading.Thread(
            target=_listen, args=(rank, self.pipe, self._messages, failure), name=f"rank {rank}", daemon=True
        ).start()

    def expect(self, kind: type[Loaded] | type[Joined]) -> None:
        """Waits for the rank's next message, which must be of this kind."""
        message = self._messages.get()
        match message:
            case Loaded() | Joined():
                assert isinstance(message, kind)
            case LoadFailed(message=reason):
                raise CheckpointError(reason)
            case None:
                raise EngineError(EngineErrorCode.UNAVAILABLE, f"rank {self.rank} of the engine exited while loading")
            case _:
                assert_never(message)


def _listen(
    rank: int, pipe: Pipe[ToRank, FromRank], messages: queue.SimpleQueue[FromRank | None], failure: _FailureHandler
) -> None:
    message = None
    while (received := pipe.receive()) is not None:
        message = received
        messages.put(message)
    pipe.close()
    if isinstance(message, LoadFailed):
        return  # an expected exit: `expect` reports the reason
    if not failure.has_occurred:
        _log.error("rank %d has exited", rank)
    messages.put(None)
    failure.on_rank_failure()


def _end(processes: list[_RankProcess], failure: _FailureHandler) -> None:
    failure.disarm()
    for process in processes:
        process.pipe.shutdown()
    for process in processes:
        try:
            process.process.wait(SHUTDOWN_SECONDS)
        except subprocess.TimeoutExpired:
            process.process.kill()
            process.process.wait()
    failure.leave_group()
