"""Ports that are free, and ports on which several processes listen: the kernel spreads connections among them
(SO_REUSEPORT).

The supervisor keeps such a port bound without listening on it, so that no other program takes it while a front end is
being restarted.
"""

import socket
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager


@contextmanager
def reserved_port(host: str, port: int) -> Generator[int]:
    """Keeps a port of one host for the block, which gets its number; 0 takes a free one.

    Raises:
        OSError: it is taken or not permitted.
    """
    addresses = _addresses(host)
    for _, name in addresses:  # another program that listens there would share a reusable port without a word
        free_port(name, port)
    with ExitStack() as sockets:
        for family, name in addresses:
            held = sockets.enter_context(socket.socket(family))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind((name, port))
            # It was for connections that are still closing. Left on, the next check would find the port free.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            port = held.getsockname()[1]
        yield port


def _addresses(host: str) -> Sequence[tuple[socket.AddressFamily, str]]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [(family, str(name[0])) for family, _, _, _, name in found]


def free_port(host: str, port: int) -> int:
    """Returns the port, or one that is free for 0. Raises OSError if nobody can listen on it now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return probe.getsockname()[1]
