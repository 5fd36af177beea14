"""Bounds on what a media server may send besides a file: headers, interim responses (1xx) and the framing of chunks.

HTTP's parser handles what one read of a socket returns without a pause, and interim responses and chunks of a byte take
it hundreds of times as long as the bytes of a file. So reads are short, and a fetch fails once too much is no file.
"""

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from aiohttp import StreamReader

OTHER_BYTES = 128 << 10
"""Certificates, headers and interim responses of a fetch, with all its redirects."""
_FILE_BYTES_PER_OTHER_BYTE = 8
"""In a body. The framing of chunks of 40 bytes takes one in eight."""
_MIN_READ_BYTES, _MAX_READ_BYTES = 1 << 10, 16 << 10
"""At a time: at most some fifty interim responses, or 200 chunks of a byte; more, the more of what comes is a file."""
_READ_BYTES_PER_RATIO = 256
"""Ratio of a file's bytes to others."""


class WireError(OSError):
    """A media server sends too much that is no file."""


class Wire:
    """Counts what arrives for one fetch, on all its connections."""

    def __init__(self) -> None:
        self.body: StreamReader | None = None
        """The body that arrives; None: headers do."""
        self._num_bytes = 0

    @property
    def max_read_bytes(self) -> int:
        """How much may be read at a time."""
        most = _READ_BYTES_PER_RATIO * self._file_bytes // max(self._other_bytes, 1)
        return min(max(most, _MIN_READ_BYTES), _MAX_READ_BYTES)

    def count(self, num_bytes: int) -> None:
        """Counts bytes that were read. Raises WireError."""
        self._num_bytes += num_bytes
        if self._other_bytes > OTHER_BYTES + self._file_bytes // _FILE_BYTES_PER_OTHER_BYTE:
            raise WireError

    @property
    def _other_bytes(self) -> int:
        return self._num_bytes - self._file_bytes

    @property
    def _file_bytes(self) -> int:
        return 0 if self.body is None else self.body.total_bytes


_NO_WIRE = Wire()
"""Counts of closed sockets."""


class WireSocket(socket.socket):
    """A socket whose reads are counted. An event loop reads with these two methods, TLS included."""

    def __init__(self, wire: Wire, family: int, kind: int, protocol: int) -> None:
        super().__init__(family, kind, protocol)
        self._wire = wire

    def close(self) -> None:
        """Closes as `socket.close`, and lets go of the fetch: asyncio's transports are cycles that keep the socket."""
        super().close()
        self._wire = _NO_WIRE

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """Reads as `socket.recv`. Raises WireError, as it may any OSError."""
        data = super().recv(min(bufsize, self._wire.max_read_bytes), flags)
        self._wire.count(len(data))
        return data

    def recv_into(self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0) -> int:
        """Reads as `socket.recv_into`. Raises WireError, as it may any OSError."""
        most = min(nbytes or memoryview(buffer).nbytes, self._wire.max_read_bytes)
        num_bytes = super().recv_into(buffer, most, flags)
        self._wire.count(num_bytes)
        return num_bytes
