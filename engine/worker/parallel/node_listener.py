"""Where node 0 waits for the ranks of the other nodes. It listens on its own address until all of them have joined."""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.worker.parallel.handshake import (
    HANDSHAKE_SECONDS,
    HELLOS,
    Accepted,
    Denied,
    Hello,
    find_difference,
    keep_alive,
    make_hello,
)
from glimpse.frames import framed

OnRank = Callable[[Hello, EngineConfig, socket.socket], None]
"""Called with what an accepted rank said, its node's configuration, and the connection, whose owner it becomes."""

MAX_GREETED = 16
"""Connections that are greeted at the same time."""

_log = logging.getLogger(__name__)


class NodeListener:
    """Accepts each rank of the other nodes once."""

    def __init__(self, config: EngineConfig, digest: str) -> None:
        """Starts to listen.

        Raises:
            CheckpointError: `--master-addr` is not an address of this machine, or the port is taken.
        """
        self._socket = _listen(config)
        self.address: str = self._socket.getsockname()[0]
        self._hello = make_hello(config, digest, rank=0, address=self.address)
        self._missing = set(range(config.num_local_ranks, config.tensor_parallel_size))
        self._lock = threading.Lock()

    def accept_all(self, on_rank: OnRank) -> None:
        """Accepts ranks until none is missing, then closes. Refuses nodes that do not fit, and goes on waiting.

        Connections are greeted beside each other, so that one that says nothing delays no node. Returns early if
        `close` is called from another thread.
        """
        with ThreadPoolExecutor(MAX_GREETED, "greeting") as greeting, contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                greeting.submit(self._greet, connection, on_rank)

    def close(self) -> None:
        """Stops listening."""
        with contextlib.suppress(OSError):  # it is closed already
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread in `accept_all`, unlike `close`
        self._socket.close()

    def _greet(self, connection: socket.socket, on_rank: OnRank) -> None:
        try:
            self._answer(connection, on_rank)
        except (OSError, ValueError, msgspec.ValidationError) as error:
            connection.close()
            _log.warning("a connection to --master-port is closed, it is none of a node: %s", error)

    def _answer(self, connection: socket.socket, on_rank: OnRank) -> None:
        connection.settimeout(HANDSHAKE_SECONDS)
        hello = HELLOS.read(connection)
        if hello is None:
            raise ConnectionResetError("it was closed during the handshake")
        if (difference := find_difference(self._hello, hello)) is not None:
            _log.error("%s is refused: %s", hello.node, difference)
            reply = Denied(message=difference, is_final=True)
        elif not self._accept(hello, connection, on_rank):
            reply = Denied(message=f"rank {hello.rank} has joined already", is_final=False)
        else:
            return
        connection.sendall(framed(reply))
        connection.close()

    def _accept(self, hello: Hello, connection: socket.socket, on_rank: OnRank) -> bool:
        """Accepts a rank that is missing, after the last one closes. Returns False for one that has joined."""
        config = msgspec.convert(hello.config, EngineConfig)
        with self._lock:
            if hello.rank not in self._missing:
                return False
            connection.sendall(framed(Accepted()))
            connection.settimeout(None)
            keep_alive(connection)
            self._missing.remove(hello.rank)
            _log.info("rank %d of %s has joined; %d are missing", hello.rank, hello.node, len(self._missing))
            on_rank(hello, config, connection)
            if not self._missing:
                self.close()
        return True


def _listen(config: EngineConfig) -> socket.socket:
    assert config.master_addr is not None  # `EngineOptions.why_not_together` says so
    try:
        family, _, _, _, address = socket.getaddrinfo(
            config.master_addr, config.master_port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(address[:2], family=family)  # pyright: ignore[reportArgumentType]
    except OSError as error:
        raise CheckpointError(
            f"'--master-addr': expected an address of this machine, which is node 0, with port {config.master_port}"
            f" free, got {config.master_addr}: {error.strerror}"
        ) from error
    if listener.getsockname()[0] in ("0.0.0.0", "::"):  # noqa: S104 - it is refused
        listener.close()
        raise CheckpointError(
            f"'--master-addr': expected an address that other nodes can reach, got {config.master_addr}"
        )
    _log.info("node 0 waits for %d other nodes at %s:%d", config.nnodes - 1, config.master_addr, config.master_port)
    return listener
