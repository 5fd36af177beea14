"""Messages between rank 0 and the other ranks, and their framing on a socket: an 8-byte length, then msgpack.

The socket is a Unix one within a machine and a TCP connection between nodes.

Unlike `engine.ipc.transport`, which connects the engine to a front end, this sets no limit on the length of a message:
both ends are the engine's own, and a step's plan may contain the pixels of several requests.
"""

import contextlib
import socket
import struct
from typing import Generic, TypeVar

import msgspec

from glimpse.engine.core.plan import StepPlan
from glimpse.engine.protocol.config import EngineConfig


class StoreAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where rank 0's TCP store listens, at which the ranks of several nodes meet."""

    host: str
    port: int


class Load(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """The first message to a rank: load your shard of this checkpoint."""

    config: EngineConfig
    """That of the rank's own node."""
    rank: int


class Join(msgspec.Struct, frozen=True, kw_only=True, tag="join"):
    """All ranks have loaded: join the group."""

    rendezvous: StoreAddress | str
    """See `glimpse.engine.worker.parallel.group.join_group`; a string is the path of a file."""
    address: str
    """The rank's own address in the group."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """What the rank has loaded does not fit what rank 0 has loaded; the rank exits."""

    message: str


class Execute(msgspec.Struct, frozen=True, kw_only=True, tag="execute"):
    """Execute this step together with all other ranks."""

    plan: StepPlan


ToRank = Load | Join | Refused | Execute


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


FromRank = Loaded | Joined | LoadFailed

_LENGTH = struct.Struct("<Q")

_encoder = msgspec.msgpack.Encoder()
_to_rank: msgspec.msgpack.Decoder[ToRank] = msgspec.msgpack.Decoder(ToRank)
_from_rank: msgspec.msgpack.Decoder[FromRank] = msgspec.msgpack.Decoder(FromRank)

_Sent = TypeVar("_Sent", ToRank, FromRank)
_Received = TypeVar("_Received", ToRank, FromRank)


class Pipe(Generic[_Sent, _Received]):
    """One end of the socket. One thread may send while another receives."""

    def __init__(self, connection: socket.socket, decoder: msgspec.msgpack.Decoder[_Received]) -> None:
        self._socket = connection
        self._file = connection.makefile("rb")
        self._decoder = decoder

    def send(self, message: _Sent) -> None:
        """Sends a message; blocks until the kernel has buffered it.

        Raises:
            OSError: the other end is closed.
        """
        data = _encoder.encode(message)
        self._socket.sendall(_LENGTH.pack(len(data)))
        self._socket.sendall(data)

    def receive(self) -> _Received | None:
        """Blocks until a message arrives and returns it, or None once the other end is closed."""
        with contextlib.suppress(OSError):  # the connection was reset, or the other host is out of reach
            length = self._file.read(_LENGTH.size)
            if len(length) == _LENGTH.size:
                (num_bytes,) = _LENGTH.unpack(length)
                data = self._file.read(num_bytes)
                if len(data) == num_bytes:
                    return self._decoder.decode(data)
        return None

    def shutdown(self) -> None:
        """Shuts the connection down at both ends, which also wakes a thread that waits in `receive`."""
        with contextlib.suppress(OSError):  # the other end is closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket. To be called by the receiving thread when it has finished."""
        self._file.close()
        self._socket.close()


def pipe_to_rank(connection: socket.socket) -> Pipe[ToRank, FromRank]:
    """Returns rank 0's end of the connection to another rank."""
    return Pipe(connection, _from_rank)


def pipe_to_rank_zero(connection: socket.socket) -> Pipe[FromRank, ToRank]:
    """Returns another rank's end of the connection to rank 0."""
    return Pipe(connection, _to_rank)
