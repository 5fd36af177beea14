"""What rank 0 and another rank say to each other, and their Unix socket: a length in eight bytes, then msgpack.

Apart from `engine.ipc.transport`, which speaks with a front end: nothing here limits a message's length, for both ends
are the engine's own and a step's plan may bring the pixels of several requests.
"""

import contextlib
import socket
import struct
from typing import Generic, TypeVar

import msgspec

from glimpse.engine.config import EngineConfig
from glimpse.engine.plan import StepPlan


class Load(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """The first message to a rank: load your part of this checkpoint, then join the others."""

    config: EngineConfig
    rank: int
    meeting_point: str
    """See `glimpse.engine.parallel.group.join_group`."""


class Execute(msgspec.Struct, frozen=True, kw_only=True, tag="carry"):
    """Execute this step out, with all other ranks."""

    plan: StepPlan


ToRank = Load | Execute


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """The rank's part is in memory; it waits for the others to join."""


class Joined(msgspec.Struct, frozen=True, kw_only=True, tag="joined"):
    """The rank waits for steps."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The checkpoint cannot be served; the rank ends after this."""

    message: str


FromRank = Loaded | Joined | Refused

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
        """Blocks until the kernel has taken the message.

        Raises:
            OSError: the other end is gone.
        """
        data = _encoder.encode(message)
        self._socket.sendall(_LENGTH.pack(len(data)))
        self._socket.sendall(data)

    def receive(self) -> _Received | None:
        """Blocks until a message is there; None once the other end is gone."""
        with contextlib.suppress(ConnectionError):
            length = self._file.read(_LENGTH.size)
            if len(length) == _LENGTH.size:
                (num_bytes,) = _LENGTH.unpack(length)
                data = self._file.read(num_bytes)
                if len(data) == num_bytes:
                    return self._decoder.decode(data)
        return None

    def shutdown(self) -> None:
        """Ends the conversation for both, also where a thread waits in `receive`."""
        with contextlib.suppress(OSError):  # the other end is gone already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Gives the socket back. For the thread that receives, when it does no more."""
        self._file.close()
        self._socket.close()


def pipe_to_rank(connection: socket.socket) -> Pipe[ToRank, FromRank]:
    """Rank 0's end."""
    return Pipe(connection, _from_rank)


def pipe_to_rank_zero(connection: socket.socket) -> Pipe[FromRank, ToRank]:
    """Another rank's end."""
    return Pipe(connection, _to_rank)
