"""The ranks' way to compute together: sums of tensors, over NCCL between GPUs and over gloo between processes of a CPU.

Knows torch.distributed, and nothing of models. Everything stays on this machine: the ranks find each other through a
file (torch's TCPStore would listen on all interfaces), and their sockets are bound to the loopback address.
"""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

_distributed: Any = torch.distributed  # whose types leave out most of what is used here

JOIN_SECONDS = 120.0
"""For all ranks to join, once they have loaded."""
SUM_SECONDS = 600.0
"""A rank waits so long for others in a sum before it gives up: one of them may be encoding a long clip."""


class Group:
    """The ranks of one model. Each calls the same methods in the same order with tensors of the same shapes."""

    def __init__(self, process_group: Any, *, rank: int, num_ranks: int, device: torch.device) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self._process_group = process_group
        self._device = device

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of all ranks' tensors, in the place of this rank's, which is contiguous."""
        self._process_group.allreduce([tensor]).wait()
        return tensor

    def min(self, number: int) -> int:
        """The smallest of all ranks' numbers."""
        options = _distributed.AllreduceOptions()
        options.reduceOp = _distributed.ReduceOp.MIN
        numbers = torch.tensor([number], device=self._device)
        self._process_group.allreduce([numbers], options).wait()
        return int(numbers.item())

    def abort(self) -> None:
        """Ends a sum that waits for a rank that is gone. From any thread; the group is of no use after it."""
        if self._device.type == "cuda":  # gloo's sockets tell it by themselves
            self._process_group.abort()


def join_group(meeting_point: Path, *, rank: int, num_ranks: int, device: torch.device) -> Group:
    """Waits until all ranks have come.

    Args:
        meeting_point: a file that all ranks name and that was not there before the first of them.
        rank: which of them this is.
        num_ranks: of all.
        device: of the tensors that are summed.

    Raises:
        RuntimeError: they have not come in time.
    """
    store = _distributed.FileStore(str(meeting_point), num_ranks)
    store.set_timeout(timedelta(seconds=JOIN_SECONDS))
    # Not `init_process_group`: that is one for the whole process, which may be somebody else's program.
    make = _nccl if device.type == "cuda" else _gloo
    group = Group(make(store, rank, num_ranks), rank=rank, num_ranks=num_ranks, device=device)
    group.min(0)  # connects them now rather than in the first step
    return group


def _gloo(store: Any, rank: int, num_ranks: int) -> Any:
    gloo = _distributed.ProcessGroupGloo
    # The public constructor takes the interface from the environment, or from what the host's name resolves to.
    options = gloo._Options()  # noqa: SLF001
    options._devices = [gloo.create_device(hostname="127.0.0.1")]  # noqa: SLF001
    options._timeout = timedelta(seconds=SUM_SECONDS)  # noqa: SLF001
    return gloo(store, rank, num_ranks, options)


def _nccl(store: Any, rank: int, num_ranks: int) -> Any:
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # the GPUs of one machine find each other there
    nccl = _distributed.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timedelta(seconds=SUM_SECONDS)  # noqa: SLF001
    return nccl(store, rank, num_ranks, options)
