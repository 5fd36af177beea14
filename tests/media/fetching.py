"""Fetching in tests: from a server on loopback, with a scripted DNS resolver."""

import socket
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from glimpse.media.errors import MediaError
from glimpse.media.sources.fetch import fetch
from glimpse.media.sources.policy import FetchPolicy

LOOPBACK_ONLY = FetchPolicy(allowed_networks=("127.0.0.1/32",), allowed_ports=None)
"""Allows the tests' server but no other address of loopback."""


class DnsResolver(AbstractResolver):
    """Returns the next answer (addresses or an error) for each lookup of any name; the last one repeats."""

    def __init__(self, *answers: list[str] | OSError) -> None:
        self.answers = list(answers)
        self.num_lookups = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.num_lookups += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return [_result(host, address, port) for address in answer]

    async def close(self) -> None:
        pass


def _result(host: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST)


async def get(
    url: str,
    policy: FetchPolicy = LOOPBACK_ONLY,
    *,
    resolver: AbstractResolver | None = None,
    max_bytes: int = 1000,
    timeout_seconds: float = 20,
) -> bytes:
    fetched = await fetch(
        URL(url), policy=policy, max_bytes=max_bytes, timeout_seconds=timeout_seconds, resolver=resolver
    )
    return fetched.data


async def refusal(url: str, policy: FetchPolicy = LOOPBACK_ONLY, **options: Any) -> MediaError:
    with pytest.raises(MediaError) as caught:
        await get(url, policy, **options)
    return caught.value
