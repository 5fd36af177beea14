"""Names of hosts that lead where no name should, without asking any name server."""

import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from glimpse.media.sources import fetch
from glimpse.media.sources.dns import DnsResolver

HOST = "127.0.0.2"
"""Where the suite's own web server is. Linux has all of 127.0.0.0/8; the other addresses must not be reached."""

ANSWERS: dict[str, list[list[str]]] = {
    # What a name's successive lookups find; the last stays.
    "good.hostile": [[HOST]],
    "rebinding.hostile": [[HOST], ["127.0.0.1"]],
    "rebinding-to-metadata.hostile": [[HOST], ["169.254.169.254"]],
    "loopback.hostile": [["127.0.0.1"]],
    "private.hostile": [["10.1.2.3"]],
    "metadata.hostile": [["169.254.169.254"]],
    "mapped.hostile": [["::ffff:127.0.0.1"]],
    "nat64.hostile": [["64:ff9b::7f00:1"]],
    "all-private.hostile": [["10.1.2.3", "192.168.1.1", "fd00::1", "127.0.0.1"]],
    "no-address.hostile": [["169.254.169.254%eth0"]],
    "xn--rtlich-vxa.hostile": [["127.0.0.1"]],
}


class Zone(AbstractResolver):
    """Answers for .hostile by the table, and for all other hosts only if they are numbers, or this host's own names."""

    def __init__(self) -> None:
        self._num_lookups: dict[str, int] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        if not host.rstrip(".").endswith(".hostile"):
            if not _is_local(host):
                raise OSError("nobody is asked")
            return await DnsResolver().resolve(host, port, family)
        answers = ANSWERS.get(host)
        if answers is None:
            raise OSError("no such name")
        num_lookups = self._num_lookups.get(host, 0)
        self._num_lookups[host] = num_lookups + 1
        return [_result(host, address, port) for address in answers[min(num_lookups, len(answers) - 1)]]

    async def close(self) -> None:
        pass


def install() -> None:
    """Lets this process find hosts in this way. Each fetch begins with the first answers."""
    fetch.DnsResolver = Zone  # pyright: ignore[reportAttributeAccessIssue] - finds hosts as the other does


def _is_local(host: str) -> bool:
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
    except OSError:
        return False
    return True


def _result(host: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST)
