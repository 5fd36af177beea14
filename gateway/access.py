"""Who may call: the origins of web pages, and the host names under which the gateway answers.

A web page can reach a server on its reader's machine: by a request that needs no preflight, or by a host name that its
owner lets resolve to 127.0.0.1 (DNS rebinding). `requests.lua` refuses both, with the values from here.
"""

import ipaddress
from collections.abc import Sequence
from typing import Any

from glimpse.gateway.address import Address

_LOCAL_ORIGINS = r"https?://(([\w-]+\.)*localhost|127\.0\.0\.1|\[::1\])(:\d+)?"
"""The default origins of web pages that may call the gateway: those of this machine."""

_APP_SCHEMES = (
    *("app", "capacitor", "file", "ionic", "tauri", "vscode-file", "vscode-webview"),
    *("chrome-extension", "moz-extension", "safari-web-extension"),
)
"""Schemes of origins of what its user has installed: applications with a web view, and extensions of browsers. No web
page has such an origin. That of a file in a browser is `null`, which any page can give to a frame: it is not here."""

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
"""Host names that no web page from elsewhere can have."""


def origin_matchers(listen: Address, origins: Sequence[str]) -> list[dict[str, Any]]:
    """Returns Envoy's matchers of allowed origins, for the CORS filter. Arguments as of `request_checks`."""
    if "*" in origins:
        return [{"safe_regex": {"regex": ".*"}}]
    if origins:
        return [{"exact": origin} for origin in origins]
    return [{"safe_regex": {"regex": _LOCAL_ORIGINS}}, *({"prefix": f"{each}://"} for each in _app_schemes(listen))]


def request_checks(listen: Address, *, origins: Sequence[str], hosts: Sequence[str]) -> dict[str, Any]:
    """Returns the values that `requests.lua` checks requests with.

    Args:
        listen: the address for clients.
        origins: the origins of web pages that may call; "*" allows all. Default: pages of this machine, and on a
            loopback address its applications too.
        hosts: host names under which the gateway answers, in addition to those of this machine. Default: no other on a
            loopback address, any on others.
    """
    checks: dict[str, Any] = {"any_origin": "*" in origins, "local_origins": not origins, "origins": list(origins)}
    checks["app_schemes"] = [] if origins else _app_schemes(listen)
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


def _app_schemes(listen: Address) -> list[str]:
    return list(_APP_SCHEMES) if is_loopback(listen.host) else []
