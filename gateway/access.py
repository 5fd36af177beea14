"""Who may call: the origins of web pages, and the host names under which the gateway answers.

A web page can reach a server on its reader's machine: by a request that needs no preflight, or by a host name that its
owner lets resolve to 127.0.0.1 (DNS rebinding). `requests.lua` refuses both, with the values from here.
"""

import ipaddress
from collections.abc import Sequence
from typing import Any

from glimpse.gateway.address import Address

LOCAL_ORIGINS = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"
"""The default origins of web pages that may call the gateway: those of this machine."""

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
"""Host names that no web page from elsewhere can have."""


def origin_matchers(origins: Sequence[str]) -> list[dict[str, Any]]:
    """Returns Envoy's matchers of allowed origins, for the CORS filter."""
    if "*" in origins:
        return [{"safe_regex": {"regex": ".*"}}]
    return [{"exact": origin} for origin in origins] or [{"safe_regex": {"regex": LOCAL_ORIGINS}}]


def request_checks(listen: Address, *, origins: Sequence[str], hosts: Sequence[str]) -> dict[str, Any]:
    """Returns the values that `requests.lua` checks requests with.

    Args:
        listen: the address for clients.
        origins: the origins of web pages that may call; "*" allows all. Default: pages of this machine.
        hosts: host names under which the gateway answers, in addition to those of this machine. Default: no other on a
            loopback address, any on others.
    """
    checks: dict[str, Any] = {"any_origin": "*" in origins, "local_origins": not origins, "origins": list(origins)}
    if hosts or is_loopback(listen.host):
        own = f"[{listen.host}]" if ":" in listen.host else listen.host
        checks["hosts"] = sorted({name.lower() for name in (*LOCAL_HOSTS, own, *hosts)})
    return checks


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to a listener on this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
