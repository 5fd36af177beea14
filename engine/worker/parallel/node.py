"""A node other than node 0: its ranks join node 0's engine, end with it, and join again when it is back.

The node connects to node 0 once for each of its ranks and hands the connection to the rank's process. It reads no step
itself. Its processes end with it: they hold its end of their standard input.
"""

import asyncio
import contextlib
import logging
import socket
import sys
from asyncio import FIRST_COMPLETED
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import Sequence
from typing import NoReturn

from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.worker.parallel.handshake import (
    CANNOT_SERVE,
    HANDSHAKE_SECONDS,
    REPLIES,
    Accepted,
    Denied,
    keep_alive,
    make_hello,
)
from glimpse.frames import framed

RANK_COMMAND = (sys.executable, "-m", "glimpse.engine.worker.rank")
RETRY_SECONDS = 1.0
"""Wait before node 0 is tried again."""
EXIT_SECONDS = 5.0
"""Time for the ranks to exit after the first of them has, before they are killed."""

_STDERR = 2

_log = logging.getLogger(__name__)


async def serve_node(config: EngineConfig, digest: str, *, command: Sequence[str] = RANK_COMMAND) -> NoReturn:
    """Computes for node 0 until it is cancelled. While node 0 is away, waits for it.

    Raises:
        CheckpointError: node 0 refuses this node, or a rank cannot serve the checkpoint.
    """
    while True:
        processes: list[Process] = []
        try:
            first = config.node_rank * config.num_local_ranks
            for rank in range(first, first + config.num_local_ranks):
                connection = await _join(config, digest, rank)
                processes.append(await _start(command, connection))
            _log.info("%d ranks of node %d compute for node 0", len(processes), config.node_rank)
            await asyncio.wait([asyncio.create_task(each.wait()) for each in processes], return_when=FIRST_COMPLETED)
            await _wait(processes)
        finally:
            await asyncio.shield(_kill(processes))
        if CANNOT_SERVE in [process.returncode for process in processes]:
            raise CheckpointError(f"a rank of node {config.node_rank} cannot compute with node 0: its log says why")
        _log.warning("the ranks of node %d have ended, or node 0 has; they join again", config.node_rank)
        await asyncio.sleep(RETRY_SECONDS)


async def _wait(processes: Sequence[Process]) -> None:
    """Waits until all processes have exited, for a bounded time: all notice that node 0 has ended the others."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(EXIT_SECONDS):
            await asyncio.gather(*(process.wait() for process in processes))


async def _kill(processes: Sequence[Process]) -> None:
    for process in processes:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _start(command: Sequence[str], connection: socket.socket) -> Process:
    """Starts a rank, which becomes the owner of the connection."""
    with connection:
        fd = connection.fileno()
        return await create_subprocess_exec(
            *command,
            *("--fd", str(fd), "--end-with-stdin"),
            pass_fds=[fd],
            stdin=PIPE,
            stdout=_STDERR,
            start_new_session=True,  # Ctrl-C in a terminal reaches the node alone, which ends its ranks
        )


async def _join(config: EngineConfig, digest: str, rank: int) -> socket.socket:
    """Returns a connection to node 0 that has accepted the rank. Tries until it has.

    Raises:
        CheckpointError: node 0 refuses this node.
    """
    logged = ""
    while True:
        try:
            reason = ""
            connection = await _connect(config)
            try:
                # Not `wait_for`, which in Python 3.11 loses a cancellation at the moment of the reply.
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    reply = await _greet(connection, config, digest, rank)
                match reply:
                    case Accepted():
                        connection.setblocking(True)  # the rank's process shares this state
                        return connection
                    case Denied(message=message, is_final=True):
                        raise CheckpointError(f"node 0 refuses this node: {message}")
                    case Denied(message=message):
                        reason = message
            except BaseException:
                connection.close()
                raise
            connection.close()
        except (OSError, ValueError) as error:
            reason = str(error) or type(error).__name__
        if reason != logged:
            _log.info("node %d waits for node 0 at %s:%d: %s", config.node_rank, *_target(config), reason)
            logged = reason
        await asyncio.sleep(RETRY_SECONDS)


def _target(config: EngineConfig) -> tuple[str, int]:
    assert config.master_addr is not None  # `EngineOptions.why_not_together` says so
    return config.master_addr, config.master_port


async def _connect(config: EngineConfig) -> socket.socket:
    loop = asyncio.get_running_loop()
    host, port = _target(config)
    family, kind, protocol, _, address = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
    connection = socket.socket(family, kind, protocol)
    try:
        connection.setblocking(False)
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            await loop.sock_connect(connection, address)
        keep_alive(connection)
    except BaseException:
        connection.close()
        raise
    return connection


async def _greet(connection: socket.socket, config: EngineConfig, digest: str, rank: int) -> Accepted | Denied:
    loop = asyncio.get_running_loop()
    hello = make_hello(config, digest, rank=rank, address=connection.getsockname()[0])
    await loop.sock_sendall(connection, framed(hello))
    reply = await REPLIES.receive(connection)
    if reply is None:
        raise ConnectionResetError("it closed the connection")
    return reply
