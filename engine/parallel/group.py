"""Collective operations of the tensor-parallel ranks: NCCL between GPUs, gloo between processes on a CPU.

All traffic stays on this host: ranks rendezvous through a file (torch's TCPStore would listen on all interfaces), and
their sockets are bound to the loopback address.
"""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

_distributed: Any = torch.distributed  # its type stubs lack most of what is used here

JOIN_SECONDS = 120.0
"""Time limit for all ranks to join, once they have loaded."""
SUM_SECONDS = 600.0
"""Time limit for one all-reduce. It is long because another rank may be encoding a long video."""


class Group:
    """The ranks of one model. All ranks must call the same methods in the same order with tensors of equal shapes."""

    def __init__(self, process_group: Any, *, rank: int, num_ranks: int, device: torch.device) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self._process_group = process_group
        self._device = device

    def sum(self, tensor: Tensor) -> Tensor:
        """Replaces this rank's tensor, which must be contiguous, by the sum of all ranks' tensors and returns it."""
        self._process_group.allreduce([tensor]).wait()
        return tensor

    def min(self, number: int) -> int:
        """Returns the smallest of all ranks' numbers."""
        options = _distributed.AllreduceOptions()
        options.reduceOp = _distributed.ReduceOp.MIN
        numbers = torch.tensor([number], device=self._device)
        self._process_group.allreduce([numbers], options).wait()
        return int(numbers.item())

    def abort(self) -> None:
        """Aborts a sum that waits for a dead rank. May be called from any thread; makes the group unusable."""
        if self._device.type == "cuda":  # gloo detects closed sockets by itself
            self._process_group.abort()


def join_group(rendezvous_file: Path, *, rank: int, num_ranks: int, device: torch.device) -> Group:
    """Joins the group and waits until all ranks have joined.

    Args:
        rendezvous_file: a path that all ranks pass and that did not exist before.
        rank: this process's rank.
        num_ranks: number of ranks.
        device: device of the tensors that are summed.

    Raises:
        RuntimeError: not all ranks joined within the time limit.
    """
    store = _distributed.FileStore(str(rendezvous_file), num_ranks)
    store.set_timeout(timedelta(seconds=JOIN_SECONDS))
    # Not `init_process_group`: its group is global to the process, which may belong to a user's program.
    make = _nccl if device.type == "cuda" else _gloo
    group = Group(make(store, rank, num_ranks), rank=rank, num_ranks=num_ranks, device=device)
    group.min(0)  # connects the ranks now rather than in the first step
    return group


def _gloo(store: Any, rank: int, num_ranks: int) -> Any:
    gloo = _distributed.ProcessGroupGloo
    # The public constructor takes the interface from the environment or from the address of the host name.
    options = gloo._Options()  # noqa: SLF001
    options._devices = [gloo.create_device(hostname="127.0.0.1")]  # noqa: SLF001
    options._timeout = timedelta(seconds=SUM_SECONDS)  # noqa: SLF001
    return gloo(store, rank, num_ranks, options)


def _nccl(store: Any, rank: int, num_ranks: int) -> Any:
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # all GPUs are in one host
    nccl = _distributed.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timedelta(seconds=SUM_SECONDS)  # noqa: SLF001
    return nccl(store, rank, num_ranks, options)
