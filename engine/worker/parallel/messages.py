"""Messages between rank 0 and the other ranks, over a Unix socket within a machine and TCP between nodes."""

import socket

import msgspec

from glimpse.engine.core.plan import StepPlan
from glimpse.engine.protocol.config import EngineConfig
from glimpse.frames import BlockingChannel, Frames


class RendezvousAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where rank 0's TCP store listens, at which the ranks of several nodes meet."""

    host: str
    port: int


class Load(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """The first message to a rank: load your shard of this checkpoint."""

    config: EngineConfig
    """Configuration of the rank's own node."""
    rank: int


class Join(msgspec.Struct, frozen=True, kw_only=True, tag="join"):
    """All ranks have loaded: join the group."""

    rendezvous: RendezvousAddress | str
    """See `glimpse.engine.worker.parallel.group.join_group`; a string is the path of a file."""
    address: str
    """The rank's own address in the group."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """What the rank has loaded does not fit what rank 0 has loaded; the rank exits."""

    message: str


class Execute(msgspec.Struct, frozen=True, kw_only=True, tag="execute"):
    """Execute this step together with all other ranks."""

    plan: StepPlan


class StageAdapter(msgspec.Struct, frozen=True, kw_only=True, tag="stage_adapter"):
    """Read a LoRA adapter beside steps. The reply is `AdapterStaged`."""

    name: str
    path: str


class PutAdapter(msgspec.Struct, frozen=True, kw_only=True, tag="put_adapter"):
    """Make the staged adapter usable in later steps; drop it if its digest is another one."""

    digest: bytes


class RemoveAdapter(msgspec.Struct, frozen=True, kw_only=True, tag="remove_adapter"):
    """Free an adapter that no later step has."""

    digest: bytes


ToRank = Load | Join | Refused | Execute | StageAdapter | PutAdapter | RemoveAdapter


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """The rank has loaded its shard and waits for the others."""

    device: str
    """Type of its device, such as "cuda"."""
    dtype: str
    quantization: str


class Joined(msgspec.Struct, frozen=True, kw_only=True, tag="joined"):
    """The rank is ready to execute steps."""


class LoadFailed(msgspec.Struct, frozen=True, kw_only=True, tag="load_failed"):
    """The checkpoint cannot be served; the rank exits after this message."""

    message: str


class AdapterStaged(msgspec.Struct, frozen=True, kw_only=True, tag="adapter_staged"):
    """The reply to `StageAdapter`."""

    digest: bytes = b""
    message: str = ""
    """Why the adapter cannot be loaded, if it cannot."""


FromRank = Loaded | Joined | LoadFailed | AdapterStaged

_MAX_BYTES = 0xFFFF_FFFF
"""The most that a frame can hold: both ends are the engine's own, and a plan may contain pixels of many requests."""
_TO_RANK = Frames[ToRank](ToRank, max_bytes=_MAX_BYTES)
_FROM_RANK = Frames[FromRank](FromRank, max_bytes=_MAX_BYTES)


def channel_to_rank(connection: socket.socket) -> BlockingChannel[ToRank, FromRank]:
    """Returns rank 0's end of the connection to another rank."""
    return BlockingChannel(connection, _FROM_RANK)


def channel_to_rank_zero(connection: socket.socket) -> BlockingChannel[FromRank, ToRank]:
    """Returns another rank's end of the connection to rank 0."""
    return BlockingChannel(connection, _TO_RANK)
