"""The other ranks as rank 0 has them: processes that it starts, speaks with and ends. Knows no model and no step.

A rank lives as long as rank 0 does and the other way round: each notices the other's death by the end of their socket.
Which of the two is to follow at once, and how, is for the program to say (`on_lost`).
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
    Pipe,
    Refused,
    ToRank,
    pipe_to_rank,
)
from glimpse.engine.plan import StepPlan

RANK_COMMAND = (sys.executable, "-m", "glimpse.engine.rank")
END_SECONDS = 5.0
"""Given to a rank's own end before it is killed."""

_STDERR = 2

_log = logging.getLogger(__name__)


class Ranks:
    """All ranks but the first. They end with this object, at the latest when the program ends."""

    def __init__(self, config: EngineConfig, *, on_lost: Callable[[], None]) -> None:
        """Starts them; they begin to load at once.

        Args:
            config: what to serve and how.
            on_lost: called once when a rank has ended by itself or is of no use any more, from any thread.
        """
        self.num_ranks = config.tensor_parallel_size
        folder = Path(tempfile.mkdtemp(prefix="glimpse-ranks-"))
        self._meeting_point = folder / "meeting-point"
        self._loss = _Loss(on_lost, folder)
        self._children: list[_Child] = []
        self._finalizer = weakref.finalize(self, _end, self._children, self._loss)
        for rank in range(1, self.num_ranks):
            self._children.append(_Child(rank, self._loss))
            with contextlib.suppress(OSError):  # it has ended already, as `join` will tell
                self._children[-1].pipe.send(Load(config=config, rank=rank, meeting_point=str(self._meeting_point)))

    def join(self, device: torch.device) -> Group:
        """Waits until all others have loaded and makes one group of them and this rank, which has loaded too.

        Raises:
            CheckpointError: a rank cannot serve the checkpoint.
            EngineError: a rank has ended.
        """
        for child in self._children:
            child.expect(Loaded)
        group = join_group(self._meeting_point, rank=0, num_ranks=self.num_ranks, device=device)
        self._loss.group = group
        return group

    def wait_until_joined(self) -> None:
        """Waits until all others can take steps. Raises like `join`."""
        for child in self._children:
            child.expect(Joined)

    def execute(self, plans: Sequence[StepPlan]) -> None:
        """Hands each rank its plan, in their order.

        Raises:
            EngineError: a rank has ended.
        """
        if self._loss.has_happened:
            raise EngineError(EngineErrorCode.UNAVAILABLE, "a rank of the engine has ended")
        for child, plan in zip(self._children, plans, strict=True):
            child.pipe.send(Execute(plan=plan))

    def terminate(self) -> None:
        """The ranks are out of step, and of no use any more."""
        self._loss.happens()
        self.end()

    def end(self) -> None:
        """Ends them and waits for it. May be called again."""
        self._finalizer()


class _Loss:
    """What happens once, when a rank is lost."""

    def __init__(self, on_lost: Callable[[], None], folder: Path) -> None:
        """`folder` is where the ranks met."""
        self.group: Group | None = None
        """Once there is one, a sum that this rank waits in ends with it."""
        self._on_lost: Callable[[], None] | None = on_lost
        self._folder = folder
        self._lock = threading.RLock()

    @property
    def has_happened(self) -> bool:
        return self._on_lost is None

    def happens(self) -> None:
        """Returns when everything has been done that is due then, also if another thread does it."""
        with self._lock:
            on_lost, self._on_lost = self._on_lost, None
            if on_lost is not None:
                self._remove_folder()
                on_lost()
                self.leave_group()

    def is_not_to_happen(self) -> None:
        """The ranks are about to be ended."""
        with self._lock:
            self._on_lost = None

    def leave_group(self) -> None:
        """Whoever is in a sum is no more; and the program's end need not wait for the others."""
        group, self.group = self.group, None
        if group is not None:
            group.abort()
        self._remove_folder()

    def _remove_folder(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class _Child:
    """A rank's process."""

    def __init__(self, rank: int, loss: _Loss) -> None:
        self.rank = rank
        ours, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            # What libraries print belongs to the log, and a terminal's input to somebody else.
            self.process = subprocess.Popen(
                [*RANK_COMMAND, "--fd", str(fd)], pass_fds=[fd], stdin=subprocess.DEVNULL, stdout=_STDERR
            )
        self.pipe = pipe_to_rank(ours)
        self._said: queue.SimpleQueue[FromRank | None] = queue.SimpleQueue()
        threading.Thread(
            target=_listen, args=(rank, self.pipe, self._said, loss), name=f"rank {rank}", daemon=True
        ).start()

    def expect(self, kind: type[Loaded] | type[Joined]) -> None:
        """Waits for what the rank says next."""
        said = self._said.get()
        match said:
            case Loaded() | Joined():
                assert isinstance(said, kind)
            case Refused(message=message):
                raise CheckpointError(message)
            case None:
                raise EngineError(EngineErrorCode.UNAVAILABLE, f"rank {self.rank} of the engine ended while it loaded")
            case _:
                assert_never(said)


def _listen(rank: int, pipe: Pipe[ToRank, FromRank], said: queue.SimpleQueue[FromRank | None], loss: _Loss) -> None:
    message = None
    while (received := pipe.receive()) is not None:
        message = received
        said.put(message)
    pipe.close()
    if isinstance(message, Refused):
        return  # its end is no loss: whoever waits for it hears why
    if not loss.has_happened:
        _log.error("rank %d has ended", rank)
    said.put(None)
    loss.happens()


def _end(children: list[_Child], loss: _Loss) -> None:
    loss.is_not_to_happen()
    for child in children:
        child.pipe.shutdown()
    for child in children:
        try:
            child.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
    loss.leave_group()
