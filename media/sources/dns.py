"""DNS resolver that uses the operating system. `glimpse.media.sources.policy` decides which addresses are allowed.

A lookup blocks its thread, for up to half a minute if a client picks a slow name server, even if nobody waits for it.
Lookups have threads of their own, more of them than fetches of images with slow names can hold: 64 at a time, of all
clients, each for six time-outs of 5 s.
"""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from aiohttp.abc import AbstractResolver, ResolveResult

_LOOKUPS = ThreadPoolExecutor(512, thread_name_prefix="dns")
"""Shared by all event loops, like the operating system's resolver."""


class DnsResolver(AbstractResolver):
    """Resolves host names in threads."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Returns the addresses of a host. Raises OSError if there are none."""
        look_up = partial(
            socket.getaddrinfo, host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )
        found = await asyncio.get_running_loop().run_in_executor(_LOOKUPS, look_up)
        return [
            # A scoped IPv6 address has four parts and is link-local: without its scope it is unreachable.
            ResolveResult(
                hostname=host, host=str(address[0]), port=port, family=kind, proto=protocol, flags=socket.AI_NUMERICHOST
            )
            for kind, _, protocol, _, address in found
            if kind in (socket.AF_INET, socket.AF_INET6)
        ]

    async def close(self) -> None:
        """Does nothing: the threads are shared."""
