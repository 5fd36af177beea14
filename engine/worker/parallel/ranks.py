"""Rank 0's handle on the other tensor-parallel ranks: starts their processes, sends them steps and ends them.

The ranks of other nodes are started there (`engine.parallel.node`) and connect to node 0. Rank 0 and the other ranks
share their lifetime: each side detects the death of the other by the end of their socket. `on_rank_failure` decides
what the program does when a rank dies.
"""

import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence

import torch

from glimpse.engine.core.plan import StepPlan
from glimpse.engine.errors import EngineError, EngineErrorCode
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.worker.parallel.group import Group, join_group
from glimpse.engine.worker.parallel.handshake import Hello
from glimpse.engine.worker.parallel.messages import (
    AdapterStaged,
    Execute,
    Join,
    Joined,
    Load,
    Loaded,
    PutAdapter,
    Refused,
    RemoveAdapter,
    RendezvousAddress,
    StageAdapter,
    ToRank,
)
from glimpse.engine.worker.parallel.node_listener import NodeListener
from glimpse.engine.worker.parallel.rank_connection import FailureHandler, RankConnection

RANK_COMMAND = (sys.executable, "-m", "glimpse.engine.worker.rank")
SHUTDOWN_SECONDS = 5.0
"""Time for a rank to exit by itself before it is killed."""

_STDERR = 2


class Ranks:
    """All ranks except rank 0. They end with this object, at the latest when the program exits."""

    def __init__(self, config: EngineConfig, *, digest: str = "", on_rank_failure: Callable[[], None]) -> None:
        """Starts the ranks of this node, which begin to load at once, and lets those of other nodes join.

        Args:
            config: engine configuration of node 0.
            digest: of the checkpoint, which other nodes must have too.
            on_rank_failure: called once, from any thread, when a rank exits unexpectedly or the ranks are terminated.

        Raises:
            CheckpointError: the other nodes could not reach this one at `--master-addr`.
        """
        self.num_ranks = config.tensor_parallel_size
        self._listener = NodeListener(config, digest) if config.nnodes > 1 else None
        self._failure = FailureHandler(on_rank_failure)
        self._ranks = [RankConnection(rank, self._failure) for rank in range(1, self.num_ranks)]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._finalizer = weakref.finalize(self, _end, self._ranks, self._processes, self._listener, self._failure)
        for rank in self._ranks[: max(config.num_local_ranks - 1, 0)]:
            self._processes.append(_start(rank, config))
        if self._listener is not None:
            remote = {rank.rank: rank for rank in self._ranks[config.num_local_ranks - 1 :]}
            threading.Thread(target=_accept, args=(self._listener, remote), name="nodes", daemon=True).start()

    def join(self, device: torch.device, own: Loaded) -> Group:
        """Waits until all other ranks have loaded, and forms the group with this rank, which has loaded too.

        Raises:
            CheckpointError: a rank cannot serve the checkpoint, or computes differently.
            EngineError: a rank has exited.
        """
        for rank in self._ranks:
            if (difference := _difference(own, rank.expect(Loaded))) is not None:
                rank.send(Refused(message=difference))
                rank.expect(Joined)  # raises what it says last
        address, store = "127.0.0.1", None
        if self._listener is None:
            # In memory, so that a kill leaves nothing on disk. Stays open: the group may use the file until the end.
            rendezvous = f"/proc/{os.getpid()}/fd/{os.memfd_create('rendezvous')}"
        else:
            address = self._listener.address
            store = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
            rendezvous = RendezvousAddress(host=address, port=store.getsockname()[1])
        for rank in self._ranks:
            rank.send(Join(rendezvous=rendezvous, address=rank.remote_address or address))
        group = join_group(
            rendezvous, rank=0, num_ranks=self.num_ranks, device=device, address=address, store_socket=store
        )
        self._failure.group = group
        return group

    def wait_until_joined(self) -> None:
        """Waits until all other ranks can execute steps. Raises like `join`."""
        for rank in self._ranks:
            rank.expect(Joined)

    def execute(self, plans: Sequence[StepPlan]) -> None:
        """Sends each rank its plan, in the order of ranks.

        Raises:
            EngineError: a rank has exited.
        """
        self._send([Execute(plan=plan) for plan in plans])

    def stage_adapter(self, name: str, path: str) -> None:
        """Makes each rank read an adapter. Raises like `execute`."""
        self._send([StageAdapter(name=name, path=path)] * len(self._ranks))

    def staged_adapters(self) -> list[AdapterStaged]:
        """Waits until each rank has read the adapter. Raises EngineError if one has exited."""
        return [rank.expect(AdapterStaged) for rank in self._ranks]

    def put_adapter(self, digest: bytes) -> None:
        """Makes each rank use its staged adapter from the next step on. Raises like `execute`."""
        self._send([PutAdapter(digest=digest)] * len(self._ranks))

    def remove_adapter(self, digest: bytes) -> None:
        """Makes each rank free an adapter. Raises like `execute`."""
        self._send([RemoveAdapter(digest=digest)] * len(self._ranks))

    def _send(self, messages: Sequence[ToRank]) -> None:
        """Sends each rank its message, in the order of ranks."""
        if self._failure.has_occurred:
            raise EngineError(EngineErrorCode.UNAVAILABLE, "a tensor-parallel rank of the engine has exited")
        for rank, message in zip(self._ranks, messages, strict=True):
            rank.send(message)

    def terminate(self) -> None:
        """Ends the ranks after a failed step: they are out of sync and cannot be used any more."""
        self._failure.on_rank_failure()
        self.end()

    def end(self) -> None:
        """Ends the ranks and waits for the processes of this node. May be called again."""
        self._finalizer()


def _start(rank: RankConnection, config: EngineConfig) -> subprocess.Popen[bytes]:
    """Starts the process of a rank on this node."""
    ours, theirs = socket.socketpair()
    with theirs:
        fd = theirs.fileno()
        # Output of libraries goes to the log. A terminal's input is not for this process.
        process = subprocess.Popen(
            [*RANK_COMMAND, "--fd", str(fd)], pass_fds=[fd], stdin=subprocess.DEVNULL, stdout=_STDERR
        )
    rank.connect(ours, Load(config=config, rank=rank.rank))
    return process


def _accept(listener: NodeListener, ranks: Mapping[int, RankConnection]) -> None:
    def on_rank(hello: Hello, config: EngineConfig, connection: socket.socket) -> None:
        rank = ranks[hello.rank]
        rank.name, rank.remote_address = f"rank {hello.rank} on {hello.node}", hello.address
        rank.connect(connection, Load(config=config, rank=hello.rank))

    listener.accept_all(on_rank)


def _difference(own: Loaded, other: Loaded) -> str | None:
    """Returns how a rank that has loaded computes differently from rank 0; None if it does not."""
    for flag in ("device", "dtype", "quantization"):
        expected, found = getattr(own, flag), getattr(other, flag)
        if expected != found:
            return f"'--{flag}': expected {expected}, which rank 0 computes with, got {found}; set it on all nodes"
    return None


def _end(
    ranks: Sequence[RankConnection],
    processes: Sequence[subprocess.Popen[bytes]],
    listener: NodeListener | None,
    failure: FailureHandler,
) -> None:
    failure.disarm()
    if listener is not None:
        listener.close()
    for rank in ranks:
        rank.shutdown()
    for process in processes:
        try:
            process.wait(SHUTDOWN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    failure.leave_group()
