"""The handshake between nodes: a rank of another node is accepted if its node was told what node 0 was told.

Nothing here authenticates or encrypts: the network between the nodes must be trusted, as gloo and NCCL require anyway.
"""

import socket
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import msgspec

from glimpse import __version__
from glimpse.engine.protocol.config import EngineConfig
from glimpse.frames import Frames

HANDSHAKE_SECONDS = 5.0
"""Time limit for each side's message."""
CANNOT_SERVE = 3
"""Exit status of a rank that cannot compute what the others do. Another try would not help."""

LOCAL_OPTIONS = frozenset(
    {
        "companions",
        "cpu_level",
        "gpu_memory_utilization",
        "kv_cache_bytes",
        "master_addr",
        "master_port",
        "model_path",
        "node_rank",
        "num_threads",
        "numa_node",
    }
)
"""Options in which nodes may differ. All others must be equal."""

_MAX_BYTES = 1 << 20
_KEEPALIVE: Mapping[str, int] = {
    "TCP_KEEPIDLE": 10,  # seconds without traffic
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 25_000,  # milliseconds, for sent data
}
"""A host that vanishes without a word is noticed after 25 seconds."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """What a rank of another node says first. Plain values, which other versions of Glimpse can read."""

    glimpse: str
    """Version."""
    torch: str
    """Version."""
    digest: str
    """Digest of the checkpoint; see `weight_files.checkpoint_digest`."""
    rank: int
    address: str
    """Address of the rank's node, as node 0 sees it in the connection."""
    config: dict[str, Any]
    """The node's `EngineConfig`."""

    @property
    def node(self) -> str:
        """What the node is called in messages."""
        return f"node {self.config.get('node_rank')} at {self.address}"


class Accepted(msgspec.Struct, frozen=True, kw_only=True, tag="accepted"):
    """The connection is now the pipe of a rank; its first message is `Load`."""


class Denied(msgspec.Struct, frozen=True, kw_only=True, tag="denied"):
    """The node does not fit, or not now."""

    message: str
    is_final: bool
    """Trying again does not help."""


Reply = Accepted | Denied

HELLOS = Frames[Hello](Hello, max_bytes=_MAX_BYTES)
REPLIES = Frames[Reply](Reply, max_bytes=_MAX_BYTES)


def make_hello(config: EngineConfig, digest: str, *, rank: int, address: str) -> Hello:
    """Returns the first message of a rank of this node."""
    return Hello(
        glimpse=__version__,
        torch=version("torch"),
        digest=digest,
        rank=rank,
        address=address,
        config=asdict(config),
    )


def find_difference(ours: Hello, theirs: Hello) -> str | None:
    """Returns in what another node differs from node 0, in a way that cannot work; None if in nothing.

    Args:
        ours: what node 0 would say.
        theirs: what a rank of the other node says.
    """
    for name in ("glimpse", "torch"):
        expected, found = getattr(ours, name), getattr(theirs, name)
        if expected != found:
            return f"{name}: expected version {expected}, which node 0 has, got {found}"
    for name, expected in ours.config.items():
        found = theirs.config.get(name)
        if name not in LOCAL_OPTIONS and found != expected:
            return f"'--{name.replace('_', '-')}': expected {expected}, which node 0 has, got {found}"
    if ours.digest != theirs.digest:
        return "'--model': expected the checkpoint that node 0 has, got files with other contents"
    num_local, node_rank = ours.config["tensor_parallel_size"] // ours.config["nnodes"], theirs.config.get("node_rank")
    if theirs.rank < num_local or node_rank != theirs.rank // num_local:
        return f"'--node-rank': expected that of another node than 0, got {node_rank} with rank {theirs.rank}"
    return None


def keep_alive(connection: socket.socket) -> None:
    """Makes a TCP connection end when the other host vanishes, and send small messages at once."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:  # some are Linux's
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
