"""Collective operations of the tensor-parallel ranks: NCCL between GPUs, gloo between processes on a CPU.

The traffic of one machine stays there: ranks rendezvous through a file in memory, and their sockets are bound to the
loopback address. With several nodes, ranks rendezvous at a store of rank 0, and each binds its sockets to its own
node's address. Nobody authenticates there, so the network between the nodes must be trusted.
"""

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from glimpse.engine.worker.layers.ops import MLP, Norm, Ops, OpsLayer
from glimpse.engine.worker.parallel.handshake import keep_alive
from glimpse.engine.worker.parallel.messages import RendezvousAddress

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

    def share(self, numbers: Tensor) -> Tensor:
        """Returns rank 0's numbers, on the host. Other ranks give as many, which do not count."""
        own = numbers if self.rank == 0 else torch.zeros_like(numbers)
        return self.sum(own.to(self._device)).cpu()

    def abort(self) -> None:
        """Aborts a sum that waits for a dead rank. May be called from any thread; makes the group unusable."""
        if self._device.type == "cuda":  # gloo detects closed sockets by itself
            self._process_group.abort()


def join_group(
    rendezvous: str | RendezvousAddress,
    *,
    rank: int,
    num_ranks: int,
    device: torch.device,
    address: str = "127.0.0.1",
    store_socket: socket.socket | None = None,
) -> Group:
    """Joins the group and waits until all ranks have joined.

    Args:
        rendezvous: where all ranks meet: the path of a file that is new, or the address of rank 0's store.
        device: device of the tensors that are summed.
        address: the address to which this rank binds its sockets.
        store_socket: rank 0's socket that listens at the store's address; the store becomes its owner.

    Raises:
        RuntimeError: not all ranks joined within the time limit.
    """
    store = _make_store(rendezvous, num_ranks, store_socket)
    # Not `init_process_group`: its group is global to the process, which may belong to a user's program.
    make = _nccl if device.type == "cuda" else _gloo
    group = Group(make(store, rank, num_ranks, address), rank=rank, num_ranks=num_ranks, device=device)
    group.min(0)  # connects the ranks now rather than in the first step
    if isinstance(rendezvous, RendezvousAddress):
        _keep_alive(address)
    return group


def _keep_alive(address: str) -> None:
    """Ends sums that wait for a host that has vanished: gloo's sockets would wait for as long as a sum may take."""
    for entry in Path("/proc/self/fd").iterdir():  # the group does not tell which are its own
        with contextlib.suppress(OSError):  # it is no socket
            connection = socket.socket(fileno=int(entry.name))
            if connection.type == socket.SOCK_STREAM and connection.getsockname()[:1] == (address,):
                keep_alive(connection)
            connection.detach()


def _make_store(rendezvous: str | RendezvousAddress, num_ranks: int, store_socket: socket.socket | None) -> Any:
    timeout = timedelta(seconds=JOIN_SECONDS)
    if isinstance(rendezvous, str):
        store = _distributed.FileStore(rendezvous, num_ranks)
        store.set_timeout(timeout)
        return store
    return _distributed.TCPStore(
        rendezvous.host,
        rendezvous.port,
        num_ranks,
        is_master=store_socket is not None,
        timeout=timeout,
        wait_for_workers=False,
        # A socket that the store opened itself would listen on all interfaces.
        master_listen_fd=None if store_socket is None else store_socket.detach(),
    )


def _gloo(store: Any, rank: int, num_ranks: int, address: str) -> Any:
    gloo = _distributed.ProcessGroupGloo
    # The public constructor takes the interface from the environment or from the address of the host name.
    options = gloo._Options()  # noqa: SLF001
    options._devices = [gloo.create_device(hostname=address)]  # noqa: SLF001
    options._timeout = timedelta(seconds=SUM_SECONDS)  # noqa: SLF001
    return gloo(store, rank, num_ranks, options)


def _nccl(store: Any, rank: int, num_ranks: int, address: str) -> Any:
    if (interface := interface_of(address)) is not None:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # "=": this one, not all that begin so
    nccl = _distributed.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timedelta(seconds=SUM_SECONDS)  # noqa: SLF001
    return nccl(store, rank, num_ranks, options)


_SIOCGIFADDR = 0x8915
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")


def interface_of(address: str) -> str | None:
    """Returns the interface of this machine that has an IP address; None if none is found. Linux only."""
    wanted = ipaddress.ip_address(address)
    if wanted.is_loopback:
        return "lo"
    if wanted.version == 6:
        lines = _IPV6_ADDRESSES.read_text().splitlines() if _IPV6_ADDRESSES.exists() else []
        return next((line.split()[-1] for line in lines if bytes.fromhex(line.split()[0]) == wanted.packed), None)
    return next((name for _, name in socket.if_nameindex() if _ipv4_address(name) == wanted.packed), None)


def _ipv4_address(interface: str) -> bytes | None:
    """Returns the interface's first IPv4 address, as `ioctl` writes it into a `struct ifreq` (netdevice(7))."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
    return answer[20:24]


class ParallelOps(OpsLayer):
    """A backend's operations on this rank's shard of the weights.

    Products with `hidden_size` outputs (row-parallel) are summed over the ranks; rank 0 adds the residual. All other
    products (column-parallel) give this rank's own heads and features. Only rank 0 needs logits.
    """

    def __init__(self, local: Ops, group: Group) -> None:
        super().__init__(local)
        self._group = group

    def linear_add(self, x: Tensor, linear: nn.Module, residual: Tensor | None) -> Tensor:
        return self._group.sum(self._local.linear_add(x, linear, residual if self._is_first else None))

    def norm_mlp_add(self, hidden: Tensor, norm: Norm, mlp: MLP, *, residual: bool = True) -> Tensor:
        return self._group.sum(self._local.norm_mlp_add(hidden, norm, mlp, residual=residual and self._is_first))

    def logits(self, hidden: Tensor, norm: Norm, head: nn.Module) -> Tensor:
        """Returns float32 [tokens, vocab_size] on rank 0 and an empty tensor on other ranks."""
        return self._local.logits(hidden, norm, head) if self._is_first else hidden.new_empty(0, 0).float()

    @property
    def _is_first(self) -> bool:
        return self._group.rank == 0


def share_outputs(
    keys: Sequence[bytes],
    own: Mapping[bytes, Tensor],
    group: Group,
    *,
    row_width: int,
    device: torch.device,
    dtype: torch.dtype,
) -> dict[bytes, Tensor]:
    """Returns the encoder outputs for all keys, each computed by one rank.

    Two all-reduces serve any number of media: one for the number of rows of each output, which only its owner knows,
    and one for the rows. All ranks but the owner contribute zeros, so the sums are exact.

    Args:
        keys: keys of the step's media, the same on all ranks.
        own: outputs of this rank, [rows, row_width] each.
        row_width: values of an encoder output for each placeholder token.
    """
    num_rows = torch.tensor([len(own[key]) if key in own else 0 for key in keys], device=device)
    lengths: list[int] = group.sum(num_rows).tolist()
    rows = torch.zeros(sum(lengths), row_width, device=device, dtype=dtype)
    outputs = dict(zip(keys, rows.split(lengths), strict=True))
    for key, output in own.items():
        outputs[key].copy_(output)
    group.sum(rows)
    # Copies: a view would keep the whole sum in memory until the last output is evicted.
    return {key: output.clone() for key, output in outputs.items()}
