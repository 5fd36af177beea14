"""A scripted DNS zone of hostile host names. No name server is asked."""

import socket
import sys

from aiohttp.abc import AbstractResolver, ResolveResult

from glimpse.media.sources import fetch, fetcher
from glimpse.media.sources.dns import DnsResolver

HOST = "127.0.0.2"
"""The address of the suite's web server. The rest of 127.0.0.0/8 is loopback too, but must not be reached."""

ANSWERS: dict[str, list[list[str]]] = {
    # The results of a name's successive lookups; the last one repeats.
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


_FETCHER = """
from glimpse.media.sources.fetch_worker import main
from tests.hostile.zone import install
install(); main()
"""


class Zone(AbstractResolver):
    """Resolves .hostile names by the table, and other hosts only if they are IP addresses or localhost."""

    def __init__(self) -> None:
        self._num_lookups: dict[str, int] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        if not host.rstrip(".").endswith(".hostile"):
            if not _is_local(host):
                raise OSError("not a name of this zone")
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
    """Replaces the DNS resolver of this process and of its fetcher. Each fetch starts with the first answers."""
    fetch.DnsResolver = Zone  # pyright: ignore[reportAttributeAccessIssue] - the same interface
    fetcher.FETCHER_COMMAND = (sys.executable, "-c", _FETCHER)


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
