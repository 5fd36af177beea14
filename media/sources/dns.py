"""Host names → addresses, by the operating system's resolver. Judges no address: `glimpse.media.sources.policy` does.

A lookup blocks its thread, for half a minute where a stranger's name server is made to be slow. Here it is a thread
that does nothing else, so that such names hold up other lookups at most, and nothing else that is done in threads.
"""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from aiohttp.abc import AbstractResolver, ResolveResult

_LOOKUPS = ThreadPoolExecutor(16, thread_name_prefix="names")
"""For all event loops, as the operating system's resolver is one for all."""


class DnsResolver(AbstractResolver):
    """Looks names up."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Raises OSError for a name that leads nowhere."""
        look_up = partial(
            socket.getaddrinfo, host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )
        found = await asyncio.get_running_loop().run_in_executor(_LOOKUPS, look_up)
        return [
            # An IPv6 address with a scope has four parts, and is link-local: without its scope it leads nowhere.
            ResolveResult(
                hostname=host, host=str(address[0]), port=port, family=kind, proto=protocol, flags=socket.AI_NUMERICHOST
            )
            for kind, _, protocol, _, address in found
            if kind in (socket.AF_INET, socket.AF_INET6)
        ]

    async def close(self) -> None:
        """Does nothing: the threads are everyone's."""
