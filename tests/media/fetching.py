"""Fetching as the tests do it: from their own server on loopback, with names that lead where they say."""

import socket
from ipaddress import ip_network
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from glimpse.media.errors import MediaError
from glimpse.media.sources.fetch import fetch
from glimpse.media.sources.policy import FetchPolicy

OURS = FetchPolicy(allowed_networks=(ip_network("127.0.0.1/32"),), allowed_ports=None)
"""Allows the tests' own server, and no other address of loopback."""


class DnsResolver(AbstractResolver):
    """Answers each lookup of any name with the next of these, addresses or an error; the last one stays."""

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
    policy: FetchPolicy = OURS,
    *,
    resolver: AbstractResolver | None = None,
    max_bytes: int = 1000,
    timeout_seconds: float = 20,
) -> bytes:
    fetched = await fetch(
        URL(url), policy=policy, max_bytes=max_bytes, timeout_seconds=timeout_seconds, resolver=resolver
    )
    return fetched.data


async def refusal(url: str, policy: FetchPolicy = OURS, **options: Any) -> MediaError:
    with pytest.raises(MediaError) as caught:
        await get(url, policy, **options)
    return caught.value
